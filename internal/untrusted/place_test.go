package untrusted

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
)

// annotated reports what the runner's problem matchers and commands make of s.
func annotated(s string) string {
	r := runnertest.New(runnertest.Matchers()...)
	r.Print([]byte(s))
	return r.Untouched()
}

func TestNoPlaceIsLeft(t *testing.T) {
	for _, s := range []string{
		"/x/file.go:1:2: msg", "./file.go: msg", "/file.GO: x", "\nfile.go:1:2: msg", "/x.go:", "main.c:1:2: error: x", "main.c:1: fatal error: x", "f90:1:2: warning: x",
		"a.ts(1,2): error TS1: x", "a.ts:1:2 - error TS1: x", "A.cs(1): warning CS1: x", "A.cs(1,2,3,4): error CS1: x", "a.js: line 1, col 2, Error - x (y)",
		"/a.go:1:2: /b.go:3:4: c.c:1:2:3:4: error: x",
	} {
		for _, got := range []string{Line(backends.NewText([]byte(s)), 0), Prose(s, 0), XML(backends.NewText([]byte(s)), 0)} {
			require.Empty(t, annotated(got), "%q became %q", s, got)
		}
		back, err := strconv.Unquote(Line(backends.NewText([]byte(s)), 0))
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
}

// What is not a place stays readable.
func TestOrdinaryProseIsLeftAlone(t *testing.T) {
	for _, s := range []string{
		"report of 2026-04-27T12:00:00.000Z", "connect 127.0.0.1:8080 failed", "tcp4: the tcp4 canary received the token", "panic at runner/probe.go:12, caught",
		"3 of 4 (2): no", "P-A5: 5 calls with a deadline of 807ms ended within 875ms",
	} {
		require.Equal(t, s, Prose(s, 0))
	}
}

func TestNothingSprings(t *testing.T) {
	word := rapid.SampledFrom([]string{".go", ":", "1", "22", " ", "(", ",", ")", "error", "warning", "/", "\\", "line", "col", "Error - ", "TS1", "a", "-", "#", "[", "]", "add-mask", "::", "\n", "\r", "\t", "\x00", "\u200b", "CS1"})
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Join(rapid.SliceOf(word).Draw(t, "words"), "")
		for _, got := range []string{Line(backends.NewText([]byte(s)), 0), Prose(s, 0), "P-A1: " + Prose(s, 0), "case " + Prose(s, 0) + ": optional"} {
			require.Empty(t, annotated(got), "%q became %q", s, got)
		}
		back, err := strconv.Unquote(Line(backends.NewText([]byte(s)), 1<<20))
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}
