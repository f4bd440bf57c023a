package guest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const digest = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// script plays the guest: it answers the preamble and the hello, and gives each
// further frame of the host to act.
type script struct {
	hello func(n wire.Nonce) []byte // nil sends a proper one
	act   func(g *far, msg any)     // nil ignores everything
}

// far is the guest's end of the stream.
type far struct {
	conn net.Conn
	t    testing.TB
}

func (g *far) raw(b []byte) { _, _ = g.conn.Write(b) }

func (g *far) body(s string) { _ = wire.WriteFrame(g.conn, []byte(s)) }

func (g *far) send(m any) {
	b, err := wire.Encode(m)
	if err == nil {
		_ = wire.WriteFrame(g.conn, b)
	}
}

func (g *far) result(id string, code int, stdout string) {
	r := &wire.ToolResult{Type: wire.TypeToolResult, CommandID: id, ExitCode: code, EvidenceHash: wire.EvidenceHash([]byte(stdout), nil)}
	wire.SetOutput(&r.Stdout, &r.StdoutEncoding, []byte(stdout))
	g.send(r)
}

func properHello(n wire.Nonce) []byte {
	b, _ := wire.Encode(&wire.Hello{Type: wire.TypeHello, Version: 1, AgentSHA256: digest, PID: 1, Arch: "amd64", Epoch: "e0", Tools: []string{"noop"}})
	out, _ := wire.AppendFrame(wire.Preamble(n), b)
	return out
}

// serve plays s on conn until it closes. A preamble may come at any time.
func (s script) serve(t testing.TB, conn net.Conn) {
	g := &far{conn, t}
	buf := []byte{}
	chunk := make([]byte, 64<<10)
	for {
		n, err := conn.Read(chunk)
		if err != nil {
			return
		}
		for buf = append(buf, chunk[:n]...); len(buf) >= 4; {
			if buf[0] == wire.Magic[0] {
				if len(buf) < wire.PreambleSize {
					break
				}
				hello := s.hello
				if hello == nil {
					hello = properHello
				}
				g.raw(hello(wire.Nonce(buf[len(wire.Magic):wire.PreambleSize])))
				buf = buf[wire.PreambleSize:]
				continue
			}
			size := 4 + int(uint32(buf[0])<<24|uint32(buf[1])<<16|uint32(buf[2])<<8|uint32(buf[3]))
			if len(buf) < size {
				break
			}
			msg, err := wire.Decode(buf[4:size])
			buf = buf[size:]
			if err == nil && s.act != nil {
				s.act(g, msg)
			}
		}
	}
}

// dialer returns a Dialer that starts s on a fresh socket pair for each dial.
// Unix sockets buffer, as every real transport does.
func (s script) dialer(t testing.TB) Dialer {
	return func(context.Context) (io.ReadWriteCloser, error) {
		near, far := socketPair(t)
		done := make(chan struct{})
		go func() { defer close(done); defer far.Close(); s.serve(t, far) }()
		t.Cleanup(func() { _ = near.Close(); _ = far.Close(); <-done })
		return near, nil
	}
}

// stream returns a Dialer that gives the same stream each time.
func (s script) stream(t testing.TB) Dialer {
	near, err := s.dialer(t)(context.Background())
	require.NoError(t, err)
	return func(context.Context) (io.ReadWriteCloser, error) { return near, nil }
}

func socketPair(t testing.TB) (near, far net.Conn) {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	require.NoError(t, err)
	defer l.Close()
	near, err = net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	far, err = l.Accept()
	require.NoError(t, err)
	return near, far
}

func connect(t testing.TB, s script, change ...func(*Options)) *Client {
	o := Options{Dial: s.dialer(t), AgentSHA256: digest, Grace: 100 * time.Millisecond}
	for _, f := range change {
		f(&o)
	}
	c, err := Connect(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo answers every dispatch with the value of its "say" parameter.
func echo(g *far, msg any) {
	if d, ok := msg.(*wire.ToolDispatch); ok {
		var p struct{ Say string }
		_ = json.Unmarshal(d.Params, &p)
		g.result(d.CommandID, 0, p.Say)
	}
}
