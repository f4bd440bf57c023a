package compare

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/stats"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/latency"
)

// Direction is what can be said about one latency.
type Direction string

// The directions. Without a shift the two may still differ by less than the
// samples can show.
const (
	Slower       Direction = "slower"
	Faster       Direction = "faster"
	NoShift      Direction = "no shift"
	Inconclusive Direction = "inconclusive"
)

// MinEffect is the smallest relative change that counts as a shift.
const MinEffect = 0.05

// Estimate is one percentile of one run, in milliseconds.
type Estimate struct {
	Samples int     `json:"samples"`
	Value   float64 `json:"value_ms"`
	// CI95 is nil where there are too few samples for an interval.
	CI95 *probes.Interval `json:"ci95,omitempty"`
}

// Shift compares one percentile of one measured name. It is slower or faster when
// the two exact 95 % intervals are disjoint and the change is over MinEffect.
type Shift struct {
	Backend    string    `json:"backend,omitempty"`
	Metric     string    `json:"metric"`
	Percentile string    `json:"percentile"`
	Base       Estimate  `json:"base"`
	Head       Estimate  `json:"head"`
	Change     float64   `json:"change"` // head/base - 1
	Direction  Direction `json:"direction"`
	// Why says why it is inconclusive.
	Why []string `json:"why,omitempty"`
}

var percentiles = []int{50, 90, 95, 99}

// shifts compares what both reports measured, in the order of the names.
func shifts(base, head probes.Report) []Shift {
	var out []Shift
	was, is := measured(base), measured(head)
	for _, key := range slices.Sorted(maps.Keys(base.Latency)) {
		h, ok := head.Latency[key]
		if !ok {
			continue // the probe itself is a finding
		}
		b := base.Latency[key]
		x, y := was[key], is[key]
		why := unlike(x, y)
		for _, p := range percentiles {
			s := Shift{Backend: x.backend, Metric: x.name, Percentile: fmt.Sprintf("p%d", p), Base: estimate(b, x.samples, p), Head: estimate(h, y.samples, p)}
			if s.Base.Value > 0 { // JSON has no infinity
				s.Change = min(s.Head.Value/s.Base.Value-1, math.MaxFloat64)
			}
			s.Why = append(slices.Clone(why), tooFew(s, p)...)
			s.judge()
			out = append(out, s)
		}
	}
	return out
}

func (s *Shift) judge() {
	switch {
	case len(s.Why) > 0:
		s.Direction = Inconclusive
	case s.Head.CI95.Low > s.Base.CI95.High && s.Change > MinEffect:
		s.Direction = Slower
	case s.Head.CI95.High < s.Base.CI95.Low && s.Change < -MinEffect:
		s.Direction = Faster
	default:
		s.Direction = NoShift
	}
}

// series is one measured name of a report.
type series struct {
	backend, name string
	samples       []int64 // where the report kept them
	failed        float64
	env           *probes.Environment
}

// measured finds the probe behind each key of Latency.
func measured(r probes.Report) map[string]series {
	of := map[string]*probes.Environment{}
	for _, m := range r.MergedFrom {
		for _, name := range m.Probes {
			of[probes.Qualified(m.Backend, name)] = m.Environment
		}
	}
	out := map[string]series{}
	for _, p := range r.Probes {
		env, ok := of[probes.Qualified(r.BackendOf(p), p.Name)]
		if !ok {
			env = r.Environment
		}
		failed, _ := p.Evidence["iterations_failed"].(float64)
		for _, name := range []string{p.Name, also(p.Name)} {
			if name != "" {
				out[probes.Qualified(p.Backend, name)] = series{backend: p.Backend, name: name, samples: p.Samples[name], failed: failed, env: env}
			}
		}
	}
	for key := range r.Latency {
		if _, ok := out[key]; !ok {
			out[key] = series{name: key, env: r.Environment}
		}
	}
	return out
}

// also is what else a probe measures.
func also(probe string) string {
	if probe == latency.NameBoot {
		return latency.KeyShutdown
	}
	return ""
}

// estimate takes a percentile from the samples where there are any, and otherwise
// from what the run computed of them.
func estimate(d probes.Distribution, samples []int64, p int) Estimate {
	if len(samples) > 0 {
		sorted := make([]time.Duration, len(samples))
		for i, s := range samples {
			sorted[i] = time.Duration(s)
		}
		slices.Sort(sorted)
		e := Estimate{Samples: len(sorted), Value: ms(stats.Percentile(sorted, p))}
		if low, high, ok := stats.Interval(sorted, p); ok {
			e.CI95 = &probes.Interval{Low: ms(low), High: ms(high)}
		}
		return e
	}
	e := Estimate{Samples: d.Samples, Value: map[int]float64{50: d.P50, 90: d.P90, 95: d.P95, 99: d.P99}[p]}
	if ci, ok := d.CI95[fmt.Sprintf("p%d", p)]; ok {
		e.CI95 = &ci
	}
	return e
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// tooFew says which side has no interval.
func tooFew(s Shift, p int) []string {
	var out []string
	for _, x := range []struct {
		name string
		e    Estimate
	}{{"base", s.Base}, {"head", s.Head}} {
		switch needed := stats.Needed(p); {
		case x.e.CI95 != nil:
		case x.e.Samples < needed:
			out = append(out, fmt.Sprintf("n too small: the %s has %d samples, %s needs %d", x.name, x.e.Samples, s.Percentile, needed))
		default:
			out = append(out, fmt.Sprintf("the %s has neither samples nor intervals", x.name))
		}
	}
	return out
}

// emulated is the accelerator that is none.
const emulated = "tcg"

// unlike says why two series were not taken under the same conditions.
func unlike(base, head series) []string {
	var out []string
	for _, x := range []struct {
		name string
		s    series
	}{{"base", base}, {"head", head}} {
		switch {
		case x.s.env == nil:
			out = append(out, fmt.Sprintf("the %s does not say what host it was measured on", x.name))
		case x.s.env.Sandbox != nil && x.s.env.Sandbox.Accelerator == emulated:
			out = append(out, fmt.Sprintf("the %s was emulated", x.name))
		case x.s.env.Host.CPU == "" || x.s.env.Host.Kernel == "":
			out = append(out, fmt.Sprintf("the %s does not name its CPU and kernel", x.name))
		}
		if x.s.failed > 0 {
			out = append(out, fmt.Sprintf("%.0f iterations of the %s failed and have no latency", x.s.failed, x.name))
		}
	}
	if base.env == nil || head.env == nil {
		return out
	}
	host := differences(hostFacts(*base.env), hostFacts(*head.env))
	if len(host) > 0 {
		out = append(out, "other host: "+strings.Join(host, "; "))
	}
	sandbox := differences(sandboxFacts(*base.env), sandboxFacts(*head.env))
	if len(sandbox) > 0 {
		out = append(out, "other sandbox: "+strings.Join(sandbox, "; "))
	}
	return out
}

// fact is one thing that a latency depends on.
type fact struct{ name, value string }

// hostFacts identify the kind of machine that the clock ran on.
func hostFacts(e probes.Environment) []fact {
	h := e.Host
	return []fact{
		{"os", h.OS}, {"arch", h.Arch}, {"kernel", h.Kernel}, {"cpu", h.CPU}, {"cpus", fmt.Sprint(h.CPUs)}, {"microcode", h.Microcode},
		{"governor", h.Governor}, {"turbo", h.Turbo}, {"smt", h.SMT}, {"virtualised", h.Virtualised}, {"lsm", h.LSMMode}, {"cgroup", h.Cgroup}, {"rootless", fmt.Sprint(h.Rootless)},
	}
}

// sandboxFacts identify what was measured.
func sandboxFacts(e probes.Environment) []fact {
	out := []fact{{"policy", e.Policy + " " + e.PolicySHA256}, {"leaks", leaks(e)}}
	if e.Sandbox == nil {
		return append(out, fact{"provenance", "none"})
	}
	s := e.Sandbox
	out = append(out, fact{"accelerator", s.Accelerator}, fact{"VMM", s.VMMVersion}, fact{"baseline", s.Baseline}, fact{"hardening", strings.Join(s.Hardening, ", ")})
	inputs := s.Inputs()
	for _, k := range slices.Sorted(maps.Keys(inputs)) {
		out = append(out, fact{"digest of " + k, inputs[k]})
	}
	return out
}

func leaks(e probes.Environment) string {
	if len(e.Leaks) == 0 {
		return "none"
	}
	return strings.Join(e.Leaks, ", ")
}

// differences lists the facts that are not the same, by name.
func differences(base, head []fact) []string {
	now := map[string]string{}
	for _, f := range head {
		now[f.name] = f.value
	}
	var out []string
	seen := map[string]bool{}
	for _, f := range base {
		seen[f.name] = true
		if now[f.name] != f.value {
			out = append(out, fmt.Sprintf("%s was %s and is %s", f.name, value(f.value), value(now[f.name])))
		}
	}
	for _, f := range head {
		if !seen[f.name] && f.value != "" {
			out = append(out, fmt.Sprintf("%s was unknown and is %s", f.name, value(f.value)))
		}
	}
	return out
}

func value(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return "unknown"
	}
	if len(s) > 60 {
		s = s[:60] + "..."
	}
	return s
}

// tooSlow names the latencies that are slower than a caller allows.
func tooSlow(list []Shift, limit float64) []Finding {
	var out []Finding
	for _, s := range list {
		if s.Direction != Slower || s.Head.CI95.Low <= s.Base.CI95.High*(1+limit) {
			continue
		}
		e := entry{backend: s.Backend, name: s.Metric}
		out = append(out, e.finding(WhatLatency, duration(s.Base.Value), duration(s.Head.Value),
			fmt.Sprintf("%s was %s in the baseline and is %s now, over the %.0f %% that are allowed", s.Percentile, duration(s.Base.Value), duration(s.Head.Value), 100*limit)))
	}
	return out
}

// context lists how the runs of each backend differ in what they declare.
func context(base, head probes.Report) []string {
	var out []string
	for _, backend := range onBoth(base, head) {
		for _, w := range []struct {
			what string
			of   func(probes.Environment) string
		}{
			{"harness", func(e probes.Environment) string { return e.Harness }},
			{"policy", func(e probes.Environment) string { return strings.TrimSpace(e.Policy + " " + e.PolicySHA256) }},
			{"leaks", leaks},
			{"fail-severity", func(e probes.Environment) string { return string(e.FailSeverity) }},
		} {
			from, to := declared(base, backend, w.of), declared(head, backend, w.of)
			if from != to {
				prefix := ""
				if backend != "" {
					prefix = backend + ": "
				}
				out = append(out, fmt.Sprintf("%s%s was %s and is %s", prefix, w.what, value(from), value(to)))
			}
		}
	}
	return out
}

// onBoth lists the backends that both reports have results or skips of, "" being
// a report's only one.
func onBoth(base, head probes.Report) []string {
	var out []string
	for _, e := range pair(base, head) {
		if !e.base.absent() && !e.head.absent() && !slices.Contains(out, e.backend) {
			out = append(out, e.backend)
		}
	}
	return out
}

// declared joins what the runs of one backend say, each value once.
func declared(r probes.Report, backend string, of func(probes.Environment) string) string {
	if r.Environment != nil {
		return of(*r.Environment)
	}
	var values []string
	for _, m := range r.MergedFrom {
		if (backend == "" || m.Backend == backend) && m.Environment != nil {
			if v := of(*m.Environment); !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
	}
	slices.Sort(values)
	return strings.Join(values, " / ")
}
