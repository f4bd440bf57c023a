package actions

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
)

// obeyed says what the runner makes of a log.
func obeyed(log string) string {
	r := runnertest.New(runnertest.Matchers()...)
	r.Print([]byte(log))
	return r.Untouched()
}

func TestFenceLeavesOrdinaryLinesAlone(t *testing.T) {
	var out bytes.Buffer
	f := NewFence(&out)
	const text = "P-A1-net-egress  contained  7 canaries\n[1/2] x: y::z (0.0s)\r\n\n# a heading\n"
	for _, b := range []byte(text) {
		n, err := f.Write([]byte{b})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	require.NoError(t, f.Flush())
	require.Equal(t, text, out.String())
}

func TestNoCommandPassesTheFence(t *testing.T) {
	for _, s := range []string{
		"::set-output name=verdict::pass", "  \t::error::x", "\u00a0::stop-commands::t", "a ##[add-mask]b", "\u200b::debug::x", "#\u200b#[error]x",
		"\x1b::error::x", "text\r::error::x", "####[group]", "#\x00#[x]", "/x/file.go:1:2: msg",
	} {
		var out bytes.Buffer
		f := NewFence(&out)
		_, err := f.Write([]byte(s))
		require.NoError(t, err)
		require.NoError(t, f.Flush())
		require.Empty(t, obeyed(out.String()), "%q became %q", s, out.String())
	}
}

func TestFenceHoldsWhateverTheWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var out bytes.Buffer
		f := NewFence(&out)
		for _, part := range rapid.SliceOf(rapid.StringOf(rapid.SampledFrom([]rune("::##[]a1/.go \n\r\t\u200b\x00é")))).Draw(t, "writes") {
			n, err := f.Write([]byte(part))
			require.NoError(t, err)
			require.Equal(t, len(part), n)
		}
		require.NoError(t, f.Flush())
		require.Empty(t, obeyed(out.String()), "%q", out.String())
	})
}

func TestFenceHoldsNoEndlessLine(t *testing.T) {
	var out bytes.Buffer
	f := NewFence(&out)
	_, err := f.Write(bytes.Repeat([]byte("a"), maxLine))
	require.NoError(t, err)
	require.Equal(t, maxLine+1, out.Len())
	// What follows a break that we made is a new line to the runner too.
	_, err = f.Write([]byte("::error::x\n"))
	require.NoError(t, err)
	require.NotContains(t, out.String(), "\n::error")
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestFencePassesErrorsOn(t *testing.T) {
	_, err := NewFence(broken{}).Write([]byte("x\n"))
	require.EqualError(t, err, "gone")
	f := NewFence(broken{})
	_, err = f.Write([]byte("x"))
	require.NoError(t, err)
	require.EqualError(t, f.Flush(), "gone")
}
