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

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/procwatch"
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

func tool(t *testing.T, p attack.TimeBombParams) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	params, err := json.Marshal(p)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "tool", attack.TimeBomb)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(params), &out
	cmd.WaitDelay = 100 * time.Millisecond // a survivor may hold stdout
	return cmd, &out
}

func call(t *testing.T, do string, bombs []attack.Bomb) *wire.PayloadReport {
	t.Helper()
	nonce := wire.NewNonceString()
	cmd, out := tool(t, attack.TimeBombParams{Nonce: nonce, Do: do, Bombs: bombs})
	require.NoError(t, cmd.Run())
	r, err := wire.ParsePayloadReport(out.Bytes(), attack.TimeBomb, nonce)
	require.NoError(t, err)
	return r
}

func all() []attack.Bomb {
	var out []attack.Bomb
	for _, mode := range attack.BombModes() {
		out = append(out, attack.Bomb{Mode: mode, Token: wire.NewNonceString()})
	}
	return out
}

func TestProofLeavesNothing(t *testing.T) {
	testreq.Need(t, "linux")
	bombs := all()
	r := call(t, attack.BombProve, bombs)
	var w procwatch.Watch
	for _, b := range bombs {
		require.True(t, r.Proved(b.Mode), "%+v", r.Proof)
		found, err := w.Find(b.Token)
		require.NoError(t, err)
		require.Empty(t, found)
		for _, f := range attack.BeatFiles(b.Token) {
			require.NoFileExists(t, f)
		}
	}
}

// In every mode the survivor outlives a tool of which only the first process
// is killed, carries its token, and beats.
func TestSurvivorsSurvive(t *testing.T) {
	testreq.Need(t, "root", "cgroup")
	g, err := fuse.New(t.Context(), "timebomb-test", fuse.Limits{MemoryBytes: 512 << 20, Pids: 300}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	var w procwatch.Watch
	for _, b := range all() {
		t.Run(b.Mode, func(t *testing.T) {
			t.Cleanup(func() { forget(b.Token) })
			cmd, _ := tool(t, attack.TimeBombParams{Do: attack.BombExplode, Bombs: []attack.Bomb{b}, Run: 10 * time.Second})
			require.NoError(t, g.Start(cmd))
			require.Eventually(t, func() bool { return beats(t, b) > 1 }, 10*time.Second, 5*time.Millisecond)
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait() // "killed", or that stdout is still held
			found, err := w.Find(b.Token)
			require.NoError(t, err)
			require.NotEmpty(t, found[b.Token])
			seen := beats(t, b)
			require.Eventually(t, func() bool { return beats(t, b) > seen }, 10*time.Second, 5*time.Millisecond)
			require.NoError(t, w.Kill(b.Token))
		})
	}
}

func beats(t *testing.T, b attack.Bomb) int64 {
	t.Helper()
	v, err := readBeat(b.Token)
	if err != nil {
		return 0
	}
	return v.count
}

func TestReadTellsWhatIsThere(t *testing.T) {
	testreq.Need(t, "linux")
	bombs := all()[:2]
	f, err := openBeat(bombs[0].Token)
	require.NoError(t, err)
	t.Cleanup(func() { forget(bombs[0].Token) })
	require.NoError(t, f.write(beat{count: 41}))
	f.close()
	r := call(t, attack.BombRead, bombs)
	got := r.Tried(bombs[0].Mode)[0]
	n, err := strconv.Atoi(got.Detail)
	require.NoError(t, err)
	require.Equal(t, 41, n)
	require.Equal(t, wire.ResultAbsent, r.Tried(bombs[1].Mode)[0].Result)
	require.True(t, r.Proved(bombs[0].Mode))
}

// A survivor that nobody kills ends by itself and takes its file along.
func TestLifeIsBounded(t *testing.T) {
	testreq.Need(t, "linux")
	b := all()[2]
	cmd, _ := tool(t, attack.TimeBombParams{Do: attack.BombExplode, Bombs: []attack.Bomb{b}, Run: time.Millisecond, Life: 50 * time.Millisecond})
	require.NoError(t, cmd.Run())
	var w procwatch.Watch
	require.Eventually(t, func() bool {
		found, err := w.Find(b.Token)
		return err == nil && len(found) == 0
	}, 10*time.Second, 5*time.Millisecond)
	for _, f := range attack.BeatFiles(b.Token) {
		require.NoFileExists(t, f)
	}
}

func TestBadParameters(t *testing.T) {
	for _, params := range []string{`[]`, `{}`, `{"do":"explode"}`} {
		var stderr bytes.Buffer
		require.Equal(t, 2, Run(t.Context(), wire.ToolInput{Params: []byte(params), Stderr: &stderr}))
		require.NotEmpty(t, stderr.String())
	}
}
