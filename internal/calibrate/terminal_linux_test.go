package calibrate_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Two things keep a line from being pushed into the host's terminal: the session
// and the filter. Each does so alone, and without both it gets there.
func TestPushedBackLine(t *testing.T) {
	testreq.Need(t, "bwrap")
	if b, err := os.ReadFile("/proc/sys/dev/tty/legacy_tiocsti"); err == nil && strings.TrimSpace(string(b)) == "0" {
		t.Skip("the kernel refuses TIOCSTI; fix: sudo sysctl -w dev.tty.legacy_tiocsti=1")
	}
	agent, _, err := agentbin.Find(t.Context(), "")
	require.NoError(t, err)
	find := func(leak, name string) probes.Case {
		cases := attackWith(t, agent, "P-A3-process-escape", leak)[0].Cases
		i := slices.IndexFunc(cases, func(c probes.Case) bool { return c.Name == name })
		require.NotEqual(t, -1, i)
		return cases[i]
	}
	noFilter := find("no-seccomp", attack.ProcTTY)
	require.Equal(t, probes.Contained, noFilter.Verdict, "%+v", noFilter)
	require.True(t, noFilter.Proved && noFilter.Controlled && noFilter.Attempted && noFilter.WitnessAlive)

	both := find("tiocsti", attack.ProcTTY)
	require.Equal(t, probes.Escaped, both.Verdict, "%+v", both)
	require.True(t, both.Proved && both.Controlled && both.Crossed)
	require.Equal(t, probes.Contained, find("tiocsti", attack.ProcFilter).Verdict, "the rest of the filter is in force")
}
