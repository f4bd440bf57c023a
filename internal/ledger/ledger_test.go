package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// asHarness makes the test binary act as a run that gets killed: it names the
// ledger, and below it everything that the run creates.
const asHarness = "BSM_LEDGER_TEST_HARNESS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asHarness); dir != "" {
		if err := harness(dir); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		select {}
	}
	os.Exit(m.Run())
}

// harness creates one resource of each kind and prints their names.
func harness(dir string) error {
	l, err := Open(filepath.Join(dir, "ledger"))
	if err != nil {
		return err
	}
	run := filepath.Join(dir, "run")
	if _, err := l.MakeDir(run); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(run, "disk"), []byte("x"), 0o400); err != nil {
		return err
	}
	for _, recorded := range []bool{true, false} {
		e, err := l.Intend(KindProcess, "sleep")
		if err != nil {
			return err
		}
		cmd := exec.Command("sleep", "600")
		cmd.Env = append(os.Environ(), e.Env())
		cmd.Env = append(cmd.Env, asHarness+"=")
		if err := cmd.Start(); err != nil {
			return err
		}
		if recorded {
			if err := e.Started(cmd.Process.Pid); err != nil {
				return err
			}
		}
		fmt.Println(cmd.Process.Pid)
	}
	fmt.Println("ready")
	return nil
}

func open(t *testing.T) *Ledger {
	t.Helper()
	l, err := Open(filepath.Join(t.TempDir(), "ledger"))
	require.NoError(t, err)
	return l
}

func files(t *testing.T, l *Ledger) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(l.dir, "*"))
	require.NoError(t, err)
	return names
}

func TestKilledHarness(t *testing.T) {
	testreq.Need(t, "linux", "sleep")
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asHarness+"="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var pids []int
	sc := bufio.NewScanner(out)
	for sc.Scan() && sc.Text() != "ready" {
		pid, err := strconv.Atoi(sc.Text())
		require.NoError(t, err, sc.Text())
		pids = append(pids, pid)
	}
	require.Len(t, pids, 2)

	l, err := Open(filepath.Join(dir, "ledger"))
	require.NoError(t, err)
	found, err := l.Reap(t.Context())
	require.NoError(t, err)
	require.Empty(t, found, "the owner lives: nothing may be touched")
	for _, pid := range pids {
		who, err := identify(pid)
		require.NoError(t, err)
		alive, err := who.alive()
		require.NoError(t, err)
		require.True(t, alive)
	}

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	found, err = l.Reap(t.Context())
	require.NoError(t, err)
	got := map[int]Kind{}
	for _, f := range found {
		require.NoError(t, f.Err)
		got[f.PID] = f.Kind
	}
	require.Equal(t, map[int]Kind{pids[0]: KindProcess, pids[1]: KindProcess, 0: KindDir}, got)
	for _, pid := range pids {
		who, err := identify(pid)
		if err == nil {
			alive, err := who.alive()
			require.NoError(t, err)
			require.False(t, alive, "pid %d survived", pid)
		}
	}
	require.NoDirExists(t, filepath.Join(dir, "run"))
	require.Empty(t, files(t, l))
	found, err = l.Reap(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestRecordPrecedesResource(t *testing.T) {
	l := open(t)
	target := filepath.Join(t.TempDir(), "new")
	e, err := l.Intend(KindDir, target)
	require.NoError(t, err)
	require.NoDirExists(t, target)
	r, err := read(filepath.Join(l.dir, e.ID+suffix))
	require.NoError(t, err)
	require.Equal(t, target, r.Target)
	require.Equal(t, os.Getpid(), r.Owner.PID)
	require.NotZero(t, r.Owner.Start)
	require.NoError(t, e.Done())
	require.NoError(t, e.Done(), "closing twice is harmless")
	require.Empty(t, files(t, l))
}

func TestRefusals(t *testing.T) {
	l := open(t)
	for name, f := range map[string]func() error{
		"existing directory": func() error { _, err := l.Intend(KindDir, t.TempDir()); return err },
		"relative path":      func() error { _, err := l.Intend(KindMount, "here"); return err },
		"unknown kind":       func() error { _, err := l.Intend("sofa", "/nowhere"); return err },
		"open ledger": func() error {
			dir := filepath.Join(t.TempDir(), "l")
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.Chmod(dir, 0o755))
			_, err := Open(dir)
			return err
		},
		"linked ledger": func() error {
			dir := filepath.Join(t.TempDir(), "l")
			require.NoError(t, os.Symlink(t.TempDir(), dir))
			_, err := Open(dir)
			return err
		},
		"parent of everybody": func() error {
			parent := filepath.Join(t.TempDir(), "p")
			require.NoError(t, os.Mkdir(parent, 0o700))
			require.NoError(t, os.Chmod(parent, 0o777))
			_, err := Open(filepath.Join(parent, "l"))
			return err
		},
		"foreign owner": func() error {
			if os.Geteuid() != 0 {
				return os.ErrPermission // only root can give a directory away
			}
			dir := filepath.Join(t.TempDir(), "l")
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.Chown(dir, 65534, 65534))
			_, err := Open(dir)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { require.Error(t, f()) })
	}
}

// abandon rewrites a record as if its owner had died, changed by mutate.
func abandon(t *testing.T, l *Ledger, e *Entry, mutate func(*record)) {
	t.Helper()
	r := e.r
	r.Owner.Start++
	if mutate != nil {
		mutate(&r)
	}
	require.NoError(t, r.write(l.dir))
}

func TestReapLeavesForeignThingsAlone(t *testing.T) {
	testreq.Need(t, "linux", "sleep")
	l := open(t)
	sleeper := exec.Command("sleep", "600")
	require.NoError(t, sleeper.Start())
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	alive := func() bool { return sleeper.Process.Signal(syscall.Signal(0)) == nil }

	for name, mutate := range map[string]func(*record){
		"pid reused":           func(r *record) { r.Process.Start++ },
		"process of last boot": func(r *record) { r.Process.Boot = "other" },
		"owner of last boot":   func(r *record) { r.Owner.Boot = "other" },
		"other pid namespace":  func(r *record) { r.Owner.PIDNS = "pid:[1]" },
		"owner alive":          func(r *record) { r.Owner.Start-- },
	} {
		t.Run(name, func(t *testing.T) {
			e, err := l.Intend(KindProcess, "sleep")
			require.NoError(t, err)
			require.NoError(t, e.Started(sleeper.Process.Pid))
			abandon(t, l, e, mutate)
			found, err := l.Reap(t.Context())
			require.NoError(t, err)
			require.Empty(t, found)
			require.True(t, alive())
			require.NoError(t, e.Done())
		})
	}
	// The same record untouched is acted on, so the cases above can fail.
	e, err := l.Intend(KindProcess, "sleep")
	require.NoError(t, err)
	require.NoError(t, e.Started(sleeper.Process.Pid))
	abandon(t, l, e, nil)
	found, err := l.Reap(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Error(t, sleeper.Wait())
}

func TestReapDirs(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, e *Entry, dir string)
		gone    bool
	}{
		"marked with content": {func(t *testing.T, e *Entry, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, e.Mark())
			require.NoError(t, os.Mkdir(filepath.Join(dir, "ro"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "ro", "f"), nil, 0o400))
			require.NoError(t, os.Chmod(filepath.Join(dir, "ro"), 0o500))
		}, true},
		"empty without marker": {func(t *testing.T, e *Entry, dir string) { require.NoError(t, os.Mkdir(dir, 0o700)) }, true},
		"never made":           {func(*testing.T, *Entry, string) {}, true},
		"foreign content": {func(t *testing.T, e *Entry, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600))
		}, false},
		"marker of another": {func(t *testing.T, e *Entry, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, Marker), []byte("other"), 0o600))
		}, false},
		"a link now": {func(t *testing.T, e *Entry, dir string) {
			require.NoError(t, os.Symlink(t.TempDir(), dir))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t)
			dir := filepath.Join(t.TempDir(), "run")
			e, err := l.Intend(KindDir, dir)
			require.NoError(t, err)
			c.prepare(t, e, dir)
			abandon(t, l, e, nil)
			found, err := l.Reap(t.Context())
			require.NoError(t, err)
			_, statErr := os.Lstat(dir)
			if c.gone {
				require.ErrorIs(t, statErr, os.ErrNotExist)
				require.Empty(t, files(t, l))
				return
			}
			require.NoError(t, statErr)
			require.Len(t, found, 1)
			require.ErrorContains(t, found[0].Err, "left alone")
			require.Len(t, files(t, l), 1, "what was not removed keeps its record")
		})
	}
}

func TestReapCgroup(t *testing.T) {
	testreq.Need(t, "cgroup", "root", "sleep")
	root := "/sys/fs/cgroup/pids"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	l := open(t)
	dir := filepath.Join(root, fmt.Sprintf("bsm-ledger-test-%d", os.Getpid()))
	e, err := l.Intend(KindCgroup, dir)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "below"), 0o755))
	sleeper := exec.Command("sleep", "600")
	require.NoError(t, sleeper.Start())
	t.Cleanup(func() { _ = sleeper.Process.Kill() })
	done := make(chan error, 1)
	go func() { done <- sleeper.Wait() }()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "below", "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0))
	abandon(t, l, e, nil)
	found, err := l.Reap(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, found[0].Err)
	require.NoDirExists(t, dir)
	require.Error(t, <-done)
}

func TestReapReportsUnreadableRecords(t *testing.T) {
	l := open(t)
	require.NoError(t, os.WriteFile(filepath.Join(l.dir, "bad.json"), []byte(`{"id":"bad"}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(l.dir, "half.tmp"), []byte(`{`), 0o600))
	cut := filepath.Join(l.dir, "cut.json")
	require.NoError(t, os.WriteFile(cut, nil, 0o600))
	old := filepath.Join(l.dir, "old.tmp")
	require.NoError(t, os.WriteFile(old, []byte(`{`), 0o600))
	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)))
	dead := l.owner // of a writer that was killed between creating and renaming
	dead.Start++
	unfinished, foreign := filepath.Join(l.dir, "x."+dead.mark()+tmpSuffix), filepath.Join(l.dir, "y."+l.owner.mark()+tmpSuffix)
	require.NoError(t, os.WriteFile(unfinished, nil, 0o600))
	require.NoError(t, os.WriteFile(foreign, nil, 0o600))
	found, err := l.Reap(t.Context())
	require.ErrorContains(t, err, "bad.json")
	require.Empty(t, found)
	require.FileExists(t, filepath.Join(l.dir, "half.tmp"))
	require.FileExists(t, foreign, "its writer is alive")
	require.NoFileExists(t, unfinished)
	require.NoFileExists(t, old)
	require.NoFileExists(t, cut)
}

func TestNilIsValid(t *testing.T) {
	var l *Ledger
	e, err := l.Intend(KindProcess, "x")
	require.NoError(t, err)
	require.NoError(t, e.Started(1))
	require.NoError(t, e.Mark())
	require.NoError(t, e.Done())
	require.Equal(t, EnvVar+"=", e.Env())
	found, err := l.Reap(context.Background())
	require.NoError(t, err)
	require.Empty(t, found)
	dir := filepath.Join(t.TempDir(), "d")
	e, err = l.MakeDir(dir)
	require.NoError(t, err)
	require.Nil(t, e)
	require.DirExists(t, dir)
}

func TestDefaultDir(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_STATE_HOME", "/state")
	require.Equal(t, "/state/bsm-redteam/ledger", DefaultDir())
	t.Setenv("XDG_STATE_HOME", "relative is ignored")
	require.Equal(t, filepath.Join(home, ".local/state/bsm-redteam/ledger"), DefaultDir())
	t.Setenv("HOME", filepath.Join(home, "absent"))
	require.True(t, strings.HasPrefix(DefaultDir(), os.TempDir()), DefaultDir())
}

func FuzzParse(f *testing.F) {
	good, err := json.Marshal(record{ID: "a", Kind: KindDir, Target: "/x", Owner: identity{PID: 2, Start: 1, Boot: "b"}})
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"id":"../x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parse(b)
		if err != nil {
			return
		}
		require.NotContains(t, r.ID, "/")
		require.Positive(t, r.Owner.PID)
		if r.Process != nil {
			require.Greater(t, r.Process.PID, 1)
		}
	})
}

func BenchmarkIntend(b *testing.B) {
	l, err := Open(filepath.Join(b.TempDir(), "ledger"))
	require.NoError(b, err)
	for b.Loop() {
		e, err := l.Intend(KindProcess, "x")
		require.NoError(b, err)
		require.NoError(b, e.Started(os.Getpid()))
		require.NoError(b, e.Done())
	}
}
