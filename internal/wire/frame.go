// Package wire is the protocol between the host and the agent inside a sandbox:
// length-prefixed JSON frames, the messages in them, and the report that an
// attack tool writes.
//
// Both ends use it, so it imports nothing but the standard library. Either end
// must expect the other to be hostile: every decoder here has a cap on size,
// depth and time, and none of them guesses.
//
// A connection begins with a preamble (see preamble.go) because a virtio-serial
// port has no connection boundary. After that each frame is a uint32 in
// big-endian order followed by that many bytes of UTF-8 JSON.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

const (
	// MaxFrame is the largest body that either side sends or accepts.
	MaxFrame = 16 << 20
	// DefaultFrameTimeout is how long a frame may take from its first byte to
	// its last. Further bytes do not extend it.
	DefaultFrameTimeout = 30 * time.Second
	// headerSize is the length of a frame's header.
	headerSize = 4
	// DefaultPort is the guest's vsock port.
	DefaultPort = 52000
)

var (
	// ErrFrameEmpty is returned for a frame of length zero.
	ErrFrameEmpty = errors.New("frame of length zero")
	// ErrFrameTruncated is returned when the stream ends inside a frame.
	ErrFrameTruncated = errors.New("stream ended inside a frame")
	// ErrFrameTimeout is returned when a frame took longer than its deadline.
	ErrFrameTimeout = errors.New("frame not complete at its deadline")
)

// SizeError is returned when a frame announces more than the cap.
type SizeError struct{ Declared, Max uint64 }

func (e *SizeError) Error() string {
	return fmt.Sprintf("frame announces %d bytes, the cap is %d", e.Declared, e.Max)
}

// AppendFrame appends header and body to dst.
func AppendFrame(dst, body []byte) ([]byte, error) {
	if len(body) == 0 {
		return dst, ErrFrameEmpty
	}
	if len(body) > MaxFrame {
		return dst, &SizeError{Declared: uint64(len(body)), Max: MaxFrame}
	}
	dst = slices.Grow(dst, 4+len(body))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	return append(dst, body...), nil
}

// WriteFrame writes header and body in one Write call, so that concurrent
// writers that share a lock per call cannot interleave.
func WriteFrame(w io.Writer, body []byte) error {
	buf, err := AppendFrame(nil, body)
	if err != nil {
		return err
	}
	_, err = w.Write(buf)
	return err
}

// A FrameReader reads frames from a stream.
type FrameReader struct {
	r       io.Reader
	arm     func(time.Time) error
	timeout time.Duration
	max     uint64
	head    [headerSize]byte
}

// growStep is how much memory a frame's announced length is trusted with at
// once: a peer that announces 16 MiB and sends ten bytes costs us this much.
const growStep = 256 << 10

// NewFrameReader reads frames of at most max bytes (0 means MaxFrame), each of
// which has to complete within timeout (0 means DefaultFrameTimeout) of its
// first byte. The deadline is enforced when r has a SetReadDeadline method, as
// connections and pipes do.
func NewFrameReader(r io.Reader, max int, timeout time.Duration) *FrameReader {
	if max <= 0 {
		max = MaxFrame
	}
	if timeout <= 0 {
		timeout = DefaultFrameTimeout
	}
	fr := &FrameReader{r: r, timeout: timeout, max: uint64(max)}
	if d, ok := r.(interface{ SetReadDeadline(time.Time) error }); ok {
		fr.arm = d.SetReadDeadline
	}
	return fr
}

// Read returns the body of the next frame. It returns io.EOF only at a frame
// boundary. After any other error the stream is out of step and must be closed.
func (f *FrameReader) Read() ([]byte, error) {
	head := &f.head
	if _, err := io.ReadFull(f.r, head[:1]); err != nil {
		return nil, err
	}
	if f.arm != nil {
		if err := f.arm(time.Now().Add(f.timeout)); err == nil {
			defer func() { _ = f.arm(time.Time{}) }()
		}
	}
	if _, err := io.ReadFull(f.r, head[1:]); err != nil {
		return nil, inFrame(err)
	}
	n := uint64(binary.BigEndian.Uint32(head[:]))
	if n == 0 {
		return nil, ErrFrameEmpty
	}
	if n > f.max {
		return nil, &SizeError{Declared: n, Max: f.max}
	}
	body := make([]byte, 0, min(n, growStep))
	for uint64(len(body)) < n {
		if len(body) == cap(body) {
			grown := make([]byte, len(body), min(n, uint64(2*cap(body))))
			copy(grown, body)
			body = grown
		}
		want := min(uint64(cap(body)), n)
		m, err := io.ReadFull(f.r, body[len(body):want])
		body = body[:len(body)+m]
		if err != nil {
			return nil, inFrame(err)
		}
	}
	return body, nil
}

func inFrame(err error) error {
	var t interface{ Timeout() bool }
	switch {
	case errors.As(err, &t) && t.Timeout():
		return ErrFrameTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrFrameTruncated
	}
	return err
}
