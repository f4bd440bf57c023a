package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func TestCodesAreThoseOfTheHost(t *testing.T) {
	for got, want := range map[string]backends.Code{
		CodeFrameTooLarge: backends.ErrFrameTooLarge, CodeMalformed: backends.ErrFrameMalformed,
		CodePartialFrame: backends.ErrPartialFrameTimeout, CodeDuplicate: backends.ErrDuplicateRequest,
		CodeProtocol: backends.ErrProtocol,
	} {
		require.Equal(t, string(want), got)
	}
}

func TestHello(t *testing.T) {
	p := serve(t, Options{Table: testTable(), Digest: "d1g", BootID: "boot", Epoch: "e0", VM: true})
	h := p.hello()
	require.Equal(t, &wire.Hello{Type: wire.TypeHello, Version: 1, AgentSHA256: "d1g", PID: os.Getpid(), VM: true, Arch: runtime.GOARCH,
		BootID: "boot", Epoch: "e0", Tools: []string{"big", "echo", "panic", "plain", "poison", "wait"}}, h)
}

func TestEpochIsRandomUnlessGiven(t *testing.T) {
	a, b := serve(t, Options{}).hello().Epoch, serve(t, Options{}).hello().Epoch
	require.Len(t, a, 32)
	require.NotEqual(t, a, b)
}

func TestDispatch(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	hash := func(out, err string) string { return wire.EvidenceHash([]byte(out), []byte(err)) }
	for name, c := range map[string]struct {
		tool     string
		deadline time.Duration
		want     wire.ToolResult
	}{
		"a tool":         {"echo", time.Second, wire.ToolResult{ExitCode: 7, Stdout: `{"a":1}`, Stderr: "err", EvidenceHash: hash(`{"a":1}`, "err")}},
		"unknown":        {"nope", time.Second, wire.ToolResult{ExitCode: 127, Stderr: "the agent has no such tool\n", EvidenceHash: hash("", "the agent has no such tool\n")}},
		"panic":          {"panic", time.Second, wire.ToolResult{ExitCode: 254, Stderr: "tool panicked\n", EvidenceHash: hash("", "tool panicked\n")}},
		"deadline":       {"wait", 20 * time.Millisecond, wire.ToolResult{ExitCode: 137, TimedOut: true, EvidenceHash: hash("", "")}},
		"no channel":     {"plain", time.Second, wire.ToolResult{ExitCode: 3, EvidenceHash: hash("", "")}},
		"deadline zero":  {"echo", 0, wire.ToolResult{ExitCode: 254, Stderr: "deadline_ms is not between 1 and 86400000\n", EvidenceHash: hash("", "deadline_ms is not between 1 and 86400000\n")}},
		"deadline minus": {"echo", -time.Second, wire.ToolResult{ExitCode: 254, Stderr: "deadline_ms is not between 1 and 86400000\n", EvidenceHash: hash("", "deadline_ms is not between 1 and 86400000\n")}},
	} {
		t.Run(name, func(t *testing.T) {
			p.dispatch("id-"+name, c.tool, map[string]int{"a": 1}, c.deadline)
			c.want.Type, c.want.CommandID = wire.TypeToolResult, "id-"+name
			require.Equal(t, &c.want, next[*wire.ToolResult](p))
		})
	}
}

func TestPoisonToolWritesToTheRawChannel(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	p.dispatch("1", "poison", none(), time.Second)
	body, err := p.fr.Read()
	require.NoError(t, err)
	require.Equal(t, "{}", string(body))
	require.Zero(t, next[*wire.ToolResult](p).ExitCode)
}

func none() any { return struct{}{} }

func TestBigOutputIsCutWithLengthAndHash(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	const n = DefaultOutputCap + 12345
	p.dispatch("1", "big", map[string]int{"Bytes": n, "Fill": 'x'}, 5*time.Second)
	r := next[*wire.ToolResult](p)
	sum := sha256.Sum256(bytes.Repeat([]byte("x"), n))
	require.Len(t, r.Stdout, DefaultOutputCap)
	require.EqualValues(t, n, r.StdoutLength)
	require.Equal(t, hex.EncodeToString(sum[:]), r.StdoutSHA256)
	require.Equal(t, wire.EvidenceHash([]byte(r.Stdout), nil), r.EvidenceHash)
	require.Empty(t, r.StderrSHA256)
}

func TestOutputThatGrowsWhenEscapedStillFits(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	for i, fill := range []int{0, 0xff} { // six bytes each as JSON text; not UTF-8
		p.dispatch(fmt.Sprint(i), "big", map[string]int{"Bytes": DefaultOutputCap, "Fill": fill}, 5*time.Second)
		r := next[*wire.ToolResult](p)
		out, err := wire.Output(r.Stdout, r.StdoutEncoding)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{byte(fill)}, DefaultOutputCap), out)
		require.Equal(t, wire.EvidenceHash(out, nil), r.EvidenceHash)
		require.Zero(t, r.StdoutLength)
	}
}

func TestBadMessagesDoNotEndTheSession(t *testing.T) {
	p := serve(t, Options{Table: testTable(), World: fakeWorld{}})
	p.hello()
	for name, c := range map[string]struct{ body, code string }{
		"not json":        {"hello", CodeMalformed},
		"not utf-8":       {"{\"type\":\"\xff\"}", CodeMalformed},
		"array":           {"[]", CodeMalformed},
		"deep":            {strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), CodeMalformed},
		"unknown type":    {`{"type":"Nope"}`, CodeMalformed},
		"unknown key":     {`{"type":"ResetSignal","reason":"r","x":1}`, CodeMalformed},
		"duplicate key":   {`{"type":"ResetSignal","reason":"r","reason":"s"}`, CodeMalformed},
		"deadline string": {`{"type":"ToolDispatch","command_id":"1","tool":"echo","params":{},"deadline_ms":"1"}`, CodeMalformed},
		"no command id":   {`{"type":"ToolDispatch","command_id":"","tool":"echo","params":{},"deadline_ms":1}`, CodeMalformed},
		"long command id": {`{"type":"ToolDispatch","command_id":"` + strings.Repeat("x", 257) + `","tool":"echo","params":{},"deadline_ms":1}`, CodeMalformed},
		"host's own type": {`{"type":"ErrorEvent","code":"x","message":"y"}`, CodeProtocol},
		"unknown query":   {`{"type":"GuestQuery","query_id":"q","query_kind":"Nope","ts":""}`, CodeProtocol},
		"long query id":   {`{"type":"GuestQuery","query_id":"` + strings.Repeat("x", 257) + `","query_kind":"Epoch","ts":""}`, CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			p.write(framed([]byte(c.body)))
			require.Equal(t, c.code, next[*wire.ErrorEvent](p).Code)
			p.dispatch("after "+name, "echo", none(), time.Second)
			require.Equal(t, "after "+name, next[*wire.ToolResult](p).CommandID)
		})
	}
	t.Run("zero length", func(t *testing.T) {
		p.write(make([]byte, 4))
		require.Equal(t, CodeMalformed, next[*wire.ErrorEvent](p).Code)
		p.dispatch("after", "echo", none(), time.Second)
		require.Equal(t, 7, next[*wire.ToolResult](p).ExitCode)
	})
}

func TestOversizedFrameEndsTheSessionNotTheAgent(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	p.raw(append([]byte{0x01, 0x00, 0x00, 0x01}, dispatchFrame(t, "lost", "echo", none(), time.Second)...))
	require.Equal(t, CodeFrameTooLarge, next[*wire.ErrorEvent](p).Code)
	p.hello()
	p.dispatch("2", "echo", none(), time.Second)
	require.Equal(t, "2", next[*wire.ToolResult](p).CommandID)
}

func TestSessionBeginsAnywhere(t *testing.T) {
	head := []byte{0, 0, 1, 0}
	for name, before := range map[string][]byte{
		"nothing":                  nil,
		"junk":                     []byte("junk\xff\xfe\xffBSM"),
		"half a header":            head[:2],
		"a header":                 head,
		"half a frame":             append(bytes.Clone(head), `{"type":"Tool`...),
		"half a magic":             wire.Magic[:7],
		"magic but its last byte":  wire.Magic[:11],
		"half a nonce":             append(bytes.Clone(wire.Magic), 1, 2, 3),
		"almost a nonce":           append(bytes.Clone(wire.Magic), make([]byte, 15)...),
		"a magic in a big header":  {0, 0xff, 0xfe, 'B'},
		"a frame that ends in it":  append([]byte{0, 0, 0, 3}, 'a'),
		"many beginnings of magic": bytes.Repeat([]byte{0xff}, 100),
	} {
		for _, inSession := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, inSession), func(t *testing.T) {
				p := serve(t, Options{Table: testTable(), Epoch: "e"})
				if inSession {
					p.hello()
				}
				n := wire.NewNonce()
				p.raw(append(bytes.Clone(before), wire.Preamble(n)...))
				require.Equal(t, "e", p.greeted(n).Epoch)
				p.dispatch("1", "echo", none(), time.Second)
				require.Equal(t, 7, next[*wire.ToolResult](p).ExitCode)
			})
		}
	}
}

func TestCleanPreambleRaisesNoEvent(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	n := wire.NewNonce()
	p.write(wire.Preamble(n))
	discarded, err := wire.AwaitPreamble(p.r, n, 1<<20)
	require.NoError(t, err)
	require.Zero(t, discarded, "something was sent between two sessions")
	next[*wire.Hello](p)
}

func TestBytesBeforeAnySessionAreIgnored(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.write(dispatchFrame(t, "1", "echo", none(), time.Second))
	p.hello()
	p.dispatch("2", "echo", none(), time.Second)
	require.Equal(t, "2", next[*wire.ToolResult](p).CommandID)
}

func TestDripDoesNotExtendAFrame(t *testing.T) {
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) { dripDoesNotExtendAFrame(t, stream) })
	}
}

func dripDoesNotExtendAFrame(t *testing.T, stream func(net.Conn) io.ReadWriteCloser) {
	const timeout = 100 * time.Millisecond
	p := serveOn(t, Options{Table: testTable(), FrameTimeout: timeout}, stream)
	p.hello()
	begin := time.Now()
	stop := make(chan struct{})
	var drip sync.WaitGroup
	drip.Go(func() {
		b := append([]byte{0, 0, 0xff, 0}, bytes.Repeat([]byte(" "), 10000)...)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(timeout / 10):
				_, _ = p.conn.Write(b[i : i+1])
			}
		}
	})
	require.Equal(t, CodePartialFrame, next[*wire.ErrorEvent](p).Code)
	require.GreaterOrEqual(t, time.Since(begin), timeout)
	require.Less(t, time.Since(begin), 5*timeout)
	close(stop)
	drip.Wait()
	p.hello()
	p.dispatch("1", "echo", none(), time.Second)
	require.Equal(t, 7, next[*wire.ToolResult](p).ExitCode)
}

func TestSlowSessionIsNoPartialFrame(t *testing.T) {
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) { slowSessionIsNoPartialFrame(t, stream) })
	}
}

func slowSessionIsNoPartialFrame(t *testing.T, stream func(net.Conn) io.ReadWriteCloser) {
	const timeout = 200 * time.Millisecond
	p := serveOn(t, Options{Table: testTable(), FrameTimeout: timeout}, stream)
	p.hello()
	for i := range 4 { // complete frames, more time in all than one may take
		b := dispatchFrame(t, fmt.Sprint(i), "echo", none(), time.Second)
		p.write(b[:10])
		time.Sleep(timeout / 2) // inside the deadline of this frame
		p.write(b[10:])
		require.Equal(t, 7, next[*wire.ToolResult](p).ExitCode)
	}
}

func TestDuplicateIDInFlight(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	p.dispatch("evil\x1b[31m", "wait", none(), 300*time.Millisecond)
	p.dispatch("evil\x1b[31m", "echo", none(), time.Second)
	ev := next[*wire.ErrorEvent](p)
	require.Equal(t, CodeDuplicate, ev.Code)
	require.NotContains(t, ev.Message, "evil")
	require.True(t, next[*wire.ToolResult](p).TimedOut)
	p.dispatch("evil\x1b[31m", "echo", none(), time.Second)
	require.Equal(t, 7, next[*wire.ToolResult](p).ExitCode, "an id is free again after its result")
}

func TestCallsAreConcurrentAndBounded(t *testing.T) {
	p := serve(t, Options{Table: testTable(), MaxCalls: 3})
	p.hello()
	for i := range 5 {
		p.dispatch(fmt.Sprint(i), "wait", none(), 200*time.Millisecond)
		if i >= 3 {
			r := next[*wire.ToolResult](p)
			require.Equal(t, fmt.Sprint(i), r.CommandID)
			require.Equal(t, wire.ExitAgentError, r.ExitCode)
			require.Contains(t, r.Stderr, "in flight")
		}
	}
	seen := map[string]bool{}
	for range 3 {
		r := next[*wire.ToolResult](p)
		require.True(t, r.TimedOut)
		seen[r.CommandID] = true
	}
	require.Len(t, seen, 3)
}

func TestResultsOfAnOldSessionAreDropped(t *testing.T) {
	ended := make(chan struct{})
	table := testTable()
	table["slow"] = Tool{Run: func(ctx context.Context, in wire.ToolInput) int {
		<-ctx.Done()
		close(ended)
		return 0
	}}
	p := serve(t, Options{Table: table})
	p.hello()
	p.dispatch("old", "slow", none(), time.Minute)
	p.hello()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the old session's call was not stopped")
	}
	p.dispatch("old", "echo", none(), time.Second) // the id is free in the new session
	require.Equal(t, 7, next[*wire.ToolResult](p).ExitCode)
}

func TestKeepTreeLeak(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			stopped := make(chan struct{})
			table := Table{"wait": {Run: func(ctx context.Context, _ wire.ToolInput) int {
				<-ctx.Done()
				close(stopped)
				return 0
			}}}
			p := serve(t, Options{Table: table, KeepTree: keep})
			p.hello()
			p.dispatch("1", "wait", none(), 20*time.Millisecond)
			require.True(t, next[*wire.ToolResult](p).TimedOut)
			select {
			case <-stopped:
				require.False(t, keep, "the leak stopped the tool")
			default:
				require.True(t, keep, "the deadline did not stop the tool")
			}
		})
	}
}

func TestInProcessToolThatDoesNotStopIsNotCalledDead(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	p := serve(t, Options{Table: Table{"stuck": {Run: func(context.Context, wire.ToolInput) int { <-release; return 0 }}}})
	p.hello()
	p.dispatch("1", "stuck", none(), 10*time.Millisecond)
	r := next[*wire.ToolResult](p)
	require.False(t, r.TimedOut)
	require.Equal(t, wire.ExitAgentError, r.ExitCode)
}

func TestQueriesAndReset(t *testing.T) {
	p := serve(t, Options{Epoch: "golden", World: fakeWorld{}})
	p.hello()
	ask := func(kind string) string {
		p.write(frame(t, &wire.GuestQuery{Type: wire.TypeGuestQuery, QueryID: "q-" + kind, QueryKind: kind}))
		r := next[*wire.GuestResponse](p)
		require.Equal(t, "q-"+kind, r.QueryID)
		return string(r.Result)
	}
	require.JSONEq(t, `{"count":11}`, ask(wire.QueryOpenFDCount))
	require.JSONEq(t, `{"total_bytes":2,"available_bytes":1}`, ask(wire.QueryMemUsage))
	require.JSONEq(t, `{"processes":[{"pid":1,"comm":"4096"}]}`, ask(wire.QueryProcessList))
	require.JSONEq(t, `{"epoch":"golden"}`, ask(wire.QueryEpoch))

	p.write(frame(t, &wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "plant", Epoch: "planted"}))
	require.Equal(t, &wire.ResetAck{Type: wire.TypeResetAck, Epoch: "planted"}, next[*wire.ResetAck](p))
	require.JSONEq(t, `{"epoch":"planted"}`, ask(wire.QueryEpoch))
	require.Equal(t, "planted", p.hello().Epoch, "an epoch outlives its session")
	p.write(frame(t, &wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "renew", UnixNano: 1}))
	require.Equal(t, &wire.ResetAck{Type: wire.TypeResetAck, Epoch: "planted", Applied: []string{"clock"}}, next[*wire.ResetAck](p))
}

func TestQueriesThatFailSaySo(t *testing.T) {
	for name, w := range map[string]World{"none": nil, "failing": fakeWorld{fail: true}} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, Options{World: w})
			p.hello()
			for _, kind := range []string{wire.QueryOpenFDCount, wire.QueryMemUsage, wire.QueryProcessList} {
				p.write(frame(t, &wire.GuestQuery{Type: wire.TypeGuestQuery, QueryID: "q", QueryKind: kind}))
				require.Equal(t, CodeProtocol, next[*wire.ErrorEvent](p).Code)
			}
		})
	}
}

func TestServeEndsWithItsStream(t *testing.T) {
	in, hostOut := tempPipe(t)
	hostIn, out := tempPipe(t)
	var ended sync.WaitGroup
	ended.Add(1)
	table := Table{"wait": {Run: func(ctx context.Context, _ wire.ToolInput) int { defer ended.Done(); <-ctx.Done(); return 0 }}}
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), twoFiles{in, out}, Options{Table: table}) }()
	n := wire.NewNonce()
	_, err := hostOut.Write(append(wire.Preamble(n), dispatchFrame(t, "1", "wait", none(), time.Minute)...))
	require.NoError(t, err)
	_, err = io.ReadFull(hostIn, make([]byte, wire.PreambleSize))
	require.NoError(t, err)
	require.NoError(t, hostOut.Close())
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("Serve did not end with its stream")
	}
	ended.Wait()
}

type twoFiles struct{ in, out *os.File }

func (f twoFiles) Read(p []byte) (int, error)  { return f.in.Read(p) }
func (f twoFiles) Write(p []byte) (int, error) { return f.out.Write(p) }
func (f twoFiles) Close() error                { return errors.Join(f.in.Close(), f.out.Close()) }

func TestServeEndsWhileTheHostDoesNotRead(t *testing.T) {
	p := serve(t, Options{Table: testTable()})
	p.hello()
	p.dispatch("1", "big", map[string]int{"Bytes": 1 << 20, "Fill": 'x'}, time.Second)
	_, err := p.r.ReadByte() // the result is being written; now the host stops reading
	require.NoError(t, err)
	require.NoError(t, p.conn.Close())
	select {
	case err := <-p.done:
		require.NoError(t, err)
		p.done <- nil
	case <-time.After(patience):
		t.Fatal("Serve hangs")
	}
}

func TestCaptureBudgetCutsButHashesAll(t *testing.T) {
	s := &server{}
	s.budget.Store(10)
	c := &capture{cap: 100, budget: &s.budget}
	_, _ = c.Write([]byte("12345678"))
	_, _ = c.Write([]byte("90ab")) // over the budget of all calls together
	_, _ = c.Write([]byte("cd"))
	var text, enc, sum string
	var n int64
	require.Equal(t, "12345678", string(c.into(&text, &enc, &n, &sum)))
	want := sha256.Sum256([]byte("1234567890abcd"))
	require.Equal(t, hex.EncodeToString(want[:]), sum)
	require.EqualValues(t, 14, n)
	c.free()
	require.EqualValues(t, 10, s.budget.Load())
}
