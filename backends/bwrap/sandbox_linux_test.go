package bwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/backends/backendtest"
	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

func TestMain(m *testing.M) {
	if os.Getenv(asHarness) != "" { // it will be killed and could clean nothing up
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "bsm-bwrap-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workDir = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

var findAgent = sync.OnceValues(func() (string, error) {
	path, _, err := agentbin.Find(context.Background(), "")
	return path, err
})

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// asHarness makes the test binary a harness that is killed; it names the agent.
// The others name its work directory and its ledger.
const (
	asHarness     = "BSM_BWRAP_TEST_AGENT"
	harnessWork   = "BSM_BWRAP_TEST_WORK"
	harnessLedger = "BSM_BWRAP_TEST_LEDGER"
)

// workDir is where the tests' root file systems are: any user can enter it.
var workDir string

// options are those of a sandbox in a directory of the tests' own.
func options(t testing.TB, leaks ...string) backends.Options {
	t.Helper()
	testreq.Need(t, "linux", "bwrap", "userns")
	agent, err := findAgent()
	require.NoError(t, err)
	led, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"))
	require.NoError(t, err)
	return backends.Options{Agent: agent, Leaks: leaks, Ledger: led, WorkDir: workDir}
}

func boot(t testing.TB, o backends.Options) *Sandbox {
	t.Helper()
	s, err := newSandbox(o)
	require.NoError(t, err)
	require.NoError(t, s.Boot(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Shutdown(context.Background())) })
	return s
}

// leftovers lists what our sandboxes have on this host.
func leftovers(t testing.TB) []string {
	t.Helper()
	var out []string
	own, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	seen := map[string]bool{}
	for line := range strings.Lines(string(own)) {
		// Ours lie below our own cgroup; other runs on this host have theirs.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, dir := range []string{filepath.Join("/sys/fs/cgroup", f[1], f[2]), filepath.Join("/sys/fs/cgroup", f[2], "..")} {
			if f[1] == "memory" || f[1] == "" {
				found, err := filepath.Glob(filepath.Join(dir, "bsm-bwrap-*"))
				require.NoError(t, err)
				for _, g := range found {
					seen[filepath.Base(g)] = true
					out = append(out, g)
				}
			}
		}
	}
	for name := range seen {
		if path := filepath.Join("/sys/fs/cgroup/pids", name); isDir(path) {
			out = append(out, path)
		}
	}
	for _, pattern := range []string{workDir + "/*/*/*.new-*", workDir + "/*/*/*.tampered-*"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		out = append(out, found...)
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, p := range procs {
		if ours(p) {
			out = append(out, p)
		}
	}
	return out
}

// ours reports whether a process is of a sandbox of these tests, whoever its
// parent is by now: bubblewrap names our root file system in its arguments, what
// runs inside has it mounted, and of a dead one only the parent is left. A name
// tells nothing: bubblewrap is executed by its descriptor and has its number.
func ours(proc string) bool {
	args, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return false
	}
	mark := filepath.Base(workDir) + "/"
	switch program, _, _ := strings.Cut(string(args), "\x00"); {
	case program == "":
		st, err := os.ReadFile(filepath.Join(proc, "status"))
		return err == nil && strings.Contains(string(st), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) && strings.Contains(string(st), "\nState:\tZ")
	case program == "bwrap":
		return strings.Contains(string(args), mark)
	case filepath.Base(program) == "bsm-agent":
		mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
		return err == nil && strings.Contains(string(mounts), mark)
	}
	return false
}

// A boot can be given up at any moment: before, between and after the two forks of
// bubblewrap, and while the agent starts.
func TestCancelledBootsLeaveNothing(t *testing.T) {
	s := boot(t, options(t))
	require.NoError(t, s.renew(t.Context()))
	begin := time.Now()
	require.NoError(t, s.renew(t.Context()))
	whole := time.Since(begin)
	require.NoError(t, s.Shutdown(t.Context()))
	before := leftovers(t)
	const steps = 24
	for n := range time.Duration(steps) {
		ctx, cancel := context.WithTimeout(t.Context(), whole*n/steps)
		err := s.Boot(ctx)
		cancel()
		if err == nil {
			require.NoError(t, s.Shutdown(t.Context()))
		}
		require.Subset(t, before, leftovers(t), "after %d/%d of a boot", n, steps)
	}
}

// An orphan is found that only its arguments or its mounts give away.
func TestLeftoversAreFoundWhoeverTheirParentIs(t *testing.T) {
	s := boot(t, options(t))
	found := leftovers(t)
	pids, err := s.HostPIDs(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(pids), 3)
	for _, pid := range pids { // bubblewrap, our child; its init and the agent, which are not
		require.Contains(t, found, fmt.Sprintf("/proc/%d", pid))
	}
}

func TestConformance(t *testing.T) {
	o := options(t)
	backendtest.Run(t, backendtest.Harness{
		New: func(t testing.TB, leaks ...string) backends.Sandbox {
			o := o
			o.Leaks = leaks
			s, err := New(o)
			require.NoError(t, err)
			return s
		},
		Leftovers: leftovers,
		Kill: func(t testing.TB, sb backends.Sandbox) {
			require.NoError(t, unix.Kill(sb.(*Sandbox).Provenance().VMMPID, unix.SIGKILL))
		},
	})
}

func TestEntry(t *testing.T) { backendtest.RunEntry(t, Entry(), options(t)) }

func TestLeaks(t *testing.T) {
	e := Entry()
	if err := fuse.Available(t.Context()); err != nil {
		// The one leak that needs a fuse; it is loud about being left out.
		e.Leaks = slices.DeleteFunc(e.Leaks, func(l backends.Leak) bool { return l.Name == leakNoLimits })
		t.Run(leakNoLimits, func(t *testing.T) { testreq.Need(t, "cgroup"); t.Fatal(err) })
	}
	backendtest.RunLeaks(t, e, options(t))
}

func TestDoctor(t *testing.T) {
	d := Doctor(t.Context(), options(t))
	require.True(t, d.Available, "%+v", d.Findings)
	t.Run("without bubblewrap", func(t *testing.T) {
		o := options(t)
		t.Setenv("PATH", t.TempDir())
		d := Doctor(t.Context(), o)
		require.False(t, d.Available)
		s, err := New(o)
		require.NoError(t, err)
		err = s.Boot(t.Context())
		require.ErrorIs(t, err, backends.ErrNotAvailable)
		require.Equal(t, fixInstall, backends.FixOf(err))
		require.Equal(t, backends.StateNotBooted, s.State())
	})
	t.Run("with one that is forbidden namespaces", func(t *testing.T) {
		o := options(t)
		dir := publicDir(t)
		fake := "#!/bin/sh\n[ \"$1\" = --version ] && { echo bubblewrap 0.9.0; exit; }\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "bwrap"), []byte(fake), 0o755))
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		d := Doctor(t.Context(), o)
		require.False(t, d.Available)
		i := slices.IndexFunc(d.Findings, func(f backends.Finding) bool { return f.Fix == fixUserNS })
		require.GreaterOrEqual(t, i, 0, "%+v", d.Findings)
		require.Contains(t, d.Findings[i].What, "Permission denied")
	})
}

func TestVersions(t *testing.T) {
	for v, old := range map[string]bool{"0.8.0": false, "0.11.0": false, "1.0": false, "0.7.0": true, "0.4.1": true, "git": false, "": false} {
		require.Equal(t, old, oldVersion(v), v)
	}
}

// A kernel that refuses TIOCSTI cannot be made to leak by it, and is not said to
// be.
func TestPushbackOff(t *testing.T) {
	file := filepath.Join(t.TempDir(), "legacy_tiocsti")
	require.NoError(t, pushbackOff(file), "an old kernel has no such file")
	require.NoError(t, os.WriteFile(file, []byte("1\n"), 0o600))
	require.NoError(t, pushbackOff(file))
	require.NoError(t, os.WriteFile(file, []byte("0\n"), 0o600))
	err := pushbackOff(file)
	require.ErrorIs(t, err, backends.ErrLeakNotBuilt)
	require.ErrorIs(t, err, backends.ErrNotAvailable)
	require.NotEmpty(t, backends.FixOf(err))
}

func TestHardening(t *testing.T) {
	s := boot(t, options(t))
	p := s.Provenance()
	want := []string{"own user namespace", "own mnt namespace", "own pid namespace", "own net namespace", "own ipc namespace", "own uts namespace",
		"no new privileges", "seccomp filter", "no effective capabilities", "empty bounding set", "one unprivileged host uid mapped"}
	for _, w := range want {
		require.Contains(t, p.Hardening, w)
	}
	require.NotEmpty(t, p.VMMVersion)
	require.Equal(t, "recorded-in-run", p.Baseline)
	for role, d := range p.Digests {
		require.NoError(t, integrity.ValidHash(d), role)
	}
	require.Len(t, p.Digests, 3)

	pids, err := s.HostPIDs(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(pids), 3, "bubblewrap, its init, the agent")
	id := strconv.Itoa(identity().UID)
	for _, pid := range pids {
		uids, err := status(pid, "Uid")
		require.NoError(t, err)
		require.Equal(t, strings.Join([]string{id, id, id, id}, " "), uids, "pid %d", pid)
		require.NotEqual(t, "0", id)
	}
}

// Nothing of the harness is in the sandbox: no descriptor, no environment.
func TestNothingLeaksIn(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = unix.FcntlInt(r.Fd(), unix.F_SETFD, 0) // as if it had been inherited
	require.NoError(t, err)
	t.Setenv("BSM_TEST_SECRET", "s3cret")
	s := boot(t, options(t))
	v, err := s.present("look")
	require.NoError(t, err)
	agent, err := v.agent()
	require.NoError(t, err)
	pids, err := s.HostPIDs(t.Context())
	require.NoError(t, err)
	for _, pid := range pids {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		require.NoError(t, err)
		require.NotContains(t, string(env), "s3cret", "pid %d", pid)
		require.NotContains(t, string(env), "HOME=/root", "pid %d", pid)
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", agent))
	require.NoError(t, err)
	shared, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", r.Fd()))
	require.NoError(t, err)
	pipes := map[string]bool{}
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if err != nil {
			continue
		}
		require.NotEqual(t, shared, to)
		require.False(t, strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/dev/null"), "%s is %s", fd, to)
		if strings.HasPrefix(to, "pipe:") && slices.Contains([]string{"0", "1", "2"}, filepath.Base(fd)) {
			pipes[to] = true
		}
	}
	require.Len(t, pipes, 3, "standard streams")
	require.NotEmpty(t, fds)
}

func call(t testing.TB, s *Sandbox, tool string, params any) backends.Execution {
	t.Helper()
	e, err := s.Execute(t.Context(), backends.Invocation{Tool: tool, Params: params})
	require.NoError(t, err)
	return e
}

func TestFileSystemInside(t *testing.T) {
	s := boot(t, options(t))
	e := call(t, s, "cat", map[string]string{"path": "/etc/shadow"})
	require.Contains(t, string(e.Stdout.Bytes()), shadowMarker)
	for _, dir := range []string{"/", "/etc", "/bin", "/dev", "/proc/sys/kernel"} {
		e := call(t, s, "fs.write", map[string]string{"path": dir + "/x", "content": "x"})
		require.NotZero(t, e.ExitCode, "%s is writable", dir)
	}
	for _, dir := range (spec{}).writable() {
		e := call(t, s, "fs.write", map[string]string{"path": dir + "/x", "content": "x"})
		require.Zero(t, e.ExitCode, "%s: %s", dir, e.Stderr)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", func() int { v, _ := s.present("look"); return v.init }()))
	require.NoError(t, err)
	require.Contains(t, string(b), fmt.Sprintf("size=%dk", (256<<20)/4/1024), "the tmpfs is bounded")
}

func TestLimits(t *testing.T) {
	testreq.Need(t, "cgroup")
	o := options(t)
	o.Limits = backends.Limits{MemoryBytes: 96 << 20, Pids: 64}
	s := boot(t, o)
	require.Error(t, proveNoLimits(t.Context(), s))
	u, err := s.Usage(t.Context())
	require.NoError(t, err)
	require.Positive(t, u.MemoryBytes)
	require.Less(t, u.MemoryBytes, int64(96<<20))
	require.GreaterOrEqual(t, u.Tasks, 3)
	require.Contains(t, u.Method, "cgroup")
}

func TestKilledHarnessTakesTheSandboxAlong(t *testing.T) {
	if agent := os.Getenv(asHarness); agent != "" {
		var s *Sandbox
		led, err := ledger.Open(os.Getenv(harnessLedger))
		if err == nil {
			s, err = newSandbox(backends.Options{Agent: agent, WorkDir: os.Getenv(harnessWork), Ledger: led})
		}
		if err == nil {
			err = s.Boot(context.Background())
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		v, _ := s.present("look")
		fmt.Println("pids", v.child.PID(), v.init)
		select {}
	}
	before := leftovers(t) // of a run that somebody else killed on this host
	o := options(t)
	dir := filepath.Join(t.TempDir(), "harness")
	led, err := ledger.Open(dir)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledHarnessTakesTheSandboxAlong$")
	cmd.Env = append(os.Environ(), asHarness+"="+o.Agent, harnessWork+"="+o.WorkDir, harnessLedger+"="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 256)
	n, err := out.Read(buf)
	require.NoError(t, err)
	var outer, inner int
	_, err = fmt.Sscanf(string(buf[:n]), "pids %d %d", &outer, &inner)
	require.NoError(t, err, string(buf[:n]))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	for _, pid := range []int{outer, inner} {
		require.Eventually(t, func() bool {
			st, err := status(pid, "State")
			return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || strings.HasPrefix(st, "Z")
		}, 5*time.Second, 5*time.Millisecond)
	}
	// What its death cannot end, its cgroup, the ledger knows.
	reaped, err := led.Reap(t.Context())
	require.NoError(t, err)
	for _, r := range reaped {
		require.NoError(t, r.Err)
	}
	records, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, records)
	require.Subset(t, before, leftovers(t))
}
