package backendtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func (s *suite) run(sb backends.Sandbox, tool string, params any) backends.Execution {
	s.Helper()
	e, err := sb.Execute(s.Context(), backends.Invocation{Tool: tool, Params: params, Deadline: 30 * time.Second})
	require.NoError(s, err, "tool %s", tool)
	if !e.Stdout.Truncated() && !e.Stderr.Truncated() {
		require.Equal(s, wire.EvidenceHash(e.Stdout.Bytes(), e.Stderr.Bytes()), e.EvidenceHash)
	}
	require.Positive(s, e.Elapsed)
	return e
}

func (s *suite) noop(sb backends.Sandbox) {
	s.Helper()
	require.Zero(s, s.run(sb, "noop", nil).ExitCode)
}

func (s *suite) results() {
	sb := s.boot()
	s.noop(sb)
	e, err := sb.Execute(s.Context(), backends.Invocation{ID: "my-id", Tool: "echo", Params: map[string]string{"message": "hello \x00 \u202e"}})
	require.NoError(s, err)
	require.Equal(s, "my-id", e.ID)
	require.Equal(s, "hello \x00 \u202e", string(e.Stdout.Bytes()))
	require.NotZero(s, s.run(sb, "cat-file", map[string]string{"path": "/nonexistent-" + wire.NewNonceString()}).ExitCode,
		"a non-zero exit is a result")
	require.Equal(s, wire.ExitNoTool, s.run(sb, "no.such.tool", nil).ExitCode)
	_, err = sb.Execute(s.Context(), backends.Invocation{Tool: "noop", Params: []int{1}})
	s.typed(err, "params that are no object")
	s.noop(sb)
	s.shutdown(sb)
}

// output runs the one tool that prints what it is told, byte for byte.
func (s *suite) output() {
	sb := s.boot()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	forge := func(content []byte) backends.Text {
		s.Helper()
		nonce := wire.NewNonceString()
		e := s.run(sb, attack.StdoutForge, attack.StdoutForgeParams{Nonce: nonce, Case: "output", Content: content})
		require.Zero(s, e.ExitCode, "stderr: %s", e.Stderr)
		return e.Stdout
	}
	for name, content := range map[string][]byte{
		"every byte": every,
		"NULs":       make([]byte, 100_000),
		"frames":     append([]byte{0, 0, 0, 2, '{', '}', 0xff, 0xff, 0xff, 0xff}, wire.Preamble(wire.NewNonce())...),
		"3 MiB":      bytes.Repeat(every, 3<<20/len(every)),
	} {
		out := forge(content)
		require.False(s, out.Truncated(), name)
		require.True(s, bytes.Equal(content, out.Bytes()), "%s came back changed", name)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 6<<20/16)
	sum := sha256.Sum256(big)
	out := forge(big)
	require.True(s, out.Truncated(), "6 MiB are over the cap, and that is said")
	require.EqualValues(s, len(big), out.Len())
	require.Equal(s, hex.EncodeToString(sum[:]), out.SHA256())
	require.True(s, bytes.HasPrefix(big, out.Bytes()), "what is kept is the beginning")
	require.GreaterOrEqual(s, len(out.Bytes()), 1<<20)
	s.noop(sb)
	s.shutdown(sb)
}

func (s *suite) concurrentCalls() {
	sb := s.boot()
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			want := fmt.Sprintf("call %d %s", i, wire.NewNonceString())
			e, err := sb.Execute(s.Context(), backends.Invocation{Tool: "echo", Params: map[string]string{"message": want}, Deadline: 30 * time.Second})
			if err != nil || string(e.Stdout.Bytes()) != want {
				s.Errorf("call %d got %q, %v", i, e.Stdout, err)
			}
		})
	}
	wg.Wait()
	s.shutdown(sb)
}

func (s *suite) cancelledCall() {
	sb := s.boot()
	ctx, cancel := context.WithTimeout(s.Context(), s.h.Deadline/4)
	defer cancel()
	begin := time.Now()
	_, err := sb.Execute(ctx, backends.Invocation{Tool: "time.sleep", Params: map[string]int{"ms": 5_000}, Deadline: 2 * s.h.Deadline})
	require.ErrorIs(s, err, context.DeadlineExceeded)
	require.Less(s, time.Since(begin), s.h.Deadline+s.h.Slack)
	require.Equal(s, backends.StateReady, sb.State())
	s.noop(sb)
	s.shutdown(sb)
}

// deadline requires the death of the whole tree, in the shape that is hardest
// to kill: an orphan in a session of its own.
func (s *suite) deadline() {
	sb := s.boot()
	token := wire.NewNonceString()
	bombs := []attack.Bomb{{Mode: attack.BombDoubleFork, Token: token}}
	_, err := sb.Execute(s.Context(), backends.Invocation{Tool: attack.TimeBomb, Deadline: s.h.Deadline, Params: attack.TimeBombParams{
		Nonce: wire.NewNonceString(), Do: attack.BombExplode, Bombs: bombs, Run: time.Minute, Life: 30 * time.Second}})
	require.ErrorIs(s, err, backends.ErrToolTimeout)
	var timeout *backends.ToolTimeoutError
	require.ErrorAs(s, err, &timeout)
	require.False(s, timeout.SandboxKilled, "a healthy agent confirms the death")
	require.GreaterOrEqual(s, timeout.Elapsed, s.h.Deadline)
	require.Less(s, timeout.Elapsed, s.h.Deadline+s.h.Slack)

	first := s.beats(sb, bombs)
	require.Positive(s, first, "the survivor never ran, so that its death shows nothing")
	s.noHostProcess(sb, attack.BombArg(token))
	for range 5 {
		require.Equal(s, first, s.beats(sb, bombs), "a process of the tree beats after the deadline")
		timer := time.NewTimer(20 * time.Millisecond)
		<-timer.C
	}
	require.Equal(s, backends.StateReady, sb.State())
	s.noop(sb)
	s.shutdown(sb)
}

// beats reads the survivor's counter.
func (s *suite) beats(sb backends.Sandbox, bombs []attack.Bomb) int {
	s.Helper()
	nonce := wire.NewNonceString()
	e := s.run(sb, attack.TimeBomb, attack.TimeBombParams{Nonce: nonce, Do: attack.BombRead, Bombs: bombs})
	r, err := wire.ParsePayloadReport(e.Stdout.Bytes(), attack.TimeBomb, nonce)
	require.NoError(s, err, "stderr: %s", e.Stderr)
	for _, a := range r.Tried(bombs[0].Mode) {
		if a.Op == "beat" && a.Result == wire.ResultOK {
			n, err := strconv.Atoi(a.Detail)
			require.NoError(s, err)
			return n
		}
	}
	return 0
}

// noHostProcess looks among the sandbox's host processes where what runs
// inside is one.
func (s *suite) noHostProcess(sb backends.Sandbox, arg string) {
	s.Helper()
	hp, ok := sb.(backends.HostProcesses)
	if !ok || !hp.InsideIsHost() {
		return
	}
	pids, err := hp.HostPIDs(s.Context())
	require.NoError(s, err)
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(line), arg) {
			s.Errorf("process %d of the tree is alive after the deadline", pid)
		}
	}
}
