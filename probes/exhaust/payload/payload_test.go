//go:build linux

package payload

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// The payload runs itself again as `tool NAME`, as it does inside the agent.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "tool" {
		var params bytes.Buffer
		if _, err := params.ReadFrom(os.Stdin); err != nil {
			os.Exit(9)
		}
		os.Exit(Run(context.Background(), wire.ToolInput{Name: os.Args[2], Params: params.Bytes(), Stdout: os.Stdout, Stderr: os.Stderr}))
	}
	os.Exit(m.Run())
}

const mib = 1 << 20

// inFuse runs the payload inside a kernel limit and returns its report and what
// the limit's meters say.
func inFuse(t *testing.T, l fuse.Limits, p attack.ExhaustParams) (*wire.PayloadReport, backends.Usage) {
	t.Helper()
	testreq.Need(t, "root", "cgroup")
	g, err := fuse.New(t.Context(), "exhaust-test", l, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	p.Nonce, p.Life = wire.NewNonceString(), 20*time.Second
	params, err := json.Marshal(p)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "tool", attack.ResourceExhaust)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(params), &stdout, &stderr
	require.NoError(t, g.Start(cmd))
	require.NoError(t, cmd.Wait(), "the payload itself must survive; stderr: %s", stderr.String())
	u, err := g.Usage()
	require.NoError(t, err)
	r, err := wire.ParsePayloadReport(stdout.Bytes(), attack.ResourceExhaust, p.Nonce)
	require.NoError(t, err)
	require.True(t, r.Proved(p.Case), "%+v", r.Proof)
	return r, u
}

func reached(t *testing.T, r *wire.PayloadReport) int64 {
	t.Helper()
	n, err := strconv.ParseInt(r.Facts[attack.FactReached], 10, 64)
	require.NoError(t, err)
	return n
}

// The report outlives the kernel's kill of the worker and says how far it came.
func TestMemoryIsKilledAtTheLimit(t *testing.T) {
	r, u := inFuse(t, fuse.Limits{MemoryBytes: 96 * mib, Pids: 200},
		attack.ExhaustParams{Case: attack.ExhaustMemory, AskBytes: 100 << 30, StopBytes: 192 * mib})
	require.Equal(t, attack.EndKilled, r.Facts[attack.FactEnd])
	require.Greater(t, reached(t, r), int64(32*mib))
	require.Less(t, reached(t, r), int64(96*mib))
	require.GreaterOrEqual(t, u.Kills, int64(1))
	require.GreaterOrEqual(t, u.PeakBytes, int64(76*mib))
	require.Equal(t, wire.ResultLimited, r.Tried(attack.ExhaustMemory)[1].Result)
}

// Without a limit in its way the payload stops itself where the host said.
func TestMemoryStopsItself(t *testing.T) {
	r, u := inFuse(t, fuse.Limits{MemoryBytes: 256 * mib, Pids: 200},
		attack.ExhaustParams{Case: attack.ExhaustMemory, AskBytes: 100 << 30, StopBytes: 48 * mib})
	require.Equal(t, attack.EndStopped, r.Facts[attack.FactEnd])
	require.EqualValues(t, 48*mib, reached(t, r))
	require.Zero(t, u.Kills)
	require.GreaterOrEqual(t, u.PeakBytes, int64(48*mib))
}

// Where the big mapping is refused, smaller ones are tried, so that the limit
// on touched memory is still met.
func TestMemoryFallsBackToChunks(t *testing.T) {
	r, _ := inFuse(t, fuse.Limits{MemoryBytes: 256 * mib, Pids: 200},
		attack.ExhaustParams{Case: attack.ExhaustMemory, AskBytes: 1 << 50, StopBytes: 16 * mib})
	require.Equal(t, wire.ResultLimited, r.Tried(attack.ExhaustMemory)[0].Result)
	require.EqualValues(t, 16*mib, reached(t, r))
}

func TestPidsAreRefusedAtTheLimit(t *testing.T) {
	r, u := inFuse(t, fuse.Limits{MemoryBytes: 256 * mib, Pids: 64},
		attack.ExhaustParams{Case: attack.ExhaustPids, StopCount: 128, Hold: 20 * time.Millisecond})
	require.Equal(t, attack.EndRefused, r.Facts[attack.FactEnd])
	require.Greater(t, reached(t, r), int64(16))
	require.Less(t, reached(t, r), int64(64))
	require.GreaterOrEqual(t, u.Refusals, int64(1))
	require.Equal(t, "EAGAIN", r.Tried(attack.ExhaustPids)[0].Errno)
	require.Zero(t, u.Tasks, "every child has ended with its parent")
}

func TestPidsStopThemselves(t *testing.T) {
	r, u := inFuse(t, fuse.Limits{MemoryBytes: 256 * mib, Pids: 200},
		attack.ExhaustParams{Case: attack.ExhaustPids, StopCount: 100})
	require.Equal(t, attack.EndStopped, r.Facts[attack.FactEnd])
	require.EqualValues(t, 100, reached(t, r))
	require.Zero(t, u.Tasks)
}

func TestFDs(t *testing.T) {
	r, _ := inFuse(t, fuse.Limits{MemoryBytes: 256 * mib, Pids: 200},
		attack.ExhaustParams{Case: attack.ExhaustFDs, StopCount: 1 << 30})
	require.Equal(t, attack.EndRefused, r.Facts[attack.FactEnd])
	require.Equal(t, "EMFILE", r.Tried(attack.ExhaustFDs)[0].Errno)
}

func TestBadParameters(t *testing.T) {
	var stderr bytes.Buffer
	require.Equal(t, 2, Run(t.Context(), wire.ToolInput{Params: []byte(`[]`), Stderr: &stderr}))
	require.Contains(t, stderr.String(), "bad parameters")
}
