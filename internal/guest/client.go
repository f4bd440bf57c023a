// Package guest is the host's side of the conversation with the agent inside a
// sandbox.
//
// The agent is hostile by assumption: whatever it sends has a cap on size, on
// time and on nonsense, and a result counts only when it is complete, of the
// right types and bound to its own output. One goroutine reads; calls wait for
// their own id; everything else that arrives is counted and dropped, until
// there is so much of it that the session is given up.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Dialer opens the transport, or opens it again. A transport that cannot be
// opened twice, such as stdio, may return the same stream each time. Closing
// the stream must end a Read and a Write that are under way.
type Dialer func(ctx context.Context) (io.ReadWriteCloser, error)

// Options configure a Client. Only Dial is required.
type Options struct {
	Dial Dialer
	// AgentSHA256 is the digest that the agent has to name in its hello, in
	// lower-case hex. Empty accepts any.
	AgentSHA256 string
	// FrameTimeout bounds a frame from its first byte to its last. Zero means
	// wire.DefaultFrameTimeout.
	FrameTimeout time.Duration
	// Grace is how long past a tool's deadline the agent may take to confirm
	// that the tool's tree is dead. Zero means DefaultGrace.
	Grace time.Duration
	// MaxFrame caps a frame's body in bytes. Zero means wire.MaxFrame.
	MaxFrame int
	// Plain speaks to a guest that knows neither preamble nor hello and whose
	// evidence_hash is a placeholder.
	Plain bool
	// NoLimits is a deliberate leak (class A8): a decoder without cap,
	// deadline or patience limit.
	NoLimits bool
	// Log gets diagnostics. nil discards them.
	Log *slog.Logger

	// skip is how many bytes of older sessions may precede a preamble.
	skip int64
}

// DefaultGrace is the time after a deadline in which the agent has to confirm
// the death of the tool's process tree.
const DefaultGrace = 2 * time.Second

// ErrUnconfirmed says that a tool is past its deadline and that the agent did
// not confirm in time that its process tree is dead. Only killing the sandbox
// settles the matter.
var ErrUnconfirmed = errors.New("the agent did not confirm that the process tree is dead")

// ErrSilent says that the agent did not answer a question in time.
var ErrSilent = errors.New("the agent did not answer")

// Client speaks with one agent. It is safe for concurrent use.
type Client struct {
	o   Options
	log *slog.Logger

	resync sync.Mutex // one Resync or Close at a time

	mu     sync.Mutex
	sess   *session
	hello  wire.Hello
	closed bool
	stats  Stats // of the sessions before the present one

	taps taps
}

// Stats count what arrived and was not an answer to a call.
type Stats struct {
	Junk        int   // frames that could not be decoded, or of a type that no agent sends
	JunkBytes   int64 // their bodies and those of unsolicited answers
	Late        int   // answers to calls that were given up
	Unsolicited int   // answers to nothing
	ErrorEvents int
}

func (s Stats) plus(t Stats) Stats {
	return Stats{s.Junk + t.Junk, s.JunkBytes + t.JunkBytes, s.Late + t.Late, s.Unsolicited + t.Unsolicited, s.ErrorEvents + t.ErrorEvents}
}

// Connect opens the transport and a session on it, and checks the agent's
// hello. It waits for as long as ctx allows, since a booting guest takes its
// time. When it fails the transport is closed.
func Connect(ctx context.Context, o Options) (*Client, error) {
	if o.FrameTimeout <= 0 {
		o.FrameTimeout = wire.DefaultFrameTimeout
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.MaxFrame <= 0 {
		o.MaxFrame = wire.MaxFrame
	}
	if o.skip <= 0 {
		o.skip = maxSkipped
	}
	c := &Client{o: o, log: o.Log}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	rw, err := o.Dial(ctx)
	if err != nil {
		return nil, handshake("open the agent's channel", err)
	}
	if err := c.open(ctx, rw); err != nil {
		_ = rw.Close()
		return nil, err
	}
	return c, nil
}

// Hello returns the agent's hello of the present session. It is zero for a
// plain guest.
func (c *Client) Hello() wire.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hello
}

// Stats returns the counters of all sessions so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats.plus(c.sess.counters())
}

// SetFrameTimeout sets the whole-frame deadline of the next session. Zero means
// wire.DefaultFrameTimeout.
func (c *Client) SetFrameTimeout(d time.Duration) {
	if d <= 0 {
		d = wire.DefaultFrameTimeout
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.FrameTimeout = d
}

// Err returns why the present session is over, or nil.
func (c *Client) Err() error {
	s, err := c.session()
	if err != nil {
		return err
	}
	return s.over()
}

// Tap passes every byte read from the guest to fn, before it is decoded, until
// stop is called. fn must not block, keep b or call stop.
func (c *Client) Tap(fn func(b []byte)) (stop func()) { return c.taps.add(fn) }

// Inject writes raw bytes to the guest, as they are.
func (c *Client) Inject(ctx context.Context, b []byte) error {
	s, err := c.session()
	if err != nil {
		return err
	}
	return s.write(ctx, b)
}

// Resync gives up the present session, whatever its condition, and opens a new
// one with a fresh nonce. Calls in flight fail with ErrClosed. Where the
// transport returns the same stream, old bytes in it are skipped.
func (c *Client) Resync(ctx context.Context) error {
	c.resync.Lock()
	defer c.resync.Unlock()
	old, err := c.session()
	if err != nil {
		return err
	}
	old.interrupt()
	rw, err := c.o.Dial(ctx)
	if err != nil {
		return handshake("open the agent's channel again", err)
	}
	if rw != old.rw {
		_ = old.rw.Close()
	}
	if err := old.settle(ctx); err != nil {
		return err
	}
	if err := c.open(ctx, rw); err != nil {
		_ = rw.Close()
		return err
	}
	return nil
}

// Close ends the session, closes the transport and waits for the reader.
func (c *Client) Close() error {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	s := c.sess
	c.mu.Unlock()
	if already {
		return nil
	}
	s.fail(&backends.Error{Code: backends.ErrClosed, Doing: "the host closed the session"})
	err := s.rw.Close()
	<-s.stopped
	return err
}

// open starts a session on rw and makes it the present one.
func (c *Client) open(ctx context.Context, rw io.ReadWriteCloser) error {
	c.mu.Lock()
	o := c.o
	c.mu.Unlock()
	s, hello, err := startSession(ctx, rw, o, &c.taps, c.log)
	if err != nil {
		return err
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		if c.sess != nil {
			c.stats = c.stats.plus(c.sess.counters())
		}
		c.sess, c.hello = s, hello
	}
	c.mu.Unlock()
	go s.read()
	if closed {
		s.fail(errClosed())
		_ = rw.Close()
		<-s.stopped
		return errClosed()
	}
	return nil
}

func (c *Client) session() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed()
	}
	return c.sess, nil
}

func errClosed() error {
	return &backends.Error{Code: backends.ErrClosed, Doing: "speak with the agent", Err: errors.New("the client is closed")}
}

func handshake(doing string, err error) error {
	if backends.CodeOf(err) != "" {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return &backends.Error{Code: backends.ErrHandshakeFailed, Doing: doing, Err: err}
}
