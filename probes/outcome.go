package probes

import (
	"fmt"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Verdict is the answer of a probe or of one of its sub-cases.
type Verdict string

// The verdicts.
const (
	// Contained: proof, control and a living witness, and nothing got out.
	Contained Verdict = "contained"
	// Weak: a restriction that the policy demands or the recommended profile
	// has is absent; no crossing was seen.
	Weak Verdict = "weak"
	// Escaped: the witness saw the boundary crossed.
	Escaped Verdict = "escaped"
	// Inconclusive: something that a verdict needs was missing.
	Inconclusive Verdict = "inconclusive"
	// Skipped: not run, with a reason.
	Skipped Verdict = "skipped"
)

// Attempt is one thing that the payload tried.
type Attempt = wire.Attempt

// Case is one sub-case of a probe, such as one transport of the egress probe.
type Case struct {
	Name string `json:"name"`
	// Required sub-cases have to be controlled for the probe to be contained.
	// An optional one without a control is listed as not tested.
	Required bool `json:"required"`
	// Proved: the payload succeeded against a target inside the sandbox.
	Proved bool `json:"proved"`
	// Controlled: the same payload did cross where the boundary is absent, and
	// the witness saw it.
	Controlled bool `json:"controlled"`
	// WitnessAlive: the witness answered a test of the host's own after the
	// attack.
	WitnessAlive bool `json:"witness_alive"`
	// Crossed: the witness saw the boundary crossed.
	Crossed bool `json:"crossed"`
	// Attempted: the payload's list shows an attempt of this sub-case.
	Attempted bool `json:"attempted"`
	// Doubt, when not empty, makes the sub-case inconclusive whatever else
	// holds: a claim of the guest that the witness does not confirm, a visit
	// without a token.
	Doubt string `json:"doubt,omitempty"`
	// Missing, when not empty, names a restriction that is absent although
	// nothing crossed: the sub-case is weak.
	Missing string `json:"missing,omitempty"`
	// NotTested, when not empty, says why an optional sub-case could not be
	// tried at all here.
	NotTested string `json:"not_tested,omitempty"`
	// Severity of a crossing or of what is missing; empty takes the probe's.
	Severity Severity `json:"severity,omitempty"`
	// Witness says in one line what the host saw.
	Witness string `json:"witness,omitempty"`
	// Verdict is computed by Judge.
	Verdict Verdict `json:"verdict"`
}

// judge computes the verdict of one sub-case. A crossing counts whatever else
// is missing: the host saw it.
func (c *Case) judge() {
	switch {
	case c.Crossed:
		c.Verdict = Escaped
	case c.Doubt != "":
		c.Verdict = Inconclusive
	case c.NotTested != "" && !c.Required:
		c.Verdict = Skipped
	case c.NotTested != "", !c.Attempted, !c.Proved, !c.WitnessAlive:
		c.Verdict = Inconclusive
	case !c.Controlled && c.Required:
		c.Verdict = Inconclusive
	case !c.Controlled:
		c.NotTested = "no control on this host"
		c.Verdict = Skipped
	case c.Missing != "":
		c.Verdict = Weak
	default:
		c.Verdict = Contained
	}
}

// why says what the sub-case lacks, or what it found.
func (c *Case) why() string {
	switch {
	case c.Crossed:
		return c.Witness
	case c.Doubt != "":
		return c.Doubt
	case c.NotTested != "":
		return c.NotTested
	case !c.Attempted:
		return "the payload's list shows no attempt"
	case !c.Proved:
		return "the payload did not prove that it works inside"
	case !c.WitnessAlive:
		return "the witness did not answer the host's own test"
	case !c.Controlled:
		return "the control did not succeed"
	case c.Missing != "":
		return c.Missing
	}
	return c.Witness
}

// Witness says what a verdict rests on.
type Witness struct {
	// Kind names it: "canary listeners", "cgroup meter".
	Kind string `json:"kind"`
	// Summary is one line for the table: what the host saw.
	Summary string `json:"summary"`
}

// Control says how the payload fared without the boundary.
type Control struct {
	// Target says where it ran: "open agent on this host", "leaking variant x".
	Target string `json:"target"`
	// OK is set when every required sub-case crossed there under the witness.
	OK      bool   `json:"ok"`
	Summary string `json:"summary"`
}

// NotTested is a sub-case without an answer, with the reason.
type NotTested struct {
	Case   string `json:"case"`
	Reason string `json:"reason"`
}

// Interval is a two-sided 95 % confidence interval, in milliseconds.
type Interval struct {
	Low  float64 `json:"low_ms"`
	High float64 `json:"high_ms"`
}

// Distribution summarises latency samples, in milliseconds, with nearest-rank
// percentiles.
type Distribution struct {
	Samples int     `json:"samples"`
	P50     float64 `json:"p50_ms"`
	P90     float64 `json:"p90_ms"`
	P95     float64 `json:"p95_ms"`
	P99     float64 `json:"p99_ms"`
	Mean    float64 `json:"mean_ms"`
	Min     float64 `json:"min_ms"`
	Max     float64 `json:"max_ms"`
	// CI95 holds the exact order-statistic interval of each percentile ("p50",
	// "p90", "p95", "p99") that there are enough samples for.
	CI95 map[string]Interval `json:"ci95,omitempty"`
}

// Outcome is the answer of a probe.
type Outcome struct {
	Verdict Verdict
	// Reason is one sentence that a person can act on. It never contains
	// guest bytes.
	Reason   string
	Severity Severity
	Witness  Witness
	Control  Control
	Cases    []Case
	Attempts []Attempt
	// NotTested lists optional sub-cases without an answer.
	NotTested []NotTested
	// Evidence holds further facts by name; the values must marshal to JSON.
	Evidence map[string]any
	// Latency is set by the latency battery: one entry per measured name.
	Latency map[string]Distribution
	// Samples holds the raw samples in nanoseconds when they were asked for.
	Samples map[string][]int64
}

// Judge fills in Verdict, Reason, Severity and NotTested from the sub-cases:
// any escape means escaped; then any required sub-case without an answer, or any
// doubt, means inconclusive; then any absent restriction means weak; contained needs every
// required sub-case contained. Without sub-cases it is inconclusive.
func (o *Outcome) Judge(base Severity) {
	o.NotTested = nil
	var escaped, inconclusive, weak, contained []*Case
	for i := range o.Cases {
		c := &o.Cases[i]
		c.judge()
		switch c.Verdict {
		case Escaped:
			escaped = append(escaped, c)
		case Inconclusive:
			// Doubt weighs wherever it arises: something was seen that the
			// witness cannot account for.
			if c.Required || c.Doubt != "" {
				inconclusive = append(inconclusive, c)
			} else {
				o.NotTested = append(o.NotTested, NotTested{c.Name, c.why()})
			}
		case Weak:
			weak = append(weak, c)
		case Contained:
			contained = append(contained, c)
		case Skipped:
			o.NotTested = append(o.NotTested, NotTested{c.Name, c.why()})
		}
	}
	o.Severity = ""
	switch {
	case len(escaped) > 0:
		o.Verdict, o.Reason, o.Severity = Escaped, sentence("escaped", escaped), gravest(escaped, base)
	case len(inconclusive) > 0:
		o.Verdict, o.Reason = Inconclusive, sentence("inconclusive", inconclusive)
	case len(weak) > 0:
		o.Verdict, o.Reason, o.Severity = Weak, sentence("weak", weak), gravest(weak, base)
	case len(contained) > 0:
		o.Verdict = Contained
		o.Reason = fmt.Sprintf("%d of %d sub-cases contained, each with proof, control and a living witness", len(contained), len(o.Cases))
	default:
		o.Verdict, o.Reason = Inconclusive, "no sub-case could be tested"
	}
}

func gravest(cases []*Case, base Severity) Severity {
	worst := SeverityInfo
	for _, c := range cases {
		s := c.Severity
		if s == "" {
			s = base
		}
		if s.AtLeast(worst) {
			worst = s
		}
	}
	return worst
}

func sentence(what string, cases []*Case) string {
	parts := make([]string, 0, 3)
	for i, c := range cases {
		if i == 3 {
			parts = append(parts, fmt.Sprintf("and %d more", len(cases)-i))
			break
		}
		parts = append(parts, c.Name+": "+c.why())
	}
	return what + ": " + strings.Join(parts, "; ")
}
