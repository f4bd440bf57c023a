// Package merge puts the reports of several runs together: the shards of one
// selection, the backends of a matrix. A merge never makes up for what is
// missing: a shard that is not there, or two answers to one question, is an error.
package merge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Input is one report that package report has read, and so checked.
type Input struct {
	// Name is its path, for errors.
	Name   string
	Report probes.Report
	// SHA256 is the hex digest of the file.
	SHA256 string
}

// NewInput is r as it was read from the bytes b of the file name.
func NewInput(name string, r probes.Report, b []byte) Input {
	sum := sha256.Sum256(b)
	return Input{Name: name, Report: r, SHA256: hex.EncodeToString(sum[:])}
}

// The backends whose agreement is worth a provenance of its own.
const (
	chv = "chv"
	vf  = "vf"
)

// Merge joins reports into one that report.Read accepts. The order of list does
// not matter. The same file given twice counts once.
//
// It refuses reports that were merged before; a shard that is missing, doubled or
// lacks one of its probes; two runs of one backend that differ in harness, policy,
// leaks, fail-severity, VMM or digests; and two different answers to one probe on one backend.
func Merge(list []Input) (probes.Report, error) {
	runs, err := distinct(list)
	if err != nil {
		return probes.Report{}, err
	}
	for _, in := range runs {
		if err := fit(in); err != nil {
			return probes.Report{}, err
		}
	}
	for i, a := range runs {
		for _, b := range runs[i+1:] {
			if err := alike(a, b); err != nil {
				return probes.Report{}, err
			}
		}
	}
	if err := whole(runs); err != nil {
		return probes.Report{}, err
	}
	return join(runs)
}

// distinct sorts the runs by backend, shard and age, and drops repeated files.
func distinct(list []Input) ([]Input, error) {
	if len(list) == 0 {
		return nil, errors.New("no report to merge")
	}
	runs := slices.Clone(list)
	slices.SortStableFunc(runs, func(a, b Input) int {
		return slices.Compare(a.sortKey(), b.sortKey())
	})
	return slices.CompactFunc(runs, func(a, b Input) bool { return a.SHA256 == b.SHA256 }), nil
}

func (in Input) sortKey() []string {
	shard := ""
	if s := in.shard(); s != nil {
		shard = fmt.Sprintf("%s %08d %08d", strings.Join(s.Selected, ","), s.Of, s.Index)
	}
	return []string{in.Report.Backend, shard, in.Report.GeneratedAt, in.SHA256}
}

func (in Input) environment() probes.Environment {
	if in.Report.Environment == nil {
		return probes.Environment{}
	}
	return *in.Report.Environment
}

func (in Input) shard() *probes.Shard { return in.environment().Shard }

// covers names what was run or skipped, in that order.
func (in Input) covers() []string {
	out := []string{}
	for _, p := range in.Report.Probes {
		out = append(out, p.Name)
	}
	for _, s := range in.Report.SkippedProbes {
		out = append(out, s.Name)
	}
	return out
}

// fit refuses a report that cannot be a part of another.
func fit(in Input) error {
	r := in.Report
	if len(r.MergedFrom) > 0 {
		return fmt.Errorf("%s was merged before; fix: merge the reports of the runs", in.Name)
	}
	if r.SchemaVersion != probes.SchemaVersion {
		return fmt.Errorf("%s has schema %q, this program merges %q", in.Name, r.SchemaVersion, probes.SchemaVersion)
	}
	if strings.Contains(r.Backend, "+") {
		return fmt.Errorf("%s is of backend %q, which is the name of a merged report", in.Name, r.Backend)
	}
	if r.Summary.Skipped != len(r.SkippedProbes) {
		return fmt.Errorf("%s has %d skipped probes and names %d; a merge could not account for the others", in.Name, r.Summary.Skipped, len(r.SkippedProbes))
	}
	for _, p := range r.Probes {
		if p.ValidatedAgainst != probes.MockOnly && p.ValidatedAgainst != probes.ValidatedBy(r.Backend) {
			return fmt.Errorf("%s: %s is %q in a run on %q; provenance is measured by that run", in.Name, p.Name, p.ValidatedAgainst, r.Backend)
		}
	}
	s := in.shard()
	if s == nil {
		return nil
	}
	if s.Index < 1 || s.Of < s.Index {
		return fmt.Errorf("%s says that it is shard %s", in.Name, s)
	}
	want, got := slices.Sorted(slices.Values(probes.Part(*s, s.Selected))), slices.Sorted(slices.Values(in.covers()))
	if !slices.Equal(want, got) {
		return fmt.Errorf("%s is shard %s, which is %s, but it has %s", in.Name, s, names(want), names(got))
	}
	return nil
}

// alike refuses two runs of one backend that are not runs of the same thing.
func alike(a, b Input) error {
	if a.Report.Backend != b.Report.Backend {
		return nil
	}
	x, y := a.environment(), b.environment()
	for _, c := range []struct{ what, a, b string }{
		{"harness version", x.Harness, y.Harness},
		{"fail-severity", string(x.FailSeverity), string(y.FailSeverity)},
		{"policy", x.Policy, y.Policy},
		{"policy digest", x.PolicySHA256, y.PolicySHA256},
		{"leaks", names(x.Leaks), names(y.Leaks)},
	} {
		if c.a != c.b {
			return differ(a, b, c.what, c.a, c.b)
		}
	}
	if x.Sandbox == nil || y.Sandbox == nil {
		return nil // one of them never booted: it has no answer that could mix
	}
	if !identified(x.Harness) {
		if x.HarnessSHA256 != y.HarnessSHA256 {
			return differ(a, b, "the digest of the harness", x.HarnessSHA256, y.HarnessSHA256)
		}
		if x.HarnessSHA256 == "" {
			return fmt.Errorf("%s and %s are of a harness %q, which names no program, and lack its digest; fix: run the parts with --shard, or with a release", a.Name, b.Name, x.Harness)
		}
	}
	for _, c := range []struct{ what, a, b string }{
		{"VMM version", x.Sandbox.VMMVersion, y.Sandbox.VMMVersion},
		{"accelerator", x.Sandbox.Accelerator, y.Sandbox.Accelerator},
	} {
		if c.a != c.b {
			return differ(a, b, c.what, c.a, c.b)
		}
	}
	mine, others := x.Sandbox.Inputs(), y.Sandbox.Inputs()
	of := map[string]string{}
	maps.Copy(of, mine)
	maps.Copy(of, others)
	for _, k := range slices.Sorted(maps.Keys(of)) {
		if d, e := mine[k], others[k]; d != e {
			return differ(a, b, "the digest of the "+k, d, e)
		}
	}
	return nil
}

func differ(a, b Input, what, x, y string) error {
	return fmt.Errorf("%s and %s are of backend %s, but differ in %s: %q and %q; fix: run all parts with the same", a.Name, b.Name, a.Report.Backend, what, x, y)
}

func names(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// whole requires every part of each selection exactly once.
func whole(runs []Input) error {
	type selection struct {
		backend, probes string
		of              int
	}
	parts := map[selection][]Input{}
	for _, in := range runs {
		if s := in.shard(); s != nil {
			key := selection{in.Report.Backend, strings.Join(s.Selected, ","), s.Of}
			parts[key] = append(parts[key], in)
		}
	}
	for _, in := range runs { // in this order, so that the error is always the same one
		s := in.shard()
		if s == nil {
			continue
		}
		have := parts[selection{in.Report.Backend, strings.Join(s.Selected, ","), s.Of}]
		var missing []string
		for i := 1; i <= s.Of; i++ {
			part := probes.Shard{Index: i, Of: s.Of}
			var found []string
			for _, p := range have {
				if p.shard().Index == i {
					found = append(found, p.Name)
				}
			}
			switch len(found) {
			case 0:
				missing = append(missing, part.String())
			case 1:
			default:
				return fmt.Errorf("%s are all shard %s of backend %s, and differ; fix: give one of them", strings.Join(found, " and "), part, in.Report.Backend)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("shard %s of the selection of %s on backend %s is missing; fix: run it, or give its report", strings.Join(missing, ", "), in.Name, in.Report.Backend)
		}
	}
	return nil
}

// answer is what one run says about one probe.
type answer struct {
	from    Input
	result  *probes.Result
	skipped *probes.SkippedProbe
}

func (a answer) same(b answer) bool {
	x, errX := json.Marshal([]any{a.result, a.skipped})
	y, errY := json.Marshal([]any{b.result, b.skipped})
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// join adds up what was found fit.
func join(runs []Input) (probes.Report, error) {
	var all []string
	for _, in := range runs {
		if !slices.Contains(all, in.Report.Backend) {
			all = append(all, in.Report.Backend)
		}
	}
	several := len(all) > 1
	out := probes.Report{
		SchemaVersion: probes.SchemaVersion, Backend: strings.Join(all, "+"),
		FinalSandboxState: final(runs), Baseline: runs[0].Report.Baseline,
		Probes: []probes.Result{}, Latency: map[string]probes.Distribution{}, Notes: []string{},
	}
	for _, backend := range all {
		if err := joinBackend(&out, runs, backend, several); err != nil {
			return probes.Report{}, err
		}
	}
	for _, in := range runs {
		r := in.Report
		out.GeneratedAt = max(out.GeneratedAt, r.GeneratedAt)
		if r.Baseline != out.Baseline {
			out.Baseline = ""
		}
	}
	promote(&out, runs)
	out.Summary = probes.Summarise(out.Probes, out.SkippedProbes)
	out.Notes = append(out.Notes, probes.ProvenanceNote(out.Probes))
	return out, nil
}

// joinBackend adds the answers of one backend, in battery order as far as the
// runs tell it.
func joinBackend(out *probes.Report, runs []Input, backend string, several bool) error {
	own := ""
	if several {
		own = backend
	}
	answers, order := map[string]answer{}, []string{}
	var merged []probes.MergedRun
	for _, in := range runs {
		if in.Report.Backend != backend {
			continue
		}
		run := probes.MergedRun{SHA256: in.SHA256, Backend: backend, GeneratedAt: in.Report.GeneratedAt,
			FinalSandboxState: in.Report.FinalSandboxState, Environment: in.Report.Environment, Baseline: in.Report.Baseline, Probes: []string{}}
		for _, a := range in.answers() {
			name := a.name()
			if before, ok := answers[name]; ok {
				if !before.same(a) {
					return fmt.Errorf("%s and %s both have %s on backend %s, and differ; fix: give one of them", before.from.Name, in.Name, name, backend)
				}
				continue
			}
			answers[name] = a
			order = append(order, name)
			run.Probes = append(run.Probes, name)
		}
		merged = append(merged, run)
		for key, d := range in.Report.Latency {
			key = probes.Qualified(own, key)
			if before, ok := out.Latency[key]; ok && !reflect.DeepEqual(before, d) {
				return fmt.Errorf("%s measured %s on backend %s, and so did another report; fix: give one of them", in.Name, key, backend)
			}
			out.Latency[key] = d
		}
		notes := in.Report.Notes
		if n := len(notes); n > 0 && strings.HasPrefix(notes[n-1], "validation-provenance: ") {
			notes = notes[:n-1]
		}
		for _, n := range notes {
			out.Notes = append(out.Notes, in.label()+": "+n)
		}
	}
	out.MergedFrom = append(out.MergedFrom, merged...)
	for _, name := range battery(runs, backend, order) {
		a := answers[name]
		if a.result != nil {
			r := *a.result
			r.Backend = own
			out.Probes = append(out.Probes, r)
		} else {
			s := *a.skipped
			s.Backend = own
			out.SkippedProbes = append(out.SkippedProbes, s)
		}
	}
	return nil
}

func (in Input) answers() []answer {
	var out []answer
	for _, p := range in.Report.Probes {
		out = append(out, answer{from: in, result: &p})
	}
	for _, s := range in.Report.SkippedProbes {
		out = append(out, answer{from: in, skipped: &s})
	}
	return out
}

func (a answer) name() string {
	if a.result != nil {
		return a.result.Name
	}
	return a.skipped.Name
}

// label names a run in the notes.
func (in Input) label() string {
	if s := in.shard(); s != nil {
		return in.Report.Backend + " shard " + s.String()
	}
	return in.Report.Backend
}

// battery brings names into the order of the selections that they come from.
func battery(runs []Input, backend string, order []string) []string {
	left := map[string]bool{}
	for _, name := range order {
		left[name] = true
	}
	var out []string
	add := func(list []string) {
		for _, name := range list {
			if left[name] {
				out = append(out, name)
				left[name] = false
			}
		}
	}
	for _, in := range runs {
		if s := in.shard(); s != nil && in.Report.Backend == backend {
			add(s.Selected)
		}
	}
	add(order)
	return out
}

// final is the worst of the final states; not booted only if none booted.
func final(runs []Input) backends.State {
	worst := []backends.State{backends.StateFailed, backends.StateBooting, backends.StateResetting, backends.StateReady}
	for _, s := range worst {
		if slices.ContainsFunc(runs, func(in Input) bool { return in.Report.FinalSandboxState == s }) {
			return s
		}
	}
	return backends.StateNotBooted
}

// promote gives a probe that passed and was validated on both VMMs the provenance
// that says so: by the same harness, with no leak built in.
func promote(out *probes.Report, runs []Input) {
	type proof struct {
		result *probes.Result
		env    *probes.Environment
	}
	passed := map[string]map[string]proof{chv: {}, vf: {}}
	for i := range out.Probes {
		p := &out.Probes[i]
		if of := passed[p.Backend]; of != nil && p.Passed && p.ValidatedAgainst == probes.ValidatedBy(p.Backend) {
			of[p.Name] = proof{result: p}
		}
	}
	for _, in := range runs {
		for _, p := range in.Report.Probes {
			if held, ok := passed[in.Report.Backend][p.Name]; ok && in.Report.Environment != nil {
				passed[in.Report.Backend][p.Name] = proof{held.result, in.Report.Environment}
			}
		}
	}
	for name, a := range passed[chv] {
		b, ok := passed[vf][name]
		if !ok || a.env == nil || b.env == nil || !identified(a.env.Harness) || a.env.Harness != b.env.Harness || len(a.env.Leaks)+len(b.env.Leaks) > 0 {
			continue
		}
		a.result.ValidatedAgainst, b.result.ValidatedAgainst = probes.ValidatedBoth, probes.ValidatedBoth
	}
}

// identified reports whether a version names one program: those that a build
// without a commit, or of changed files, says of itself are shared by many.
func identified(harness string) bool {
	return harness != "" && harness != "unknown" && harness != "devel" && !strings.HasSuffix(harness, "+dirty")
}
