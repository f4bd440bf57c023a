package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/backends/bwrap"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/catalog"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// agent builds the agent, with a build tag for a lying one.
func agent(t *testing.T, tag string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "bsm-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", tag, "-o", out, "./cmd/bsm-agent")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, string(text))
	return out
}

// battery runs attacks against a bwrap sandbox with the guest agent, while the
// controls run the honest one.
func battery(t *testing.T, honest, guest string, leaks []string, expr string) probes.Report {
	t.Helper()
	require.NoError(t, canary.PlantEnv())
	entry := bwrap.Entry()
	pol, err := policy.Default(entry.Name, entry.DefaultLimits)
	require.NoError(t, err)
	led, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"))
	require.NoError(t, err)
	list, err := catalog.Select(catalog.All(), expr)
	require.NoError(t, err)
	opts := backends.Options{Agent: guest, Limits: pol.Limits, Leaks: leaks, Ledger: led}
	r := &runner.Runner{
		Probes: list, Policy: pol, Agent: honest, Ledger: led, Leaks: leaks,
		New: func() (backends.Sandbox, error) { return entry.New(opts) },
	}
	rep, err := r.Run(t.Context())
	require.NoError(t, err)
	require.False(t, rep.Unavailable, rep.Notes)
	require.Len(t, rep.Probes, len(list), "every probe ran: %+v", rep.SkippedProbes)
	return rep
}

// TestAGuestThatLiesGainsNothing: what the guest says is evidence and never the
// verdict.
func TestAGuestThatLiesGainsNothing(t *testing.T) {
	testreq.Need(t, "linux", "go", "bwrap", "userns", "cgroup")
	honest := agent(t, "")

	t.Run("honest", func(t *testing.T) {
		rep := battery(t, honest, honest, nil, "adversarial")
		for _, p := range rep.Probes {
			require.True(t, p.Passed, "%s: %s: %s %s", p.Name, p.Verdict, p.Reason, p.ErrorMessage)
			require.Equal(t, "validated-bwrap", p.ValidatedAgainst, p.Name)
		}
	})
	t.Run("without attack tools nothing passes", func(t *testing.T) {
		rep := battery(t, honest, agent(t, "bsm_variant_toolless"), nil, "adversarial")
		for _, p := range rep.Probes {
			require.False(t, p.Passed, "%s passed although its attack was never carried out: %s", p.Name, p.Reason)
			require.Equal(t, probes.MockOnly, p.ValidatedAgainst, p.Name)
		}
	})
	t.Run("claimed success without an attempt is inconclusive", func(t *testing.T) {
		rep := battery(t, honest, agent(t, "bsm_variant_boast"), nil, "adversarial")
		for _, p := range rep.Probes {
			require.Equal(t, probes.Inconclusive, p.Verdict, "%s: %s", p.Name, p.Reason)
			require.True(t, p.Errored, p.Name)
		}
	})
	t.Run("exit 1 for attacks that it carried out still fails", func(t *testing.T) {
		mute := agent(t, "bsm_variant_mute")
		escaped := map[string]bool{}
		for _, leak := range bwrap.Entry().Leaks {
			if leak.Class == string(probes.ClassLatency) || leak.NeedsOwnHost {
				continue
			}
			for _, name := range leak.Expect {
				p := battery(t, honest, mute, []string{leak.Name}, name).Probes[0]
				require.False(t, p.Passed, "leak %s: %s: %s", leak.Name, p.Name, p.Reason)
				t.Logf("leak %s: %s: %s: %s", leak.Name, p.Name, p.Verdict, p.Reason)
				if p.Verdict == probes.Escaped {
					escaped[leak.Class] = true
				}
			}
		}
		// A secret that the guest read and then kept to itself did not get out.
		// But in every class some crossing leaves a trace on the host.
		for _, p := range catalog.All() {
			if p.Class != probes.ClassLatency {
				require.True(t, escaped[string(p.Class)], "no leak of class %s was seen from outside alone", p.Class)
			}
		}
	})
}
