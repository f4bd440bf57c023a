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

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

// WriteNow writes p whole if there is room for it, and says whether it did. It
// never waits.
func (c *conn) WriteNow(p []byte) bool { return c.out.writeNow(p) }

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
	from    int  // what is before it in buf has been read
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
		case h.reader.over():
			return 0, os.ErrDeadlineExceeded
		case h.from < len(h.buf):
			n := copy(p, h.buf[h.from:])
			if h.from += n; h.from == len(h.buf) {
				h.buf, h.from = h.buf[:0], 0
			}
			h.changed.Broadcast()
			return n, nil
		case h.ended:
			return 0, io.EOF
		}
		h.wait(&h.reader)
	}
}

// wait waits for a change, at most until d passes. It arms the timer, so that a
// deadline which nobody had to wait for costs none.
func (h *half) wait(d *deadline) {
	if d.arm(h); !d.passed {
		h.changed.Wait()
	}
}

func (h *half) room() int { return pipeBuffer - (len(h.buf) - h.from) }

func (h *half) append(p []byte) {
	if len(h.buf)+len(p) > cap(h.buf) {
		h.buf, h.from = h.buf[:copy(h.buf, h.buf[h.from:])], 0
	}
	h.buf = append(h.buf, p...)
	h.changed.Broadcast()
}

func (h *half) writeNow(p []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deaf || h.ended || h.writer.over() || len(p) > h.room() {
		return false
	}
	h.append(p)
	return true
}

func (h *half) write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.deaf, h.ended:
			return n, io.ErrClosedPipe
		case h.writer.over():
			return n, os.ErrDeadlineExceeded
		}
		if room := min(h.room(), len(p)); room > 0 {
			h.append(p[:room])
			n, p = n+room, p[room:]
		}
		if len(p) == 0 {
			return n, nil
		}
		h.wait(&h.writer)
	}
}

func (h *half) close(writer bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if writer {
		h.ended = true
	} else {
		h.deaf, h.buf, h.from = true, nil, 0
	}
	h.reader.stop()
	h.writer.stop()
	h.changed.Broadcast()
}

// deadline of one end of a half; h.mu guards it.
type deadline struct {
	at     time.Time // zero for none
	passed bool
	timer  *time.Timer
}

// over reports whether the deadline has passed.
func (d *deadline) over() bool {
	if !d.passed && !d.at.IsZero() && !time.Now().Before(d.at) {
		d.passed = true
	}
	return d.passed
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
	d.at, d.passed = t, false
	h.changed.Broadcast() // whoever waits arms the new one
}

// arm starts the timer of a deadline that somebody has to wait for.
func (d *deadline) arm(h *half) {
	if d.at.IsZero() || d.timer != nil || d.over() {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(d.at), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if d.timer == timer { // not one that was replaced meanwhile
			d.passed = true
			h.changed.Broadcast()
		}
	})
	d.timer = timer
}
