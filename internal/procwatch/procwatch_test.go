package procwatch

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func TestFindsAndKillsOnlyItsToken(t *testing.T) {
	testreq.Need(t, "linux", "sleep")
	mine, other := wire.NewNonceString(), wire.NewNonceString()
	start := func(token string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "sleep", "60")
		cmd.Args[0] = "sleep-" + token
		require.NoError(t, cmd.Start())
		return cmd
	}
	a, b := start(mine), start(other)
	var w Watch
	require.True(t, w.Alive())
	found, err := w.Find(mine, other, wire.NewNonceString())
	require.NoError(t, err)
	require.Equal(t, map[string][]int{mine: {a.Process.Pid}, other: {b.Process.Pid}}, found)

	require.NoError(t, w.Kill(mine))
	require.Error(t, a.Wait())
	found, err = w.Find(mine, other)
	require.NoError(t, err)
	require.Equal(t, map[string][]int{other: {b.Process.Pid}}, found)
	require.NoError(t, w.Kill(other))
	// A zombie is not alive, although nobody has reaped it yet.
	require.Eventually(t, func() bool {
		found, err := w.Find(other)
		return err == nil && len(found) == 0
	}, 5*time.Second, time.Millisecond)
	require.Error(t, b.Wait())
}

func TestStoppedWatchIsNotAlive(t *testing.T) {
	testreq.Need(t, "linux")
	var w Watch
	w.Stop()
	require.False(t, w.Alive())
	_, err := w.Find(wire.NewNonceString())
	require.ErrorIs(t, err, ErrStopped)
}

func TestShortTokenIsRefused(t *testing.T) {
	var w Watch
	_, err := w.Find("a")
	require.Error(t, err)
}
