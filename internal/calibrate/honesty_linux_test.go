package calibrate_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/backends/bwrap"
	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/catalog"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// variant builds an agent that lies in one way. See cmd/bsm-agent/variant_*.go.
func variant(t *testing.T, tag string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "bsm-agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", tag, "-trimpath", "-ldflags=-s -w -buildid=", "-o", out,
		"github.com/brainst0rm/sandbox-redteam/cmd/bsm-agent")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	b, err := cmd.CombinedOutput()
	require.NoError(t, err, string(b))
	return out
}

// attackWith runs the named probes against a bwrap sandbox whose agent is the
// given one, while the controls keep the honest agent.
func attackWith(t *testing.T, agent, expr string, leaks ...string) []probes.Result {
	t.Helper()
	honest, _, err := agentbin.Find(t.Context(), "")
	require.NoError(t, err)
	list, err := catalog.Select(catalog.All(), expr)
	require.NoError(t, err)
	entry := bwrap.Entry()
	r := runner.Runner{
		New: func() (backends.Sandbox, error) {
			return entry.New(backends.Options{Agent: agent, Limits: entry.DefaultLimits, Leaks: leaks})
		},
		Backend: entry.Name, Probes: list, Agent: honest, Policy: policy.Policy{Limits: entry.DefaultLimits},
	}
	rep, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Len(t, rep.Probes, len(list), "%v", rep.Notes)
	return rep.Probes
}

// Without the attack tools inside no attack is contained: nothing was tried.
func TestMissingToolsAreNoContainment(t *testing.T) {
	testreq.Need(t, "bwrap")
	for _, p := range attackWith(t, variant(t, "bsm_variant_toolless"), catalog.BatteryAdversarial) {
		require.Equal(t, probes.Inconclusive, p.Verdict, "%s: %s", p.Name, p.Reason)
		require.False(t, p.Passed, p.Name)
	}
}

// A guest that claims successes that no witness saw is not believed, in either
// direction.
func TestClaimedSuccessIsNoEscapeAndNoPass(t *testing.T) {
	testreq.Need(t, "bwrap")
	for _, p := range attackWith(t, variant(t, "bsm_variant_boast"), catalog.BatteryAdversarial) {
		require.Equal(t, probes.Inconclusive, p.Verdict, "%s: %s", p.Name, p.Reason)
		require.False(t, p.Passed, p.Name)
	}
}

// A guest that carries an attack out and then reports failure is found out by
// the witness.
func TestDeniedSuccessIsAnEscape(t *testing.T) {
	testreq.Need(t, "bwrap")
	agent := variant(t, "bsm_variant_mute")
	for probe, leak := range map[string]string{
		"P-A1-net-egress": "share-net", "P-A2-fs-escape": "host-root-rw", "P-A3-process-escape": "share-pid",
		"P-A4-resource-exhaust": "no-limits", "P-A5-time-bomb": "keep-tree",
		"P-A6-substrate-lie": "skip-fs-hash", "P-A7-stdout-injection": "stdout-frames", "P-A8-vsock-poison": "no-limits-decoder",
	} {
		t.Run(probe, func(t *testing.T) {
			p := attackWith(t, agent, probe, leak)[0]
			require.Equal(t, probes.Escaped, p.Verdict, p.Reason)
			require.False(t, p.Passed)
		})
	}
}
