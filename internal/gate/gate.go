// Package gate holds the rules that turn a report into a job's success or
// failure.
package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
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
	// AllowEmpty accepts a report in which nothing passed because nothing ran.
	AllowEmpty bool
	// Baseline is an earlier report of the same backend; nil compares nothing.
	Baseline *probes.Report
}

// Decision is the gate's answer.
type Decision struct {
	OK bool
	// Reasons are sentences: why the gate fails, or else what it rests on.
	Reasons []string
}

// ErrBaseline is returned for a baseline that cannot be compared with.
var ErrBaseline = errors.New("baseline cannot be compared with")

// Gate decides on a report that package report has read, and so checked.
func Gate(r probes.Report, o Options) (Decision, error) {
	regressed, err := regressions(r, o.Baseline)
	if err != nil {
		return Decision{}, err
	}
	var why []string
	if o.FailOn == "" || o.FailOn == FailOnFailure {
		why = append(why, failures(r)...)
	}
	if o.FailOn != FailOnNever {
		why = append(why, regressed...)
	}
	if s, bad := empty(r, o.AllowEmpty); bad {
		why = append(why, s)
	}
	why = append(why, unproven(r)...)
	if len(why) > 0 {
		return Decision{Reasons: why}, nil
	}
	return Decision{OK: true, Reasons: []string{accepted(r)}}, nil
}

func failures(r probes.Report) []string {
	var out []string
	for _, p := range r.Probes {
		switch {
		case p.Errored:
			out = append(out, fmt.Sprintf("%s errored: %s", p.Name, first(p.ErrorMessage, p.Reason)))
		case !p.Passed:
			out = append(out, fmt.Sprintf("%s failed: %s", p.Name, p.Reason))
		}
	}
	if r.FinalSandboxState == backends.StateFailed {
		out = append(out, "the sandbox ended in the state failed")
	}
	return out
}

// empty: a job that tested nothing must not look like one that found nothing.
func empty(r probes.Report, allowed bool) (string, bool) {
	if r.Summary.Passed > 0 {
		return "", false
	}
	if allowed && len(r.Probes) == 0 {
		return "", false
	}
	return fmt.Sprintf("no probe passed: %d of %d were skipped, %d failed, %d errored", r.Summary.Skipped, r.Summary.Total, r.Summary.Failed, r.Summary.Errored), true
}

// unproven: once a real backend has booted, every probe has to have been proved
// on it.
func unproven(r probes.Report) []string {
	booted := len(r.Probes) > 0 || r.FinalSandboxState != backends.StateNotBooted
	if r.Backend == "stub" || r.Backend == "mock" || !booted {
		return nil
	}
	var mock, skipped []string
	for _, p := range r.Probes {
		if p.ValidatedAgainst == probes.MockOnly {
			mock = append(mock, p.Name)
		}
	}
	for _, s := range r.SkippedProbes {
		if !s.NeverHosts {
			skipped = append(skipped, fmt.Sprintf("%s (%s)", s.Name, s.Reason))
		}
	}
	var out []string
	if len(mock) > 0 {
		out = append(out, fmt.Sprintf("%s booted, but still mock-only: %s", r.Backend, strings.Join(mock, ", ")))
	}
	switch {
	case len(skipped) > 0:
		out = append(out, fmt.Sprintf("%s booted, but skipped: %s", r.Backend, strings.Join(skipped, ", ")))
	case r.Summary.Skipped > len(r.SkippedProbes):
		out = append(out, fmt.Sprintf("%s booted, but %d probes were skipped without a reason", r.Backend, r.Summary.Skipped))
	}
	return out
}

// regressions names the probes that passed in the baseline and do not now.
func regressions(now probes.Report, base *probes.Report) ([]string, error) {
	if base == nil {
		return nil, nil
	}
	if base.SchemaVersion != now.SchemaVersion {
		return nil, fmt.Errorf("%w: it has schema %s, the report %s", ErrBaseline, base.SchemaVersion, now.SchemaVersion)
	}
	if base.Backend != now.Backend {
		return nil, fmt.Errorf("%w: it is of backend %s, the report of %s", ErrBaseline, base.Backend, now.Backend)
	}
	if base.Summary.Passed == 0 {
		return nil, fmt.Errorf("%w: nothing passed in it, so nothing could regress", ErrBaseline)
	}
	var out []string
	for _, b := range base.Probes {
		if !b.Passed {
			continue
		}
		i := slices.IndexFunc(now.Probes, func(p probes.Result) bool { return p.Name == b.Name })
		switch {
		case i < 0:
			out = append(out, fmt.Sprintf("regression: %s passed in the baseline and was not run now", b.Name))
		case now.Probes[i].Errored:
			out = append(out, fmt.Sprintf("regression: %s passed in the baseline and errored now", b.Name))
		case !now.Probes[i].Passed:
			out = append(out, fmt.Sprintf("regression: %s passed in the baseline and failed now", b.Name))
		case b.Verdict == probes.Contained && now.Probes[i].Verdict == probes.Weak:
			out = append(out, fmt.Sprintf("regression: %s was contained in the baseline and is weak now", b.Name))
		case b.ValidatedAgainst != probes.MockOnly && now.Probes[i].ValidatedAgainst == probes.MockOnly:
			out = append(out, fmt.Sprintf("regression: %s was %s in the baseline and is mock-only now", b.Name, b.ValidatedAgainst))
		}
	}
	return out, nil
}

func accepted(r probes.Report) string {
	if len(r.Probes) == 0 {
		return "nothing was tested, and that was allowed"
	}
	return fmt.Sprintf("%d of %d probes passed on %s", r.Summary.Passed, r.Summary.Total, r.Backend)
}

func first(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
