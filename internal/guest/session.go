package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	// maxJunkFrames and maxJunkBytes are how much nonsense a session bears.
	maxJunkFrames = 64
	maxJunkBytes  = 1 << 20
	// maxSkipped is how many bytes of older sessions may precede a preamble:
	// a few full frames that it was still writing.
	maxSkipped = 4 * wire.MaxFrame
	// maxForgotten bounds the memory of calls that were given up.
	maxForgotten = 1024
	// openTimeout bounds the opening when the caller's context does not.
	openTimeout = 2 * time.Minute
	// protocolVersion is the hello's version.
	protocolVersion = 1
)

// kind keeps the ids of commands, queries and resets apart.
type kind byte

const (
	kindCommand kind = 'c'
	kindQuery   kind = 'q'
	kindReset   kind = 'r'
)

type key struct {
	kind kind
	id   string
}

// answer is a decoded message, or why there is none.
type answer struct {
	msg any
	err error
}

// session is the life of a connection from one preamble to the next.
type session struct {
	rw     io.ReadWriteCloser
	src    *source
	frames interface{ Read() ([]byte, error) }
	o      Options
	log    *slog.Logger

	writing chan struct{} // holds one token; taken for the length of a write

	mu        sync.Mutex
	pending   map[key]chan answer
	forgotten map[key]bool
	owedAcks  int // resets that were given up: their acks are still to come
	epoch     string
	stats     Stats
	err       error
	done      chan struct{} // closed when err is set
	stopped   chan struct{} // closed when the reader has returned
}

// startSession sends the preamble, waits for its echo and for the hello. The
// caller starts the reader, and closes rw after an error.
func startSession(ctx context.Context, rw io.ReadWriteCloser, o Options, t *taps, log *slog.Logger) (*session, wire.Hello, error) {
	s := &session{rw: rw, src: newSource(rw, t), o: o, log: log, writing: make(chan struct{}, 1),
		pending: map[key]chan answer{}, done: make(chan struct{}), stopped: make(chan struct{})}
	s.writing <- struct{}{}
	if o.NoLimits {
		s.frames = unlimited{s.src}
	} else {
		s.frames = wire.NewFrameReader(s.src, o.MaxFrame, o.FrameTimeout)
	}
	if o.Plain {
		return s, wire.Hello{}, nil
	}
	shut := func() { _ = rw.Close() }
	slow := time.AfterFunc(openTimeout, shut)
	defer slow.Stop()
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	hello, err := s.greet(ctx)
	switch inTime, wanted := slow.Stop(), stop(); {
	case !wanted: // the stream was closed under us
		err = context.Cause(ctx)
	case !inTime:
		err = context.DeadlineExceeded
	}
	if err != nil {
		s.src.free()
		return nil, hello, handshake("open a session with the agent", err)
	}
	return s, hello, nil
}

func (s *session) greet(ctx context.Context) (wire.Hello, error) {
	nonce := wire.NewNonce()
	// Written while reading: the agent may be blocked on bytes of the last
	// session that nobody has read, and reads on only when they are gone.
	var wrote chan error
	if preamble := wire.Preamble(nonce); !writeNow(s.rw, preamble) { // no call has begun: nobody else writes
		wrote = make(chan error, 1)
		go func() {
			err := s.write(ctx, preamble)
			if err != nil {
				s.src.interrupt()
			}
			wrote <- err
		}()
	}
	skipped, err := wire.AwaitPreamble(s.src, nonce, s.o.skip)
	if err != nil {
		s.src.interrupt()
		setWriteDeadline(s.rw, time.Unix(1, 0))
		if wrote != nil {
			err = errors.Join(<-wrote, err)
		}
		return wire.Hello{}, err
	}
	if wrote != nil {
		if err := <-wrote; err != nil {
			return wire.Hello{}, err
		}
	}
	if skipped > 0 {
		s.log.Debug("skipped bytes of an older session", "bytes", skipped)
	}
	body, err := s.frames.Read()
	if err != nil {
		return wire.Hello{}, frameError(err)
	}
	msg, err := wire.Decode(body)
	if err != nil {
		return wire.Hello{}, err
	}
	h, ok := msg.(*wire.Hello)
	switch {
	case !ok:
		return wire.Hello{}, errors.New("the agent's first message is not a hello")
	case h.Version != protocolVersion:
		return wire.Hello{}, fmt.Errorf("the agent speaks version %d, this host speaks %d", h.Version, protocolVersion)
	case s.o.AgentSHA256 != "" && h.AgentSHA256 != s.o.AgentSHA256:
		return wire.Hello{}, &backends.Error{Code: backends.ErrHandshakeFailed, Doing: "check the agent's digest",
			Err: fmt.Errorf("the agent inside names %s, expected %s", printable(h.AgentSHA256), s.o.AgentSHA256),
			Fix: "rebuild the guest image, or name the agent that is in it with --agent"}
	}
	return *h, nil
}

// read decodes until the stream ends, breaks or is taken away.
func (s *session) read() {
	defer close(s.stopped)
	defer s.src.free()
	for {
		body, err := s.frames.Read()
		switch {
		case err == nil:
			s.dispatch(body)
		case errors.Is(err, wire.ErrFrameEmpty): // still in step
			s.junk(0)
		default:
			s.fail(frameError(err))
		}
		if s.over() != nil {
			return
		}
	}
}

func (s *session) dispatch(body []byte) {
	msg, err := wire.Decode(body)
	if err != nil {
		s.log.Debug("dropped a frame", "bytes", len(body), "err", err)
		if k, ok := addressee(body); ok {
			s.deliver(k, answer{err: &backends.Error{Code: backends.ErrFrameMalformed, Doing: "read the agent's answer", Err: err}})
		}
		s.junk(len(body))
		return
	}
	switch m := msg.(type) {
	case *wire.ToolResult:
		s.answer(key{kindCommand, m.CommandID}, m, len(body))
	case *wire.GuestResponse:
		s.answer(key{kindQuery, m.QueryID}, m, len(body))
	case *wire.ResetAck:
		if !s.isStale(m) {
			s.answer(key{kind: kindReset}, m, len(body))
		}
	case *wire.ErrorEvent:
		s.event(m, len(body))
	default: // a message that only the host sends, or a second hello
		s.junk(len(body))
	}
}

// addressee names the call that a malformed answer was meant for, so that it
// fails now instead of waiting out its deadline. Without a single, plain id
// there is none.
func addressee(body []byte) (key, bool) {
	f, err := wire.Fields(body)
	if err != nil {
		return key{}, false
	}
	for field, k := range map[string]kind{"command_id": kindCommand, "query_id": kindQuery} {
		if id, ok := f.String(field); ok {
			return key{k, id}, true
		}
	}
	return key{}, false
}

func (s *session) answer(k key, msg any, size int) {
	if s.deliver(k, answer{msg: msg}) {
		return
	}
	s.mu.Lock()
	late := s.forgotten[k]
	delete(s.forgotten, k)
	if late {
		s.stats.Late++
	} else {
		s.stats.Unsolicited++
	}
	s.mu.Unlock()
	if !late {
		s.burden(size)
	}
}

// deliver hands a to the call that waits for k.
func (s *session) deliver(k key, a answer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch, ok := s.pending[k]
	if ok {
		delete(s.pending, k)
		ch <- a // it has room for one, and only one is ever sent
	}
	return ok
}

// isStale takes an ack for one that a given-up reset left behind.
func (s *session) isStale(m *wire.ResetAck) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owedAcks == 0 || s.epoch != "" && m.Epoch == s.epoch {
		return false
	}
	s.owedAcks--
	s.stats.Late++
	return true
}

// event handles what the agent could not attribute. It wakes nobody, with two
// exceptions. When the agent says that it lost step, no answer will come any
// more. And a refused query is known when it is all that is in flight.
func (s *session) event(m *wire.ErrorEvent, size int) {
	err := &backends.Error{Code: backends.ErrProtocol, Doing: "speak with the agent",
		Err: fmt.Errorf("the agent reports %s", printable(m.Code))}
	s.log.Debug("error event from the agent", "code", printable(m.Code), "message", printable(m.Message))
	s.mu.Lock()
	s.stats.ErrorEvents++
	var query *key
	if len(s.pending) == 1 {
		for k := range s.pending {
			if k.kind == kindQuery {
				query = &k
			}
		}
	}
	s.mu.Unlock()
	switch {
	case strings.HasSuffix(m.Code, "FRAME_TOO_LARGE"), strings.HasSuffix(m.Code, "PARTIAL_FRAME_TIMEOUT"):
		s.fail(err)
	case query != nil && strings.HasSuffix(m.Code, "PROTOCOL_ERROR"):
		s.deliver(*query, answer{err: err})
		s.burden(size)
	default:
		s.burden(size)
	}
}

// junk counts a frame that means nothing.
func (s *session) junk(size int) {
	s.mu.Lock()
	s.stats.Junk++
	s.mu.Unlock()
	s.burden(size)
}

// burden counts a useless frame against the session's patience.
func (s *session) burden(size int) {
	s.mu.Lock()
	s.stats.JunkBytes += int64(size)
	st := s.stats
	s.mu.Unlock()
	n := st.Junk + st.Unsolicited + st.ErrorEvents
	if !s.o.NoLimits && (n > maxJunkFrames || st.JunkBytes > maxJunkBytes) {
		s.fail(&backends.Error{Code: backends.ErrProtocol, Doing: "read from the agent",
			Err: fmt.Errorf("%d useless frames of %d bytes in one session", n, st.JunkBytes)})
	}
}

// fail ends the session with its first error and fails all that wait.
func (s *session) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
		close(s.done)
	}
	err = s.err
	s.mu.Unlock()
	s.failPending(err)
}

func (s *session) failPending(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, ch := range s.pending {
		delete(s.pending, k)
		ch <- answer{err: err}
	}
}

func (s *session) over() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *session) counters() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// interrupt ends the session and makes its reader return.
func (s *session) interrupt() {
	s.fail(&backends.Error{Code: backends.ErrClosed, Doing: "the host opens a new session"})
	s.src.interrupt()
}

// settle waits for reader and writer, and leaves the stream to its successor.
func (s *session) settle(ctx context.Context) error {
	setWriteDeadline(s.rw, time.Unix(1, 0))
	for _, ch := range []<-chan struct{}{s.stopped, s.writing} {
		select {
		case <-ch:
		case <-ctx.Done():
			_ = s.rw.Close()
			return handshake("end the old session", context.Cause(ctx))
		}
	}
	s.writing <- struct{}{}
	s.src.release()
	setWriteDeadline(s.rw, time.Time{})
	return nil
}

// writeAtOnce is write where nobody has to wait for anything.
func (s *session) writeAtOnce(b []byte) bool {
	select {
	case <-s.writing:
	default:
		return false
	}
	defer func() { s.writing <- struct{}{} }()
	return s.over() == nil && writeNow(s.rw, b)
}

// write sends b in one piece. A write that was cut short leaves the agent out
// of step, so it ends the session.
func (s *session) write(ctx context.Context, b []byte) error {
	select {
	case <-s.writing:
	case <-s.done:
		return s.over()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { s.writing <- struct{}{} }()
	if err := s.over(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if writeNow(s.rw, b) {
		return nil
	}
	w := watchedWrite{rw: s.rw}
	stop := context.AfterFunc(ctx, w.abort)
	slow := time.AfterFunc(s.o.FrameTimeout, w.abort)
	_, err := s.rw.Write(b)
	slow.Stop()
	stop()
	if w.finish(); err == nil {
		return nil
	}
	err = &backends.Error{Code: backends.ErrClosed, Doing: "write to the agent", Err: err}
	s.fail(err)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// writeNow writes b whole where the transport can do so without waiting: then
// there is nothing to watch.
func writeNow(rw io.ReadWriteCloser, b []byte) bool {
	w, ok := rw.(interface{ WriteNow(b []byte) bool })
	return ok && w.WriteNow(b)
}

// watchedWrite lets a timer or a context end a write, and nothing after it.
type watchedWrite struct {
	rw io.ReadWriteCloser

	mu       sync.Mutex
	aborted  bool
	finished bool
}

func (w *watchedWrite) abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finished {
		return
	}
	w.aborted = true
	if !setWriteDeadline(w.rw, time.Unix(1, 0)) {
		_ = w.rw.Close()
	}
}

func (w *watchedWrite) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = true
	if w.aborted {
		setWriteDeadline(w.rw, time.Time{})
	}
}

// frameError maps what the frame reader returns to stable codes.
func frameError(err error) error {
	var size *wire.SizeError
	switch {
	case errors.As(err, &size):
		return &backends.FrameTooLargeError{Declared: size.Declared, Max: size.Max}
	case errors.Is(err, wire.ErrFrameTimeout):
		return &backends.Error{Code: backends.ErrPartialFrameTimeout, Doing: "read from the agent", Err: err}
	case errors.Is(err, wire.ErrFrameEmpty):
		return &backends.Error{Code: backends.ErrFrameMalformed, Doing: "read from the agent", Err: err}
	}
	return &backends.Error{Code: backends.ErrClosed, Doing: "read from the agent", Err: err}
}

// unlimited is the leak: it believes every announced length and waits for ever.
type unlimited struct{ r io.Reader }

func (u unlimited) Read() ([]byte, error) {
	return wire.NewFrameReader(struct{ io.Reader }{u.r}, math.MaxUint32, math.MaxInt64).Read()
}

// printable bounds and escapes a short string of the guest.
func printable(s string) string { return backends.NewText([]byte(s)).String() }
