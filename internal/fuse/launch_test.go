//go:build linux

package fuse

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// What a launched program forked before it was moved is inside after Enclose, and
// so is what it forks later.
func TestLaunchEnclosesWhatWasForked(t *testing.T) {
	testreq.Need(t, "sh", "sleep")
	g, _, _ := group(t, Limits{MemoryBytes: 64 << 20, Pids: 16})
	cmd := exec.Command("sh", "-c", "sleep 600 & sleep 600 & read _; sleep 600 & wait")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	enclose, err := g.Launch(cmd)
	require.NoError(t, err)
	family := func() ([]int, error) {
		list := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/task/" + strconv.Itoa(cmd.Process.Pid) + "/children"
		b, err := os.ReadFile(list)
		pids := []int{cmd.Process.Pid}
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			require.NoError(t, err)
			pids = append(pids, pid)
		}
		return pids, err
	}
	forked := func(n int) []int {
		var pids []int
		require.Eventually(t, func() bool {
			var err error
			pids, err = family()
			return err == nil && len(pids) == n
		}, 10*time.Second, time.Millisecond)
		return pids
	}
	forked(3)
	require.NoError(t, enclose(family))
	require.NoError(t, enclose(family), "again")
	inside, err := g.PIDs()
	require.NoError(t, err)
	require.ElementsMatch(t, forked(3), inside)

	_, err = in.Write([]byte("\n"))
	require.NoError(t, err)
	later := forked(4)
	inside, err = g.PIDs()
	require.NoError(t, err)
	require.ElementsMatch(t, later, inside)
	u, err := g.Usage()
	require.NoError(t, err)
	require.Equal(t, 4, u.Tasks)
	require.NoError(t, g.Kill(t.Context()))
	require.Error(t, cmd.Wait())
}

// What cannot be moved is an error, not a wait without end.
func TestLaunchGivesUp(t *testing.T) {
	testreq.Need(t, "sleep")
	g, _, _ := group(t, Limits{Pids: 16})
	if _, old := g.k.(*v1); !old {
		t.Skip("cgroup v2 starts a member; fix: none is needed")
	}
	cmd := exec.Command("sleep", "600")
	enclose, err := g.Launch(cmd)
	require.NoError(t, err)
	require.ErrorContains(t, enclose(func() ([]int, error) { return []int{os.Getpid()}, errors.New("no /proc") }), "no /proc")
	dead := exec.Command("true")
	require.NoError(t, dead.Start())
	zombie := func() ([]int, error) { return []int{dead.Process.Pid}, nil }
	require.Eventually(t, func() bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(dead.Process.Pid) + "/stat")
		return err == nil && strings.Contains(string(b), ") Z ")
	}, 10*time.Second, time.Millisecond)
	require.ErrorContains(t, enclose(zombie), "outside")
	require.NoError(t, dead.Wait())
	require.NoError(t, g.Kill(t.Context()))
	require.Error(t, cmd.Wait())
}

// Without a group there is nothing to enter.
func TestLaunchWithoutAGroup(t *testing.T) {
	testreq.Need(t, "true")
	var none *Group
	cmd := exec.Command("true")
	enclose, err := none.Launch(cmd)
	require.NoError(t, err)
	require.NoError(t, enclose(nil))
	require.NoError(t, cmd.Wait())
}
