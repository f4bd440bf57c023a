//go:build linux

package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// The bomb explodes inside a kernel fuse that holds the agent as well: the
// agent has to kill it without being able to fork.
func TestAgentOutlivesAForkBombInItsOwnPidLimit(t *testing.T) {
	testreq.Need(t, "cgroup", "sh")
	const limit = 64
	g, err := fuse.New(t.Context(), "agent-test", fuse.Limits{MemoryBytes: 256 << 20, Pids: limit}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	i := start(t)
	require.NoError(t, g.Add(i.cmd.Process.Pid))

	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", i.cmd.Process.Pid))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(threads), 8, "the agent has no threads in reserve")

	const deadline = 1500 * time.Millisecond
	for range 3 {
		begin := time.Now()
		// Sleepers hold the limit after the shells that met it have given up.
		// The first forks once, before there is a bomb, so it stays.
		i.dispatch("bomb", "sh", script{"b() { b & b & exec sleep 30; }; b & exec sleep 30"}, deadline)
		require.Eventually(t, func() bool { pids, err := g.PIDs(); return err == nil && len(pids) > limit/4 }, deadline*9/10, 5*time.Millisecond, "it was no bomb")
		r := receive[*wire.ToolResult](i)
		require.Less(t, time.Since(begin), deadline+500*time.Millisecond)
		require.True(t, r.TimedOut, "exit %d: %.600s", r.ExitCode, r.Stderr)
		require.Contains(t, r.Stderr, "fork", "the limit was not reached")
		pids, err := g.PIDs()
		require.NoError(t, err)
		require.Equal(t, []int{i.cmd.Process.Pid}, pids, "alive after the answer")
		require.Zero(t, i.call("whoami", struct{}{}, patience).ExitCode)
	}
}
