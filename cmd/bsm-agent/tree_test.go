//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// A mark is a string in the arguments of every process that a test starts. It
// is looked for in /proc, which shares no code with the agent.
func newMark(t *testing.T) string {
	return fmt.Sprintf("bsmtest%d%x", os.Getpid(), time.Now().UnixNano())
}

// marked returns the living processes with the mark in their arguments.
func marked(t *testing.T, mark string) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, d := range dirs {
		args, err := os.ReadFile(d + "/cmdline")
		if err != nil || !bytes.Contains(args, []byte(mark)) {
			continue
		}
		stat, err := os.ReadFile(d + "/stat")
		if err != nil || strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(d))
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// sleeper is a shell command that sleeps long, carries the mark, and ignores
// SIGTERM and SIGHUP. exec in front keeps it one process.
func sleeper(mark string) string {
	return `sh -c 'trap "" TERM HUP; sleep 300; :' ` + mark
}

func TestDeadlineKillsTheWholeTree(t *testing.T) {
	testreq.Need(t, "sh", "setsid")
	for name, body := range map[string]string{
		"ignores sigterm":      `exec %s`,
		"background":           `%s & wait`,
		"setsid":               `setsid %s & sleep 300`,
		"double fork":          `( %s & ) ; sleep 300`,
		"setsid, double fork":  `( setsid sh -c "( $0 & )" "%s" & ) ; sleep 300`,
		"clean environment":    `( env -i /usr/bin/setsid %s & ) ; sleep 300`,
		"stopped":              `%s & kill -STOP $! ; sleep 300`,
		"many":                 `for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do setsid %s & done; sleep 300`,
		"first process killed": `%s & kill -9 $PPID; sleep 300`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := start(t)
			mark := newMark(t)
			cmd := fmt.Sprintf(body, sleeper(mark))
			if name == "setsid, double fork" {
				file := filepath.Join(t.TempDir(), "s")
				require.NoError(t, os.WriteFile(file, []byte(sleeper(mark)+"\n"), 0o600))
				cmd = fmt.Sprintf(`( setsid sh -c "( sh %s & )" & ) ; sleep 300`, file)
			}
			const deadline = time.Second
			i.dispatch("c", "sh", script{cmd}, deadline)
			begin := time.Now()
			require.Eventually(t, func() bool { return len(marked(t, mark)) > 0 }, deadline*9/10, 5*time.Millisecond, "the bomb did not start")
			r := receive[*wire.ToolResult](i)
			elapsed := time.Since(begin)
			require.Empty(t, marked(t, mark), "alive after the answer")
			require.Less(t, elapsed, deadline+500*time.Millisecond)
			if name == "first process killed" {
				require.Equal(t, wire.ExitKilled, r.ExitCode)
				return
			}
			require.True(t, r.TimedOut)
			require.Equal(t, wire.ExitKilled, r.ExitCode)
			require.GreaterOrEqual(t, elapsed, deadline)
		})
	}
}

// A chain of processes, each of which forks the next and ends, is never where
// the last look saw it. It ends itself when the file stop exists.
func TestDeadlineCatchesAHopper(t *testing.T) {
	testreq.Need(t, "sh", "setsid")
	i := start(t)
	for name, hop := range map[string]string{
		"fork":   `hop() { echo x >> "$1/beats"; [ -e "$1/stop" ] || hop "$1" & }; hop "$0"; sleep 300`,
		"setsid": `sh "$0/hop" "$0"; sleep 300`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			stop := filepath.Join(dir, "stop")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "hop"),
				[]byte(`echo x >> "$1/beats"; [ -e "$1/stop" ] || setsid sh "$1/hop" "$1" &`+"\n"), 0o600))
			t.Cleanup(func() { _ = os.WriteFile(stop, nil, 0o600) })
			begin := time.Now()
			r := i.call("sh", script{fmt.Sprintf(`sh -c '%s' %s`, hop, dir)}, 400*time.Millisecond)
			require.True(t, r.TimedOut)
			require.Less(t, time.Since(begin), 900*time.Millisecond)
			beats := func() int64 {
				info, err := os.Stat(filepath.Join(dir, "beats"))
				require.NoError(t, err)
				return info.Size()
			}
			at := beats()
			require.Greater(t, at, int64(10), "it did not hop")
			for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				require.Equal(t, at, beats(), "it still hops after the answer")
			}
		})
	}
}

func TestNothingIsLeftAfterAToolsOwnEnd(t *testing.T) {
	testreq.Need(t, "sh", "setsid")
	i := start(t)
	mark := newMark(t)
	begin := time.Now()
	r := i.call("sh", script{fmt.Sprintf(`( setsid %s & ) ; ( env -i %s & ) ; echo out; exit 4`, sleeper(mark), sleeper(mark))}, time.Minute)
	require.Equal(t, 4, r.ExitCode)
	require.Equal(t, "out\n", r.Stdout, "output before the end must be complete")
	require.False(t, r.TimedOut)
	require.Less(t, time.Since(begin), 2*time.Second, "a grandchild that holds stdout delayed the answer")
	require.Empty(t, marked(t, mark))
}

func TestOneCallsEndLeavesTheOthersAlone(t *testing.T) {
	testreq.Need(t, "sh", "setsid")
	i := start(t)
	mark := newMark(t)
	i.dispatch("long", "sh", script{fmt.Sprintf(`( setsid %s & ) ; ( env -i %s & ) ; sleep 1; echo survived`, sleeper(mark), sleeper(mark))}, time.Minute)
	require.Eventually(t, func() bool { return len(marked(t, mark)) >= 2 }, patience, 5*time.Millisecond)
	for n := range 3 {
		i.dispatch(fmt.Sprint(n), "sh", script{"setsid sleep 200 & sleep 200"}, 50*time.Millisecond)
		require.True(t, receive[*wire.ToolResult](i).TimedOut)
		require.GreaterOrEqual(t, len(marked(t, mark)), 2, "a call's end killed another call's processes")
	}
	r := receive[*wire.ToolResult](i)
	require.Equal(t, "long", r.CommandID)
	require.Equal(t, "survived\n", r.Stdout)
	require.Empty(t, marked(t, mark))
}

func TestKeepTreeReallyLeaks(t *testing.T) {
	testreq.Need(t, "sh", "setsid")
	i := start(t, "--keep-tree")
	mark := newMark(t)
	r := i.call("sh", script{fmt.Sprintf(`setsid sh -c 'while :; do echo beat; sleep 0.02; done' %s & sleep 300`, mark)}, 200*time.Millisecond)
	require.True(t, r.TimedOut)
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		require.NotEmpty(t, marked(t, mark), "the survivor died")
	}
	require.Zero(t, i.call("whoami", struct{}{}, time.Minute).ExitCode)
	require.NotEmpty(t, marked(t, mark), "another call killed the survivor")
	require.NoError(t, i.stdin.Close())
	<-i.ended
	require.Empty(t, marked(t, mark), "even the leak ends with the agent")
}

func TestAgentEndsWithItsTreeAtEOF(t *testing.T) {
	testreq.Need(t, "sh", "setsid")
	i := start(t)
	mark := newMark(t)
	i.dispatch("c", "sh", script{fmt.Sprintf(`( setsid %s & ) ; ( env -i %s & ) ; %s`, sleeper(mark), sleeper(mark), sleeper(mark))}, time.Minute)
	require.Eventually(t, func() bool { return len(marked(t, mark)) >= 3 }, patience, 5*time.Millisecond)
	require.NoError(t, i.stdin.Close())
	select {
	case <-i.ended:
	case <-time.After(patience):
		t.Fatal("the agent did not end")
	}
	require.Empty(t, marked(t, mark))
	require.Zero(t, i.cmd.ProcessState.ExitCode())
}

func TestNewSessionKillsTheCallsOfTheLast(t *testing.T) {
	testreq.Need(t, "sh", "setsid")
	i := start(t)
	mark := newMark(t)
	i.dispatch("c", "sh", script{fmt.Sprintf(`setsid %s & wait`, sleeper(mark))}, time.Minute)
	require.Eventually(t, func() bool { return len(marked(t, mark)) > 0 }, patience, 5*time.Millisecond)
	n := wire.NewNonce()
	_, err := i.stdin.Write(wire.Preamble(n))
	require.NoError(t, err)
	_, err = wire.AwaitPreamble(i.r, n, 0)
	require.NoError(t, err)
	receive[*wire.Hello](i)
	require.Eventually(t, func() bool { return len(marked(t, mark)) == 0 }, patience, 5*time.Millisecond)
	require.Equal(t, "root\n", rootName(i.call("whoami", struct{}{}, time.Minute).Stdout))
}

// rootName lets the test run as any user.
func rootName(s string) string {
	if os.Getuid() != 0 && s != "" {
		return "root\n"
	}
	return s
}
