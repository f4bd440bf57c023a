package latency

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// fake fails one in everyNth of each operation and is slow on request.
type fake struct {
	state               backends.State
	boots, resets, runs int
	failBoot, failReset int
	exit                int
	resetTakes          time.Duration
	unverified          bool
	accel               string
}

func (f *fake) Backend() string       { return "fake" }
func (f *fake) State() backends.State { return f.state }
func (f *fake) Boot(context.Context) error {
	f.boots++
	if f.failBoot > 0 && f.boots%f.failBoot == 0 {
		f.state = backends.StateFailed
		return backends.Errorf(backends.ErrBootFailed, "boot", "flaky")
	}
	f.state = backends.StateReady
	return nil
}

func (f *fake) Execute(context.Context, backends.Invocation) (backends.Execution, error) {
	f.runs++
	return backends.Execution{ExitCode: f.exit}, nil
}

func (f *fake) Reset(context.Context) (backends.ResetState, error) {
	f.resets++
	time.Sleep(f.resetTakes)
	if f.failReset > 0 && f.resets%f.failReset == 0 {
		return backends.ResetState{}, errors.New("disk full")
	}
	return backends.ResetState{VerificationPassed: !f.unverified}, nil
}
func (f *fake) Shutdown(context.Context) error  { f.state = backends.StateNotBooted; return nil }
func (f *fake) Provenance() backends.Provenance { return backends.Provenance{Accelerator: f.accel} }

func probe(t *testing.T, name string) probes.Probe {
	for _, p := range New() {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no probe %s", name)
	return probes.Probe{}
}

func measured(t *testing.T, name string, env *probes.Env) probes.Outcome {
	out, err := probe(t, name).Run(t.Context(), env)
	require.NoError(t, err)
	return out
}

func TestClean(t *testing.T) {
	for _, p := range New() {
		sb := &fake{state: backends.StateReady}
		out := measured(t, p.Name, &probes.Env{Sandbox: sb, Iterations: 50, RawSamples: true})
		require.Equal(t, probes.Contained, out.Verdict, out.Reason)
		require.Equal(t, 50, out.Latency[p.Name].Samples)
		require.Len(t, out.Samples[p.Name], 50)
		require.Equal(t, backends.StateReady, sb.State())
		require.EqualValues(t, 5, out.Evidence["warmup"])
	}
}

func TestBootReportsShutdownBesideIt(t *testing.T) {
	out := measured(t, NameBoot, &probes.Env{Sandbox: &fake{state: backends.StateReady}, Iterations: 20})
	require.Equal(t, 20, out.Latency[KeyShutdown].Samples)
}

func TestFailuresAreKeptAndFail(t *testing.T) {
	cases := map[string]struct {
		probe string
		sb    *fake
	}{
		"boot fails one in seven":    {NameBoot, &fake{state: backends.StateReady, failBoot: 7}},
		"reset fails one in seven":   {NameReset, &fake{state: backends.StateReady, failReset: 7}},
		"reset passes unverified":    {NameReset, &fake{state: backends.StateReady, unverified: true}},
		"noop is missing":            {NameRoundtrip, &fake{state: backends.StateReady, exit: 127}},
		"noop is missing at a reset": {NameReset, &fake{state: backends.StateReady, exit: 127}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out := measured(t, tc.probe, &probes.Env{Sandbox: tc.sb, Iterations: 30})
			require.Equal(t, probes.Weak, out.Verdict)
			require.Equal(t, probes.SeverityHigh, out.Severity)
			require.NotZero(t, out.Evidence["iterations_failed"])
		})
	}
}

func TestBudgets(t *testing.T) {
	budget := func(p int, d time.Duration) []probes.Budget {
		return []probes.Budget{{Probe: NameReset, Percentile: p, Max: d}, {Probe: NameBoot, Percentile: 50, Max: 1}}
	}
	slow := func() *fake { return &fake{state: backends.StateReady, resetTakes: 2 * time.Millisecond} }
	out := measured(t, NameReset, &probes.Env{Sandbox: slow(), Iterations: 20, Budgets: budget(50, time.Hour)})
	require.Equal(t, probes.Contained, out.Verdict)

	out = measured(t, NameReset, &probes.Env{Sandbox: slow(), Iterations: 20, Budgets: budget(50, time.Millisecond)})
	require.Equal(t, probes.Weak, out.Verdict)
	require.Contains(t, out.Reason, "over the budget of 1ms")

	// The budget is held against the upper end of the confidence interval, not
	// against the percentile itself.
	m := &measurement{name: NameReset}
	for i := range 20 {
		m.samples = append(m.samples, time.Duration(i+1)*time.Millisecond)
	}
	m.judge(&out, budget(50, 11*time.Millisecond)[:1])
	require.Equal(t, probes.Weak, out.Verdict, "p50 is 10 ms, but may be more: %s", out.Reason)
	m.judge(&out, budget(50, 20*time.Millisecond)[:1])
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)

	// Twenty samples bound no p99: that is not a pass.
	out = measured(t, NameReset, &probes.Env{Sandbox: slow(), Iterations: 20, Budgets: budget(99, time.Hour)})
	require.Equal(t, probes.Inconclusive, out.Verdict)
}

func TestDefaultResetBudgetIsForRealKVM(t *testing.T) {
	for accel, n := range map[string]int{"kvm": 1, "tcg": 0, "": 0} {
		require.Len(t, budgets(&probes.Env{}, NameReset, accel), n, accel)
	}
	out := measured(t, NameReset, &probes.Env{Sandbox: &fake{state: backends.StateReady, accel: "tcg"}, Iterations: 10})
	require.Equal(t, false, out.Evidence["representative"])
	require.Contains(t, out.Witness.Summary, "not representative")
}

func TestLatencyBudgetCapsTheSeries(t *testing.T) {
	out := measured(t, NameReset, &probes.Env{Sandbox: &fake{state: backends.StateReady, resetTakes: time.Millisecond},
		Iterations: 100000, LatencyBudget: 30 * time.Millisecond})
	require.Equal(t, true, out.Evidence["capped_by_lat_budget"])
	require.Less(t, out.Latency[NameReset].Samples, 1000)
	require.Equal(t, probes.Contained, out.Verdict)
}

func TestNothingMeasuredIsNoPass(t *testing.T) {
	out := measured(t, NameRoundtrip, &probes.Env{Sandbox: &fake{state: backends.StateReady}})
	require.Equal(t, probes.Inconclusive, out.Verdict)
}

// Intervals are given as soon as there are enough samples, and not before; they
// enclose the percentile.
func TestIntervalsNeedEnoughSamples(t *testing.T) {
	for n, want := range map[int][]string{5: nil, 6: {"p50"}, 40: {"p50", "p90"}, 72: {"p50", "p90", "p95"}, 368: {"p50", "p90", "p95", "p99"}} {
		d := measured(t, NameBoot, &probes.Env{Sandbox: &fake{state: backends.StateReady}, Iterations: n}).Latency[NameBoot]
		require.Len(t, d.CI95, len(want), "%d samples", n)
		for _, p := range want {
			ci := d.CI95[p]
			value := map[string]float64{"p50": d.P50, "p90": d.P90, "p95": d.P95, "p99": d.P99}[p]
			require.LessOrEqual(t, ci.Low, value, p)
			require.GreaterOrEqual(t, ci.High, value, p)
			require.GreaterOrEqual(t, ci.Low, d.Min)
			require.LessOrEqual(t, ci.High, d.Max)
		}
	}
}

func TestRawShutdownsAreKeptBesideTheBoots(t *testing.T) {
	out := measured(t, NameBoot, &probes.Env{Sandbox: &fake{state: backends.StateReady}, Iterations: 12, RawSamples: true})
	require.Len(t, out.Samples[NameBoot], 12)
	require.Len(t, out.Samples[KeyShutdown], 12)
	out = measured(t, NameBoot, &probes.Env{Sandbox: &fake{state: backends.StateReady}, Iterations: 12})
	require.Empty(t, out.Samples)
}
