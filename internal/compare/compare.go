// Package compare says what changed between two reports of the same backends: what
// got worse, what got better, and what cannot be told and why.
package compare

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// ErrNotComparable is returned for reports between which nothing can be said to
// be better or worse.
var ErrNotComparable = errors.New("the reports cannot be compared")

// What says which fact about a probe a finding is about.
type What string

// The facts.
const (
	WhatVerdict    What = "verdict"    // passed, weak, failed, or no answer
	WhatSeverity   What = "severity"   // of a finding that is in both
	WhatProvenance What = "provenance" // validated_against
	WhatCase       What = "case"       // a sub-case of a probe whose verdict is the same
	WhatState      What = "state"      // final_sandbox_state
	WhatPresence   What = "presence"   // a probe that only one report has
	WhatLatency    What = "latency"    // slower than the caller allows
)

// Finding is one difference. Its texts are printable: what came from a report is
// escaped in them.
type Finding struct {
	// Backend is set where a report was merged from several.
	Backend string `json:"backend,omitempty"`
	Probe   string `json:"probe,omitempty"`
	What    What   `json:"what"`
	From    string `json:"from"`
	To      string `json:"to"`
	// Text is the sentence for a person.
	Text string `json:"text"`
}

// Side describes one of the two reports.
type Side struct {
	Backend     string         `json:"backend"`
	GeneratedAt string         `json:"generated_at"`
	Summary     probes.Summary `json:"summary"`
}

// Comparison is what changed from a base to a head.
type Comparison struct {
	Base Side `json:"base"`
	Head Side `json:"head"`
	// Regressions are everything that is worse, a failure that the base does
	// not show included. A probe that is gone or new and worse is also there.
	Regressions []Finding `json:"regressions"`
	Fixes       []Finding `json:"fixes"`
	New         []Finding `json:"new"`
	Gone        []Finding `json:"gone"`
	// Changed is neither better nor worse by itself, such as an optional
	// sub-case that could not be tested any more.
	Changed []Finding `json:"changed"`
	// Inconclusive names what has no answer in one of the reports.
	Inconclusive []Finding `json:"inconclusive"`
	// Latency has one entry per measured name and percentile.
	Latency []Shift `json:"latency"`
	// Context lists how the runs themselves differ: harness, policy, leaks, fail-severity.
	Context []string `json:"context"`
	// Unchanged counts the probes with nothing to say about.
	Unchanged int `json:"unchanged"`
}

// Options of a comparison.
type Options struct {
	// MaxSlowdown, when positive, makes a regression of a latency percentile
	// whose whole interval lies above the base's interval by more than this
	// fraction. Two runs that were not interleaved cannot show that the cause
	// is the sandbox, so without it a shift is only reported.
	MaxSlowdown float64
}

// Compare compares two reports that package report has read, and so checked.
func Compare(base, head probes.Report, o Options) (Comparison, error) {
	if base.SchemaVersion != head.SchemaVersion {
		return Comparison{}, fmt.Errorf("%w: the base has schema %s, the head %s", ErrNotComparable, clean(base.SchemaVersion), clean(head.SchemaVersion))
	}
	if base.Backend != head.Backend && !(probes.IsMock(base.Backend) && probes.IsMock(head.Backend)) {
		return Comparison{}, fmt.Errorf("%w: the base is of backend %s, the head of %s", ErrNotComparable, clean(base.Backend), clean(head.Backend))
	}
	c := Comparison{Base: side(base), Head: side(head), Context: context(base, head)}
	entries := pair(base, head)
	for _, e := range entries {
		before := c.said()
		c.entry(e)
		if c.said() == before {
			c.Unchanged++
		}
	}
	if base.FinalSandboxState != backends.StateFailed && head.FinalSandboxState == backends.StateFailed {
		c.Regressions = append(c.Regressions, Finding{What: WhatState, From: string(base.FinalSandboxState), To: string(head.FinalSandboxState),
			Text: "the sandbox did not end failed in the baseline and ended in the state failed now"})
	}
	c.Latency = shifts(base, head)
	if o.MaxSlowdown > 0 {
		c.Regressions = append(c.Regressions, tooSlow(c.Latency, o.MaxSlowdown)...)
	}
	c.scrub()
	return c, nil
}

func side(r probes.Report) Side {
	return Side{Backend: r.Backend, GeneratedAt: r.GeneratedAt, Summary: r.Summary}
}

// said counts the findings so far.
func (c *Comparison) said() int {
	return len(c.Regressions) + len(c.Fixes) + len(c.New) + len(c.Gone) + len(c.Changed) + len(c.Inconclusive)
}

// maxText bounds a text in a comparison.
const maxText = 500

func clean(s string) string { return untrusted.Prose(s, maxText) }

// scrub makes every text printable and every list one that is not null in JSON.
func (c *Comparison) scrub() {
	for _, list := range []*[]Finding{&c.Regressions, &c.Fixes, &c.New, &c.Gone, &c.Changed, &c.Inconclusive} {
		out := make([]Finding, len(*list))
		for i, f := range *list {
			out[i] = Finding{Backend: clean(f.Backend), Probe: clean(f.Probe), What: f.What, From: clean(f.From), To: clean(f.To), Text: clean(f.Text)}
		}
		*list = out
	}
	out := make([]Shift, len(c.Latency))
	for i, s := range c.Latency {
		s.Backend, s.Metric, s.Why = clean(s.Backend), clean(s.Metric), slices.Clone(s.Why)
		for j := range s.Why {
			s.Why[j] = clean(s.Why[j])
		}
		out[i] = s
	}
	c.Latency = out
	lines := make([]string, len(c.Context))
	for i, s := range c.Context {
		lines[i] = clean(s)
	}
	c.Context = lines
	for _, s := range []*Side{&c.Base, &c.Head} {
		s.Backend, s.GeneratedAt = clean(s.Backend), clean(s.GeneratedAt)
	}
}

// answer is what a report says about one probe; the zero value is nothing.
type answer struct {
	result  *probes.Result
	skipped *probes.SkippedProbe
}

// entry is one probe in both reports.
type entry struct {
	backend, name string
	base, head    answer
}

// pair matches the probes of two reports by backend and name, in the base's order
// and then the head's.
func pair(base, head probes.Report) []entry {
	var list []*entry
	at := map[[2]string]*entry{}
	of := func(backend, name string) *entry {
		key := [2]string{backend, name}
		if at[key] == nil {
			at[key] = &entry{backend: backend, name: name}
			list = append(list, at[key])
		}
		return at[key]
	}
	for i, p := range base.Probes {
		of(p.Backend, p.Name).base.result = &base.Probes[i]
	}
	for i, s := range base.SkippedProbes {
		of(s.Backend, s.Name).base.skipped = &base.SkippedProbes[i]
	}
	for i, p := range head.Probes {
		of(p.Backend, p.Name).head.result = &head.Probes[i]
	}
	for i, s := range head.SkippedProbes {
		of(s.Backend, s.Name).head.skipped = &head.SkippedProbes[i]
	}
	out := make([]entry, len(list))
	for i, e := range list {
		out[i] = *e
	}
	return out
}

// rank orders answers; higher is better. 0 is no answer.
type rank int

const (
	noAnswer rank = iota
	escaped
	failedWeak
	passedWeak
	contained
)

func (a answer) rank() rank {
	p := a.result
	switch {
	case p == nil || p.Errored:
		return noAnswer
	case p.Passed && p.Verdict == probes.Weak:
		return passedWeak
	case p.Passed:
		return contained
	case p.Verdict == probes.Weak:
		return failedWeak
	}
	return escaped
}

func (a answer) absent() bool { return a.result == nil && a.skipped == nil }

// word names an answer in From and To.
func (a answer) word() string {
	switch {
	case a.result != nil && a.result.Errored:
		return "errored"
	case a.result != nil && a.result.Verdict != "":
		return string(a.result.Verdict)
	case a.result != nil && a.result.Passed:
		return "passed"
	case a.result != nil:
		return "failed"
	case a.skipped != nil:
		return "skipped"
	}
	return "absent"
}

// was and is phrase an answer in the past and now.
func (a answer) was() string {
	switch {
	case a.absent():
		return "was not in the baseline"
	case a.skipped != nil:
		return "was skipped in the baseline"
	case a.result.Errored:
		return "errored in the baseline"
	case a.result.Passed:
		return "passed in the baseline"
	}
	return "failed in the baseline"
}

func (a answer) is() string {
	switch {
	case a.absent():
		return "was not run now"
	case a.skipped != nil:
		return "was not run now: " + a.skipped.Reason
	case a.result.Errored:
		return "errored now: " + first(a.result.ErrorMessage, a.result.Reason)
	case a.result.Passed:
		return "passed now"
	}
	return "failed now: " + a.result.Reason
}

func first(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// title names a probe, with its backend where a report has several.
func (e entry) title() string {
	if e.backend != "" {
		return e.name + " on " + e.backend
	}
	return e.name
}

func (e entry) finding(what What, from, to, text string) Finding {
	return Finding{Backend: e.backend, Probe: e.name, What: what, From: from, To: to, Text: e.title() + " " + text}
}

// plain is the finding that both answers together make.
func (e entry) plain(what What) Finding {
	return e.finding(what, e.base.word(), e.head.word(), e.base.was()+" and "+e.head.is())
}

// entry files one probe. What has no answer is a regression where the base
// passed, and otherwise cannot be judged; a failure that the base does not show
// is a regression whatever the base did instead.
func (c *Comparison) entry(e entry) {
	b, h := e.base.rank(), e.head.rank()
	failed := h == escaped || h == failedWeak
	switch {
	case e.head.absent():
		f := e.plain(WhatPresence)
		c.Gone = append(c.Gone, f)
		if b >= passedWeak {
			c.Regressions = append(c.Regressions, f)
		}
	case e.base.absent():
		f := e.plain(WhatPresence)
		c.New = append(c.New, f)
		if failed {
			c.Regressions = append(c.Regressions, f)
		}
		if h == noAnswer {
			c.Inconclusive = append(c.Inconclusive, f)
		}
	case b >= passedWeak && h == noAnswer, b == noAnswer && failed:
		c.Regressions = append(c.Regressions, e.plain(WhatVerdict))
	case b == noAnswer && h == noAnswer:
		if !e.neverHosted() {
			c.Inconclusive = append(c.Inconclusive, e.plain(WhatVerdict))
		}
	case h == noAnswer:
		c.Inconclusive = append(c.Inconclusive, e.plain(WhatVerdict))
	case b == noAnswer:
		c.Fixes = append(c.Fixes, e.plain(WhatVerdict))
	default:
		c.answered(e, b, h)
	}
}

// neverHosted: the backend can host the probe neither then nor now.
func (e entry) neverHosted() bool {
	return e.base.skipped != nil && e.base.skipped.NeverHosts && e.head.skipped != nil && e.head.skipped.NeverHosts
}

// answered compares two answers.
func (c *Comparison) answered(e entry, b, h rank) {
	switch {
	case h == passedWeak && b == contained:
		c.Regressions = append(c.Regressions, e.finding(WhatVerdict, e.base.word(), e.head.word(),
			"was contained in the baseline and is weak now: "+e.head.result.Reason))
		return
	case h < b:
		text := e.base.was() + " and " + e.head.is()
		if b < passedWeak {
			text = "was weak in the baseline and has escaped now: " + e.head.result.Reason
		}
		c.Regressions = append(c.Regressions, e.finding(WhatVerdict, e.base.word(), e.head.word(), text))
		return
	case h > b:
		text := e.base.was() + " and " + e.head.is()
		if b == passedWeak {
			text = "was weak in the baseline and is contained now"
		} else if h == failedWeak {
			text = "had escaped in the baseline and is weak now: " + e.head.result.Reason
		}
		c.Fixes = append(c.Fixes, e.finding(WhatVerdict, e.base.word(), e.head.word(), text))
	}
	c.provenance(e)
	if h == b {
		c.severity(e)
		c.cases(e)
	}
}

func (c *Comparison) severity(e entry) {
	from, to := e.base.result.Severity, e.head.result.Severity
	if from == to || from == "" || to == "" {
		return
	}
	f := e.finding(WhatSeverity, string(from), string(to), fmt.Sprintf("had the severity %s in the baseline and has %s now: %s", from, to, e.head.result.Reason))
	if to.AtLeast(from) {
		c.Regressions = append(c.Regressions, f)
	} else {
		c.Fixes = append(c.Fixes, f)
	}
}

// proven orders provenances.
func proven(by string) int {
	switch by {
	case probes.MockOnly:
		return 0
	case probes.ValidatedBoth:
		return 2
	}
	return 1
}

func (c *Comparison) provenance(e entry) {
	from, to := e.base.result.ValidatedAgainst, e.head.result.ValidatedAgainst
	if from == to {
		return
	}
	f := e.finding(WhatProvenance, from, to, fmt.Sprintf("was %s in the baseline and is %s now", from, to))
	switch {
	case proven(to) < proven(from):
		c.Regressions = append(c.Regressions, f)
	case proven(to) > proven(from):
		c.Fixes = append(c.Fixes, f)
	default:
		c.Changed = append(c.Changed, f)
	}
}

// cases compares the sub-cases of a probe, which may hide behind its verdict.
func (c *Comparison) cases(e entry) {
	now := map[string]probes.Case{}
	for _, x := range e.head.result.Cases {
		now[x.Name] = x
	}
	had := map[string]bool{}
	for _, b := range e.base.result.Cases {
		had[b.Name] = true
		h, ok := now[b.Name]
		if !ok {
			h.Verdict = "absent"
		}
		if b.Verdict == h.Verdict {
			continue
		}
		why := strings.TrimSuffix(": "+first(first(h.Doubt, h.NotTested), first(h.Missing, h.Witness)), ": ")
		f := e.finding(WhatCase, b.Name+" "+string(b.Verdict), b.Name+" "+string(h.Verdict),
			fmt.Sprintf("had the sub-case %s %s in the baseline and has it %s now%s", b.Name, b.Verdict, h.Verdict, why))
		from, to := caseRank(b.Verdict), caseRank(h.Verdict)
		switch {
		case from == noAnswer || to == noAnswer:
			c.Changed = append(c.Changed, f)
		case to < from:
			c.Regressions = append(c.Regressions, f)
		default:
			c.Fixes = append(c.Fixes, f)
		}
	}
	for _, h := range e.head.result.Cases {
		if !had[h.Name] {
			c.Changed = append(c.Changed, e.finding(WhatCase, h.Name+" absent", h.Name+" "+string(h.Verdict), fmt.Sprintf("has the new sub-case %s, %s", h.Name, h.Verdict)))
		}
	}
}

func caseRank(v probes.Verdict) rank {
	switch v {
	case probes.Contained:
		return contained
	case probes.Weak:
		return failedWeak
	case probes.Escaped:
		return escaped
	}
	return noAnswer
}
