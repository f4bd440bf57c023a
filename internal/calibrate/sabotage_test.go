package calibrate_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/backends/mock"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/catalog"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// P-A6 has no canary that could be stopped: its witness is the verification, and
// its control switches that off.
const withoutCanary = "P-A6-substrate-lie"

// Stopping any one canary or meter, in any execution of any probe, makes that
// probe inconclusive.
func TestEveryWitnessIsNeeded(t *testing.T) {
	entry := mock.Entry()
	attack := func(p probes.Probe, fault func(kind string, stop func())) probes.Result {
		r := runner.Runner{
			New:     func() (backends.Sandbox, error) { return entry.New(backends.Options{Limits: entry.DefaultLimits}) },
			Backend: entry.Name, Probes: []probes.Probe{p}, Fault: fault,
			Policy: policy.Policy{Limits: entry.DefaultLimits},
		}
		rep, err := r.Run(context.Background())
		require.NoError(t, err)
		require.Len(t, rep.Probes, 1)
		return rep.Probes[0]
	}
	list, err := catalog.Select(catalog.All(), catalog.BatteryAdversarial)
	require.NoError(t, err)
	for _, p := range list {
		t.Run(p.Name, func(t *testing.T) {
			var kinds []string
			res := attack(p, func(kind string, _ func()) { kinds = append(kinds, kind) })
			require.Equal(t, probes.Contained, res.Verdict, res.Reason)
			require.Equal(t, p.Name == withoutCanary, len(kinds) == 0, "canaries: %v", kinds)
			for i, kind := range kinds {
				t.Run(fmt.Sprintf("%d %s", i, kind), func(t *testing.T) {
					n := 0
					res := attack(p, func(_ string, stop func()) {
						if n == i {
							stop()
						}
						n++
					})
					require.Equal(t, probes.Inconclusive, res.Verdict, res.Reason)
					require.False(t, res.Passed)
				})
			}
		})
	}
}
