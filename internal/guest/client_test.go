package guest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func run(t testing.TB, c *Client, inv backends.Invocation) (backends.Execution, error) {
	t.Helper()
	if inv.Tool == "" {
		inv.Tool = "noop"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return c.Execute(ctx, inv)
}

func TestConcurrentCallsGetTheirOwnAnswers(t *testing.T) {
	c := connect(t, script{act: echo})
	require.Equal(t, "e0", c.Hello().Epoch)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			say := fmt.Sprint("call ", i)
			e, err := run(t, c, backends.Invocation{Tool: "echo", Params: map[string]string{"say": say}})
			if err != nil || string(e.Stdout.Bytes()) != say {
				t.Errorf("call %d: %q, %v", i, e.Stdout, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, Stats{}, c.Stats())
}

func TestHandshakeRefusals(t *testing.T) {
	hello := func(change func(*wire.Hello)) func(wire.Nonce) []byte {
		return func(n wire.Nonce) []byte {
			h := &wire.Hello{Type: wire.TypeHello, Version: 1, AgentSHA256: digest, PID: 1, Arch: "amd64", Epoch: "e", Tools: []string{}}
			change(h)
			b, _ := wire.Encode(h)
			out, _ := wire.AppendFrame(wire.Preamble(n), b)
			return out
		}
	}
	tests := map[string]struct {
		hello func(wire.Nonce) []byte
		says  string
	}{
		"other digest":  {hello(func(h *wire.Hello) { h.AgentSHA256 = strings.Repeat("f", 64) }), "expected " + digest},
		"other version": {hello(func(h *wire.Hello) { h.Version = 2 }), "version 2"},
		"no hello": {func(n wire.Nonce) []byte {
			out, _ := wire.AppendFrame(wire.Preamble(n), []byte(`{"type":"ResetAck","epoch":"e"}`))
			return out
		}, "not a hello"},
		"other nonce": {func(wire.Nonce) []byte { return wire.Preamble(wire.NewNonce()) }, "deadline"},
		"silence":     {func(wire.Nonce) []byte { return nil }, "deadline"},
		"garbage":     {func(wire.Nonce) []byte { return bytes.Repeat([]byte("x"), 100_000+2*wire.PreambleSize) }, "preamble not found"},
		"huge hello":  {func(n wire.Nonce) []byte { return append(wire.Preamble(n), 0xff, 0, 0, 0) }, "at most"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, err := Connect(ctx, Options{Dial: script{hello: tt.hello}.dialer(t), AgentSHA256: digest, skip: 100_000})
			require.ErrorContains(t, err, tt.says)
			require.NotEmpty(t, backends.CodeOf(err))
		})
	}
}

func TestDialErrorIsAHandshakeError(t *testing.T) {
	_, err := Connect(t.Context(), Options{Dial: func(context.Context) (io.ReadWriteCloser, error) { return nil, errors.New("no such socket") }})
	require.ErrorIs(t, err, backends.ErrHandshakeFailed)
}

func TestResultsThatAreNoAnswer(t *testing.T) {
	hash := wire.EvidenceHash([]byte("x"), nil)
	// %ID% stands for the command_id.
	tests := map[string]struct {
		body string
		code backends.Code
	}{
		"missing exit_code": {`{"type":"ToolResult","command_id":"%ID%","stdout":"x","stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrFrameMalformed},
		"string exit_code":  {`{"type":"ToolResult","command_id":"%ID%","exit_code":"0","stdout":"x","stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrFrameMalformed},
		"float exit_code":   {`{"type":"ToolResult","command_id":"%ID%","exit_code":0.5,"stdout":"x","stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrFrameMalformed},
		"null exit_code":    {`{"type":"ToolResult","command_id":"%ID%","exit_code":null,"stdout":"x","stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrFrameMalformed},
		"other hash":        {`{"type":"ToolResult","command_id":"%ID%","exit_code":0,"stdout":"y","stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrProtocol},
		"no base64":         {`{"type":"ToolResult","command_id":"%ID%","exit_code":0,"stdout":"!","stdout_encoding":"base64","stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrProtocol},
		"cut, no hash":      {`{"type":"ToolResult","command_id":"%ID%","exit_code":0,"stdout":"x","stdout_length":9,"stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrProtocol},
		"cut, not shorter":  {`{"type":"ToolResult","command_id":"%ID%","exit_code":0,"stdout":"x","stdout_length":1,"stdout_sha256":"` + hash + `","stderr":"","evidence_hash":"` + hash + `"}`, backends.ErrProtocol},
		"early timeout":     {`{"type":"ToolResult","command_id":"%ID%","exit_code":137,"stdout":"x","stderr":"","evidence_hash":"` + hash + `","timed_out":true}`, backends.ErrProtocol},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := connect(t, script{act: func(g *far, m any) {
				if d, ok := m.(*wire.ToolDispatch); ok {
					g.body(strings.ReplaceAll(tt.body, "%ID%", d.CommandID))
				}
			}})
			begin := time.Now()
			_, err := run(t, c, backends.Invocation{})
			require.ErrorIs(t, err, tt.code)
			require.Less(t, time.Since(begin), backends.DefaultDeadline, "it must not wait out the deadline")
		})
	}
}

func TestDeadlines(t *testing.T) {
	t.Run("confirmed", func(t *testing.T) {
		c := connect(t, script{act: func(g *far, m any) {
			d := m.(*wire.ToolDispatch)
			time.AfterFunc(time.Duration(d.DeadlineMS)*time.Millisecond, func() {
				g.send(&wire.ToolResult{Type: wire.TypeToolResult, CommandID: d.CommandID, ExitCode: wire.ExitKilled, TimedOut: true, EvidenceHash: wire.EvidenceHash(nil, nil)})
			})
		}})
		_, err := run(t, c, backends.Invocation{Deadline: 50 * time.Millisecond})
		var timeout *backends.ToolTimeoutError
		require.ErrorAs(t, err, &timeout)
		require.ErrorIs(t, err, backends.ErrToolTimeout)
		require.GreaterOrEqual(t, timeout.Elapsed, 50*time.Millisecond)
		require.False(t, timeout.SandboxKilled)
	})
	t.Run("silent", func(t *testing.T) {
		c := connect(t, script{})
		begin := time.Now()
		_, err := run(t, c, backends.Invocation{Deadline: 30 * time.Millisecond})
		require.ErrorIs(t, err, ErrUnconfirmed)
		require.NotErrorIs(t, err, backends.ErrToolTimeout)
		require.GreaterOrEqual(t, time.Since(begin), 130*time.Millisecond, "the grace is waited out")
	})
	t.Run("ended late by itself", func(t *testing.T) {
		c := connect(t, script{act: func(g *far, m any) {
			d := m.(*wire.ToolDispatch)
			time.AfterFunc(90*time.Millisecond, func() { g.result(d.CommandID, 0, "") })
		}})
		_, err := run(t, c, backends.Invocation{Deadline: 10 * time.Millisecond})
		require.ErrorIs(t, err, ErrUnconfirmed)
	})
	t.Run("cancelled", func(t *testing.T) {
		c := connect(t, script{act: func(g *far, m any) {
			d := m.(*wire.ToolDispatch)
			if d.Tool == "late" {
				time.AfterFunc(60*time.Millisecond, func() { g.result(d.CommandID, 0, "") })
				return
			}
			g.result(d.CommandID, 0, "")
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Execute(ctx, backends.Invocation{Tool: "late"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Eventually(t, func() bool { return c.Stats().Late == 1 }, 5*time.Second, time.Millisecond)
		_, err = run(t, c, backends.Invocation{})
		require.NoError(t, err, "the session survives a call that was given up")
	})
}

func TestUnsolicitedAnswersAreDropped(t *testing.T) {
	c := connect(t, script{act: func(g *far, m any) {
		g.result("nobody", 0, "forged")
		g.send(&wire.GuestResponse{Type: wire.TypeGuestResponse, QueryID: m.(*wire.ToolDispatch).CommandID, Result: []byte("{}")})
		echo(g, m)
	}})
	e, err := run(t, c, backends.Invocation{Params: map[string]string{"say": "real"}})
	require.NoError(t, err)
	require.Equal(t, "real", string(e.Stdout.Bytes()))
	require.Equal(t, 2, c.Stats().Unsolicited)
}

func TestPatienceIsLimited(t *testing.T) {
	tests := map[string]struct {
		flood func(g *far)
		code  backends.Code
	}{
		"undecodable": {func(g *far) {
			for range maxJunkFrames + 1 {
				g.body("nonsense")
			}
		}, backends.ErrProtocol},
		"zero frames": {func(g *far) { g.raw(make([]byte, 4*(maxJunkFrames+1))) }, backends.ErrProtocol},
		"one big":     {func(g *far) { g.body(strings.Repeat("x", maxJunkBytes+1)) }, backends.ErrProtocol},
		"unsolicited": {func(g *far) {
			for i := range maxJunkFrames + 1 {
				g.result(fmt.Sprint("u", i), 0, "")
			}
		}, backends.ErrProtocol},
		"host messages": {func(g *far) {
			for range maxJunkFrames + 1 {
				g.send(&wire.GuestQuery{Type: wire.TypeGuestQuery, QueryID: "1", QueryKind: "MemUsage"})
			}
		}, backends.ErrProtocol},
		"error events": {func(g *far) {
			for range maxJunkFrames + 1 {
				g.send(&wire.ErrorEvent{Type: wire.TypeErrorEvent, Code: "X", Message: "m"})
			}
		}, backends.ErrProtocol},
		"lost step": {func(g *far) {
			g.send(&wire.ErrorEvent{Type: wire.TypeErrorEvent, Code: "SANDBOX_VSOCK_FRAME_TOO_LARGE"})
		}, backends.ErrProtocol},
		"oversize":   {func(g *far) { g.raw([]byte{1, 0, 0, 1, 'x'}) }, backends.ErrFrameTooLarge},
		"half frame": {func(g *far) { g.raw([]byte{0, 0, 1, 0, '{'}) }, backends.ErrPartialFrameTimeout},
		"truncated":  {func(g *far) { g.raw([]byte{0, 0, 1, 0, '{'}); _ = g.conn.Close() }, backends.ErrClosed},
		"closed":     {func(g *far) { _ = g.conn.Close() }, backends.ErrClosed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := connect(t, script{act: func(g *far, m any) { tt.flood(g) }}, func(o *Options) { o.FrameTimeout = 200 * time.Millisecond })
			begin := time.Now()
			_, err := run(t, c, backends.Invocation{Deadline: 30 * time.Second})
			require.ErrorIs(t, err, tt.code)
			require.Less(t, time.Since(begin), 10*time.Second, "it must not wait out the deadline")
			require.ErrorIs(t, c.Err(), tt.code)
			_, err = run(t, c, backends.Invocation{})
			require.ErrorIs(t, err, tt.code, "a poisoned session stays poisoned")
		})
	}
}

func TestDripDoesNotExtendAFrame(t *testing.T) {
	c := connect(t, script{act: func(g *far, m any) {
		go func() {
			g.raw([]byte{0, 0, 4, 0})
			for range 100 {
				time.Sleep(10 * time.Millisecond)
				g.raw([]byte{' '})
			}
		}()
	}}, func(o *Options) { o.FrameTimeout = 150 * time.Millisecond })
	begin := time.Now()
	_, err := run(t, c, backends.Invocation{})
	require.ErrorIs(t, err, backends.ErrPartialFrameTimeout)
	require.Less(t, time.Since(begin), 800*time.Millisecond)
}

func TestWithoutLimitsTheDripIsWaitedFor(t *testing.T) {
	c := connect(t, script{act: func(g *far, m any) { g.raw([]byte{0, 0, 4, 0, '{'}) }},
		func(o *Options) { o.FrameTimeout = 50 * time.Millisecond; o.NoLimits = true })
	_, err := run(t, c, backends.Invocation{Deadline: 200 * time.Millisecond})
	require.ErrorIs(t, err, ErrUnconfirmed)
	require.NoError(t, c.Err(), "the leak never notices")
}

func TestFrameTimeoutOfTheNextSession(t *testing.T) {
	s := script{act: func(g *far, m any) {
		if m.(*wire.ToolDispatch).Tool == "half" {
			g.raw([]byte{0, 0, 4, 0, '{'})
			return
		}
		echo(g, m)
	}}
	c := connect(t, s)
	c.SetFrameTimeout(50 * time.Millisecond)
	require.NoError(t, c.Resync(t.Context()))
	_, err := run(t, c, backends.Invocation{Tool: "half"})
	require.ErrorIs(t, err, backends.ErrPartialFrameTimeout)
	c.SetFrameTimeout(0) // the default again, not none at all
	for range 20 {
		require.NoError(t, c.Resync(t.Context()))
		_, err = run(t, c, backends.Invocation{})
		require.NoError(t, err)
	}
}

func TestLocalRefusals(t *testing.T) {
	seen := make(chan string, 1)
	c := connect(t, script{act: func(g *far, m any) { seen <- m.(*wire.ToolDispatch).CommandID }})
	first := make(chan error, 1)
	go func() {
		_, err := c.Execute(t.Context(), backends.Invocation{ID: "same", Tool: "noop", Deadline: 100 * time.Millisecond})
		first <- err
	}()
	require.Equal(t, "same", <-seen)
	_, err := c.Execute(t.Context(), backends.Invocation{ID: "same", Tool: "noop"})
	require.ErrorIs(t, err, backends.ErrDuplicateRequest)
	require.ErrorIs(t, <-first, ErrUnconfirmed, "the call in flight is not disturbed")
	for name, inv := range map[string]backends.Invocation{
		"no tool":      {},
		"long id":      {ID: strings.Repeat("x", maxID+1), Tool: "noop"},
		"bad params":   {Tool: "noop", Params: func() {}},
		"array params": {Tool: "noop", Params: []int{1}},
	} {
		_, err := c.Execute(t.Context(), inv)
		require.ErrorIs(t, err, backends.ErrToolError, name)
	}
	_, err = c.Execute(t.Context(), backends.Invocation{Tool: "noop", Params: map[string][]byte{"x": make([]byte, wire.MaxFrame)}})
	require.ErrorIs(t, err, backends.ErrFrameTooLarge)
	require.NoError(t, c.Close())
	_, err = c.Execute(t.Context(), backends.Invocation{Tool: "noop"})
	require.ErrorIs(t, err, backends.ErrClosed)
}

func TestResync(t *testing.T) {
	for name, dial := range map[string]func(script, testing.TB) Dialer{"new stream": script.dialer, "same stream": script.stream} {
		t.Run(name, func(t *testing.T) {
			acted := make(chan bool, 10)
			s := script{act: func(g *far, m any) {
				d := m.(*wire.ToolDispatch)
				defer func() { acted <- true }()
				switch d.Tool {
				case "poison":
					g.raw(append([]byte{0xff, 0xff, 0xff, 0xff}, bytes.Repeat([]byte{0}, 100_000)...))
				case "half":
					g.raw([]byte{0, 1, 0, 0, '{'})
				case "hang":
				default:
					echo(g, m)
				}
			}}
			c := connect(t, s, func(o *Options) { o.Dial = dial(s, t) })
			for _, tool := range []string{"poison", "half", "hang"} {
				done := make(chan error, 1)
				go func() {
					_, err := c.Execute(t.Context(), backends.Invocation{Tool: tool, Deadline: 20 * time.Second})
					done <- err
				}()
				if tool == "poison" {
					require.ErrorIs(t, <-done, backends.ErrFrameTooLarge)
					done <- nil
				}
				<-acted
				require.NoError(t, c.Resync(t.Context()))
				<-done
				e, err := run(t, c, backends.Invocation{Params: map[string]string{"say": "again"}})
				require.NoError(t, err, "after %s", tool)
				require.Equal(t, "again", string(e.Stdout.Bytes()))
				<-acted
			}
		})
	}
}

func TestTapSeesRawBytes(t *testing.T) {
	c := connect(t, script{act: func(g *far, m any) { g.raw([]byte{0, 0, 0, 2, 0xff, 0xfe}); echo(g, m) }})
	var mu sync.Mutex
	var seen []byte
	stop := c.Tap(func(b []byte) { mu.Lock(); defer mu.Unlock(); seen = append(seen, b...) })
	_, err := run(t, c, backends.Invocation{})
	require.NoError(t, err)
	stop()
	n := len(seen)
	require.True(t, bytes.Contains(seen, []byte{0, 0, 0, 2, 0xff, 0xfe}))
	_, err = run(t, c, backends.Invocation{})
	require.NoError(t, err)
	require.Len(t, seen, n, "a stopped tap sees nothing")
}

func TestPlainGuest(t *testing.T) {
	c := connect(t, script{act: func(g *far, m any) {
		g.body(`{"type":"ToolResult","command_id":"` + m.(*wire.ToolDispatch).CommandID + `","exit_code":3,"stdout":"hi","stderr":"","evidence_hash":"placeholder"}`)
	}}, func(o *Options) { o.Plain = true })
	e, err := run(t, c, backends.Invocation{})
	require.NoError(t, err)
	require.Equal(t, 3, e.ExitCode)
	require.Equal(t, wire.EvidenceHash([]byte("hi"), nil), e.EvidenceHash)
}

func TestTruncatedOutput(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	c := connect(t, script{act: func(g *far, m any) {
		g.send(&wire.ToolResult{Type: wire.TypeToolResult, CommandID: m.(*wire.ToolDispatch).CommandID, Stdout: base64.StdEncoding.EncodeToString([]byte{0xff}),
			StdoutEncoding: wire.EncodingBase64, StdoutLength: 1000, StdoutSHA256: sum, EvidenceHash: wire.EvidenceHash([]byte{0xff}, nil)})
	}})
	e, err := run(t, c, backends.Invocation{})
	require.NoError(t, err)
	require.True(t, e.Stdout.Truncated())
	require.EqualValues(t, 1000, e.Stdout.Len())
	require.Equal(t, sum, e.Stdout.SHA256())
}

func TestGuestThatDoesNotRead(t *testing.T) {
	near, far := socketPair(t)
	defer far.Close()
	o := Options{Plain: true, FrameTimeout: 100 * time.Millisecond, Dial: func(context.Context) (io.ReadWriteCloser, error) { return near, nil }}
	c, err := Connect(t.Context(), o)
	require.NoError(t, err)
	defer c.Close()
	begin := time.Now()
	_, err = run(t, c, backends.Invocation{Params: map[string][]byte{"x": make([]byte, 8<<20)}, Deadline: 20 * time.Second})
	require.ErrorIs(t, err, backends.ErrClosed)
	require.Less(t, time.Since(begin), 10*time.Second)
}

// 16 MiB of NULs come as a frame that is capped; the host's memory has to stay
// far below the peer's 2.1 GB.
func TestHostileOutputKeepsMemoryBounded(t *testing.T) {
	nuls := strings.Repeat(`\u0000`, (wire.MaxFrame-1000)/6)
	hash := wire.EvidenceHash(make([]byte, (wire.MaxFrame-1000)/6), nil)
	text := strings.Repeat(`x`, wire.MaxFrame-1000)
	textHash := wire.EvidenceHash([]byte(text), nil)
	c := connect(t, script{act: func(g *far, m any) {
		d := m.(*wire.ToolDispatch)
		body, sum := nuls, hash
		if d.Tool == "text" {
			body, sum = text, textHash
		}
		g.body(`{"type":"ToolResult","command_id":"` + d.CommandID + `","exit_code":0,"stderr":"","evidence_hash":"` + sum + `","stdout":"` + body + `"}`)
	}})
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 2 {
		for _, tool := range []string{"nul", "text"} {
			_, err := c.Execute(t.Context(), backends.Invocation{Tool: tool, Deadline: 5 * time.Minute}) // slow under -race
			require.NoError(t, err)
		}
	}
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapSys)-int64(before.HeapInuse), int64(200<<20))
}
