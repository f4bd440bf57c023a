package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// A server is the state behind one Serve.
type server struct {
	o      Options
	rw     io.ReadWriteCloser
	calls  sync.WaitGroup // those in processes of their own
	tools  crew           // those in this one
	slots  chan struct{}
	budget atomic.Int64

	mu      sync.Mutex // guards current and epoch
	current *session
	epoch   string

	wmu sync.Mutex // held for each write to rw
}

// A session is what happens between two preambles.
type session struct {
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	live   map[string]bool // command ids in flight
}

// handle acts on what the scanner found.
func (s *server) handle(ctx context.Context, e event) {
	switch {
	case e.session != nil:
		s.open(ctx, *e.session)
	case e.frame != nil:
		s.message(e.frame)
	case e.code == CodeFrameTooLarge:
		s.event(e.code, fmt.Sprintf("frame announces more than %d bytes; waiting for the next session", wire.MaxFrame))
	case e.code != "":
		s.event(e.code, "frame of length zero")
	}
}

// open begins a session: the calls of the last one are killed, its results are
// dropped, and the preamble is echoed with the hello.
func (s *server) open(ctx context.Context, n wire.Nonce) {
	ctx, cancel := context.WithCancel(ctx)
	sess := &session{ctx: ctx, cancel: cancel, live: map[string]bool{}}
	s.replace(sess)
	hello, err := wire.EncodeFrame(&wire.Hello{Type: wire.TypeHello, Version: 1, AgentSHA256: s.o.Digest, PID: os.Getpid(),
		VM: s.o.VM, Arch: runtime.GOARCH, BootID: s.o.BootID, Epoch: s.readEpoch(), Tools: s.o.Table.Names()})
	if err != nil {
		return
	}
	s.write(sess, append(wire.Preamble(n), hello...))
}

// replace makes next the current session and ends the one before.
func (s *server) replace(next *session) {
	s.mu.Lock()
	last := s.current
	s.current = next
	s.mu.Unlock()
	if last != nil {
		last.cancel()
	}
}

func (s *server) session() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

func (s *server) readEpoch() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// write sends b if sess is still the current session. A failed write needs no
// handling here: the reader sees the stream end as well.
func (s *server) write(sess *session, b []byte) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if sess != nil && s.session() == sess {
		_, _ = s.rw.Write(b)
	}
}

func (s *server) send(sess *session, m any) {
	if framed, err := wire.EncodeFrame(m); err == nil {
		s.write(sess, framed)
	}
}

func (s *server) event(code, message string) {
	s.send(s.session(), &wire.ErrorEvent{Type: wire.TypeErrorEvent, Code: code, Message: message})
}

// message acts on one frame of the current session.
func (s *server) message(body []byte) {
	sess := s.session()
	if sess == nil {
		return
	}
	m, err := wire.Decode(body)
	if err != nil {
		s.event(CodeMalformed, err.Error())
		return
	}
	switch m := m.(type) {
	case *wire.ToolDispatch:
		s.dispatch(sess, m)
	case *wire.GuestQuery:
		s.query(sess, m)
	case *wire.ResetSignal:
		s.reset(sess, m)
	default:
		s.event(CodeProtocol, "the agent does not accept a message of this type")
	}
}

// query answers a question about the agent's world.
func (s *server) query(sess *session, q *wire.GuestQuery) {
	if len(q.QueryID) > maxID {
		s.event(CodeMalformed, "query_id is too long")
		return
	}
	result, err := s.answer(q.QueryKind)
	if err != nil {
		s.event(CodeProtocol, err.Error())
		return
	}
	raw, err := wire.Encode(result)
	if err != nil {
		s.event(CodeProtocol, "query result cannot be encoded")
		return
	}
	s.send(sess, &wire.GuestResponse{Type: wire.TypeGuestResponse, QueryID: q.QueryID, Result: raw})
}

func (s *server) answer(kind string) (any, error) {
	if kind == wire.QueryEpoch {
		return &wire.Epoch{Epoch: s.readEpoch()}, nil
	}
	if s.o.World == nil {
		return nil, errors.New("this agent answers no queries about its world")
	}
	switch kind {
	case wire.QueryOpenFDCount:
		n, err := s.o.World.OpenFDCount()
		return &wire.OpenFDCount{Count: n}, err
	case wire.QueryMemUsage:
		return s.o.World.MemUsage()
	case wire.QueryProcessList:
		return s.o.World.Processes(wire.MaxProcesses)
	}
	return nil, errors.New("unknown query_kind")
}

// reset stores the new epoch and has the world apply the rest.
func (s *server) reset(sess *session, sig *wire.ResetSignal) {
	s.mu.Lock()
	if sig.Epoch != "" {
		s.epoch = sig.Epoch
	}
	epoch := s.epoch
	s.mu.Unlock()
	var applied []string
	if s.o.World != nil {
		var err error
		if applied, err = s.o.World.Reset(*sig); err != nil {
			s.event(CodeProtocol, err.Error())
		}
	}
	s.send(sess, &wire.ResetAck{Type: wire.TypeResetAck, Epoch: epoch, Applied: applied})
}
