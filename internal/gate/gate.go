// Package gate holds the rules that turn a report into a job's success or
// failure.
package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/compare"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// FailOn says which findings fail the gate. The rules on emptiness and on
// provenance hold under all three.
type FailOn string

// The values of FailOn.
const (
	FailOnFailure    FailOn = "failure"    // failed and errored probes, and regressions
	FailOnRegression FailOn = "regression" // regressions only
	FailOnNever      FailOn = "never"
)

// FailOns lists the values.
func FailOns() []string {
	return []string{string(FailOnFailure), string(FailOnRegression), string(FailOnNever)}
}

// Options of a decision.
type Options struct {
	FailOn FailOn // empty is FailOnFailure
	// AllowEmpty accepts a backend on which nothing passed because nothing ran.
	AllowEmpty bool
	// Baseline is an earlier report of the same backend; nil compares nothing.
	Baseline *probes.Report
}

// Kind says which rule a reason comes from.
type Kind string

// The kinds of reason.
const (
	KindFailed     Kind = "failed"     // a probe failed
	KindErrored    Kind = "errored"    // a probe came to no answer
	KindState      Kind = "state"      // the sandbox ended failed
	KindRegression Kind = "regression" // worse than the baseline
	KindEmpty      Kind = "empty"      // nothing passed
	KindMockOnly   Kind = "mock-only"  // a real backend booted and a probe was not proved on it
	KindSkipped    Kind = "skipped"    // a real backend booted and a probe was not run
	KindMock       Kind = "mock"       // the mock is no boundary
	KindLeaks      Kind = "leaks"      // the sandbox was weakened on purpose
	KindWeak       Kind = "weak"       // a weakness below the threshold
	KindBaseline   Kind = "baseline"   // the baseline was made by another harness, policy, leaks or fail-severity
	KindStopped    Kind = "stopped"    // the run was ended before it was through
	KindMissing    Kind = "missing"    // the backend is not available here
	KindAccepted   Kind = "accepted"   // what a passing gate rests on
)

// Reason is one sentence of a decision. Its text may quote a report, so it is
// rendered like any text from a sandbox.
type Reason struct {
	Kind Kind
	// Probe and Backend are set where the sentence is about one of them.
	Probe, Backend string
	// Severity is set where the probe's result has one.
	Severity probes.Severity
	Text     string
}

// Decision is the gate's answer.
type Decision struct {
	OK bool
	// Reasons say why the gate fails, or else what it rests on. There is
	// always one.
	Reasons []Reason
	// Warnings say what a reader has to know whichever way it went: findings
	// that FailOn tolerates, and what the run does not prove.
	Warnings []Reason
	// Compared is set where a baseline was compared with; Regressions counts
	// what is worse than it.
	Compared    bool
	Regressions int
}

// ErrBaseline is returned for a baseline that cannot be compared with.
var ErrBaseline = errors.New("baseline cannot be compared with")

// Validate refuses options under which the gate could not fail for the reason it
// is there for.
func (o Options) Validate() error {
	switch {
	case o.FailOn != "" && !slices.Contains(FailOns(), string(o.FailOn)):
		return fmt.Errorf("%q is none of %s", o.FailOn, strings.Join(FailOns(), ", "))
	case o.FailOn == FailOnRegression && o.Baseline == nil:
		return errors.New("regression compares with a baseline, and there is none")
	}
	return nil
}

// Gate decides on a report that package report has read, and so checked.
func Gate(r probes.Report, o Options) (Decision, error) {
	if err := o.Validate(); err != nil {
		return Decision{}, err
	}
	regressed, unlike, err := regressions(r, o.Baseline)
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Compared: o.Baseline != nil, Regressions: len(regressed)}
	failed := failures(r)
	switch o.FailOn {
	case FailOnRegression:
		d.Reasons, d.Warnings = append(d.Reasons, regressed...), append(d.Warnings, failed...)
	case FailOnNever:
		d.Warnings = slices.Concat(failed, regressed)
	default:
		d.Reasons = slices.Concat(failed, regressed)
	}
	list := byBackend(r)
	realBooted := slices.ContainsFunc(list, func(b results) bool { return !probes.IsMock(b.backend) && b.booted })
	for _, b := range list {
		if why, bad := b.empty(o.AllowEmpty); bad {
			d.Reasons = append(d.Reasons, why)
		}
		d.Reasons = append(d.Reasons, b.unproven(realBooted)...)
	}
	d.Warnings = slices.Concat(d.Warnings, unlike, warnings(r))
	if d.OK = len(d.Reasons) == 0; d.OK {
		d.Reasons = []Reason{accepted(r)}
	}
	return d, nil
}

func failures(r probes.Report) []Reason {
	var out []Reason
	for _, p := range r.Probes {
		why := Reason{Probe: p.Name, Backend: r.BackendOf(p), Severity: p.Severity}
		switch {
		case p.Errored:
			why.Kind, why.Text = KindErrored, fmt.Sprintf("%s errored: %s", probes.Qualified(p.Backend, p.Name), first(p.ErrorMessage, p.Reason))
		case !p.Passed:
			why.Kind, why.Text = KindFailed, fmt.Sprintf("%s failed: %s", probes.Qualified(p.Backend, p.Name), p.Reason)
		default:
			continue
		}
		out = append(out, why)
	}
	if r.FinalSandboxState == backends.StateFailed {
		out = append(out, Reason{Kind: KindState, Backend: r.Backend, Text: fmt.Sprintf("the sandbox of %s ended in the state failed", r.Backend)})
	}
	return out
}

// results are those of one backend in a report.
type results struct {
	backend string
	probes  []probes.Result
	skipped []probes.SkippedProbe
	summary probes.Summary
	booted  bool
}

// byBackend splits a report: a merged one may hold several, and no backend may
// hide behind another.
func byBackend(r probes.Report) []results {
	var list []results
	for _, name := range report.Backends(r) {
		b := results{backend: name}
		for _, p := range r.Probes {
			if r.BackendOf(p) == name {
				b.probes = append(b.probes, p)
			}
		}
		for _, s := range r.SkippedProbes {
			if report.SkippedOn(r, s) == name {
				b.skipped = append(b.skipped, s)
			}
		}
		b.summary = probes.Summarise(b.probes, b.skipped)
		b.booted = booted(b, report.RunsOn(r, name))
		list = append(list, b)
	}
	if len(list) == 1 { // another program's report may count skips that it does not list
		list[0].summary = r.Summary
	}
	return list
}

// booted reports whether a sandbox of the backend came up in one of its runs. Where
// every probe errored, a sandbox that ended failed and has no provenance did not;
// nothing passed there either, which is a reason of its own.
func booted(b results, runs []probes.MergedRun) bool {
	if slices.ContainsFunc(b.probes, func(p probes.Result) bool { return !p.Errored }) {
		return true
	}
	return slices.ContainsFunc(runs, func(m probes.MergedRun) bool {
		switch m.FinalSandboxState {
		case backends.StateNotBooted:
			return false
		case backends.StateFailed:
			return len(b.probes) == 0 || (m.Environment != nil && m.Environment.Sandbox != nil)
		}
		return true
	})
}

// empty: a job that tested nothing must not look like one that found nothing.
func (b results) empty(allowed bool) (Reason, bool) {
	if b.summary.Passed > 0 || (allowed && len(b.probes) == 0) {
		return Reason{}, false
	}
	s := b.summary
	return Reason{Kind: KindEmpty, Backend: b.backend,
		Text: fmt.Sprintf("no probe passed on %s: %d of %d were skipped, %d failed, %d errored", b.backend, s.Skipped, s.Total, s.Failed, s.Errored)}, true
}

// unproven: once a real backend has booted, every probe has to have been proved
// on it. Results of the mock merged into such a report are as unproved as any.
func (b results) unproven(realBooted bool) []Reason {
	if probes.IsMock(b.backend) && realBooted && len(b.probes) > 0 {
		return []Reason{{Kind: KindMockOnly, Backend: b.backend,
			Text: fmt.Sprintf("a real backend booted, but %d probes of this report ran on the mock; fix: gate the mock's report by itself", len(b.probes))}}
	}
	if probes.IsMock(b.backend) || !b.booted {
		return nil
	}
	var mock, skipped []string
	for _, p := range b.probes {
		if !b.proved(p) {
			mock = append(mock, p.Name)
		}
	}
	for _, s := range b.skipped {
		if !s.NeverHosts {
			skipped = append(skipped, fmt.Sprintf("%s (%s)", s.Name, s.Reason))
		}
	}
	var out []Reason
	if len(mock) > 0 {
		out = append(out, Reason{Kind: KindMockOnly, Backend: b.backend,
			Text: fmt.Sprintf("%s booted, but still mock-only: %s", b.backend, strings.Join(mock, ", "))})
	}
	switch {
	case len(skipped) > 0:
		out = append(out, Reason{Kind: KindSkipped, Backend: b.backend,
			Text: fmt.Sprintf("%s booted, but skipped: %s", b.backend, strings.Join(skipped, ", "))})
	case b.summary.Skipped > len(b.skipped):
		out = append(out, Reason{Kind: KindSkipped, Backend: b.backend,
			Text: fmt.Sprintf("%s booted, but %d probes were skipped without a reason", b.backend, b.summary.Skipped)})
	}
	return out
}

// proved reports whether a result was validated on this backend: what another
// one proved says nothing about it.
func (b results) proved(p probes.Result) bool {
	if p.ValidatedAgainst == probes.ValidatedBoth {
		return probes.ValidatedBy(b.backend) == probes.ValidatedCHV || probes.ValidatedBy(b.backend) == probes.ValidatedVF
	}
	return p.ValidatedAgainst == probes.ValidatedBy(b.backend)
}

func warnings(r probes.Report) []Reason {
	var out []Reason
	for _, name := range report.Backends(r) {
		if probes.IsMock(name) {
			out = append(out, Reason{Kind: KindMock, Backend: name,
				Text: "this was the mock: it exercises the harness and proves nothing about a boundary"})
		}
		var leaks []string
		for _, m := range report.RunsOn(r, name) {
			if m.Environment != nil {
				leaks = append(leaks, m.Environment.Leaks...)
			}
		}
		if slices.Sort(leaks); len(leaks) > 0 {
			out = append(out, Reason{Kind: KindLeaks, Backend: name,
				Text: fmt.Sprintf("the sandbox of %s was weakened on purpose: %s", name, strings.Join(slices.Compact(leaks), ", "))})
		}
	}
	for _, p := range r.Probes {
		if p.Passed && p.Verdict == probes.Weak {
			out = append(out, Reason{Kind: KindWeak, Probe: p.Name, Backend: r.BackendOf(p), Severity: p.Severity,
				Text: fmt.Sprintf("%s passed with a finding below the threshold (%s): %s", probes.Qualified(p.Backend, p.Name), p.Severity, p.Reason)})
		}
	}
	return out
}

// CheckBaseline refuses an earlier report of which a run on backend could not be
// said to be better or worse.
func CheckBaseline(base probes.Report, schema, backend string) error {
	switch {
	case base.SchemaVersion != schema:
		return fmt.Errorf("%w: it has schema %s, the report %s", ErrBaseline, base.SchemaVersion, schema)
	case base.Backend != backend && !(probes.IsMock(base.Backend) && probes.IsMock(backend)):
		return fmt.Errorf("%w: it is of backend %s, the report of %s", ErrBaseline, base.Backend, backend)
	case base.Summary.Passed == 0:
		return fmt.Errorf("%w: nothing passed in it, so nothing could regress", ErrBaseline)
	}
	return nil
}

// regressions names what is worse than in the baseline, and how the baseline was
// made otherwise: one that leaked already, or had another policy, may hide what is
// worse now.
func regressions(now probes.Report, base *probes.Report) (worse, unlike []Reason, err error) {
	if base == nil {
		return nil, nil, nil
	}
	if err := CheckBaseline(*base, now.SchemaVersion, now.Backend); err != nil {
		return nil, nil, err
	}
	c, err := compare.Compare(*base, now, compare.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrBaseline, err)
	}
	for _, f := range c.Regressions {
		backend := f.Backend
		if backend == "" {
			backend = now.Backend
		}
		worse = append(worse, Reason{Kind: KindRegression, Probe: f.Probe, Backend: backend, Text: "regression: " + f.Text})
	}
	for _, s := range c.Context {
		unlike = append(unlike, Reason{Kind: KindBaseline, Backend: now.Backend, Text: "the baseline was made otherwise: " + s})
	}
	return worse, unlike, nil
}

func accepted(r probes.Report) Reason {
	if len(r.Probes) == 0 {
		return Reason{Kind: KindAccepted, Text: "nothing was tested, and that was allowed"}
	}
	return Reason{Kind: KindAccepted, Text: fmt.Sprintf("%d of %d probes passed on %s", r.Summary.Passed, r.Summary.Total, r.Backend)}
}

func first(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
