package ab

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/stats"
)

// Verdict is the answer for one metric, or for all of them.
type Verdict string

// The verdicts.
const (
	Regression   Verdict = "regression"
	Improvement  Verdict = "improvement"
	NoChange     Verdict = "no change" // a change of twice MinEffect is excluded
	Inconclusive Verdict = "inconclusive"
)

// Statistic says what of a block is compared.
type Statistic string

// The statistics. A percentile is that of each block, by nearest rank.
const (
	P50      Statistic = "p50"
	P95      Statistic = "p95"
	Failures Statistic = "failures" // the fraction of iterations that failed
)

// minP95 is the smallest block whose p95 is not simply its maximum.
const minP95 = 20

// Side is what one arm measured under one name in A/B.
type Side struct {
	Samples int `json:"samples"`
	Failed  int `json:"failed"`
	// Warmup counts the discarded iterations.
	Warmup int `json:"warmup"`
	// Value is the percentile of all samples in milliseconds, the failures
	// counted as slowest, or the fraction of failures. It is absent where
	// the percentile is a failure.
	Value *float64 `json:"value,omitempty"`
	// Drift is the change of the median from the first third to the last.
	Drift float64 `json:"drift"`
	// Lag1 is the autocorrelation of consecutive samples within blocks. Blocks
	// are what is compared, so that it does no harm.
	Lag1 float64 `json:"lag1"`
}

// Test is one test of one metric.
type Test struct {
	// Change is head/base - 1, or the difference of the fractions of failures.
	Change float64 `json:"change"`
	// Low and High bound it with confidence 1 - alpha; absent where there are
	// too few rounds for an interval.
	Low  *float64 `json:"low,omitempty"`
	High *float64 `json:"high,omitempty"`
	// P is the p-value, PHolm the one corrected for all metrics.
	P     float64 `json:"p"`
	PHolm float64 `json:"p_holm"`
}

// Metric is one statistic of one measured name.
type Metric struct {
	Name      string    `json:"name"`
	Statistic Statistic `json:"statistic"`
	Base      Side      `json:"base"`
	Head      Side      `json:"head"`
	// AA is the test of the base against itself, Noise what it shows: the larger
	// of the change seen there and of the usual one under relabelling.
	AA    *Test   `json:"aa,omitempty"`
	Noise float64 `json:"noise"`
	// Threshold is what a change has to exceed.
	Threshold float64 `json:"threshold"`
	AB        *Test   `json:"ab,omitempty"`
	Confirm   *Test   `json:"confirm,omitempty"`
	Verdict   Verdict `json:"verdict"`
	// Why says in one sentence what the verdict rests on.
	Why string `json:"why"`

	candidate bool // significant and large; a second run has to agree
}

// Result is the answer of a comparison.
type Result struct {
	Verdict Verdict `json:"verdict"`
	// Quiet: the host did not tell the base from itself. AA says it in words.
	Quiet   bool     `json:"quiet"`
	AA      string   `json:"aa"`
	Metrics []Metric `json:"metrics"`
}

// values are a metric's four blocks per quad, ready to be tested.
type values struct {
	quads []stats.Quad
	why   string // set where there is nothing to test
}

// test compares the blocks and leaves PHolm to the caller.
func (d Design) test(v values, s Statistic) (*Test, stats.Permutation) {
	p := stats.NewPermutation(v.quads, d.Seed)
	t := &Test{Change: change(s, p.Effect()), P: p.P(0)}
	if low, high := p.Interval(d.Alpha); !math.IsInf(low, 0) && !math.IsInf(high, 0) {
		l, h := change(s, low), change(s, high)
		t.Low, t.High = &l, &h
	}
	return t, p
}

// change turns an effect into what a person reads: percentiles are compared by
// their logarithms.
func change(s Statistic, effect float64) float64 {
	if s == Failures {
		return effect
	}
	return math.Expm1(effect)
}

// collect takes a statistic from every block of a phase.
func (p phaseData) collect(name string, s Statistic) values {
	worst := time.Duration(0)
	for _, b := range p.blocks {
		for _, x := range b[name].Samples {
			worst = max(worst, x)
		}
	}
	v := values{}
	if worst == 0 && s != Failures {
		v.why = "no iteration of it succeeded"
		return v
	}
	for i := 0; i+3 < len(p.blocks); i += 4 {
		var q stats.Quad
		at := [2]int{}
		for j := i; j < i+4; j++ {
			x, ok := blockValue(p.blocks[j][name], s, worst)
			if !ok {
				v.why = fmt.Sprintf("block %d has no iteration of it", j+1)
				return v
			}
			if p.labels[j] == Head {
				q.Head[at[Head]] = x
			} else {
				q.Base[at[Base]] = x
			}
			at[p.labels[j]]++
		}
		v.quads = append(v.quads, q)
	}
	return v
}

// blockValue is one block's statistic. A percentile that falls on a failure is as
// slow as the slowest sample of the phase, which understates it.
func blockValue(x Series, s Statistic, worst time.Duration) (float64, bool) {
	n := len(x.Samples) + x.Failed
	if n == 0 {
		return 0, false
	}
	switch s {
	case Failures:
		return float64(x.Failed) / float64(n), true
	case P95:
		return math.Log(float64(censored(x, 95, worst))), true
	default:
		return math.Log(float64(censored(x, 50, worst))), true
	}
}

// censored is the nearest-rank percentile with the failures above every sample.
func censored(x Series, percent int, worst time.Duration) time.Duration {
	sorted := stats.Sorted(x.Samples)
	rank := stats.Rank(len(sorted)+x.Failed, percent)
	if rank > len(sorted) {
		return max(worst, 1)
	}
	return max(sorted[rank-1], 1) // a clock's zero has no logarithm
}

// statistics are those of a name that the blocks are large enough for.
func (p phaseData) statistics(name string) []Statistic {
	smallest, failed := math.MaxInt, 0
	for _, b := range p.blocks {
		smallest = min(smallest, len(b[name].Samples)+b[name].Failed)
		failed += b[name].Failed
	}
	out := []Statistic{P50}
	if smallest >= minP95 {
		out = append(out, P95)
	}
	if failed > 0 {
		out = append(out, Failures)
	}
	return out
}

// judge tests A/A and A/B and says what can be said without a second run.
func (d Design) judge(aa, ab phaseData) Result {
	out := Result{Quiet: true, Metrics: []Metric{}}
	for _, name := range names(aa, ab) {
		for _, s := range ab.statistics(name) {
			m := Metric{Name: name, Statistic: s, Base: ab.side(name, s, Base), Head: ab.side(name, s, Head), Threshold: d.MinEffect}
			a, b := aa.collect(name, s), ab.collect(name, s)
			switch {
			case a.why != "":
				m.Why = "A/A: " + a.why
			case b.why != "":
				m.Why = "A/B: " + b.why
			default:
				var p stats.Permutation
				m.AA, p = d.test(a, s)
				m.Noise = max(math.Abs(m.AA.Change), math.Abs(change(s, p.Spread())))
				m.Threshold = max(d.MinEffect, d.NoiseFactor*m.Noise)
				m.AB, _ = d.test(b, s)
			}
			out.Metrics = append(out.Metrics, m)
		}
	}
	correct(out.Metrics, func(m *Metric) *Test { return m.AA })
	correct(out.Metrics, func(m *Metric) *Test { return m.AB })
	var loud []string
	for i := range out.Metrics {
		m := &out.Metrics[i]
		d.decide(m)
		if m.AA != nil && d.loud(m) {
			loud = append(loud, m.title())
		}
	}
	out.Quiet = len(loud) == 0
	out.AA = d.aaText(out.Metrics, loud)
	out.Verdict = overall(out.Metrics)
	return out
}

func (m *Metric) title() string { return m.Name + " " + string(m.Statistic) }

// loud: the host tells the base from itself.
func (d Design) loud(m *Metric) bool {
	return m.AA.PHolm < d.Alpha && math.Abs(m.AA.Change) > d.MinEffect
}

func (d Design) aaText(metrics []Metric, loud []string) string {
	noise, of := 0.0, ""
	for i := range metrics {
		if metrics[i].Noise >= noise {
			noise, of = metrics[i].Noise, metrics[i].title()
		}
	}
	if len(loud) > 0 {
		return fmt.Sprintf("the host tells the base from itself in %s: no answer there can be trusted", strings.Join(loud, ", "))
	}
	return fmt.Sprintf("the host does not tell the base from itself; the noise is at most %.1f %% (%s)", 100*noise, of)
}

// correct applies Holm over the metrics that were tested.
func correct(metrics []Metric, test func(*Metric) *Test) {
	var tested []*Test
	var p []float64
	for i := range metrics {
		if t := test(&metrics[i]); t != nil {
			tested, p = append(tested, t), append(p, t.P)
		}
	}
	for i, v := range stats.Holm(p) {
		tested[i].PHolm = v
	}
}

// decide says what A/A and A/B show. A difference waits for its second run.
func (d Design) decide(m *Metric) {
	m.Verdict = Inconclusive
	switch {
	case m.AB == nil: // Why is set
	case d.loud(m):
		m.Why = "A/A: the host tells the base from itself"
	case m.AB.PHolm < d.Alpha && math.Abs(m.AB.Change) > m.Threshold:
		m.candidate = true
		m.Why = "significant and large; not confirmed yet"
	case m.AB.Low == nil:
		m.Why = "too few rounds for any difference to be significant"
	case *m.AB.Low > -d.margin() && *m.AB.High < d.margin():
		m.Verdict = NoChange
		m.Why = fmt.Sprintf("a change of %s or more is excluded", percent(d.margin()))
	case m.AB.PHolm < d.Alpha:
		m.Why = fmt.Sprintf("significant, but not over the threshold of %s", percent(m.Threshold))
	case m.Threshold > d.margin():
		m.Why = fmt.Sprintf("not significant, and the host is noisy: only a change over %s would have counted", percent(m.Threshold))
	default:
		m.Why = fmt.Sprintf("not significant, and a change of %s is not excluded; more rounds would tell", percent(d.margin()))
	}
}

// margin is the change that has to be excluded for the answer no change. However
// noisy a host is, it does not grow.
func (d Design) margin() float64 { return 2 * d.MinEffect }

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func (r *Result) needsConfirming() bool {
	return slices.ContainsFunc(r.Metrics, func(m Metric) bool { return m.candidate })
}

// confirm requires of every candidate that a second run agrees.
func (d Design) confirm(r *Result, again phaseData) {
	for i := range r.Metrics {
		m := &r.Metrics[i]
		if !m.candidate {
			continue
		}
		v := again.collect(m.Name, m.Statistic)
		if v.why != "" {
			m.Why = "the second run: " + v.why
			continue
		}
		m.Confirm, _ = d.test(v, m.Statistic)
	}
	correct(r.Metrics, func(m *Metric) *Test { return m.Confirm })
	for i := range r.Metrics {
		m := &r.Metrics[i]
		if m.Confirm == nil {
			continue
		}
		same := m.Confirm.Change*m.AB.Change > 0
		switch {
		case !same || m.Confirm.PHolm >= d.Alpha || math.Abs(m.Confirm.Change) <= m.Threshold:
			m.Why = fmt.Sprintf("a second run did not confirm it: %s, p=%.4f", signed(m.Confirm.Change), m.Confirm.PHolm)
		case m.AB.Change > 0:
			m.Verdict, m.Why = Regression, "significant, over the threshold, and confirmed by a second run"
		default:
			m.Verdict, m.Why = Improvement, "significant, over the threshold, and confirmed by a second run"
		}
	}
	r.Verdict = overall(r.Metrics)
}

// overall is the worst that is known, and inconclusive while anything is not.
func overall(metrics []Metric) Verdict {
	has := func(v Verdict) bool {
		return slices.ContainsFunc(metrics, func(m Metric) bool { return m.Verdict == v })
	}
	switch {
	case has(Regression):
		return Regression
	case has(Inconclusive), len(metrics) == 0:
		return Inconclusive
	case has(Improvement):
		return Improvement
	}
	return NoChange
}

// side describes one arm of A/B.
func (p phaseData) side(name string, s Statistic, arm Arm) Side {
	var out Side
	var all []time.Duration
	var blocks [][]float64
	for i, b := range p.blocks {
		if p.labels[i] != arm {
			continue
		}
		x := b[name]
		out.Samples += len(x.Samples)
		out.Failed += x.Failed
		out.Warmup += x.Warmup
		all = append(all, x.Samples...)
		var values []float64
		for _, d := range x.Samples {
			values = append(values, float64(d))
		}
		blocks = append(blocks, values)
	}
	out.Lag1 = stats.Lag1(blocks)
	if third := len(all) / 3; third > 0 {
		first, last := stats.Percentile(stats.Sorted(all[:third]), 50), stats.Percentile(stats.Sorted(all[len(all)-third:]), 50)
		out.Drift = float64(last)/float64(max(first, 1)) - 1
	}
	total := len(all) + out.Failed
	value := 0.0
	switch s {
	case Failures:
		value = float64(out.Failed) / float64(max(total, 1))
	default:
		rank := stats.Rank(total, map[Statistic]int{P50: 50, P95: 95}[s])
		if rank > len(all) || total == 0 {
			return out
		}
		value = float64(stats.Sorted(all)[rank-1]) / 1e6
	}
	out.Value = &value
	return out
}
