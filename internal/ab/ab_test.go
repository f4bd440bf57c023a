package ab

import (
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// host simulates a machine: what a block measures, by arm and by the number of
// blocks before it. Latencies are skewed and blocks differ, as real ones do.
type host struct {
	rng    *rand.Rand
	blocks int
	n      int
	// factor is how much slower than 10 ms a block of an arm is.
	factor func(arm Arm, block int) float64
	// fails is the chance of an iteration of an arm to fail.
	fails [2]float64
}

func newHost(seed uint64, factor func(Arm, int) float64) *host {
	return &host{rng: rand.New(rand.NewPCG(seed, 99)), n: 20, factor: factor}
}

func (h *host) measure(_ context.Context, arm Arm) (Block, error) {
	level := 1e7 * h.factor(arm, h.blocks) * math.Exp(0.01*h.rng.NormFloat64()) // of this boot
	h.blocks++
	s := Series{Warmup: 2}
	for range h.n {
		if h.rng.Float64() < h.fails[arm] {
			s.Failed++
			continue
		}
		v := level * math.Exp(0.03*h.rng.NormFloat64())
		if h.rng.IntN(20) == 0 {
			v *= 1 + h.rng.ExpFloat64() // a tail
		}
		s.Samples = append(s.Samples, time.Duration(v))
	}
	return Block{"P-LAT-x": s}, nil
}

func same(Arm, int) float64 { return 1 }

func slower(by float64) func(Arm, int) float64 {
	return func(a Arm, _ int) float64 { return 1 + by*float64(a) }
}

func run(t *testing.T, h *host) Result {
	t.Helper()
	r, err := Run(t.Context(), DefaultDesign(), h.measure, nil)
	require.NoError(t, err)
	return r
}

func metric(r Result, s Statistic) Metric {
	for _, m := range r.Metrics {
		if m.Statistic == s {
			return m
		}
	}
	return Metric{}
}

// seeds is how many machines each law is tried on.
const seeds = 50

// count runs many machines and counts the verdicts on the median.
func count(t *testing.T, change func(*host)) map[Verdict]int {
	out := map[Verdict]int{}
	for seed := range uint64(seeds) {
		h := newHost(seed, same)
		change(h)
		out[metric(run(t, h), P50).Verdict]++
	}
	return out
}

// Nothing that is the same is called different: not on a quiet machine, not on one
// that drifts, jumps or whose neighbours come and go.
func TestNoDifferenceIsNoRegression(t *testing.T) {
	for name, factor := range map[string]func(*host) func(Arm, int) float64{
		"quiet":  func(*host) func(Arm, int) float64 { return same },
		"drifts": func(*host) func(Arm, int) float64 { return func(_ Arm, i int) float64 { return 1 + 0.02*float64(i) } },
		"jumps":  func(*host) func(Arm, int) float64 { return func(_ Arm, i int) float64 { return 1 + float64(i/25) } },
		"is wild": func(h *host) func(Arm, int) float64 {
			return func(Arm, int) float64 { return math.Exp(0.3 * h.rng.NormFloat64()) }
		},
	} {
		got := count(t, func(h *host) { h.factor = factor(h) })
		require.Zero(t, got[Regression]+got[Improvement], "%s: %v", name, got)
		if name == "quiet" {
			require.Greater(t, got[NoChange], seeds*9/10, "%v", got)
		}
		if name == "is wild" {
			require.Greater(t, got[Inconclusive], seeds*9/10, "%v", got)
		}
	}
}

// What is slower is found, what is faster too, and a change that is too small to
// matter is not.
func TestADifferenceIsFound(t *testing.T) {
	require.Greater(t, count(t, func(h *host) { h.factor = slower(0.3) })[Regression], seeds*95/100)
	require.Greater(t, count(t, func(h *host) { h.factor = slower(-0.3) })[Improvement], seeds*95/100)
	small := count(t, func(h *host) { h.factor = slower(0.02) })
	require.Zero(t, small[Regression], "%v", small)
	drifting := count(t, func(h *host) {
		h.factor = func(a Arm, i int) float64 { return (1 + 0.3*float64(a)) * (1 + 0.02*float64(i)) }
	})
	require.Greater(t, drifting[Regression], seeds*90/100, "%v", drifting)
}

// A difference that does not come back is none.
func TestASecondRunHasToAgree(t *testing.T) {
	const phase = 4 * MinRounds
	r := run(t, newHost(1, func(a Arm, i int) float64 {
		if a == Head && i < 2*phase {
			return 1.5
		}
		return 1
	}))
	m := metric(r, P50)
	require.Equal(t, Inconclusive, m.Verdict)
	require.Contains(t, m.Why, "a second run did not confirm it")
	require.NotNil(t, m.Confirm)
	require.Equal(t, Inconclusive, r.Verdict)
	turned := run(t, newHost(1, func(a Arm, i int) float64 {
		if i < 2*phase {
			return 1 + 0.5*float64(a)
		}
		return 1.5 - 0.5*float64(a)
	}))
	require.Equal(t, Inconclusive, metric(turned, P50).Verdict, "the other way round is no confirmation")
}

// Only what has to be confirmed is measured a third time.
func TestPhases(t *testing.T) {
	for by, want := range map[float64][]string{0: {PhaseAA, PhaseAB}, 0.5: {PhaseAA, PhaseAB, PhaseConfirm}} {
		h := newHost(1, slower(by))
		var phases []string
		var arms []Arm
		_, err := Run(t.Context(), DefaultDesign(), func(ctx context.Context, a Arm) (Block, error) {
			arms = append(arms, a)
			return h.measure(ctx, a)
		}, func(phase string, block, of int) {
			require.Equal(t, 4*MinRounds, of)
			if block == 0 {
				phases = append(phases, phase)
			}
		})
		require.NoError(t, err)
		require.Equal(t, want, phases)
		for i, a := range arms {
			if i < 4*MinRounds {
				require.Equal(t, Base, a, "A/A is the base alone")
			}
		}
		require.Equal(t, []Arm{Base, Head, Head, Base, Head, Base, Base, Head}, arms[4*MinRounds:4*MinRounds+8])
	}
}

// A host on which the base differs from itself answers nothing.
func TestALoudHost(t *testing.T) {
	const phase = 4 * MinRounds
	// Whatever is labelled head in A/A is slower there.
	h := newHost(1, func(a Arm, i int) float64 {
		if i < phase && order(i / 4)[i%4] == Head {
			return 1.3
		}
		return 1 + float64(a)
	})
	r := run(t, h)
	require.False(t, r.Quiet)
	require.Contains(t, r.AA, "the host tells the base from itself in P-LAT-x p50")
	require.Equal(t, Inconclusive, metric(r, P50).Verdict)
	require.Equal(t, "A/A: the host tells the base from itself", metric(r, P50).Why)
}

// The threshold is three times the noise where that is more than 5 %.
func TestNoiseRaisesTheThreshold(t *testing.T) {
	m := metric(run(t, newHost(1, same)), P50)
	require.InDelta(t, 0.05, m.Threshold, 1e-9)
	h := newHost(1, nil)
	h.factor = func(a Arm, _ int) float64 { return (1 + 0.12*float64(a)) * math.Exp(0.15*h.rng.NormFloat64()) }
	m = metric(run(t, h), P50)
	require.Greater(t, m.Threshold, 0.12)
	require.InDelta(t, 3*m.Noise, m.Threshold, 1e-9)
	require.Equal(t, Inconclusive, m.Verdict)
	require.Contains(t, m.Why, "noisy")
}

// Failures are slower than everything, are counted, and are a metric themselves.
func TestFailuresStayInTheComparison(t *testing.T) {
	h := newHost(1, same)
	h.fails[Head] = 0.3
	r := run(t, h)
	m := metric(r, Failures)
	require.Equal(t, Regression, m.Verdict, m.Why)
	require.Equal(t, 0, m.Base.Failed)
	require.Equal(t, 200, m.Head.Failed+m.Head.Samples)
	require.Nil(t, metric(r, P95).Head.Value, "the 95th percentile is a failure")
	require.Equal(t, Regression, metric(r, P95).Verdict)
	require.NotEqual(t, Regression, metric(r, P50).Verdict, "the median is not")
	require.Equal(t, Regression, r.Verdict)

	all := newHost(1, same)
	all.fails[Head] = 1
	r = run(t, all)
	require.Equal(t, Regression, metric(r, Failures).Verdict)
	require.Nil(t, metric(r, P50).Head.Value)

	none := newHost(1, same)
	none.fails = [2]float64{1, 1}
	_, err := Run(t.Context(), DefaultDesign(), none.measure, nil)
	require.ErrorIs(t, err, ErrNothingMeasured)
}

func TestCensoredPercentiles(t *testing.T) {
	s := Series{Samples: []time.Duration{3, 1, 2}, Failed: 2}
	require.Equal(t, time.Duration(3), censored(s, 50, 9))
	require.Equal(t, time.Duration(9), censored(s, 95, 9))
	require.Equal(t, time.Duration(1), censored(Series{Samples: []time.Duration{0}}, 50, 0))
}

// A p95 of a small block would be its maximum.
func TestSmallBlocksHaveNoP95(t *testing.T) {
	h := newHost(1, same)
	h.n = 19
	require.Empty(t, metric(run(t, h), P95).Name)
	h = newHost(1, same)
	require.NotEmpty(t, metric(run(t, h), P95).Name)
}

func TestWhatOneArmLacksIsInconclusive(t *testing.T) {
	h := newHost(1, same)
	r, err := Run(t.Context(), DefaultDesign(), func(ctx context.Context, a Arm) (Block, error) {
		b, err := h.measure(ctx, a)
		if a == Base {
			b["P-LAT-only-base"] = b["P-LAT-x"]
		}
		return b, err
	}, nil)
	require.NoError(t, err)
	for _, m := range r.Metrics {
		if m.Name == "P-LAT-only-base" {
			require.Equal(t, Inconclusive, m.Verdict)
			require.Contains(t, m.Why, "A/B: block 2 has no iteration of it")
			return
		}
	}
	t.Fatal("it is not among the metrics")
}

func TestErrorsEndTheComparison(t *testing.T) {
	boom := errors.New("boom")
	_, err := Run(t.Context(), DefaultDesign(), func(context.Context, Arm) (Block, error) { return nil, boom }, nil)
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "A/A: block 1 of 20, base: boom")
	ctx, cancel := context.WithCancel(t.Context())
	h := newHost(1, same)
	_, err = Run(ctx, DefaultDesign(), func(ctx context.Context, a Arm) (Block, error) {
		if h.blocks == 25 {
			cancel()
		}
		return h.measure(ctx, a)
	}, nil)
	require.ErrorIs(t, err, context.Canceled)
	_, err = Run(t.Context(), Design{}, h.measure, nil)
	require.ErrorContains(t, err, "at least 1 is needed")
}

func TestDriftAndAutocorrelationAreReported(t *testing.T) {
	h := newHost(1, func(_ Arm, i int) float64 { return 1 + 0.02*float64(i) })
	m := metric(run(t, h), P50)
	require.Greater(t, m.Base.Drift, 0.1)
	require.InDelta(t, 0, m.Base.Lag1, 0.3)
	require.Equal(t, 20, m.Base.Warmup)
}

// TestGolden pins every format.
func TestGolden(t *testing.T) {
	h := newHost(5, slower(0.4))
	h.fails[Head] = 0.02
	stolen := 0.013
	r := Report{
		Result: run(t, h), GeneratedAt: "2026-11-21T10:00:00.000Z", Backend: "qemu", Harness: "1",
		Base: Configuration{Policy: "small.yaml", PolicySHA256: strings.Repeat("ab", 32), Sandbox: &backends.Provenance{Accelerator: "tcg"}},
		Head: Configuration{Policy: "large.yaml", PolicySHA256: strings.Repeat("cd", 32), Leaks: []string{"user-net"}},
		Host: hostcheck.Facts{OS: "linux", Arch: "amd64", CPUs: 4}, Steal: &stolen, Rounds: MinRounds, Iterations: 20, Alpha: 0.01, MinEffect: 0.05, NoiseFactor: 3,
		Notes: []string{"P-LAT-reset was not measured: no reset"},
	}
	for format, file := range map[string]string{"text": "text.golden", "markdown": "markdown.golden", "json": "json.golden"} {
		out, err := r.Render(format)
		require.NoError(t, err)
		path := filepath.Join("testdata", file)
		if *update {
			require.NoError(t, os.MkdirAll("testdata", 0o755))
			require.NoError(t, os.WriteFile(path, out, 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(out), format)
	}
}

// What a policy or a sandbox says is not trusted in a log.
func TestTextsStayTexts(t *testing.T) {
	evil := "::error::x\n\x1b[2J##[add-mask]\u202e<img>|`"
	r := Report{Result: Result{Verdict: NoChange, Metrics: []Metric{{Name: "P-LAT-x"}}}, Backend: "qemu", Base: Configuration{Policy: evil, Leaks: []string{evil}}, Notes: []string{evil}}
	for _, format := range Formats() {
		out, err := r.Render(format)
		require.NoError(t, err)
		for _, line := range strings.Split(string(out), "\n") {
			require.NotRegexp(t, `^\s*::`, line)
			require.NotContains(t, line, "##[")
			for _, b := range []byte(line) {
				require.True(t, b >= 0x20 && b < 0x7f, "%s: byte %#x in %q", format, b, line)
			}
		}
		if format == "markdown" {
			require.NotContains(t, string(out), "<img")
		}
	}
}
