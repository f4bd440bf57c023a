// Package markdown writes the job summary: a report as GitHub-flavoured
// Markdown, for a person who has a minute.
//
// A report may come from anywhere, so each of its strings is rendered as text
// inside <code>, where GitHub looks for no mention, link or emoji. Only our own
// words and numbers stand outside.
package markdown

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// The sizes of a summary in bytes.
const (
	// HardLimit is GitHub's: of a larger summary it shows nothing at all.
	HardLimit = 1 << 20
	// DefaultLimit leaves room for what other commands of the step append.
	DefaultLimit = 900 << 10
	// MinLimit is the least that a heading and honest remarks fit in.
	MinLimit = 16 << 10
)

// Options of a summary.
type Options struct {
	// OK and Reasons are the gate's answer.
	OK      bool
	Reasons []string
	// Warnings are what the gate tolerated or wants to be known whichever way
	// it went. The mock and deliberate leaks are named without being in here.
	Warnings []string
	// Limit is the greatest size in bytes; 0 means DefaultLimit. It is brought
	// between MinLimit and HardLimit.
	Limit int
}

// How many bytes of a report's string are shown.
const (
	nameBytes   = 100
	cellBytes   = 300
	factBytes   = 1000
	reasonBytes = 2000
)

// Summary returns the job summary of r. What does not fit is counted in it.
func Summary(r probes.Report, o Options) []byte {
	limit := min(cmp.Or(max(o.Limit, 0), DefaultLimit), HardLimit)
	p := &page{limit: max(limit, MinLimit)}
	p.heading(r, o)
	p.section(30, "", "", len(o.Reasons), func(i int) string { return "- " + code(o.Reasons[i], reasonBytes) + "\n" }, "reasons")
	p.section(40, "Tolerated", "", len(o.Warnings), func(i int) string { return "- " + code(o.Warnings[i], reasonBytes) + "\n" }, "warnings")
	p.results(r)
	p.latency(r)
	p.untested(r)
	p.surroundings(r)
	return []byte(p.b.String())
}

// page is a summary in the making.
type page struct {
	b     strings.Builder
	limit int
}

// lastWords is kept free for the headings and remarks that always appear.
const lastWords = 3 << 10

// section writes a heading and as many of n lines as fit until the page is share
// per cent full, so that a long section starves no later one. It says how many
// lines it left out. Without lines it writes nothing.
func (p *page) section(share int, title, head string, n int, line func(i int) string, what string) {
	if n == 0 {
		return
	}
	if title != "" {
		p.b.WriteString("### " + title + "\n\n")
	}
	p.b.WriteString(head)
	room := (p.limit - lastWords) / 100 * share
	shown := 0
	for ; shown < n; shown++ {
		l := line(shown)
		if p.b.Len()+len(l) > room {
			break
		}
		p.b.WriteString(l)
	}
	p.b.WriteString("\n")
	if shown < n {
		fmt.Fprintf(&p.b, "**Truncated: %d of %d %s are not shown. The JSON report has them all.**\n\n", n-shown, n, what)
	}
}

func (p *page) heading(r probes.Report, o Options) {
	answer := "❌ Sandbox red team: the gate failed"
	if o.OK {
		answer = "✅ Sandbox red team: the gate passed"
	}
	fmt.Fprintf(&p.b, "## %s\n\n", answer)
	for _, w := range warnings(r, o.OK) {
		fmt.Fprintf(&p.b, "> ⚠️ **%s**\n\n", w)
	}
	s := r.Summary
	fmt.Fprintf(&p.b, "Backend %s, %d probes: %d passed, %d failed, %d errored, %d skipped.\n\n", code(r.Backend, nameBytes), s.Total, s.Passed, s.Failed, s.Errored, s.Skipped)
	if len(o.Reasons) == 0 {
		p.b.WriteString("The gate gave no reason.\n\n")
	}
}

// warnings are what must not be overlooked, in our own words.
func warnings(r probes.Report, ok bool) []string {
	var out []string
	mock := 0
	for _, x := range r.Probes {
		if probes.IsMock(r.BackendOf(x)) {
			mock++
		}
	}
	switch {
	case probes.IsMock(r.Backend) && mock == len(r.Probes):
		out = append(out, "The backend is the mock. This run proves nothing about a boundary.")
	case mock > 0:
		out = append(out, fmt.Sprintf("%d of %d results come from the mock. They prove nothing about a boundary.", mock, len(r.Probes)))
	}
	if leaks := leaks(r); len(leaks) > 0 {
		out = append(out, "Deliberate weaknesses were built into the sandbox: "+codes(leaks))
	}
	if bad := r.Summary.Failed + r.Summary.Errored; ok && bad > 0 {
		out = append(out, fmt.Sprintf("Probes that failed or errored: %d. The gate was told to accept that.", bad))
	}
	if r.FinalSandboxState == backends.StateFailed {
		out = append(out, "The sandbox ended in the state failed.")
	}
	if len(r.Probes) == 0 {
		out = append(out, "Nothing was tested.")
	}
	return out
}

// leaks lists the deliberate weaknesses of every run.
func leaks(r probes.Report) []string {
	var out []string
	for _, e := range environments(r) {
		out = append(out, e.Leaks...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// environments lists those of the runs that a report tells of.
func environments(r probes.Report) []*probes.Environment {
	var out []*probes.Environment
	if r.Environment != nil {
		out = append(out, r.Environment)
	}
	for _, m := range r.MergedFrom {
		if m.Environment != nil {
			out = append(out, m.Environment)
		}
	}
	return out
}

func (p *page) results(r probes.Report) {
	merged := severalBackends(r)
	line := func(i int) string {
		if i >= len(r.Probes) {
			x := r.SkippedProbes[i-len(r.Probes)]
			return row(merged, report.SkippedOn(r, x), code(x.Name, nameBytes), "skipped", code(x.Reason, cellBytes), "–")
		}
		x := r.Probes[i]
		return row(merged, r.BackendOf(x), code(x.Name, nameBytes), verdict(report.Verdict(x)), code(report.Says(x, r.Latency), cellBytes), seconds(x.DurationMS))
	}
	head := "| Probe | Verdict | What it rests on | Time |\n|---|---|---|---:|\n"
	if merged {
		head = "| Backend | Probe | Verdict | What it rests on | Time |\n|---|---|---|---|---:|\n"
	}
	p.section(60, "Results", head, len(r.Probes)+len(r.SkippedProbes), line, "results")
}

// severalBackends reports whether a report was merged from several backends.
func severalBackends(r probes.Report) bool {
	return slices.ContainsFunc(r.Probes, func(x probes.Result) bool { return x.Backend != "" }) ||
		slices.ContainsFunc(r.SkippedProbes, func(x probes.SkippedProbe) bool { return x.Backend != "" })
}

func row(merged bool, backend string, cells ...string) string {
	if merged {
		cells = append([]string{code(backend, nameBytes)}, cells...)
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// verdict marks the words that need somebody's attention.
func verdict(word string) string {
	switch word {
	case "contained", "passed", "skipped":
		return word
	case "ESCAPED", "FAILED", "inconclusive", "errored":
		return "**" + word + "**"
	}
	for _, s := range probes.Severities() {
		if word == "weak ("+string(s)+")" {
			return "**" + word + "**"
		}
	}
	return code(word, nameBytes)
}

func (p *page) latency(r probes.Report) {
	names := slices.Sorted(maps.Keys(r.Latency))
	title := "Latency in milliseconds"
	if slices.ContainsFunc(names, func(name string) bool { return notRepresentative(r, name) }) {
		title += " (emulated: not representative)"
	}
	line := func(i int) string {
		d, mark := r.Latency[names[i]], ""
		if notRepresentative(r, names[i]) {
			mark = " emulated"
		}
		return fmt.Sprintf("| %s%s | %d | %s | %s | %s | %s | %s | %s | %s |\n", code(names[i], nameBytes), mark, d.Samples,
			ms(d.P50), ms(d.P90), ms(d.P95), ms(d.P99), ms(d.Mean), ms(d.Min), ms(d.Max))
	}
	p.section(70, title, "| Measured | n | p50 | p90 | p95 | p99 | mean | min | max |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n", len(names), line, "latencies")
}

// notRepresentative reports whether a latency was measured on an emulated
// machine: the result of that name says so, or its run. A latency without a
// result of its own (boot reports shutdown beside it) is under suspicion when any
// run was emulated.
func notRepresentative(r probes.Report, name string) bool {
	for _, x := range r.Probes {
		if probes.Qualified(x.Backend, x.Name) == name {
			return x.Evidence["representative"] == false || emulated(r.EnvironmentOf(x))
		}
	}
	return slices.ContainsFunc(environments(r), emulated)
}

func emulated(e *probes.Environment) bool {
	return e != nil && e.Sandbox != nil && e.Sandbox.Accelerator == "tcg"
}

func (p *page) untested(r probes.Report) {
	merged := severalBackends(r)
	where := func(name, backend string) string {
		if merged {
			return code(name, nameBytes) + " on " + code(backend, nameBytes)
		}
		return code(name, nameBytes)
	}
	var lines []func() string
	for _, s := range r.SkippedProbes {
		lines = append(lines, func() string {
			why := ""
			if s.NeverHosts {
				why = " (this backend can never host it)"
			}
			return fmt.Sprintf("- %s, the whole probe: %s%s\n", where(s.Name, report.SkippedOn(r, s)), code(s.Reason, cellBytes), why)
		})
	}
	if unlisted := r.Summary.Skipped - len(r.SkippedProbes); unlisted > 0 {
		lines = append(lines, func() string { return fmt.Sprintf("- Probes skipped without a reason: %d\n", unlisted) })
	}
	for _, x := range r.Probes {
		for _, n := range x.NotTested {
			lines = append(lines, func() string {
				return fmt.Sprintf("- %s, case %s: %s\n", where(x.Name, r.BackendOf(x)), code(n.Case, nameBytes), code(n.Reason, cellBytes))
			})
		}
	}
	if len(lines) == 0 {
		lines = append(lines, func() string { return "- The report lists nothing that was asked for and not tested.\n" })
	}
	p.section(85, "Not tested", "", len(lines), func(i int) string { return lines[i]() }, "entries")
}

func (p *page) surroundings(r probes.Report) {
	var l facts
	l.add("report made", r.GeneratedAt)
	l.add("provenance", provenance(r.Probes))
	l.add("baseline", r.Baseline)
	if r.Environment != nil {
		l.environment("", r.Environment)
	}
	for _, m := range r.MergedFrom {
		on := "on " + code(m.Backend, nameBytes) + ": "
		l.add(on+"report", joined(m.GeneratedAt, pair("sandbox", string(m.FinalSandboxState)), pair("baseline", m.Baseline), pair("sha256", m.SHA256)))
		if m.Environment != nil {
			l.environment(on, m.Environment)
		}
	}
	for _, n := range r.Notes {
		if !strings.HasPrefix(n, "validation-provenance: ") {
			l.add("note", n)
		}
	}
	p.section(100, "Provenance and environment", "", len(l), func(i int) string { return "- " + l[i].what + ": " + code(l[i].value, factBytes) + "\n" }, "entries")
}

// fact is one entry of a list: our own words, and a string of the report.
type fact struct{ what, value string }

type facts []fact

func (l *facts) add(what, value string) {
	if value != "" {
		*l = append(*l, fact{what, value})
	}
}

// environment adds what a verdict was reached in, and more of it for the only one.
func (l *facts) environment(on string, e *probes.Environment) {
	l.add(on+"harness", joined(e.Harness, pair("sha256", e.HarnessSHA256)))
	l.add(on+"fail-severity", string(e.FailSeverity))
	if e.Shard != nil {
		l.add(on+"shard", e.Shard.String())
	}
	l.add(on+"policy", e.Policy)
	s := e.Sandbox
	if s == nil {
		s = &backends.Provenance{}
	}
	l.add(on+"sandbox", joined(s.VMMVersion, pair("accelerator", s.Accelerator), pair("hardening", strings.Join(s.Hardening, ", "))))
	h := e.Host
	l.add(on+"host", joined(h.OS, h.Arch, pair("kernel", h.Kernel), pair("CPUs", strconv.Itoa(h.CPUs)), h.CPU, pair("virtualised", h.Virtualised)))
	if on != "" {
		return
	}
	for _, role := range slices.Sorted(maps.Keys(s.Digests)) {
		l.add("digest of "+code(role, nameBytes), s.Digests[role])
	}
	l.add("host rules", joined(pair("cgroup", h.Cgroup), pair("LSM", strings.Join(h.LSM, " ")), h.LSMMode, pair("Yama", h.Yama), pair("user namespaces", h.Userns)))
	together := "harness and sandbox not shown to be on one machine"
	if e.Colocated {
		together = "harness and sandbox shown to be on one machine"
	}
	l.add(together, e.ColocatedBy)
}

// provenance counts the results by what they were validated against.
func provenance(results []probes.Result) string {
	count := map[string]int{}
	for _, x := range results {
		count[x.ValidatedAgainst]++
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d of %d %s", count[name], len(results), name))
	}
	return strings.Join(parts, ", ")
}

// joined and pair leave out what is empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

func pair(name, value string) string {
	if value == "" {
		return ""
	}
	return name + " " + value
}

// code renders a string of the report.
func code(s string, limit int) string {
	return untrusted.Markdown(backends.NewText([]byte(s)), limit)
}

func codes(list []string) string {
	const most = 5
	out := make([]string, 0, most)
	for i, s := range list {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		out = append(out, code(s, nameBytes))
	}
	return strings.Join(out, ", ")
}

func seconds(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) }

// ms prints milliseconds with at least three significant digits.
func ms(v float64) string {
	switch {
	case v >= 1e9 || v < 0:
		return fmt.Sprintf("%.3g", v)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
