package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A peer is a host of its own for these tests: it shares no code with the
// guest client.
type peer struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	fr   *wire.FrameReader
	done chan error
}

// patience bounds each wait of a test; nothing here takes nearly so long.
const patience = 10 * time.Second

// timeless is a stream without deadlines, which a pump has to read.
type timeless struct{ io.ReadWriteCloser }

// streams are the two kinds.
var streams = map[string]func(net.Conn) io.ReadWriteCloser{
	"deadlines":    func(c net.Conn) io.ReadWriteCloser { return c },
	"no deadlines": func(c net.Conn) io.ReadWriteCloser { return timeless{c} },
}

func serve(t *testing.T, o Options) *peer {
	t.Helper()
	return serveOn(t, o, streams["deadlines"])
}

func serveOn(t *testing.T, o Options, stream func(net.Conn) io.ReadWriteCloser) *peer {
	t.Helper()
	host, guest := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	p := &peer{t: t, conn: host, r: bufio.NewReader(host), done: make(chan error, 1)}
	p.fr = wire.NewFrameReader(p.r, 0, 0)
	go func() { p.done <- Serve(ctx, stream(guest), o) }()
	t.Cleanup(func() {
		cancel()
		_ = host.Close()
		select {
		case <-p.done:
		case <-time.After(patience):
			t.Error("Serve did not return")
		}
	})
	require.NoError(t, host.SetDeadline(time.Now().Add(patience)))
	return p
}

// raw writes bytes from a goroutine: the agent may answer before it has read
// them all.
func (p *peer) raw(b []byte) {
	p.t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := p.conn.Write(b)
		sent <- err
	}()
	p.t.Cleanup(func() { <-sent })
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	_, err := p.conn.Write(b)
	require.NoError(p.t, err)
}

func (p *peer) hello() *wire.Hello {
	p.t.Helper()
	n := wire.NewNonce()
	p.write(wire.Preamble(n))
	return p.greeted(n)
}

func (p *peer) greeted(n wire.Nonce) *wire.Hello {
	p.t.Helper()
	_, err := wire.AwaitPreamble(p.r, n, 1<<20)
	require.NoError(p.t, err)
	return next[*wire.Hello](p)
}

func next[M any](p *peer) M {
	p.t.Helper()
	body, err := p.fr.Read()
	require.NoError(p.t, err)
	m, err := wire.Decode(body)
	require.NoError(p.t, err)
	got, ok := m.(M)
	require.True(p.t, ok, "got %s", body)
	return got
}

func frame(t *testing.T, m any) []byte {
	t.Helper()
	body, err := wire.Encode(m)
	require.NoError(t, err)
	return framed(body)
}

func framed(body []byte) []byte {
	return append([]byte{byte(len(body) >> 24), byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

func (p *peer) dispatch(id, tool string, params any, deadline time.Duration) {
	p.t.Helper()
	p.write(dispatchFrame(p.t, id, tool, params, deadline))
}

func dispatchFrame(t *testing.T, id, tool string, params any, deadline time.Duration) []byte {
	t.Helper()
	raw, err := json.Marshal(params)
	require.NoError(t, err)
	return frame(t, &wire.ToolDispatch{Type: wire.TypeToolDispatch, CommandID: id, Tool: tool, Params: raw, DeadlineMS: deadline.Milliseconds()})
}

// testTable is a small table of tools that run in process.
func testTable() Table {
	return Table{
		"echo": {Run: func(_ context.Context, in wire.ToolInput) int {
			_, _ = in.Stdout.Write(in.Params)
			_, _ = io.WriteString(in.Stderr, "err")
			return 7
		}},
		"wait":   {Run: func(ctx context.Context, _ wire.ToolInput) int { <-ctx.Done(); return 1 }},
		"panic":  {Run: func(context.Context, wire.ToolInput) int { panic("secret") }},
		"poison": {Channel: true, Run: poison},
		"plain":  {Run: poison},
		"big": {Run: func(_ context.Context, in wire.ToolInput) int {
			var p struct {
				Bytes int
				Fill  byte
			}
			if err := json.Unmarshal(in.Params, &p); err != nil {
				return 2
			}
			chunk := make([]byte, 32<<10)
			for i := range chunk {
				chunk[i] = p.Fill
			}
			for left := p.Bytes; left > 0; left -= len(chunk) {
				_, _ = in.Stdout.Write(chunk[:min(left, len(chunk))])
			}
			return 0
		}},
	}
}

func poison(_ context.Context, in wire.ToolInput) int {
	if in.Channel == nil {
		return 3
	}
	if _, err := in.Channel.Write([]byte("\x00\x00\x00\x02{}")); err != nil {
		return 1
	}
	return 0
}

// fakeWorld answers with fixed numbers.
type fakeWorld struct{ fail bool }

func (w fakeWorld) err() error {
	if w.fail {
		return errors.New("no such world")
	}
	return nil
}
func (w fakeWorld) OpenFDCount() (int, error) { return 11, w.err() }
func (w fakeWorld) MemUsage() (wire.MemUsage, error) {
	return wire.MemUsage{TotalBytes: 2, AvailableBytes: 1}, w.err()
}
func (w fakeWorld) Processes(limit int) (wire.ProcessList, error) {
	return wire.ProcessList{Processes: []wire.Process{{PID: 1, Comm: fmt.Sprint(limit)}}}, w.err()
}
func (w fakeWorld) Reset(s wire.ResetSignal) ([]string, error) {
	if s.UnixNano != 0 {
		return []string{"clock"}, w.err()
	}
	return nil, w.err()
}

// tempPipe is an os.Pipe that the test closes.
func tempPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}
