package guest

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// hostile answers the preamble properly and every later write of the host with
// the same arbitrary bytes, "%ID%" replaced by nothing: it guesses.
type hostile struct {
	bytes []byte

	mu     sync.Mutex
	ready  sync.Cond
	buf    []byte
	writes int
	closed bool
}

func newHostile(b []byte) *hostile {
	h := &hostile{bytes: b}
	h.ready.L = &h.mu
	return h
}

func (h *hostile) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.buf) == 0 && !h.closed {
		h.ready.Wait()
	}
	if len(h.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(p, h.buf)
	h.buf = h.buf[n:]
	return n, nil
}

func (h *hostile) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return 0, io.ErrClosedPipe
	}
	if h.writes == 0 {
		h.buf = append(h.buf, properHello(wire.Nonce(p[len(wire.Magic):]))...)
	} else {
		h.buf = append(h.buf, h.bytes...)
	}
	h.writes++
	h.ready.Broadcast()
	return len(p), nil
}

func (h *hostile) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.ready.Broadcast()
	return nil
}

// FuzzClient: whatever a guest sends, no call panics or outlives its deadline,
// and a result is believed only when it is bound to its output.
func FuzzClient(f *testing.F) {
	add := func(bodies ...string) {
		var b []byte
		for _, body := range bodies {
			b, _ = wire.AppendFrame(b, []byte(body))
		}
		f.Add(b)
	}
	empty := wire.EvidenceHash(nil, nil)
	add(`{"type":"ToolResult","command_id":"id","exit_code":0,"stdout":"","stderr":"","evidence_hash":"` + empty + `"}`)
	add(`{"type":"ToolResult","command_id":"id","exit_code":"0","stdout":"","stderr":"","evidence_hash":"` + empty + `"}`)
	add(`{"type":"ToolResult","command_id":"id","exit_code":0,"stdout":"","stderr":"","evidence_hash":"` + empty + `","timed_out":true}`)
	add(`{"type":"ErrorEvent","code":"SANDBOX_VSOCK_FRAME_TOO_LARGE","message":""}`, `{"type":"ResetAck","epoch":""}`)
	add(`{"type":"GuestResponse","query_id":"id","result":{"count":1}}`, `[[[[`, `{"type":"Hello"}`)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h := newHostile(b)
		c, err := Connect(t.Context(), Options{AgentSHA256: digest, Grace: 5 * time.Millisecond, FrameTimeout: time.Second,
			Dial: func(context.Context) (io.ReadWriteCloser, error) { return h, nil }})
		if err != nil {
			t.Fatalf("a proper hello was refused: %v", err)
		}
		begin := time.Now()
		e, err := c.Execute(t.Context(), backends.Invocation{ID: "id", Tool: "noop", Deadline: 5 * time.Millisecond})
		if err == nil && e.EvidenceHash != wire.EvidenceHash(e.Stdout.Bytes(), e.Stderr.Bytes()) {
			t.Fatal("a result without its evidence was believed")
		}
		if d := time.Since(begin); d > 5*time.Second {
			t.Fatalf("the call took %s", d)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
