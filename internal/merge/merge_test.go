package merge

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// the battery of these tests.
var selected = []string{"P-A1-a", "P-A2-b", "P-A3-c", "P-A6-d", "P-LAT-boot", "P-LAT-reset", "P-LAT-roundtrip"}

func passed(backend, name string) probes.Result {
	r := probes.Result{Name: name, AttackerClass: "A1", Expectation: probes.ShouldFail, ValidatedAgainst: probes.ValidatedBy(backend),
		Description: "d", Passed: true, Reason: "contained", Verdict: probes.Contained, DurationMS: 7}
	if strings.HasPrefix(name, "P-LAT") {
		r.AttackerClass = probes.ClassLatency
	}
	return r
}

// shard is the report of one part of names.
func shard(backend string, names []string, i, n int) probes.Report {
	s := probes.Shard{Index: i, Of: n, Selected: names}
	r := run(backend, probes.Part(s, names)...)
	r.Environment.Shard = &s
	return r
}

func run(backend string, names ...string) probes.Report {
	r := probes.Report{
		SchemaVersion: "1.0", GeneratedAt: "2026-11-21T10:00:00.000Z", Backend: backend, FinalSandboxState: backends.StateReady,
		Probes: []probes.Result{}, Latency: map[string]probes.Distribution{}, Baseline: "recorded-in-run",
		Environment: &probes.Environment{Host: probes.HostFacts{OS: "linux", Arch: "amd64", CPUs: 2}, Colocated: true, Policy: "p", PolicySHA256: strings.Repeat("ab", 32), Harness: "1", FailSeverity: probes.SeverityMedium,
			Sandbox: &backends.Provenance{VMMVersion: "9", VMMPID: len(names) + 1, Digests: map[string]string{"kernel": "sha256:00"}}},
	}
	// No two runs have the same golden memory.
	r.Environment.Sandbox.Digests[backends.MadeByRun+"ram"] = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(strings.Join(names, " "))))
	for _, n := range names {
		p := passed(backend, n)
		r.Probes = append(r.Probes, p)
		if p.AttackerClass == probes.ClassLatency {
			r.Latency[n] = probes.Distribution{Samples: 3, P50: float64(len(backend))}
		}
	}
	finish(&r)
	return r
}

func finish(r *probes.Report) {
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	r.Notes = []string{"a note", probes.ProvenanceNote(r.Probes)}
}

func input(t require.TestingT, r probes.Report) Input {
	b, err := report.Encode(r)
	require.NoError(t, err)
	r, err = report.Read(b)
	require.NoError(t, err)
	name := r.Backend + ".json"
	if s := r.Environment; s != nil && s.Shard != nil {
		name = fmt.Sprintf("%s-%d.json", r.Backend, s.Shard.Index)
	}
	return NewInput(name, r, b)
}

// merged merges and requires that our own reader takes what comes out.
func merged(t require.TestingT, list ...Input) probes.Report {
	r, err := Merge(list)
	require.NoError(t, err)
	b, err := report.Encode(r)
	require.NoError(t, err)
	again, err := report.Read(b)
	require.NoError(t, err)
	require.Equal(t, r.Summary, again.Summary)
	return r
}

// Whatever is split is the whole again: every probe once, in battery order, with
// the same answer, whatever order the reports are given in. With any part left
// out there is no report.
func TestShardsMakeUpTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SampledFrom([][]string{{"bwrap"}, {"bwrap", "qemu"}, {"chv", "qemu", "vf"}}).Draw(t, "backends")
		names := selected[:rapid.IntRange(1, len(selected)).Draw(t, "probes")]
		var list []Input
		var want probes.Summary
		for _, b := range all {
			n := rapid.IntRange(1, len(names)).Draw(t, "shards of "+b)
			for i := 1; i <= n; i++ {
				r := shard(b, names, i, n)
				for j := range r.Probes {
					switch rapid.IntRange(0, 3).Draw(t, "answer") {
					case 0:
						r.Probes[j].Passed, r.Probes[j].Verdict = false, probes.Escaped
					case 1:
						r.Probes[j].Passed, r.Probes[j].Errored, r.Probes[j].Verdict = false, true, probes.Inconclusive
					}
				}
				if len(r.Probes) > 0 && rapid.Bool().Draw(t, "skip") {
					r.SkippedProbes = []probes.SkippedProbe{{Name: r.Probes[0].Name, Reason: "why"}}
					delete(r.Latency, r.Probes[0].Name)
					r.Probes = r.Probes[1:]
				}
				finish(&r)
				s := r.Summary
				want = probes.Summary{Total: want.Total + s.Total, Passed: want.Passed + s.Passed, Failed: want.Failed + s.Failed, Errored: want.Errored + s.Errored, Skipped: want.Skipped + s.Skipped}
				list = append(list, input(t, r))
			}
		}
		list = rapid.Permutation(list).Draw(t, "order")
		got := merged(t, list...)
		require.Equal(t, want, got.Summary)
		require.Equal(t, len(all)*len(names), got.Summary.Total)
		require.Equal(t, strings.Join(all, "+"), got.Backend)
		at := map[string]int{}
		for _, p := range got.Probes {
			i := slices.Index(names, p.Name)
			require.GreaterOrEqual(t, i+1, at[p.Backend], "battery order")
			at[p.Backend] = i + 1
			require.Equal(t, len(all) > 1, p.Backend != "")
			require.NotNil(t, got.EnvironmentOf(p))
		}
		require.Equal(t, probes.ProvenanceNote(got.Probes), got.Notes[len(got.Notes)-1])

		slices.Reverse(list)
		require.Equal(t, got, merged(t, list...), "the order of the reports does not matter")
		require.Equal(t, got, merged(t, append(list, list[0])...), "the same file twice counts once")

		out := rapid.IntRange(0, len(list)-1).Draw(t, "left out")
		if s := list[out].shard(); s.Of > 1 {
			_, err := Merge(slices.Delete(slices.Clone(list), out, out+1))
			require.ErrorContains(t, err, "shard "+s.String()+" of the selection")
		}
	})
}

func TestSeveralBackendsKeepTheirOwnNumbers(t *testing.T) {
	a, b := run("qemu", "P-A1-a", "P-LAT-boot"), run("bwrap", "P-A1-a", "P-LAT-boot")
	a.FinalSandboxState, a.GeneratedAt, a.Baseline = backends.StateFailed, "2026-11-21T11:00:00.000Z", "persisted"
	got := merged(t, input(t, a), input(t, b))
	require.Equal(t, map[string]probes.Distribution{"qemu/P-LAT-boot": {Samples: 3, P50: 4}, "bwrap/P-LAT-boot": {Samples: 3, P50: 5}}, got.Latency)
	require.Equal(t, backends.StateFailed, got.FinalSandboxState)
	require.Equal(t, "2026-11-21T11:00:00.000Z", got.GeneratedAt)
	require.Empty(t, got.Baseline, "they differ; merged_from has them")
	require.Nil(t, got.Environment)
	require.Len(t, got.MergedFrom, 2)
	require.Equal(t, []string{"bwrap: a note", "qemu: a note", "validation-provenance: mock-only=0 validated-chv=0 validated-vf=0 validated-bwrap=2 validated-qemu=2 validated-chv-and-vf=0 (total=4)"}, got.Notes)
	require.False(t, got.Clean())
}

func TestTheFinalStateIsTheWorst(t *testing.T) {
	off, on := run("chv"), run("qemu", "P-A1-a")
	off.FinalSandboxState = backends.StateNotBooted
	require.Equal(t, backends.StateReady, merged(t, input(t, off), input(t, on)).FinalSandboxState)
	require.Equal(t, backends.StateNotBooted, merged(t, input(t, off)).FinalSandboxState)
	on.FinalSandboxState = backends.StateResetting
	require.Equal(t, backends.StateResetting, merged(t, input(t, off), input(t, on)).FinalSandboxState)
}

// Only both VMMs together, each validated by its own run, earn the provenance.
func TestValidatedOnBoth(t *testing.T) {
	count := func(r probes.Report) (n int) {
		for _, p := range r.Probes {
			if p.ValidatedAgainst == probes.ValidatedBoth {
				n++
			}
		}
		return n
	}
	both := merged(t, input(t, run("chv", "P-A1-a", "P-A2-b")), input(t, run("vf", "P-A1-a", "P-A3-c")))
	require.Equal(t, 2, count(both), "P-A1-a, once per backend")
	require.Equal(t, probes.ValidatedBoth, both.Probes[0].ValidatedAgainst)
	require.Contains(t, both.SummaryLines()[1], "validated-chv=1 validated-vf=1 validated-chv-and-vf=2")

	for name, change := range map[string]func(*probes.Report){
		"failed":      func(r *probes.Report) { r.Probes[0].Passed, r.Probes[0].Verdict = false, probes.Escaped },
		"errored":     func(r *probes.Report) { r.Probes[0].Passed, r.Probes[0].Errored = false, true },
		"mock-only":   func(r *probes.Report) { r.Probes[0].ValidatedAgainst = probes.MockOnly },
		"leaking":     func(r *probes.Report) { r.Environment.Leaks = []string{"x"} },
		"other":       func(r *probes.Report) { r.Environment.Harness = "2" },
		"unknown":     func(r *probes.Report) { r.Environment = nil },
		"not the two": func(r *probes.Report) { r.Backend, r.Probes[0].ValidatedAgainst = "qemu", "validated-qemu" },
	} {
		vf := run("vf", "P-A1-a")
		change(&vf)
		finish(&vf)
		require.Zero(t, count(merged(t, input(t, run("chv", "P-A1-a")), input(t, vf))), name)
	}

	for _, harness := range []string{"", "unknown", "devel", "v0.0.0-20261121140000-0123456789ab+dirty"} {
		a, b := run("chv", "P-A1-a"), run("vf", "P-A1-a")
		a.Environment.Harness, b.Environment.Harness = harness, harness
		require.Zero(t, count(merged(t, input(t, a), input(t, b))), "%q is no program that anybody could name", harness)
	}

	// A report that claims it otherwise is no report.
	alone := run("chv", "P-A1-a")
	alone.Probes[0].ValidatedAgainst = probes.ValidatedBoth
	b, err := json.Marshal(alone)
	require.NoError(t, err)
	_, err = report.Read(b)
	require.ErrorContains(t, err, "merged_from is missing")
	both.Probes[0].Passed, both.Probes[0].Verdict = false, probes.Escaped
	both.Summary = probes.Summarise(both.Probes, nil)
	b, err = report.Encode(both)
	require.NoError(t, err)
	_, err = report.Read(b)
	require.ErrorContains(t, err, "did not pass on both")
}

func TestMergeRefuses(t *testing.T) {
	change := func(r probes.Report, f func(*probes.Report)) probes.Report {
		b, err := report.Encode(r)
		require.NoError(t, err)
		var own probes.Report
		require.NoError(t, json.Unmarshal(b, &own))
		f(&own)
		finish(&own)
		return own
	}
	whole := merged(t, input(t, run("qemu", "P-A1-a")))
	one, two := shard("qemu", selected, 1, 2), shard("qemu", selected, 2, 2)
	for name, c := range map[string]struct {
		list []probes.Report
		want string
	}{
		"nothing":           {nil, "no report to merge"},
		"a merged report":   {[]probes.Report{whole}, "qemu.json was merged before"},
		"a name of several": {[]probes.Report{run("chv+vf")}, "the name of a merged report"},
		"two answers":       {[]probes.Report{run("qemu", "P-A1-a"), change(run("qemu", "P-A1-a"), func(r *probes.Report) { r.Probes[0].DurationMS = 8 })}, "both have P-A1-a on backend qemu"},
		"run and skipped": {[]probes.Report{run("qemu", "P-A1-a"), change(run("qemu"), func(r *probes.Report) {
			r.SkippedProbes = []probes.SkippedProbe{{Name: "P-A1-a", Reason: "x"}}
		})}, "both have P-A1-a"},
		"a missing shard": {[]probes.Report{one}, "shard 2/2 of the selection of qemu-1.json on backend qemu is missing"},
		"of another backend": {[]probes.Report{one, shard("bwrap", selected, 2, 2)},
			"is missing"},
		"of another selection": {[]probes.Report{one, shard("qemu", selected[1:], 2, 2)}, "is missing"},
		"of another split":     {[]probes.Report{one, shard("qemu", selected, 2, 3), shard("qemu", selected, 3, 3)}, "is missing"},
		"a shard twice":        {[]probes.Report{one, two, change(two, func(r *probes.Report) { r.GeneratedAt = "2026-11-21T12:00:00.000Z" })}, "are all shard 2/2"},
		"a shard without a probe": {[]probes.Report{one, change(two, func(r *probes.Report) { r.Probes = r.Probes[1:] })},
			"is shard 2/2, which is P-A2-b, P-A6-d, P-LAT-reset, but it has P-A6-d, P-LAT-reset"},
		"an impossible shard": {[]probes.Report{change(one, func(r *probes.Report) { r.Environment.Shard = &probes.Shard{Index: 3, Of: 2} })}, "says that it is shard 3/2"},
		"harness":             {[]probes.Report{one, change(two, func(r *probes.Report) { r.Environment.Harness = "2" })}, `differ in harness version: "1" and "2"`},
		"fail-severity": {[]probes.Report{one, change(two, func(r *probes.Report) { r.Environment.FailSeverity = probes.SeverityCritical })},
			`differ in fail-severity: "medium" and "critical"`},
		"policy":             {[]probes.Report{one, change(two, func(r *probes.Report) { r.Environment.Policy = "q" })}, "differ in policy"},
		"what a policy says": {[]probes.Report{one, change(two, func(r *probes.Report) { r.Environment.PolicySHA256 = strings.Repeat("cd", 32) })}, "differ in policy digest"},
		"leaks":              {[]probes.Report{one, change(two, func(r *probes.Report) { r.Environment.Leaks = []string{"x"} })}, "differ in leaks"},
		"images": {[]probes.Report{one, change(two, func(r *probes.Report) {
			r.Environment.Sandbox.Digests = map[string]string{"kernel": "sha256:01"}
		})}, `differ in the digest of the kernel: "sha256:00" and "sha256:01"`},
		"an image more": {[]probes.Report{one, change(two, func(r *probes.Report) {
			r.Environment.Sandbox.Digests["disk"] = "sha256:02"
		})}, `differ in the digest of the disk: "" and "sha256:02"`},
		"VMM":         {[]probes.Report{one, change(two, func(r *probes.Report) { r.Environment.Sandbox.VMMVersion = "10" })}, "differ in VMM version"},
		"accelerator": {[]probes.Report{one, change(two, func(r *probes.Report) { r.Environment.Sandbox.Accelerator = "tcg" })}, "differ in accelerator"},
		"provenance typed in": {[]probes.Report{change(run("qemu", "P-A1-a"), func(r *probes.Report) { r.Probes[0].ValidatedAgainst = "validated-chv" })},
			`P-A1-a is "validated-chv" in a run on "qemu"`},
		"latency twice": {[]probes.Report{run("qemu", "P-LAT-boot"), change(run("qemu"), func(r *probes.Report) {
			r.Latency["P-LAT-boot"] = probes.Distribution{Samples: 9}
		})}, "so did another report"},
	} {
		t.Run(name, func(t *testing.T) {
			var list []Input
			for _, r := range c.list {
				list = append(list, input(t, r))
			}
			_, err := Merge(list)
			require.ErrorContains(t, err, c.want)
			slices.Reverse(list)
			_, again := Merge(list)
			require.Equal(t, err, again, "whatever the order")
		})
	}

	unnamed := run("qemu", "P-A1-a")
	unnamed.Summary.Skipped, unnamed.Summary.Total = 2, 3
	_, err := Merge([]Input{input(t, unnamed)})
	require.ErrorContains(t, err, "has 2 skipped probes and names 0")
}

// A version that many builds share does not make them one: their digest does, and a
// version that names a program needs none, as when shards ran on two architectures.
func TestShardsOfBuildsWithoutAVersion(t *testing.T) {
	a, b := strings.Repeat("aa", 32), strings.Repeat("bb", 32)
	for _, c := range []struct{ harness, one, two, want string }{
		{"devel", a, a, ""},
		{"devel", a, b, "differ in the digest of the harness"},
		{"devel", a, "", "differ in the digest of the harness"},
		{"devel", "", "", `are of a harness "devel", which names no program`},
		{"unknown", a, b, "differ in the digest of the harness"},
		{"", a, b, "differ in the digest of the harness"},
		{"v0.0.0-20261121140000-0123456789ab+dirty", a, b, "differ in the digest of the harness"},
		{"v1.2.3", a, b, ""},
		{"v1.2.3", a, "", ""},
	} {
		one, two := shard("qemu", selected, 1, 2), shard("qemu", selected, 2, 2)
		one.Environment.Harness, one.Environment.HarnessSHA256 = c.harness, c.one
		two.Environment.Harness, two.Environment.HarnessSHA256 = c.harness, c.two
		_, err := Merge([]Input{input(t, one), input(t, two)})
		if c.want == "" {
			require.NoError(t, err, "%+v", c)
			continue
		}
		require.ErrorContains(t, err, c.want, "%+v", c)
	}
}

// FuzzMerge: no two reports crash a merge, and what it returns accounts for
// everything that was put in.
func FuzzMerge(f *testing.F) {
	for _, r := range []probes.Report{run("chv", "P-A1-a"), run("vf", "P-A1-a"), shard("qemu", selected, 1, 2), shard("qemu", selected, 2, 2)} {
		b, err := report.Encode(r)
		require.NoError(f, err)
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		x, err := report.Read(a)
		if err != nil {
			return
		}
		y, err := report.Read(b)
		if err != nil {
			return
		}
		got, err := Merge([]Input{NewInput("a", x, a), NewInput("b", y, b)})
		if err != nil {
			return
		}
		has := map[string]bool{}
		for _, p := range got.Probes {
			has[got.BackendOf(p)+"/"+p.Name] = true
		}
		for _, s := range got.SkippedProbes {
			has[got.BackendOf(probes.Result{Backend: s.Backend})+"/"+s.Name] = true
		}
		for _, r := range []probes.Report{x, y} {
			for _, p := range r.Probes {
				require.True(t, has[r.Backend+"/"+p.Name])
			}
			for _, s := range r.SkippedProbes {
				require.True(t, has[r.Backend+"/"+s.Name])
			}
		}
		require.Equal(t, got.Summary.Total, len(has))
	})
}
