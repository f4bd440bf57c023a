package agent

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// FuzzServe sends anything and then a preamble: the agent must always come to
// its senses, echo it and answer a call.
func FuzzServe(f *testing.F) {
	body := []byte(`{"type":"ToolDispatch","command_id":"1","tool":"echo","params":{},"deadline_ms":10}`)
	n := wire.Nonce{1, 2, 3}
	f.Add([]byte{})
	f.Add(wire.Preamble(n))
	f.Add(append(wire.Preamble(n), framed(body)...))
	f.Add(append(wire.Preamble(n), framed(body)[:20]...))
	f.Add(append(wire.Preamble(n), append(framed(body), framed(body)...)...))
	f.Add(append(wire.Preamble(n), 0xff, 0xff, 0xff, 0xff))
	f.Add(append(wire.Preamble(n), wire.Magic[:11]...))
	f.Add(append(wire.Preamble(n), framed([]byte(`{"type":"GuestQuery","query_id":"q","query_kind":"Epoch","ts":""}`))...))
	f.Add(append(wire.Preamble(n), framed([]byte(`{"type":"ResetSignal","reason":"r","entropy":"AA=="}`))...))
	f.Fuzz(func(t *testing.T, junk []byte) {
		host, guest := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- Serve(context.Background(), guest, Options{Table: testTable(), World: fakeWorld{}}) }()
		require.NoError(t, host.SetDeadline(time.Now().Add(patience)))
		want := wire.NewNonce()
		sent := make(chan error, 1)
		go func() {
			_, err := host.Write(append(append(bytes.Clone(junk), wire.Preamble(want)...), framed(body)...))
			sent <- err
		}()
		r := bufio.NewReader(host)
		_, err := wire.AwaitPreamble(r, want, 64<<20)
		require.NoError(t, err)
		fr := wire.NewFrameReader(r, 0, 0)
		for _, want := range []any{&wire.Hello{}, &wire.ToolResult{}} {
			b, err := fr.Read()
			require.NoError(t, err)
			m, err := wire.Decode(b)
			require.NoError(t, err)
			require.IsType(t, want, m)
		}
		require.NoError(t, <-sent)
		require.NoError(t, host.Close())
		require.NoError(t, <-done)
	})
}

// found is an event in a form that can be compared.
type found struct {
	session wire.Nonce
	frame   string
	code    string
}

func scan(sc *scanner, chunks [][]byte) (all []found) {
	for _, c := range chunks {
		sc.feed(bytes.Clone(c), func(e event) {
			f := found{frame: string(e.frame), code: e.code}
			if e.session != nil {
				f.session = *e.session
			}
			all = append(all, f)
		})
	}
	return all
}

// How a stream is cut into reads must not matter.
func TestScannerDoesNotDependOnReads(t *testing.T) {
	pieces := rapid.OneOf(
		rapid.Just(wire.Magic), rapid.Just(wire.Magic[:5]), rapid.Just(wire.Preamble(wire.Nonce{9})),
		rapid.Just([]byte{0, 0, 0, 0}), rapid.Just([]byte{0, 0, 0, 5, 'h', 'e', 'l', 'l', 'o'}), rapid.Just([]byte{0, 0, 0, 9, 0xff, 0xfe}),
		rapid.Just([]byte{0xff, 0xfe, 'B', 'S', 'X'}), rapid.SliceOfN(rapid.Byte(), 0, 30))
	rapid.Check(t, func(t *rapid.T) {
		stream := bytes.Join(rapid.SliceOfN(pieces, 0, 12).Draw(t, "stream"), nil)
		whole, bytewise := &scanner{max: 64}, &scanner{max: 64}
		single := make([][]byte, len(stream))
		for i := range stream {
			single[i] = stream[i : i+1]
		}
		require.Equal(t, scan(bytewise, single), scan(whole, [][]byte{stream}))
		require.Equal(t, bytewise.phase, whole.phase)
		require.Equal(t, bytewise.midFrame(), whole.midFrame())

		// Whatever came before, a preamble opens its session and the next
		// frame is read.
		nonce := wire.Nonce{1}
		got := scan(whole, [][]byte{wire.Preamble(nonce), {0, 0, 0, 2, '{', '}'}})
		require.GreaterOrEqual(t, len(got), 2)
		require.Equal(t, []found{{session: nonce}, {frame: "{}"}}, got[len(got)-2:])
	})
}

func TestScannerTrustsNoAnnouncedLength(t *testing.T) {
	sc := &scanner{max: wire.MaxFrame}
	scan(sc, [][]byte{wire.Preamble(wire.Nonce{}), {0x01, 0, 0, 0}, []byte("ten bytes!")})
	require.LessOrEqual(t, cap(sc.body), trust)
}

// Whatever a tool prints, its result fits a frame and is what it printed.
func TestOutputSurvivesTheFrame(t *testing.T) {
	runes := rapid.SampledFrom([]string{"a", "\x00", "\n", "\"", "\\", "\u2028", "é", "\x7f", "\xff", "\x1b"})
	rapid.Check(t, func(t *rapid.T) {
		unit := []byte(rapid.StringOfN(rapid.Rune(), 0, 3, -1).Draw(t, "any") + runes.Draw(t, "rune"))
		size := rapid.SampledFrom([]int{1, 100, escapeWorth, 300_000}).Draw(t, "size")
		out := bytes.Repeat(unit, size/len(unit)+1)[:size]
		r := wire.ToolResult{Type: wire.TypeToolResult, CommandID: "1"}
		setOutput(&r.Stdout, &r.StdoutEncoding, out)
		body, err := wire.Encode(&r)
		require.NoError(t, err)
		if size >= escapeWorth {
			require.Less(t, len(body), size*4/3+500, "a frame of two full outputs would be over the cap")
		}
		m, err := wire.Decode(body)
		require.NoError(t, err)
		got, err := wire.Output(m.(*wire.ToolResult).Stdout, m.(*wire.ToolResult).StdoutEncoding)
		require.NoError(t, err)
		require.True(t, bytes.Equal(out, got))
	})
}
