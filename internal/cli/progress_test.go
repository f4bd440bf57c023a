package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

func fixed(width int, tty bool) func(io.Writer) (int, bool) {
	return func(io.Writer) (int, bool) { return width, tty }
}

func TestALiveLineNeverWrapsAndIsCleared(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, fixed(20, true))
	p.event(runner.Event{Probe: "P-A1-a-very-long-name-indeed", Of: 11})
	p.event(runner.Event{Probe: "P-A1-a-very-long-name-indeed", Of: 11, Done: 1, Total: 2})
	p.event(runner.Event{Probe: "P-A1-a-very-long-name-indeed", Of: 11, Result: &probes.Result{Verdict: probes.Contained, Passed: true}})
	require.NotContains(t, b.String(), "\n")
	for _, part := range strings.Split(b.String(), "\r") {
		require.Less(t, len(part), 20)
	}
	require.True(t, strings.HasSuffix(b.String(), "\r"+strings.Repeat(" ", 19)+"\r"), "%q", b.String())
}

func TestPlainLinesSayEachProbeOnce(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, fixed(0, false))
	p.event(runner.Event{Probe: "P-A1", Of: 2})
	p.event(runner.Event{Probe: "P-A1", Of: 2, Done: 1, Total: 2})
	p.event(runner.Event{Probe: "P-A1", Of: 2, Result: &probes.Result{Verdict: probes.Contained, Passed: true, DurationMS: 1200}})
	p.event(runner.Event{Probe: "P-A2", Index: 1, Of: 2, Skipped: &probes.SkippedProbe{Reason: "no meter"}})
	require.Equal(t, "[1/2] P-A1: contained (1.2s)\n[2/2] P-A2: skipped: no meter\n", b.String())
}

func TestOnATerminalTheTableIsTheReport(t *testing.T) {
	var out, errOut bytes.Buffer
	a := scriptedApp()
	a.Out, a.Err, a.Terminal = &out, &errOut, fixed(80, true)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	require.Zero(t, a.Run(t.Context(), []string{"--sandbox", "scripted", "--iterations", "2"}))
	require.Empty(t, out.String(), "JSON on a terminal helps nobody")
	require.Contains(t, errOut.String(), "P-A1-scripted   contained  nobody came")
	for line := range strings.Lines(errOut.String()) {
		for _, part := range strings.Split(line, "\r") {
			require.LessOrEqual(t, len(strings.TrimRight(part, "\n")), 80)
		}
	}
}

func TestPlainEscapesWhatIsNot(t *testing.T) {
	require.Equal(t, "plain text", plain("plain text"))
	require.NotContains(t, plain("\x1b[2J"), "\x1b")
	require.NotContains(t, plain("a\n::error::x"), "\n")
	require.Equal(t, `two quoted "words"`, plain(`two quoted "words"`))
}
