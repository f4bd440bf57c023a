package child

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseSurvivesHostileNames(t *testing.T) {
	const rest = " S 7 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 4711 100 5"
	for _, name := range []string{"sleep", "a b", ") Z 1 (", "x)\nState: Z", ""} {
		p, err := parse(42, []byte("42 ("+name+")"+rest))
		require.NoError(t, err, name)
		require.Equal(t, process{pid: 42, ppid: 7, state: 'S', start: 4711}, p, name)
	}
	for _, bad := range []string{"", "42 (x)", "42 (x) S 7", "42 (x) S x 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 4711 100 5"} {
		_, err := parse(42, []byte(bad))
		require.Error(t, err, bad)
	}
}

func TestUnder(t *testing.T) {
	all := tree{}
	for pid, ppid := range map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 5: 1, 6: 6} {
		all[pid] = process{pid: pid, ppid: ppid, state: 'S'}
	}
	require.Equal(t, []int{2, 3, 4}, all.under(2).living())
	require.Equal(t, []int{6}, all.under(6).living(), "a loop ends")
	require.Empty(t, all.under(99))
}

// Without a fuse what left the tree is found by its tag.
func TestKillWithoutGroup(t *testing.T) {
	testreq.Need(t, "linux", "sh", "setsid", "sleep")
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	exe, err := os.Open(sh)
	require.NoError(t, err)
	defer exe.Close()
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	c, err := Start(Spec{Exe: exe, Env: []string{"PATH=" + os.Getenv("PATH")},
		Argv: []string{"sh", "-c", "setsid sh -c 'sleep 600 & sleep 600' & echo noise >&2; : > " + ready + "; exec sleep 600"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Kill(t.Context())) })
	require.Eventually(t, func() bool {
		pids, err := c.Tree()
		require.NoError(t, err)
		_, statErr := os.Stat(ready)
		return statErr == nil && len(pids) == 4
	}, 5*time.Second, time.Millisecond)
	pids, err := c.Tree()
	require.NoError(t, err)
	listed, err := family(c.PID())
	require.NoError(t, err)
	require.ElementsMatch(t, pids, listed)
	u, err := Usage(c)
	require.NoError(t, err)
	require.Equal(t, 4, u.Tasks)
	require.Positive(t, u.MemoryBytes)

	first, err := os.FindProcess(c.PID())
	require.NoError(t, err)
	require.NoError(t, first.Kill())
	<-c.Exited()
	require.Error(t, c.Status())
	left, err := c.Tree()
	require.NoError(t, err)
	require.Len(t, left, 3, "orphans are found by their tag")

	require.NoError(t, c.Kill(t.Context()))
	require.NoError(t, c.Kill(t.Context()))
	for _, pid := range pids {
		p, err := read(pid)
		require.True(t, err != nil || p.dead(), "pid %d survived", pid)
	}
	require.Equal(t, "noise\n", string(c.Stderr().Bytes()))
}
