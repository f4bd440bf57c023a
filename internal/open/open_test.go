//go:build linux

package open_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/open"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

var (
	_ probes.Target          = (*open.Target)(nil)
	_ backends.Metered       = (*open.Target)(nil)
	_ backends.HostProcesses = (*open.Target)(nil)
	_ backends.ChannelTapper = (*open.Target)(nil)
	_ backends.HostAddresser = (*open.Target)(nil)
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built {
			if path, err := buildAgent(); err == nil {
				_ = os.RemoveAll(filepath.Dir(path))
			}
		}
		os.Exit(code)
	}))
}

var built bool

// buildAgent builds the real agent once, where every uid can execute it.
var buildAgent = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bsm-open-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "bsm-agent")
	cmd := exec.Command("go", "build", "-o", path, "github.com/brainst0rm/sandbox-redteam/cmd/bsm-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func agent(t testing.TB) string {
	t.Helper()
	testreq.Need(t, "linux", "go")
	built = true
	path, err := buildAgent()
	require.NoError(t, err)
	return path
}

func self() backends.Credential { return backends.Credential{UID: os.Geteuid(), GID: os.Getegid()} }

func start(t testing.TB, c open.Config) *open.Target {
	t.Helper()
	if c.Agent == "" {
		c.Agent = agent(t)
	}
	if (c.Credential == backends.Credential{}) {
		c.Credential = self()
	}
	target, err := open.Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	return target
}

func run(t testing.TB, x backends.Executor, tool string, params any) string {
	t.Helper()
	e, err := x.Execute(t.Context(), backends.Invocation{Tool: tool, Params: params})
	require.NoError(t, err)
	require.Zero(t, e.ExitCode, "%s: %s", tool, e.Stderr)
	return string(e.Stdout.Bytes())
}

func status(t testing.TB, pid int, key string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	t.Fatalf("no %s in the status of %d", key, pid)
	return ""
}

func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

func TestItIsThisHost(t *testing.T) {
	dir := t.TempDir()
	led, err := ledger.Open(filepath.Join(dir, "ledger"))
	require.NoError(t, err)
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("host file"), 0o600))
	x := start(t, open.Config{Ledger: led})
	require.Equal(t, "host file", run(t, x, "cat", map[string]string{"path": secret}))
	require.True(t, x.InsideIsHost())
	pids, err := x.HostPIDs(t.Context())
	require.NoError(t, err)
	require.Contains(t, pids, x.PID())
	sid, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", x.PID()))
	require.NoError(t, err)
	fields := strings.Fields(string(sid)[strings.LastIndexByte(string(sid), ')')+1:])
	require.Equal(t, strconv.Itoa(x.PID()), fields[3], "it leads a session of its own")
	u, err := x.Usage(t.Context())
	require.NoError(t, err)
	require.Positive(t, u.MemoryBytes)
	require.Positive(t, u.Tasks)
	require.NotEmpty(t, u.Method)
	require.NotEmpty(t, x.HostAddresses())
	records, err := os.ReadDir(filepath.Join(dir, "ledger"))
	require.NoError(t, err)
	require.NotEmpty(t, records)
	require.NoError(t, x.Close())
	require.True(t, gone(x.PID()))
	records, err = os.ReadDir(filepath.Join(dir, "ledger"))
	require.NoError(t, err)
	require.Empty(t, records)
	require.NoError(t, x.Close(), "closing twice is harmless")
}

func TestCredential(t *testing.T) {
	testreq.Need(t, "root")
	work, err := os.MkdirTemp("", "bsm-open-work-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(work)) })
	x := start(t, open.Config{Credential: backends.Credential{UID: 65534, GID: 65534}, Dir: work})
	require.Equal(t, "65534 65534 65534 65534", status(t, x.PID(), "Uid"))
	require.Equal(t, "65534 65534 65534 65534", status(t, x.PID(), "Gid"))
	require.Empty(t, status(t, x.PID(), "Groups"))
	require.Equal(t, "0000000000000000", status(t, x.PID(), "CapEff"))
	run(t, x, "fs.write", map[string]string{"path": filepath.Join(work, "f"), "content": "x"})
	require.FileExists(t, filepath.Join(work, "f"))
	e, err := x.Execute(t.Context(), backends.Invocation{Tool: "cat", Params: map[string]string{"path": "/etc/shadow"}})
	require.NoError(t, err)
	require.NotZero(t, e.ExitCode)
}

func TestNothingIsInherited(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	fd := int(w.Fd())
	uncloexec(t, fd)
	t.Setenv("BSM_TEST_SECRET", "s3cret")
	x := start(t, open.Config{})
	want, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	require.NoError(t, err)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", x.PID()))
	require.NoError(t, err)
	require.NotEmpty(t, fds)
	for _, f := range fds {
		got, err := os.Readlink(f)
		if err == nil {
			require.NotEqual(t, want, got, f)
		}
	}
	require.NotContains(t, run(t, x, "env", nil), "s3cret")
}

// A survivor leaves the tree by every ordinary way: new session, double fork.
const survivor = `setsid sh -c 'sleep 600 & echo $!; exec sleep 600' & sleep 0.05`

func TestCloseKillsSurvivors(t *testing.T) {
	testreq.Need(t, "setsid", "sleep")
	x := start(t, open.Config{KeepTree: true})
	_, err := x.Execute(t.Context(), backends.Invocation{Tool: "sh", Params: map[string]string{"script": survivor + "; exec sleep 600"}, Deadline: 400 * time.Millisecond})
	require.ErrorIs(t, err, backends.ErrToolTimeout)
	pids, err := x.HostPIDs(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(pids), 3, "the agent kept the tree: the control of the time bomb")
	require.NoError(t, x.Close())
	for _, pid := range pids {
		require.True(t, gone(pid), "pid %d survived", pid)
	}
}

func TestAgentKillsItsTree(t *testing.T) {
	testreq.Need(t, "setsid", "sleep")
	x := start(t, open.Config{})
	before, err := x.HostPIDs(t.Context())
	require.NoError(t, err)
	_, err = x.Execute(t.Context(), backends.Invocation{Tool: "sh", Params: map[string]string{"script": survivor + "; exec sleep 600"}, Deadline: 400 * time.Millisecond})
	require.ErrorIs(t, err, backends.ErrToolTimeout)
	after, err := x.HostPIDs(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestSilentAgentIsKilled(t *testing.T) {
	testreq.Need(t, "sleep")
	x := start(t, open.Config{})
	// The tool stops its own agent, which can then confirm nothing.
	_, err := x.Execute(t.Context(), backends.Invocation{Tool: "sh", Deadline: 100 * time.Millisecond,
		Params: map[string]string{"script": fmt.Sprintf("kill -STOP %d; sleep 600", x.PID())}})
	var timeout *backends.ToolTimeoutError
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.SandboxKilled)
	require.True(t, gone(x.PID()))
}

func TestFuse(t *testing.T) {
	testreq.Need(t, "cgroup", "sleep")
	x := start(t, open.Config{MemoryBytes: 256 << 20, Pids: 40})
	// The shell may give up at its first refused fork; the meter decides.
	_, err := x.Execute(t.Context(), backends.Invocation{Tool: "sh", Params: map[string]string{
		"script": `i=0; while [ $i -lt 80 ]; do sleep 600 & i=$((i+1)); done 2>/dev/null`}})
	require.NoError(t, err)
	u, err := x.Usage(t.Context())
	require.NoError(t, err)
	require.Positive(t, u.Refusals)
	require.LessOrEqual(t, u.Tasks, 40)
}

func TestTapAndResync(t *testing.T) {
	x := start(t, open.Config{})
	var mu sync.Mutex
	var seen []byte
	stop := x.Tap(func(b []byte) { mu.Lock(); seen = append(seen, b...); mu.Unlock() })
	run(t, x, "echo", map[string]string{"message": "tapped"})
	stop()
	mu.Lock()
	require.Contains(t, string(seen), "tapped")
	mu.Unlock()
	require.NoError(t, x.Inject(t.Context(), []byte{0, 0, 1, 0, '{'}))
	require.NoError(t, x.Resync(t.Context()))
	require.Equal(t, "again", run(t, x, "echo", map[string]string{"message": "again"}))
}

func TestRefusals(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "agent")
	require.NoError(t, os.WriteFile(plain, []byte("#!/bin/sh\nexit 3\n"), 0o700))
	other := backends.Credential{UID: os.Geteuid() + 1, GID: os.Getegid() + 1}
	for name, c := range map[string]open.Config{
		"absent agent":         {Agent: plain + "x", Credential: self()},
		"other digest":         {Agent: plain, AgentSHA256: strings.Repeat("0", 64), Credential: self()},
		"not executable there": {Agent: plain, Credential: other},
		"no agent at all":      {Agent: plain, Credential: self()},
		"absent directory":     {Agent: plain, Credential: self(), Dir: plain + "x"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			x, err := open.Start(ctx, c)
			require.ErrorIs(t, err, backends.ErrBootFailed)
			require.Nil(t, x)
		})
	}
}

// The death of the harness ends the target; what it cannot end, its cgroup,
// the ledger knows.
func TestHarnessThatIsKilledTakesItAlong(t *testing.T) {
	const harnessAgent, harnessLedger = "BSM_OPEN_TEST_AGENT", "BSM_OPEN_TEST_LEDGER"
	if path := os.Getenv(harnessAgent); path != "" {
		led, err := ledger.Open(os.Getenv(harnessLedger))
		var x *open.Target
		if err == nil {
			x, err = open.Start(context.Background(), open.Config{Agent: path, Credential: self(), Ledger: led})
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("pid", x.PID())
		select {}
	}
	dir := filepath.Join(t.TempDir(), "ledger")
	led, err := ledger.Open(dir)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHarnessThatIsKilledTakesItAlong$")
	cmd.Env = append(os.Environ(), harnessAgent+"="+agent(t), harnessLedger+"="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscanf(string(buf[:n]), "pid %d", &pid)
	require.NoError(t, err, string(buf[:n]))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool { return gone(pid) }, 5*time.Second, 5*time.Millisecond)
	reaped, err := led.Reap(t.Context())
	require.NoError(t, err)
	for _, r := range reaped {
		require.NoError(t, r.Err)
		require.NoFileExists(t, r.Target)
	}
	records, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, records)
}

func BenchmarkStart(b *testing.B) {
	path := agent(b)
	for b.Loop() {
		x, err := open.Start(b.Context(), open.Config{Agent: path, Credential: self()})
		require.NoError(b, err)
		require.NoError(b, x.Close())
	}
}
