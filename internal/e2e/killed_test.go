package e2e

import (
	"bytes"
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

// agent builds the agent.
func agent(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "bsm-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-o", out, "./cmd/bsm-agent")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, string(text))
	return out
}

// program is a built bsm-redteam with a home of its own, beside its agent.
type program struct {
	t              *testing.T
	bin, tmp, home string
	env            []string
}

func build(t *testing.T) program {
	t.Helper()
	home := t.TempDir()
	tmp, err := os.MkdirTemp("/tmp", "bsm-t-") // short: sockets have to fit
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(tmp)) })
	p := program{t, filepath.Join(home, "bsm-redteam"), tmp, home, nil}
	cmd := exec.Command("go", "build", "-o", p.bin, "./cmd/bsm-redteam")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Rename(agent(t), filepath.Join(home, "bsm-agent")))
	p.env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home+"/state", "XDG_CACHE_HOME="+home+"/cache", "TMPDIR="+tmp)
	return p
}

func (p program) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.bin, args...)
	cmd.Env = p.env
	return cmd
}

// recorded lists what the ledger holds.
func (p program) recorded() []string {
	list, err := filepath.Glob(p.home + "/state/bsm-redteam/ledger/*")
	require.NoError(p.t, err)
	return list
}

// process is told from a later one with the same pid by its start.
type process struct{ pid, parent, start, comm string }

// running lists the processes of this machine that are no zombies.
func running(t *testing.T) []process {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	var out []process
	for _, file := range list {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) > 19 && f[0] != "Z" && f[0] != "X" {
			comm := string(b[bytes.IndexByte(b, '(')+1 : bytes.LastIndexByte(b, ')')])
			out = append(out, process{filepath.Base(filepath.Dir(file)), f[1], f[19], comm})
		}
	}
	return out
}

// tree lists the descendants of a process.
func tree(t *testing.T, pid string) []process {
	all := running(t)
	var out []process
	for next := []string{pid}; len(next) > 0; next = next[1:] {
		for _, p := range all {
			if p.parent == next[0] {
				out, next = append(out, p), append(next, p.pid)
			}
		}
	}
	return out
}

// midway starts a long run, waits until a sandbox is up, and returns what runs
// in it.
func (p program) midway(t *testing.T, report string) (*exec.Cmd, []process) {
	cmd := p.command("--sandbox", "bwrap", "--probes", "P-LAT-roundtrip", "--iterations", "3000000", "-o", report)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var inside []process
	require.Eventually(t, func() bool {
		inside = tree(t, strconv.Itoa(cmd.Process.Pid))
		return len(p.recorded()) >= 3 && len(inside) >= 2 // bwrap and the agent
	}, 30*time.Second, 10*time.Millisecond, "no sandbox came up")
	return cmd, inside
}

func TestNothingIsLeftBehind(t *testing.T) {
	testreq.Need(t, "linux", "go", "bwrap", "userns")
	p := build(t)
	clean := func(t *testing.T, inside []process) {
		t.Helper()
		gone(t, inside)
		require.Empty(t, p.recorded())
		left, err := os.ReadDir(p.tmp)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run("after "+sig.String()+", with a partial report", func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "r.json")
			cmd, inside := p.midway(t, report)
			require.NoError(t, cmd.Process.Signal(sig))
			_ = cmd.Wait()
			require.Equal(t, 128+int(sig), cmd.ProcessState.ExitCode())
			require.FileExists(t, report)
			clean(t, inside)
		})
	}
	t.Run("after SIGKILL and reap", func(t *testing.T) {
		dir := t.TempDir()
		cmd, inside := p.midway(t, filepath.Join(dir, "r.json"))
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.NotEmpty(t, p.recorded(), "the ledger still knows what was made")
		out, err := p.command("reap").CombinedOutput()
		require.NoError(t, err, string(out))
		clean(t, inside)
		half, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, half, "no half-made report")
		out, err = p.command("reap").CombinedOutput()
		require.NoError(t, err)
		require.Equal(t, "nothing to remove\n", string(out))
	})
}
