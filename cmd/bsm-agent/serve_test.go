//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/agent/tools"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func TestNoAttackReplacesABenignTool(t *testing.T) {
	benign := tools.Table()
	for name, tool := range attackTools() {
		require.NotContains(t, benign, name)
		require.NotNil(t, tool.Run, name)
		require.False(t, tool.InProcess, "%s attacks from inside the agent", name)
	}
	require.Len(t, table(), len(benign)+len(attackTools()))
}

func TestHelloNamesTheRunningBinary(t *testing.T) {
	b, err := os.ReadFile(binary)
	require.NoError(t, err)
	sum := sha256.Sum256(b)
	i := start(t)
	require.Equal(t, hex.EncodeToString(sum[:]), i.hello.AgentSHA256)
	require.Equal(t, i.cmd.Process.Pid, i.hello.PID)
	require.False(t, i.hello.VM)
	require.NotEmpty(t, i.hello.BootID)
	require.Len(t, i.hello.Tools, len(table()))
}

// A tool leads a group of its own in the agent's session: it has the controlling
// terminal that the sandbox has, if any.
func TestAToolStaysInTheSession(t *testing.T) {
	i := start(t)
	agent, err := unix.Getsid(i.cmd.Process.Pid)
	require.NoError(t, err)
	r := i.call("cat", map[string]string{"path": "/proc/self/stat"}, patience)
	require.Zero(t, r.ExitCode, r.Stderr)
	pid, _, _ := strings.Cut(r.Stdout, " ")
	f := strings.Fields(r.Stdout[strings.LastIndexByte(r.Stdout, ')')+1:])
	require.Equal(t, []string{pid, strconv.Itoa(agent)}, f[2:4], "group and session")
}

func TestOpenFDCountIsSteady(t *testing.T) {
	testreq.Need(t, "sh")
	i := start(t)
	count := func() int {
		var c wire.OpenFDCount
		i.query(wire.QueryOpenFDCount, &c)
		return c.Count
	}
	first := count()
	require.Positive(t, first)
	for range 10 {
		require.Zero(t, i.call("whoami", struct{}{}, patience).ExitCode)
		require.Equal(t, first, count())
	}
	for n := range 8 {
		i.dispatch(fmt.Sprint(n), "sh", script{"sleep 0.3"}, patience)
		i.send(&wire.GuestQuery{Type: wire.TypeGuestQuery, QueryID: "q", QueryKind: wire.QueryOpenFDCount})
		require.JSONEq(t, fmt.Sprintf(`{"count":%d}`, first), string(receive[*wire.GuestResponse](i).Result), "calls in flight were counted")
	}
	for range 8 {
		require.Zero(t, receive[*wire.ToolResult](i).ExitCode)
	}
	require.Equal(t, first, count())

	// The count must be able to move: the host sees the same number in /proc.
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", i.cmd.Process.Pid))
	require.NoError(t, err)
	sockets := 0
	for _, fd := range fds {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", i.cmd.Process.Pid, fd.Name()))
		require.NoError(t, err)
		if strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	require.Equal(t, len(fds)-sockets, first)
}

func TestQueriesSeeTheRealWorld(t *testing.T) {
	i := start(t)
	var mem wire.MemUsage
	i.query(wire.QueryMemUsage, &mem)
	require.Greater(t, mem.TotalBytes, mem.AvailableBytes)
	require.Positive(t, mem.AvailableBytes)
	var list wire.ProcessList
	i.query(wire.QueryProcessList, &list)
	found := false
	for _, p := range list.Processes {
		found = found || p.PID == i.cmd.Process.Pid && p.Comm == "bsm-agent" && strings.HasSuffix(p.Args, "serve --stdio")
	}
	require.True(t, found, "the agent is not in its own list")
}

func TestOutsideAVMNothingIsRenewed(t *testing.T) {
	i := start(t)
	past := time.Now().Add(-24 * time.Hour)
	i.send(&wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "test", Epoch: "e", UnixNano: past.UnixNano(), Entropy: []byte("x")})
	ack := receive[*wire.ResetAck](i)
	require.Equal(t, "e", ack.Epoch)
	require.Empty(t, ack.Applied)
	require.WithinDuration(t, past.Add(24*time.Hour), time.Now(), time.Hour, "the agent moved this machine's clock")
}

func TestEndlessOutputIsBoundedAndAnswered(t *testing.T) {
	i := start(t)
	begin := time.Now()
	r := i.call("cat", map[string]string{"path": "/dev/zero"}, 300*time.Millisecond)
	require.True(t, r.TimedOut)
	require.Greater(t, r.StdoutLength, int64(4<<20))
	require.Len(t, r.StdoutSHA256, 64)
	require.Less(t, time.Since(begin), patience)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", i.cmd.Process.Pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if kb := 0; strings.HasPrefix(line, "VmHWM:") {
			_, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb)
			require.NoError(t, err)
			require.Less(t, kb, 200<<10, "peak memory in KiB")
		}
	}
}

func TestOrphansAreReapedWhileTheToolRuns(t *testing.T) {
	testreq.Need(t, "sh")
	i := start(t)
	r := i.call("sh", script{`n=0; while [ $n -lt 40 ]; do ( true & ) ; n=$((n+1)); done; sleep 0.3
for s in /proc/[0-9]*/stat; do read pid comm state ppid rest < $s && [ "$state" = Z ] && [ "$ppid" = "$PPID" ] && echo zombie $pid; done 2>/dev/null; exit 0`}, patience)
	require.Zero(t, r.ExitCode, r.Stderr)
	require.Empty(t, r.Stdout)
}

func TestToolsOwnChildrenAreNotReapedForThem(t *testing.T) {
	testreq.Need(t, "sh")
	i := start(t)
	for range 20 {
		require.Equal(t, 5, i.call("sh", script{"( true & ); exit 5"}, patience).ExitCode)
	}
}

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"nothing": {nil, 2}, "unknown verb": {[]string{"x"}, 2}, "serve what": {[]string{"serve"}, 2},
		"unknown flag": {[]string{"serve", "--stdio", "--x"}, 2}, "tool what": {[]string{"tool"}, 2},
		"unknown tool": {[]string{"tool", "nope"}, 127}, "version": {[]string{"version"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(binary, c.args...)
			out, _ := cmd.CombinedOutput()
			require.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%s", out)
			require.NotEmpty(t, out)
		})
	}
}

func TestBenignTools(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "marker")
	i := start(t)
	type path struct {
		Path    string `json:"path"`
		Content string `json:"content,omitempty"`
	}
	require.Zero(t, i.call("fs.write", path{file, "planted"}, patience).ExitCode)
	require.NotZero(t, i.call("fs.write", path{file, "again"}, patience).ExitCode, "fs.write replaced a file")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "planted", string(b))
	for _, tool := range []string{"cat", "cat-file"} {
		require.Equal(t, "planted", i.call(tool, path{Path: file}, patience).Stdout)
		require.Equal(t, 1, i.call(tool, path{Path: file + "x"}, patience).ExitCode)
		require.Equal(t, 2, i.call(tool, struct{}{}, patience).ExitCode)
	}
	require.Contains(t, i.call("ls", path{Path: dir}, patience).Stdout, `"marker"`)
	require.Contains(t, i.call("env", struct{}{}, patience).Stdout, "PATH=")
	require.Contains(t, i.call("uname", struct{}{}, patience).Stdout, `"sysname":"Linux"`)
	require.Contains(t, i.call("disk.usage", struct{}{}, patience).Stdout, `"total_bytes"`)
	require.Contains(t, i.call("net.interfaces", struct{}{}, patience).Stdout, `"name":"lo"`)
	require.Contains(t, i.call("proc.list", struct{}{}, patience).Stdout, `"comm":"bsm-agent"`)
	require.Equal(t, "a\x1b[31m", i.call("stdout.echo", map[string]string{"content": "a\x1b[31m"}, patience).Stdout)
	require.Equal(t, "hi", i.call("echo", map[string]string{"message": "hi"}, patience).Stdout)
	require.Equal(t, 2, i.call("echo", map[string]int{"message": 1}, patience).ExitCode)
	require.Zero(t, i.call("noop", struct{}{}, patience).ExitCode)
	require.Zero(t, i.call("time.sleep", map[string]int{"ms": 1}, patience).ExitCode)
	require.True(t, i.call("time.sleep", map[string]int{"ms": 60000}, 50*time.Millisecond).TimedOut)
	require.Equal(t, 3, i.call("shell.exec", map[string]string{"cmd": "exit 3"}, patience).ExitCode)
}
