package mock

import (
	"io"
	"os"
	"sync"
	"time"
)

// pipeBuffer is how much one direction holds, like a socket's. net.Pipe holds
// nothing: there each byte costs a meeting of both ends.
const pipeBuffer = 64 << 10

// conn is one end of a buffered pipe in memory, with deadlines.
type conn struct{ in, out *half }

func newPipe() (near, far *conn) {
	a, b := newHalf(), newHalf()
	return &conn{a, b}, &conn{b, a}
}

func (c *conn) Read(p []byte) (int, error)         { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error)        { return c.out.write(p) }
func (c *conn) SetReadDeadline(t time.Time) error  { c.in.reader.set(c.in, t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { c.out.writer.set(c.out, t); return nil }

// Close ends both directions. The other end still reads what was written.
func (c *conn) Close() error {
	c.in.close(false)
	c.out.close(true)
	return nil
}

// half is one direction.
type half struct {
	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	ended   bool // by the writer: what is in buf can still be read
	deaf    bool // the reader is gone

	reader, writer deadline
}

func newHalf() *half {
	h := &half{}
	h.changed.L = &h.mu
	return h
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.deaf:
			return 0, io.ErrClosedPipe
		case h.reader.passed:
			return 0, os.ErrDeadlineExceeded
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			h.buf = h.buf[:copy(h.buf, h.buf[n:])]
			h.changed.Broadcast()
			return n, nil
		case h.ended:
			return 0, io.EOF
		}
		h.changed.Wait()
	}
}

func (h *half) write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.deaf, h.ended:
			return n, io.ErrClosedPipe
		case h.writer.passed:
			return n, os.ErrDeadlineExceeded
		}
		if room := min(pipeBuffer-len(h.buf), len(p)); room > 0 {
			h.buf = append(h.buf, p[:room]...)
			n, p = n+room, p[room:]
			h.changed.Broadcast()
		}
		if len(p) == 0 {
			return n, nil
		}
		h.changed.Wait()
	}
}

func (h *half) close(writer bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if writer {
		h.ended = true
	} else {
		h.deaf, h.buf = true, nil
	}
	h.reader.stop()
	h.writer.stop()
	h.changed.Broadcast()
}

// deadline of one end of a half; h.mu guards it.
type deadline struct {
	passed bool
	timer  *time.Timer
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) set(h *half, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.stop()
	d.passed = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		h.changed.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if d.timer == timer { // not one that was replaced meanwhile
			d.passed = true
			h.changed.Broadcast()
		}
	})
	d.timer = timer
}
