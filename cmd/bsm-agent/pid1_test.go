//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/agent/vm"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// witness prints, from inside the agent's namespaces, all that VM mode would
// change: mounts, modules, cgroups, and whether lo is up.
const witness = `cat /proc/self/mounts; echo --; cut -d" " -f1 /proc/modules 2>/dev/null | sort; echo --; cat /sys/class/net/lo/flags 2>/dev/null; ls -d /rootfs /sys/fs/cgroup/bsm 2>/dev/null; ls -d /.bsm-proc-* 2>/dev/null; true`

// As PID 1 of a privileged container the agent must be a plain agent: it
// mounts nothing, loads nothing, and configures nothing.
func TestPID1OfAPrivilegedContainerIsNoVM(t *testing.T) {
	testreq.Need(t, "root", "unshare", "sh")
	// A namespace of the same kind without the agent in it is the comparison.
	inside := func(cmd string) *exec.Cmd {
		return exec.Command("unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--mount-proc", "sh", "-c", cmd)
	}
	before, err := inside(witness).CombinedOutput()
	require.NoError(t, err, "%s", before)
	require.Contains(t, string(before), " /proc proc ")

	cmd := inside(fmt.Sprintf("exec %s serve --stdio", binary))
	frames := bytes.NewBuffer(nil)
	n := wire.NewNonce()
	frames.Write(wire.Preamble(n))
	body, err := wire.Encode(&wire.ToolDispatch{Type: wire.TypeToolDispatch, CommandID: "1", Tool: "sh",
		Params: []byte(fmt.Sprintf(`{"script":%q}`, witness)), DeadlineMS: patience.Milliseconds()})
	require.NoError(t, err)
	require.NoError(t, wire.WriteFrame(frames, body))
	hello, r := exchange(t, cmd, frames.Bytes(), n)
	require.Equal(t, 1, hello.PID, "the agent was not PID 1")
	require.False(t, hello.VM)
	require.Zero(t, r.ExitCode, r.Stderr)
	require.Equal(t, string(before), r.Stdout)
}

// Where there is no /proc the agent looks at one of its own making. Afterwards
// nothing of it may be left. The observer shares the mounts but not the pids.
func TestPID1WithoutProcLeavesNoMount(t *testing.T) {
	testreq.Need(t, "root", "unshare", "sh", "chroot")
	root := t.TempDir()
	out, err := exec.Command("unshare", "--mount", "sh", "-c", `set -e
cd /; mount -t tmpfs none "$1"; cp "$2" "$1/bsm-agent"; touch -d 2001-01-01 "$1"
cat /proc/self/mounts; ls -A "$1"; echo ==
unshare --pid --fork chroot "$1" /bsm-agent serve --stdio </dev/null || echo status $?
echo ==
cat /proc/self/mounts; ls -A "$1"; echo ==
stat -c %Y "$1"; date -d 2001-01-01 +%s`, "sh", root, binary).CombinedOutput()
	require.NoError(t, err, "%s", out)
	part := strings.Split(string(out), "==\n")
	require.Len(t, part, 4, "%s", out)
	require.Contains(t, part[1], "status 1", "without /proc there are no tools, and it must say so")
	require.NotContains(t, part[1], "VM mode")
	require.Equal(t, part[0], part[2], "something was left behind")
	times := strings.Fields(part[3])
	require.NotEqual(t, times[1], times[0], "the agent never looked, so this test shows nothing")
}

func TestOursIsOnlyAskedOfPID1(t *testing.T) {
	p, ours, err := vm.Ours(func(string) (string, error) {
		t.Error("hashed the executable of a process that is not PID 1")
		return "", nil
	})
	require.NoError(t, err)
	require.False(t, ours)
	require.Nil(t, p)
}

// exchange runs cmd, sends frames and returns the hello and the first result.
func exchange(t *testing.T, cmd *exec.Cmd, frames []byte, n wire.Nonce) (*wire.Hello, *wire.ToolResult) {
	t.Helper()
	i := attach(t, cmd)
	_, err := i.stdin.Write(frames)
	require.NoError(t, err)
	_, err = wire.AwaitPreamble(i.r, n, 0)
	require.NoError(t, err)
	return receive[*wire.Hello](i), receive[*wire.ToolResult](i)
}

func TestWitnessSeesAMount(t *testing.T) {
	testreq.Need(t, "root", "unshare", "sh")
	out, err := exec.Command("unshare", "--pid", "--mount", "--net", "--fork", "--mount-proc", "sh", "-c",
		"mount -t tmpfs bsm-mark /mnt; "+witness).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, strings.Contains(string(out), "bsm-mark /mnt tmpfs"))
}
