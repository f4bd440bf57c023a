// Package qmp is a small client of the QEMU Machine Protocol: one JSON object
// per line, commands answered by id, events in between.
//
// QEMU runs hostile guests, so its answers are decoded with a cap on the line
// length and nothing in them is trusted further than its type.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxLine bounds one message. The largest real one, the answer to
// query-qmp-schema, is about 200 KiB and is never asked for here.
const MaxLine = 1 << 20

var (
	// ErrClosed is returned for calls on a connection that has ended: QEMU is
	// gone, or Close was called.
	ErrClosed = errors.New("QMP connection is closed")
	// ErrLine is returned when a message is over MaxLine.
	ErrLine = errors.New("QMP message is over the line cap")
	// ErrMalformed is returned when a message is not what the protocol allows.
	ErrMalformed = errors.New("malformed QMP message")
)

// CommandError is QEMU's refusal of a command.
type CommandError struct{ Command, Class, Desc string }

func (e *CommandError) Error() string {
	return fmt.Sprintf("QMP %s: %s: %q", e.Command, e.Class, e.Desc)
}

// Event is what QEMU reports unasked, such as STOP or GUEST_PANICKED.
type Event struct {
	Name string
	Data json.RawMessage
}

// Version is QEMU's own, from the greeting.
type Version struct{ Major, Minor, Micro int }

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Micro) }

// Client is one QMP session. It is safe for concurrent use.
type Client struct {
	conn    *net.UnixConn
	version Version
	events  func(Event)

	write sync.Mutex // one command and its file descriptors at a time

	mu      sync.Mutex
	next    uint64
	pending map[string]chan message
	err     error // why the session ended

	done chan struct{} // the reader is gone
}

// New takes over conn: it awaits the greeting and leaves negotiation mode. ctx
// bounds that. events, if not nil, is called for each event from the reading
// goroutine and must not block.
func New(ctx context.Context, conn *net.UnixConn, events func(Event)) (*Client, error) {
	c := &Client{conn: conn, events: events, pending: map[string]chan message{}, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	dec := newDecoder(conn)
	m, err := dec.next()
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	switch {
	case err != nil:
	case m.Greeting == nil:
		err = fmt.Errorf("%w: no greeting", ErrMalformed)
	default:
		q := m.Greeting.Version.QEMU
		c.version = Version{q.Major, q.Minor, q.Micro}
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("QMP greeting: %w", err)
	}
	go c.read(dec)
	if err := c.Do(ctx, "qmp_capabilities", nil, nil); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Version is what the greeting said.
func (c *Client) Version() Version { return c.version }

// Do runs a command and decodes its result into out, if that is not nil.
func (c *Client) Do(ctx context.Context, command string, args, out any) error {
	return c.DoFD(ctx, command, args, out, -1)
}

// DoFD is Do with one file descriptor passed along, as getfd needs it. A
// negative fd passes none.
func (c *Client) DoFD(ctx context.Context, command string, args, out any, fd int) error {
	id, answer, err := c.register()
	if err != nil {
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	defer c.forget(id)
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        string `json:"id"`
	}{command, args, id})
	if err != nil {
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	if err := c.send(ctx, append(line, '\n'), fd); err != nil {
		if ctx.Err() != nil { // half a line may be out: the stream is out of step
			c.fail(ErrClosed)
			_ = c.conn.Close()
			err = errors.Join(ctx.Err(), err)
		}
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	select {
	case m := <-answer:
		return m.result(command, out)
	case <-ctx.Done():
		return fmt.Errorf("QMP %s: no answer: %w", command, ctx.Err())
	case <-c.done:
	}
	select { // the answer may have come just before the end
	case m := <-answer:
		return m.result(command, out)
	default:
		return fmt.Errorf("QMP %s: %w", command, c.cause())
	}
}

func (m message) result(command string, out any) error {
	if m.Error != nil {
		return &CommandError{Command: command, Class: m.Error.Class, Desc: m.Error.Desc}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, out); err != nil {
		return fmt.Errorf("QMP %s: %w: %w", command, ErrMalformed, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, line []byte, fd int) error {
	c.write.Lock()
	defer c.write.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.conn.SetWriteDeadline(time.Time{}); err != nil {
		return ErrClosed
	}
	// The callback must be over before the next sender clears the deadline.
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetWriteDeadline(time.Unix(1, 0)); close(fired) })
	defer func() {
		if !stop() {
			<-fired
		}
	}()
	if fd < 0 {
		_, err := c.conn.Write(line)
		return err
	}
	_, _, err := c.conn.WriteMsgUnix(line, unix.UnixRights(fd), nil)
	return err
}

func (c *Client) register() (string, chan message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return "", nil, c.err
	}
	c.next++
	id := strconv.FormatUint(c.next, 10)
	ch := make(chan message, 1)
	c.pending[id] = ch
	return id, ch, nil
}

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

func (c *Client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Done is closed when the session has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the session and waits for its reader.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	err := c.conn.Close()
	<-c.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

func (c *Client) read(dec *decoder) {
	defer close(c.done)
	for {
		m, err := dec.next()
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrLine) {
				err = fmt.Errorf("%w: %w", ErrClosed, err)
			}
			c.fail(err)
			_ = c.conn.Close()
			return
		}
		switch {
		case m.Event != "":
			if c.events != nil {
				c.events(Event{Name: m.Event, Data: m.Data})
			}
		case m.ID != "":
			c.mu.Lock()
			ch := c.pending[m.ID]
			delete(c.pending, m.ID)
			c.mu.Unlock()
			if ch != nil {
				ch <- m
			}
		}
	}
}

type message struct {
	Greeting *greeting       `json:"QMP"`
	Return   json.RawMessage `json:"return"`
	Error    *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
	ID    string          `json:"id"`
}

type greeting struct {
	Version struct {
		QEMU struct {
			Major int `json:"major"`
			Minor int `json:"minor"`
			Micro int `json:"micro"`
		} `json:"qemu"`
	} `json:"version"`
}

// decoder reads messages, one a line.
type decoder struct{ s *bufio.Scanner }

func newDecoder(r io.Reader) *decoder {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), MaxLine)
	return &decoder{s}
}

func (d *decoder) next() (message, error) {
	var m message
	if !d.s.Scan() {
		switch err := d.s.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			return m, ErrLine
		case err != nil:
			return m, err
		}
		return m, io.EOF
	}
	if err := json.Unmarshal(d.s.Bytes(), &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	kinds := 0
	for _, is := range []bool{m.Greeting != nil, m.Return != nil, m.Error != nil, m.Event != ""} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return m, fmt.Errorf("%w: neither greeting, return, error nor event", ErrMalformed)
	}
	return m, nil
}
