package guest

import (
	"bufio"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// taps are the functions that see raw bytes.
type taps struct {
	mu  sync.Mutex
	fns []*func([]byte)
}

func (t *taps) add(fn func([]byte)) (stop func()) {
	p := &fn
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fns = append(t.fns, p)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.fns = slices.DeleteFunc(t.fns, func(q *func([]byte)) bool { return q == p })
	}
}

func (t *taps) see(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fn := range t.fns {
		(*fn)(b)
	}
}

// errInterrupted ends a reader whose session is being replaced.
var errInterrupted = errors.New("session replaced")

// source is the reading end of a session. A frame's deadline is passed to the
// transport only when a read has to wait, so a frame that arrived whole costs
// no timer. Transports without deadlines are closed instead.
type source struct {
	*bufio.Reader
	rw   io.ReadWriteCloser
	taps *taps
	want time.Time // the reader's own

	mu          sync.Mutex
	have        time.Time
	timer       *time.Timer
	fired       bool
	interrupted bool
}

// readBuffer holds any ordinary answer; a longer read goes past it.
const readBuffer = 4 << 10

// readers are used again by the next session.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

func newSource(rw io.ReadWriteCloser, t *taps) *source {
	s := &source{rw: rw, taps: t, Reader: readers.Get().(*bufio.Reader)}
	s.Reader.Reset(rawReader{s})
	return s
}

// free gives the buffer back. Nobody may read any more.
func (s *source) free() {
	s.Reader.Reset(nil)
	readers.Put(s.Reader)
	s.Reader = nil
}

// SetReadDeadline makes source what wire.FrameReader looks for.
func (s *source) SetReadDeadline(t time.Time) error { s.want = t; return nil }

type rawReader struct{ s *source }

func (r rawReader) Read(p []byte) (int, error) {
	s := r.s
	if err := s.arm(); err != nil {
		return 0, err
	}
	n, err := s.rw.Read(p)
	if n > 0 {
		s.taps.see(p[:n])
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.interrupted:
			err = errInterrupted
		case s.fired:
			err = os.ErrDeadlineExceeded
		}
	}
	return n, err
}

func (s *source) arm() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.interrupted {
		return errInterrupted
	}
	if s.want.Equal(s.have) {
		return nil
	}
	s.have = s.want
	if setReadDeadline(s.rw, s.want) {
		return nil
	}
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if !s.want.IsZero() {
		s.timer = time.AfterFunc(time.Until(s.want), func() {
			s.mu.Lock()
			s.fired = true
			s.mu.Unlock()
			_ = s.rw.Close()
		})
	}
	return nil
}

// interrupt ends a read that is under way and every later one, and leaves the
// stream open if it can.
func (s *source) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = true
	if !setReadDeadline(s.rw, time.Unix(1, 0)) {
		_ = s.rw.Close()
	}
}

// release undoes what interrupt and arm did to the stream.
func (s *source) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	setReadDeadline(s.rw, time.Time{})
}

func setReadDeadline(rw any, t time.Time) bool {
	d, ok := rw.(interface{ SetReadDeadline(time.Time) error })
	return ok && !errors.Is(d.SetReadDeadline(t), os.ErrNoDeadline)
}

func setWriteDeadline(rw any, t time.Time) bool {
	d, ok := rw.(interface{ SetWriteDeadline(time.Time) error })
	return ok && !errors.Is(d.SetWriteDeadline(t), os.ErrNoDeadline)
}
