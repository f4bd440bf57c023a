package fuse

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// asVictim makes the test binary allocate or fork, inside a fuse.
const asVictim = "BSM_FUSE_TEST_VICTIM"

func TestMain(m *testing.M) {
	switch os.Getenv(asVictim) {
	case "":
		goleak.VerifyTestMain(m)
	case "allocate":
		allocate()
	case "fork":
		fork()
	}
}

// allocate touches page after page, up to twice the limit that the test sets.
func allocate() {
	var keep [][]byte
	for range 64 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
	}
	fmt.Println("survived", len(keep))
}

// fork starts sleeping children until the kernel refuses or 64 run.
func fork() {
	for i := range 64 {
		cmd := exec.Command("sleep", "600")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		if err := cmd.Start(); err != nil {
			fmt.Println("refused after", i)
			break
		}
	}
	fmt.Println("done")
	select {}
}

func group(t *testing.T, l Limits) (*Group, *ledger.Ledger, string) {
	t.Helper()
	testreq.Need(t, "cgroup")
	dir := filepath.Join(t.TempDir(), "ledger")
	led, err := ledger.Open(dir)
	require.NoError(t, err)
	g, err := New(t.Context(), "test", l, led)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g, led, dir
}

func victim(what string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asVictim+"="+what)
	return cmd
}

func TestMemoryLimitKills(t *testing.T) {
	g, _, _ := group(t, Limits{MemoryBytes: 32 << 20, Pids: 64})
	var out strings.Builder
	cmd := victim("allocate")
	cmd.Stdout = &out
	require.NoError(t, g.Start(cmd))
	err := cmd.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.NotContains(t, out.String(), "survived")
	u, err := g.Usage()
	require.NoError(t, err)
	require.Positive(t, u.Kills)
	require.GreaterOrEqual(t, u.PeakBytes, int64(24<<20))
	require.LessOrEqual(t, u.PeakBytes, int64(33<<20), "the kernel lets a dying process go a few pages over")
}

// The limit above is what kills: without it the same program survives.
func TestWithoutLimitItSurvives(t *testing.T) {
	g, _, _ := group(t, Limits{})
	cmd := victim("allocate")
	var out strings.Builder
	cmd.Stdout = &out
	require.NoError(t, g.Start(cmd))
	require.NoError(t, cmd.Wait())
	require.Contains(t, out.String(), "survived 64")
	u, err := g.Usage()
	require.NoError(t, err)
	require.Zero(t, u.Kills)
	require.Greater(t, u.PeakBytes, int64(64<<20))
}

func TestForkLimitAndKillOfATree(t *testing.T) {
	testreq.Need(t, "sleep")
	const limit = 24
	g, _, _ := group(t, Limits{MemoryBytes: 256 << 20, Pids: limit})
	cmd := victim("fork")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, g.Start(cmd))
	buf := make([]byte, 256)
	n, err := out.Read(buf)
	require.NoError(t, err)
	require.Contains(t, string(buf[:n]), "refused after")

	pids, err := g.PIDs()
	require.NoError(t, err)
	require.Contains(t, pids, cmd.Process.Pid)
	require.Greater(t, len(pids), 5)
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		require.NoError(t, err)
		require.Equal(t, "1000", strings.TrimSpace(string(b)), "pid %d", pid)
	}
	u, err := g.Usage()
	require.NoError(t, err)
	require.LessOrEqual(t, u.Tasks, limit)
	require.Positive(t, u.Refusals)

	require.NoError(t, g.Kill(t.Context()))
	pids, err = g.PIDs()
	require.NoError(t, err)
	require.Empty(t, pids)
	require.Error(t, cmd.Wait())
	for _, dir := range g.k.dirs() {
		require.DirExists(t, dir)
	}
	require.NoError(t, g.Close())
	for _, dir := range g.k.dirs() {
		require.NoDirExists(t, dir)
	}
}

// The harness itself must be outside its groups before, during and after.
func TestHarnessStaysOutside(t *testing.T) {
	g, _, _ := group(t, Limits{MemoryBytes: 64 << 20, Pids: 16})
	before, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	for range 5 {
		cmd := exec.Command("true")
		require.NoError(t, g.Start(cmd))
		require.NoError(t, cmd.Wait())
	}
	pids, err := g.PIDs()
	require.NoError(t, err)
	require.NotContains(t, pids, os.Getpid())
	tasks, err := filepath.Glob("/proc/self/task/*/cgroup")
	require.NoError(t, err)
	for _, task := range tasks {
		after, err := os.ReadFile(task)
		if err == nil {
			require.Equal(t, string(before), string(after), task)
		}
	}
}

func TestAdd(t *testing.T) {
	testreq.Need(t, "sleep")
	g, _, _ := group(t, Limits{Pids: 16})
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	require.NoError(t, g.Add(cmd.Process.Pid))
	pids, err := g.PIDs()
	require.NoError(t, err)
	require.Equal(t, []int{cmd.Process.Pid}, pids)
	require.NoError(t, g.Close())
	require.Error(t, <-done)
	require.Error(t, g.Add(os.Getpid()), "a closed group takes nobody")
}

func TestLedgerPrecedesAndFollows(t *testing.T) {
	g, _, dir := group(t, Limits{Pids: 16})
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, len(g.k.dirs()))
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	names, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, names)
}

func TestStartErrorLeavesNothing(t *testing.T) {
	g, _, _ := group(t, Limits{Pids: 16})
	require.Error(t, g.Start(exec.Command("/nonexistent/program")))
	pids, err := g.PIDs()
	require.NoError(t, err)
	require.Empty(t, pids)
}

func TestAvailableAndRefusals(t *testing.T) {
	_, err := New(t.Context(), "x", Limits{MemoryBytes: -1}, nil)
	require.ErrorContains(t, err, "negative")
	if err := Available(t.Context()); err != nil {
		require.ErrorIs(t, err, ErrNoFuse)
		require.ErrorIs(t, err, backends.ErrNotAvailable)
		require.NotEmpty(t, backends.FixOf(err))
	} else {
		testreq.Need(t, "cgroup") // the independent check has to agree
	}
}

// The unified hierarchy is mounted here without the two controllers, so its
// membership and kill are exercised on their own.
func TestV2MembershipAndKill(t *testing.T) {
	testreq.Need(t, "root", "sleep")
	w, err := readWorld()
	require.NoError(t, err)
	own, ok := w.ownV2()
	if !ok {
		t.Skip("no cgroup v2 hierarchy is mounted here")
	}
	k := newV2(own, unique("v2-test"))
	require.NoError(t, os.Mkdir(k.dirs()[0], 0o755))
	g := &Group{k: k}
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	cmd := exec.Command("sh", "-c", "sleep 600 & sleep 600 & echo ready; wait")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, g.Start(cmd))
	_, err = out.Read(make([]byte, 8))
	require.NoError(t, err)
	pids, err := g.PIDs()
	require.NoError(t, err)
	require.Len(t, pids, 3)
	require.NoError(t, g.Kill(t.Context()))
	pids, err = g.PIDs()
	require.NoError(t, err)
	require.Empty(t, pids)
	require.Error(t, cmd.Wait())
}

func TestParse(t *testing.T) {
	w := world{
		own: parseOwn("4:memory:/process_api/x\n8:pids,cpu:/\n9:name=systemd:/\n0::/user.slice\n"),
		mounts: parseMounts("35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n" +
			"41 31 0:38 / /sys/fs/cgroup/un\\040ified rw,relatime - cgroup2 cgroup2 rw\n31 23 0:28 / /sys rw - tmpfs tmpfs rw\n"),
	}
	require.Equal(t, []string{"memory"}, w.own[0].controllers)
	require.Equal(t, "/user.slice", w.own[3].path)
	require.Empty(t, w.own[3].controllers)
	require.Len(t, w.mounts, 2)
	require.Equal(t, "/sys/fs/cgroup/un ified", w.mounts[1].point)
	require.True(t, w.mounts[1].v2)
	require.Equal(t, []string{"rw", "memory"}, w.mounts[0].controllers)
}

func TestMountDir(t *testing.T) {
	for _, c := range []struct {
		root, path, want string
		ok               bool
	}{
		{"/", "/a/b", "/m/a/b", true},
		{"/", "/", "/m", true},
		{"/docker/x", "/docker/x", "/m", true},
		{"/docker/x", "/docker/x/y", "/m/y", true},
		{"/docker/x", "/docker/xy", "/m/docker/xy", false},
		{"/docker/x", "/", "/m", true},
	} {
		got, ok := mount{root: c.root, point: "/m"}.dir(c.path)
		require.Equal(t, c.ok, ok, c)
		if ok {
			require.Equal(t, c.want, filepath.Clean(got), c)
		}
	}
}

// tree lays out a cgroup v2 hierarchy of plain files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

func TestV2Candidates(t *testing.T) {
	root := tree(t, map[string]string{
		"cgroup.procs": "", "cgroup.subtree_control": "cpu memory pids",
		"user/cgroup.procs": "", "user/cgroup.subtree_control": "memory pids",
		"user/scope/cgroup.procs": strconv.Itoa(os.Getpid()), "user/scope/cgroup.subtree_control": "",
		"user/scope/cgroup.controllers": "memory pids",
	})
	own := filepath.Join(root, "user/scope")
	dirs := func(c []candidate) (out []string) {
		for _, v := range c {
			out = append(out, v.k.dirs()...)
		}
		return out
	}
	asRoot := v2Candidates(own, "g", 0)
	require.Equal(t, []string{filepath.Join(root, "user/g")}, dirs(asRoot), "root uses the nearest ancestor that has both")
	require.Nil(t, asRoot[0].prepare)
	asUser := v2Candidates(own, "g", 1000)
	require.Equal(t, []string{filepath.Join(own, "g")}, dirs(asUser), "a user stays in what was delegated")
	require.NotNil(t, asUser[0].prepare)
	require.NoError(t, os.Remove(filepath.Join(own, "cgroup.controllers")))
	require.Empty(t, v2Candidates(own, "g", 1000))
}

// TestADelegatedSubtreeIsUsedAgain: every group lies beside the leaf, none in it.
func TestADelegatedSubtreeIsUsedAgain(t *testing.T) {
	own := tree(t, map[string]string{
		"cgroup.procs": "", "cgroup.subtree_control": "memory pids",
		"bsm-harness/cgroup.procs": "42\n", "bsm-harness/cgroup.subtree_control": "", "bsm-harness/cgroup.controllers": "memory pids",
	})
	list := v2Candidates(filepath.Join(own, "bsm-harness"), "g", 1000)
	require.Len(t, list, 1)
	require.Equal(t, []string{filepath.Join(own, "g")}, list[0].k.dirs())
	require.Nil(t, list[0].prepare)
}

func TestDelegateMovesProcessesFirst(t *testing.T) {
	own := tree(t, map[string]string{
		"cgroup.procs": "41\n42\n", "cgroup.subtree_control": "",
		"bsm-harness/cgroup.procs": "",
	})
	require.NoError(t, delegate(own))
	got, err := os.ReadFile(filepath.Join(own, "bsm-harness/cgroup.procs"))
	require.NoError(t, err)
	require.Equal(t, "42", string(got), "a control file takes one pid per write; a plain one keeps the last")
	got, err = os.ReadFile(filepath.Join(own, "cgroup.subtree_control"))
	require.NoError(t, err)
	require.Equal(t, "+memory +pids", string(got))
}

func TestWriteFileCreatesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory.max")
	require.True(t, errors.Is(writeFile(path, "1"), os.ErrNotExist))
	require.NoFileExists(t, path)
}

func BenchmarkStart(b *testing.B) {
	testreq.Need(b, "cgroup")
	for b.Loop() {
		g, err := New(b.Context(), "bench", Limits{MemoryBytes: 64 << 20, Pids: 64}, nil)
		require.NoError(b, err)
		cmd := exec.Command("sleep", "600")
		start := time.Now()
		require.NoError(b, g.Start(cmd))
		b.ReportMetric(float64(time.Since(start).Microseconds()), "start-µs")
		require.NoError(b, g.Close())
		require.Error(b, cmd.Wait())
	}
}
