package report

import (
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Backends lists the backends of a report in the order in which it names them. A
// report without probes is of one.
func Backends(r probes.Report) []string {
	var list []string
	seen := map[string]bool{}
	add := func(b string) {
		if !seen[b] {
			list, seen[b] = append(list, b), true
		}
	}
	for _, p := range r.Probes {
		add(r.BackendOf(p))
	}
	for _, p := range r.SkippedProbes {
		add(SkippedOn(r, p))
	}
	for _, m := range r.MergedFrom {
		add(m.Backend)
	}
	if len(list) == 0 {
		add(r.Backend)
	}
	return list
}

// SkippedOn returns the backend that a probe was skipped on.
func SkippedOn(r probes.Report, p probes.SkippedProbe) string {
	return r.BackendOf(probes.Result{Backend: p.Backend})
}

// RunsOn returns the runs on one backend: those that went into a merged report,
// or else the report itself.
func RunsOn(r probes.Report, backend string) []probes.MergedRun {
	if len(r.MergedFrom) == 0 && backend == r.Backend {
		return []probes.MergedRun{{Backend: r.Backend, GeneratedAt: r.GeneratedAt, FinalSandboxState: r.FinalSandboxState, Environment: r.Environment, Baseline: r.Baseline}}
	}
	return slices.DeleteFunc(slices.Clone(r.MergedFrom), func(m probes.MergedRun) bool { return m.Backend != backend })
}

// Warnings says what has to be known before the results on a backend are read.
func Warnings(r probes.Report, backend string) []string {
	var out []string
	if probes.IsMock(backend) {
		out = append(out, "the mock is no boundary: these results prove nothing about one")
	}
	for _, m := range RunsOn(r, backend) {
		if e := m.Environment; e != nil && len(e.Leaks) > 0 {
			out = append(out, "the sandbox was weakened on purpose: "+strings.Join(e.Leaks, ", "))
		}
	}
	return slices.Compact(out)
}
