// Package agent is the serve loop of bsm-agent: the half of the protocol that
// runs inside the sandbox.
//
// It reads a stream on which a session may begin anywhere, answers every
// dispatch, and survives whatever the other side sends: a bad message costs an
// ErrorEvent, a bad frame costs the rest of its session, nothing ends the agent.
//
// The package links no attack and starts no process itself. cmd/bsm-agent gives
// it a tool table and, from package proc, the function that runs a tool in a
// process tree of its own; the mock backend gives it tools that run in process.
package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// A Tool is one entry of the agent's table.
type Tool struct {
	Run wire.ToolFunc
	// Channel gives the tool the raw message channel. Only the tool that
	// poisons the channel on purpose has it.
	Channel bool
	// InProcess runs the tool as a goroutine of the agent instead of in a
	// process of its own. Such a tool must honour its context.
	InProcess bool
}

// Tools is what an agent looks tools up in.
type Tools interface {
	// Tool returns the tool of that name, and false when there is none.
	Tool(name string) (Tool, bool)
	// Names lists all tools in order. The caller does not change the list.
	Names() []string
}

// Table is the agent's tools by name.
type Table map[string]Tool

// Tool looks a tool up.
func (t Table) Tool(name string) (Tool, bool) {
	tool, ok := t[name]
	return tool, ok
}

// Names lists the tools in order.
func (t Table) Names() []string {
	names := slices.AppendSeq(make([]string, 0, len(t)), maps.Keys(t))
	slices.Sort(names)
	return names
}

// A Call is one run of a tool in a process of its own.
type Call struct {
	Name     string
	Params   json.RawMessage
	Deadline time.Duration
	Stdout   io.Writer
	Stderr   io.Writer
	// Channel is the raw message channel, nil for all tools but the poisoner.
	Channel io.Writer
	// KeepTree is the deliberate leak: nothing is killed, not at the deadline
	// and not after the tool's own end.
	KeepTree bool
}

// Exit says how a Call ended.
type Exit struct {
	Code int
	// TimedOut says that the deadline passed. Unless the call keeps its tree,
	// every process of it is known to be dead.
	TimedOut bool
}

// A SpawnFunc runs a call in a process tree of its own and returns when the
// whole tree is dead, having copied all output. When ctx ends it kills the tree
// and returns ctx's error. Any other error says that the tool was not started.
type SpawnFunc func(ctx context.Context, c Call) (Exit, error)

// A World answers the host's questions about what is around the agent.
type World interface {
	// OpenFDCount counts the agent's open file descriptors without sockets and
	// without those of calls in flight.
	OpenFDCount() (int, error)
	MemUsage() (wire.MemUsage, error)
	// Processes lists at most limit processes.
	Processes(limit int) (wire.ProcessList, error)
	// Reset applies what a reset signal carries and says what it applied.
	Reset(s wire.ResetSignal) (applied []string, err error)
}

// Options configure Serve.
type Options struct {
	Table Tools
	// Digest is the SHA-256 of the agent's own executable in lower-case hex.
	Digest string
	// VM says that the agent is in VM mode. See package vm.
	VM bool
	// BootID is the kernel's boot id, empty when unknown.
	BootID string
	// Epoch is the first epoch; empty means a random one.
	Epoch string
	// OutputCap is how much of each output stream of a call is sent, in bytes.
	// Zero means DefaultOutputCap, which is also the most that fits a frame.
	OutputCap int
	// KeepTree is the deliberate leak of the time bomb class: a call is
	// answered at its deadline and nothing is killed.
	KeepTree bool
	// FrameTimeout bounds a frame from its first byte to its last. Zero means
	// wire.DefaultFrameTimeout.
	FrameTimeout time.Duration
	// MaxCalls bounds the calls in flight. Zero means DefaultMaxCalls.
	MaxCalls int
	// Spawn runs the tools that are not InProcess. When it is nil every tool
	// runs in process.
	Spawn SpawnFunc
	// World answers queries. When it is nil they are refused.
	World World
}

const (
	// DefaultOutputCap is how much of one stream a result carries. Two such
	// streams fit a frame in base64.
	DefaultOutputCap = 4 << 20
	// DefaultMaxCalls bounds the calls in flight.
	DefaultMaxCalls = 64
	// outputBudget bounds the output that all calls in flight hold together;
	// what is over it is cut as if it were over the cap.
	outputBudget = 64 << 20
	// maxDeadline bounds what a dispatch may ask for.
	maxDeadline = 24 * time.Hour
	// maxID bounds a command id or a query id, in bytes.
	maxID = 256
)

// The codes that the agent puts into an ErrorEvent. Package backends has the
// same strings; a test compares them.
const (
	CodeFrameTooLarge = "SANDBOX_VSOCK_FRAME_TOO_LARGE"
	CodeMalformed     = "SANDBOX_VSOCK_FRAME_MALFORMED"
	CodePartialFrame  = "SANDBOX_VSOCK_PARTIAL_FRAME_TIMEOUT"
	CodeDuplicate     = "SANDBOX_VSOCK_DUPLICATE_REQUEST"
	CodeProtocol      = "SANDBOX_VSOCK_PROTOCOL_ERROR"
)

// Serve serves sessions on rw until the stream ends or ctx does. Before it
// returns it has killed the trees of all calls in flight and closed rw. The end
// of the stream is not an error.
func Serve(ctx context.Context, rw io.ReadWriteCloser, o Options) error {
	o = withDefaults(o)
	// Closing is what wakes a blocked read or write when ctx ends.
	stop := context.AfterFunc(ctx, func() { _ = rw.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{o: o, rw: rw, epoch: o.Epoch, slots: make(chan struct{}, o.MaxCalls)}
	s.budget.Store(outputBudget)

	var err error
	if d, ok := rw.(deadliner); ok && d.SetReadDeadline(time.Time{}) == nil {
		err = s.read(ctx, d)
	} else {
		p := startPump(ctx, rw)
		err = s.loop(ctx, p)
		p.leave()
	}
	s.replace(nil)
	cancel()
	_ = rw.Close() // the stream is finished either way; a call may be writing to it
	s.calls.Wait()
	s.tools.leave()
	return err
}

func withDefaults(o Options) Options {
	if o.OutputCap <= 0 || o.OutputCap > DefaultOutputCap {
		o.OutputCap = DefaultOutputCap
	}
	if o.FrameTimeout <= 0 {
		o.FrameTimeout = wire.DefaultFrameTimeout
	}
	if o.Table == nil {
		o.Table = Table{}
	}
	if o.MaxCalls <= 0 {
		o.MaxCalls = DefaultMaxCalls
	}
	if o.Epoch == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails since Go 1.24
		o.Epoch = hex.EncodeToString(b[:])
	}
	return o
}

// deadliner is a stream that ends a read at a deadline by itself.
type deadliner interface{ SetReadDeadline(t time.Time) error }

// read feeds the stream to the scanner. The stream enforces the deadline of the
// frame that is being received.
func (s *server) read(ctx context.Context, d deadliner) error {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	sc := &scanner{max: wire.MaxFrame}
	emit := func(e event) { s.handle(ctx, e) }
	armed := uint64(0)
	for {
		n, err := s.rw.Read(buf[:])
		sc.feed(buf[:n], emit)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			sc.abandon()
			s.lost()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch {
		case !sc.midFrame():
			if armed != 0 {
				err = d.SetReadDeadline(time.Time{})
			}
			armed = 0
		case armed != sc.begun:
			err = d.SetReadDeadline(time.Now().Add(s.o.FrameTimeout))
			armed = sc.begun
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// lost says that a frame was given up.
func (s *server) lost() {
	s.event(CodePartialFrame, "frame not complete at its deadline; waiting for the next session")
}

// loop is read for a stream that knows no deadlines: a pump reads it.
func (s *server) loop(ctx context.Context, p *pump) error {
	sc := &scanner{max: wire.MaxFrame}
	emit := func(e event) { s.handle(ctx, e) }
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	armed := uint64(0)
	for {
		select {
		case chunk, ok := <-p.chunks:
			if !ok {
				if errors.Is(p.err, io.EOF) || ctx.Err() != nil {
					return ctx.Err()
				}
				return p.err
			}
			sc.feed(chunk, emit)
			switch {
			case !sc.midFrame():
				timer.Stop()
				armed = 0
			case armed != sc.begun:
				timer.Reset(s.o.FrameTimeout)
				armed = sc.begun
			}
		case <-timer.C:
			armed = 0
			sc.abandon()
			s.lost()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// buffer is what one read fills.
type buffer [64 << 10]byte

// buffers are used again by the next agent: zeroing them is most of what
// starting one costs, where that is done a thousand times a second.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

// A pump reads a stream in a goroutine, so that the loop can wait for a
// deadline as well, on any kind of stream.
type pump struct {
	chunks chan []byte
	err    error // why chunks was closed
	bufs   [2]*buffer
	users  atomic.Int32 // of bufs: the goroutine and the loop
}

// leave gives the buffers back when the second user is done with them.
func (p *pump) leave() {
	if p.users.Add(1) == 2 {
		buffers.Put(p.bufs[0])
		buffers.Put(p.bufs[1])
	}
}

func startPump(ctx context.Context, r io.Reader) *pump {
	p := &pump{chunks: make(chan []byte), bufs: [2]*buffer{buffers.Get().(*buffer), buffers.Get().(*buffer)}}
	go func() {
		defer p.leave()
		defer close(p.chunks)
		// Two buffers suffice: the channel is unbuffered, so the loop has
		// finished with one when it takes the other.
		for i := 0; ; i ^= 1 {
			n, err := r.Read(p.bufs[i][:])
			if n > 0 {
				select {
				case p.chunks <- p.bufs[i][:n]:
				case <-ctx.Done():
					p.err = ctx.Err()
					return
				}
			}
			if err != nil {
				p.err = err
				return
			}
		}
	}()
	return p
}
