// Package latency is the LAT battery: how long a boot, a verified reset and a
// call take. A number counts only if the thing measured worked, so every
// failure is kept and fails the probe.
package latency

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/stats"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// The probes' ids, and the key under which the boot probe reports shutdowns.
const (
	NameBoot      = "P-LAT-boot"
	NameReset     = "P-LAT-reset"
	NameRoundtrip = "P-LAT-roundtrip"
	KeyShutdown   = "P-LAT-shutdown"
)

// DefaultResetBudget is the seed's target for a verified reset. It applies on
// real KVM only: under emulation it would measure the emulator.
const DefaultResetBudget = 500 * time.Millisecond

const (
	callDeadline = 30 * time.Second
	// maxFailures ends a measurement that has become pointless.
	maxFailures = 100
	// longBudget leaves the time to --lat-budget: 1000 boots of a VM take as
	// long as they take.
	longBudget = 24 * time.Hour
)

// New returns the three probes in battery order.
func New() []probes.Probe {
	build := func(name, what, limits string, run func(context.Context, *probes.Env) (probes.Outcome, error)) probes.Probe {
		return probes.Probe{
			Name: name, Class: probes.ClassLatency, Expectation: probes.ShouldPass,
			Description: what + " Reports p50, p90, p95, p99, mean, min and max by nearest rank over the stated number of iterations, after a stated warm-up.",
			Why: "Times are the host's monotonic clock around the whole operation. A failed iteration is kept and fails the probe, " +
				"and a budget is held only if the upper end of the percentile's 95 % confidence interval is within it.",
			Limits:   limits + " Under emulation (TCG) the numbers say nothing about the boundary on real hardware and are marked so. The iterations are a closed loop: they show latency, not capacity.",
			Severity: probes.SeverityHigh, Harm: "self denial of service",
			Techniques: []string{"T05"}, Budget: longBudget, Run: run,
		}
	}
	reset := build(NameReset, "Resets the sandbox and verifies it from three sources, after a call.", "It says how long a reset takes, not that it restores: that is P-A6.", runReset)
	reset.Needs = []probes.Need{probes.NeedReset}
	reset.SideEffects = []probes.SideEffect{probes.EffectResets}
	boot := build(NameBoot, "Shuts the sandbox down and boots it until its agent has announced itself; shutdown is reported beside it.", "A golden snapshot that a backend makes at boot is part of the time.", runBoot)
	boot.SideEffects = []probes.SideEffect{probes.EffectResets}
	return []probes.Probe{boot, reset,
		build(NameRoundtrip, "Executes the tool noop and waits for its answer.", "It includes what the agent does to run a tool.", runRoundtrip)}
}

func runBoot(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	var down []time.Duration
	m := measure(ctx, env, NameBoot, func(warm bool) (time.Duration, error) {
		began := time.Now()
		if err := env.Sandbox.Shutdown(ctx); err != nil {
			return 0, fmt.Errorf("shutdown: %w", err)
		}
		if !warm {
			down = append(down, time.Since(began))
		}
		began = time.Now()
		err := env.Sandbox.Boot(ctx)
		return time.Since(began), err
	})
	out := m.outcome(env)
	if len(down) > 0 {
		out.Latency[KeyShutdown] = distribution(down)
		if env.RawSamples && out.Samples != nil {
			out.Samples[KeyShutdown] = nanoseconds(down)
		}
	}
	return out, ctx.Err()
}

func runReset(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	m := measure(ctx, env, NameReset, func(bool) (time.Duration, error) {
		if _, err := roundtrip(ctx, env.Sandbox); err != nil {
			return 0, err
		}
		began := time.Now()
		state, err := env.Sandbox.Reset(ctx)
		took := time.Since(began)
		if err == nil && !state.VerificationPassed {
			err = errors.New("reset returned without a passed verification")
		}
		return took, err
	})
	return m.outcome(env), ctx.Err()
}

func runRoundtrip(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	m := measure(ctx, env, NameRoundtrip, func(bool) (time.Duration, error) { return roundtrip(ctx, env.Sandbox) })
	return m.outcome(env), ctx.Err()
}

func roundtrip(ctx context.Context, sb backends.Sandbox) (time.Duration, error) {
	began := time.Now()
	e, err := sb.Execute(ctx, backends.Invocation{Tool: "noop", Deadline: callDeadline})
	took := time.Since(began)
	if err == nil && e.ExitCode != 0 {
		err = fmt.Errorf("noop exited with %d", e.ExitCode)
	}
	return took, err
}

// measurement is one finished series.
type measurement struct {
	name     string
	warmup   int
	wanted   int
	samples  []time.Duration
	failures map[string]int // by error, bounded
	failed   int
	capped   bool // --lat-budget ended it
}

func measure(ctx context.Context, env *probes.Env, name string, once func(warm bool) (time.Duration, error)) *measurement {
	m := &measurement{name: name, wanted: env.Iterations, warmup: min(5, (env.Iterations+9)/10), failures: map[string]int{}}
	began := time.Now()
	for i := range m.warmup + m.wanted {
		if ctx.Err() != nil || m.failed >= maxFailures {
			break
		}
		warm := i < m.warmup
		if !warm && len(m.samples) > 0 && env.LatencyBudget > 0 && time.Since(began) > env.LatencyBudget {
			m.capped = true
			break
		}
		took, err := once(warm)
		switch {
		case err != nil && ctx.Err() == nil:
			m.fail(err)
			revive(ctx, env.Sandbox)
		case err == nil && !warm:
			m.samples = append(m.samples, took)
		}
		if env.Progress != nil && !warm {
			env.Progress(i-m.warmup+1, m.wanted)
		}
	}
	return m
}

// fail counts a failure, also one of the warm-up: a sandbox that cannot do it
// at first has failed too.
func (m *measurement) fail(err error) {
	m.failed++
	key := string(backends.CodeOf(err))
	if key == "" {
		key = strings.ReplaceAll(err.Error(), "\n", " ")
	}
	if len(m.failures) < 8 || m.failures[key] > 0 {
		m.failures[key]++
	}
}

// revive brings a failed sandbox back, so that one failure does not become all
// of the remaining iterations.
func revive(ctx context.Context, sb backends.Sandbox) {
	if sb.State() == backends.StateReady {
		return
	}
	_ = sb.Shutdown(ctx) // the next Boot says what is wrong
	_ = sb.Boot(ctx)     // and the next iteration fails if this did
}

func (m *measurement) outcome(env *probes.Env) probes.Outcome {
	out := probes.Outcome{
		Witness:  probes.Witness{Kind: "monotonic clock"},
		Control:  probes.Control{Target: "none: a latency is measured, not attacked"},
		Latency:  map[string]probes.Distribution{},
		Evidence: map[string]any{"warmup": m.warmup, "iterations_attempted": len(m.samples) + m.failed, "iterations_failed": m.failed, "iterations_wanted": m.wanted},
	}
	if m.failed > 0 {
		out.Evidence["failures"] = m.failures
	}
	if m.capped {
		out.Evidence["capped_by_lat_budget"] = true
	}
	accelerator := ""
	if p, ok := env.Sandbox.(backends.Provenancer); ok {
		accelerator = p.Provenance().Accelerator
	}
	if accelerator == "tcg" {
		out.Evidence["representative"] = false
	}
	if len(m.samples) == 0 {
		out.Verdict, out.Reason, out.Severity = probes.Weak, fmt.Sprintf("no iteration succeeded; %d failed (%s)", m.failed, m.failureText()), probes.SeverityHigh
		if m.failed == 0 {
			out.Verdict, out.Reason, out.Severity = probes.Inconclusive, "no iteration was made", ""
		}
		out.Witness.Summary = out.Reason
		return out
	}
	d := distribution(m.samples)
	out.Latency[m.name] = d
	out.Evidence["distribution"] = d
	if env.RawSamples {
		out.Samples = map[string][]int64{m.name: nanoseconds(m.samples)}
	}
	out.Witness.Summary = fmt.Sprintf("n=%d p50=%s p99=%s", d.Samples, short(d.P50), short(d.P99))
	if accelerator == "tcg" {
		out.Witness.Summary += " (tcg: not representative)"
	}
	m.judge(&out, budgets(env, m.name, accelerator))
	return out
}

// budgets returns those of one probe, with the default for resets on real KVM.
func budgets(env *probes.Env, name, accelerator string) []probes.Budget {
	var own []probes.Budget
	for _, b := range env.Budgets {
		if b.Probe == name {
			own = append(own, b)
		}
	}
	if len(own) == 0 && name == NameReset && accelerator == "kvm" {
		own = []probes.Budget{{Probe: name, Percentile: 50, Max: DefaultResetBudget}}
	}
	return own
}

func (m *measurement) judge(out *probes.Outcome, budgets []probes.Budget) {
	out.Verdict, out.Reason = probes.Contained, fmt.Sprintf("%d iterations, none failed", len(m.samples))
	sorted := stats.Sorted(m.samples)
	var over, undecided []string
	for _, b := range budgets {
		rank, ok := stats.UpperRank(len(sorted), b.Percentile)
		name := fmt.Sprintf("p%d", b.Percentile)
		switch {
		case !ok:
			undecided = append(undecided, fmt.Sprintf("%d samples are too few for an upper bound of %s", len(sorted), name))
		case sorted[rank-1] > b.Max:
			over = append(over, fmt.Sprintf("%s is %s with an upper bound of %s, over the budget of %s", name,
				stats.Percentile(sorted, b.Percentile), sorted[rank-1], b.Max))
		}
	}
	switch {
	case m.failed > 0:
		out.Verdict, out.Severity = probes.Weak, probes.SeverityHigh
		out.Reason = fmt.Sprintf("%d of %d iterations failed (%s)", m.failed, m.failed+len(m.samples), m.failureText())
	case len(over) > 0:
		out.Verdict, out.Severity, out.Reason = probes.Weak, probes.SeverityHigh, strings.Join(over, "; ")
	case len(undecided) > 0:
		out.Verdict, out.Reason = probes.Inconclusive, strings.Join(undecided, "; ")
	}
}

func (m *measurement) failureText() string {
	var parts []string
	for k, n := range m.failures {
		parts = append(parts, fmt.Sprintf("%d x %s", n, k))
	}
	sort.Strings(parts)
	return strings.Join(parts, ", ")
}

func distribution(samples []time.Duration) probes.Distribution {
	s := stats.Sorted(samples)
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	var bounds map[string]probes.Interval
	for _, p := range []int{50, 90, 95, 99} {
		if low, high, ok := stats.Interval(s, p); ok {
			if bounds == nil {
				bounds = map[string]probes.Interval{}
			}
			bounds[fmt.Sprintf("p%d", p)] = probes.Interval{Low: ms(low), High: ms(high)}
		}
	}
	return probes.Distribution{
		Samples: len(s), CI95: bounds,
		P50: ms(stats.Percentile(s, 50)), P90: ms(stats.Percentile(s, 90)), P95: ms(stats.Percentile(s, 95)), P99: ms(stats.Percentile(s, 99)),
		Mean: ms(stats.Mean(s)), Min: ms(s[0]), Max: ms(s[len(s)-1]),
	}
}

func nanoseconds(samples []time.Duration) []int64 {
	raw := make([]int64, len(samples))
	for i, s := range samples {
		raw[i] = int64(s)
	}
	return raw
}

func short(ms float64) string {
	switch {
	case ms < 1:
		return fmt.Sprintf("%.0fus", ms*1000)
	case ms < 1000:
		return fmt.Sprintf("%.1fms", ms)
	}
	return fmt.Sprintf("%.2fs", ms/1000)
}
