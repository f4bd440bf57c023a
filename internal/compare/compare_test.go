package compare

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func run(results ...probes.Result) probes.Report {
	r := probes.Report{SchemaVersion: "1.0", GeneratedAt: "2026-11-21T10:00:00.000Z", Backend: "qemu", FinalSandboxState: backends.StateReady,
		Probes: results, Latency: map[string]probes.Distribution{}, Environment: &probes.Environment{
			Host: probes.HostFacts{OS: "linux", Arch: "amd64", Kernel: "6.8", CPU: "Example", CPUs: 4, Governor: "performance"}, Harness: "1", Policy: "qemu default",
			Sandbox: &backends.Provenance{Accelerator: "kvm", VMMVersion: "9.2", VMMPID: 4242, Digests: map[string]string{"kernel": "sha256:aa"}}}}
	r.Summary = probes.Summarise(results, nil)
	return r
}

func skipping(r probes.Report, skipped ...probes.SkippedProbe) probes.Report {
	r.SkippedProbes = skipped
	r.Summary = probes.Summarise(r.Probes, skipped)
	return r
}

// result builds one by a word.
func result(name, word string) probes.Result {
	r := probes.Result{Name: name, AttackerClass: "A1", ValidatedAgainst: "validated-qemu", Reason: word + ": why"}
	switch word {
	case "contained":
		r.Passed, r.Verdict = true, probes.Contained
	case "weak":
		r.Passed, r.Verdict, r.Severity = true, probes.Weak, probes.SeverityLow
	case "failed-weak":
		r.Verdict, r.Severity = probes.Weak, probes.SeverityHigh
	case "escaped":
		r.Verdict, r.Severity = probes.Escaped, probes.SeverityHigh
	case "errored":
		r.Errored, r.Verdict, r.ErrorMessage, r.ValidatedAgainst = true, probes.Inconclusive, "no control", probes.MockOnly
	}
	return r
}

// lists names the sections that a comparison filed something in.
func lists(c Comparison) string {
	var out []string
	for _, s := range c.sections() {
		out = append(out, strings.ToLower(s.title))
	}
	return strings.Join(out, "+")
}

func compared(t require.TestingT, base, head probes.Report) Comparison {
	c, err := Compare(base, head, Options{})
	require.NoError(t, err)
	return c
}

func TestEveryPairOfAnswers(t *testing.T) {
	for _, c := range []struct{ base, head, want, text string }{
		{"contained", "contained", "", ""},
		{"contained", "weak", "regressions", "P-A1 was contained in the baseline and is weak now: weak: why"},
		{"contained", "failed-weak", "regressions", "P-A1 passed in the baseline and failed now: failed-weak: why"},
		{"contained", "escaped", "regressions", "P-A1 passed in the baseline and failed now: escaped: why"},
		{"contained", "errored", "regressions", "P-A1 passed in the baseline and errored now: no control"},
		{"contained", "skipped", "regressions", "P-A1 passed in the baseline and was not run now: no channel"},
		{"contained", "", "regressions+gone", "P-A1 passed in the baseline and was not run now"},
		{"weak", "contained", "fixes", "P-A1 was weak in the baseline and is contained now"},
		{"weak", "weak", "", ""},
		{"weak", "failed-weak", "regressions", "failed now"},
		{"weak", "escaped", "regressions", "failed now"},
		{"weak", "errored", "regressions", "errored now"},
		{"weak", "skipped", "regressions", "was not run now"},
		{"weak", "", "regressions+gone", "was not run now"},
		{"failed-weak", "contained", "fixes", "P-A1 failed in the baseline and passed now"},
		{"failed-weak", "weak", "fixes", "passed now"},
		{"failed-weak", "failed-weak", "", ""},
		{"failed-weak", "escaped", "regressions", "P-A1 was weak in the baseline and has escaped now"},
		{"failed-weak", "errored", "inconclusive", "failed in the baseline and errored now"},
		{"escaped", "contained", "fixes", "passed now"},
		{"escaped", "weak", "fixes", "passed now"},
		{"escaped", "failed-weak", "fixes", "P-A1 had escaped in the baseline and is weak now"},
		{"escaped", "escaped", "", ""},
		{"escaped", "errored", "inconclusive", "failed in the baseline and errored now"},
		{"escaped", "skipped", "inconclusive", "failed in the baseline and was not run now: no channel"},
		{"escaped", "", "gone", "failed in the baseline and was not run now"},
		{"errored", "contained", "fixes", "P-A1 errored in the baseline and passed now"},
		{"errored", "weak", "fixes", "passed now"},
		{"errored", "failed-weak", "regressions", "errored in the baseline and failed now"},
		{"errored", "escaped", "regressions", "errored in the baseline and failed now"},
		{"errored", "errored", "inconclusive", "errored in the baseline and errored now"},
		{"errored", "skipped", "inconclusive", "was not run now"},
		{"errored", "", "gone", "errored in the baseline and was not run now"},
		{"skipped", "contained", "fixes", "was skipped in the baseline and passed now"},
		{"skipped", "escaped", "regressions", "was skipped in the baseline and failed now"},
		{"skipped", "errored", "inconclusive", "errored now"},
		{"skipped", "skipped", "inconclusive", "was skipped in the baseline and was not run now"},
		{"never", "never", "", ""},
		{"never", "skipped", "inconclusive", "was not run now"},
		{"skipped", "", "gone", "was not run now"},
		{"", "contained", "new", "P-A1 was not in the baseline and passed now"},
		{"", "weak", "new", "passed now"},
		{"", "escaped", "regressions+new", "P-A1 was not in the baseline and failed now: escaped: why"},
		{"", "failed-weak", "regressions+new", "failed now"},
		{"", "errored", "new+inconclusive", "errored now"},
		{"", "skipped", "new+inconclusive", "was not run now: no channel"},
	} {
		t.Run(c.base+" to "+c.head, func(t *testing.T) {
			report := func(word string) probes.Report {
				other := result("P-A9", "contained")
				switch word {
				case "":
					return run(other)
				case "skipped", "never":
					return skipping(run(other), probes.SkippedProbe{Name: "P-A1", Reason: "no channel", NeverHosts: word == "never"})
				}
				return run(other, result("P-A1", word))
			}
			got := compared(t, report(c.base), report(c.head))
			require.Equal(t, c.want, lists(got))
			require.Contains(t, got.text(), c.text)
			unchanged := 1
			if c.want == "" {
				unchanged = 2
			}
			require.Equal(t, unchanged, got.Unchanged)
		})
	}
}

func TestSmallerFacts(t *testing.T) {
	base := result("P-A1", "escaped")
	base.Cases = []probes.Case{{Name: "tcp", Verdict: probes.Escaped}, {Name: "udp", Verdict: probes.Contained}, {Name: "icmp", Verdict: probes.Skipped}}
	for name, c := range map[string]struct {
		change     func(*probes.Result)
		want, text string
	}{
		"graver":           {func(r *probes.Result) { r.Severity = probes.SeverityCritical }, "regressions", "had the severity high in the baseline and has critical now"},
		"milder":           {func(r *probes.Result) { r.Severity = probes.SeverityLow }, "fixes", "has low now"},
		"unknown severity": {func(r *probes.Result) { r.Severity = "made up" }, "regressions", "has made up now"},
		"less proven":      {func(r *probes.Result) { r.ValidatedAgainst = probes.MockOnly }, "regressions", "was validated-qemu in the baseline and is mock-only now"},
		"more proven":      {func(r *probes.Result) { r.ValidatedAgainst = probes.ValidatedBoth }, "fixes", "is validated-chv-and-vf now"},
		"proven elsewhere": {func(r *probes.Result) { r.ValidatedAgainst = "validated-chv" }, "changed", "is validated-chv now"},
		"one more case":    {func(r *probes.Result) { r.Cases[1].Verdict, r.Cases[1].Witness = probes.Escaped, "udp came" }, "regressions", "had the sub-case udp contained in the baseline and has it escaped now: udp came"},
		"one case less":    {func(r *probes.Result) { r.Cases[0].Verdict = probes.Contained }, "fixes", "has it contained now"},
		"a case untested":  {func(r *probes.Result) { r.Cases[1].Verdict, r.Cases[1].NotTested = probes.Skipped, "no control" }, "changed", "has it skipped now: no control"},
		"a case gone":      {func(r *probes.Result) { r.Cases = r.Cases[1:] }, "changed", "has it absent now"},
		"a case new":       {func(r *probes.Result) { r.Cases = append(r.Cases, probes.Case{Name: "raw", Verdict: "contained"}) }, "changed", "has the new sub-case raw, contained"},
		"the same":         {func(*probes.Result) {}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			head := base
			head.Cases = append([]probes.Case{}, base.Cases...)
			c.change(&head)
			got := compared(t, run(base), run(head))
			require.Equal(t, c.want, lists(got))
			require.Contains(t, got.text(), c.text)
		})
	}

	failed := run(base)
	failed.FinalSandboxState = backends.StateFailed
	require.Equal(t, WhatState, compared(t, run(base), failed).Regressions[0].What)
	require.Empty(t, compared(t, failed, failed).Regressions)
	require.Empty(t, compared(t, failed, run(base)).Regressions)
}

func TestOtherBackendsAreNotCompared(t *testing.T) {
	other := run(result("P-A1", "contained"))
	other.Backend = "chv"
	_, err := Compare(run(result("P-A1", "contained")), other, Options{})
	require.ErrorIs(t, err, ErrNotComparable)
	require.ErrorContains(t, err, "the base is of backend qemu, the head of chv")
	old := run()
	old.SchemaVersion = "0.9"
	_, err = Compare(old, run(), Options{})
	require.ErrorIs(t, err, ErrNotComparable)
	mock, stub := run(result("P-A1", "contained")), run(result("P-A1", "contained"))
	mock.Backend, stub.Backend = "mock", "stub"
	require.Equal(t, 1, compared(t, mock, stub).Unchanged)
}

// In a merged report the same probe is another experiment on each backend.
func TestMergedReportsAreComparedPerBackend(t *testing.T) {
	of := func(backend, word string) probes.Result {
		r := result("P-A1", word)
		r.Backend, r.ValidatedAgainst = backend, "validated-"+backend
		return r
	}
	merge := func(list ...probes.Result) probes.Report {
		r := run(list...)
		r.Backend = "bwrap+qemu"
		for _, p := range list {
			env := *r.Environment
			env.Policy = p.Backend
			r.MergedFrom = append(r.MergedFrom, probes.MergedRun{Backend: p.Backend, Probes: []string{p.Name}, Environment: &env})
		}
		r.Environment = nil
		return r
	}
	got := compared(t, merge(of("bwrap", "contained"), of("qemu", "escaped")), merge(of("qemu", "contained"), of("bwrap", "escaped")))
	require.Equal(t, "P-A1 on bwrap passed in the baseline and failed now: escaped: why", got.Regressions[0].Text)
	require.Equal(t, "P-A1 on qemu failed in the baseline and passed now", got.Fixes[0].Text)
	require.Empty(t, got.Context)
}

// A report is never worse than itself; what is a regression one way is no
// regression the other way; and every probe is accounted for.
func TestLaws(t *testing.T) {
	words := []string{"contained", "weak", "failed-weak", "escaped", "errored", "skipped", ""}
	answered := func(w string) bool { return w != "errored" && w != "skipped" && w != "" }
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		var was, is []string
		build := func(word []string) probes.Report {
			var results []probes.Result
			var skipped []probes.SkippedProbe
			for i, w := range word {
				name := string(rune('a' + i))
				switch w {
				case "":
				case "skipped":
					skipped = append(skipped, probes.SkippedProbe{Name: name})
				default:
					results = append(results, result(name, w))
				}
			}
			return skipping(run(results...), skipped...)
		}
		for range n {
			was = append(was, rapid.SampledFrom(words).Draw(t, "was"))
			is = append(is, rapid.SampledFrom(words).Draw(t, "is"))
		}
		base, head := build(was), build(is)
		self := compared(t, base, base)
		require.Empty(t, self.Regressions)
		require.Empty(t, self.Fixes)
		there, back := compared(t, base, head), compared(t, head, base)
		about := func(list []Finding) map[string]bool {
			m := map[string]bool{}
			for _, f := range list {
				m[f.Probe] = true
			}
			return m
		}
		mentioned := map[string]bool{}
		for _, s := range there.sections() {
			for name := range about(s.list) {
				mentioned[name] = true
			}
		}
		present := 0
		for i := range n {
			name := string(rune('a' + i))
			if was[i] != "" || is[i] != "" {
				present++
			}
			if answered(was[i]) && answered(is[i]) {
				require.Equal(t, about(there.Regressions)[name], about(back.Fixes)[name], "%s to %s", was[i], is[i])
				require.Equal(t, about(there.Fixes)[name], about(back.Regressions)[name], "%s to %s", was[i], is[i])
			}
		}
		require.Equal(t, present, len(mentioned)+there.Unchanged)
	})
}

// Nothing that a report says is executed, moves a cursor or becomes markup.
func TestTextsOfReportsStayTexts(t *testing.T) {
	evil := "::error::x\n::warning::\x1b[2J\u202e##[add-mask]`|<img src=x>"
	r := result("P-A1", "escaped")
	r.Name, r.Reason = r.Name+evil, evil
	r.Cases = []probes.Case{{Name: evil, Verdict: probes.Contained}}
	h := r
	h.Severity, h.ValidatedAgainst = probes.Severity(evil), evil
	h.Cases = []probes.Case{{Name: evil, Verdict: probes.Verdict(evil), Doubt: evil}}
	base, head := run(r), run(h, result(evil, "escaped"))
	head.Environment.Policy, head.Environment.Host.CPU, head.Environment.Leaks = evil, evil, []string{evil}
	base.Backend, head.Backend = evil, evil
	base.Latency = map[string]probes.Distribution{evil: {Samples: 3, P50: 1}}
	head.Latency = base.Latency
	c := compared(t, base, head)
	for _, format := range Formats() {
		out, err := c.Render(format)
		require.NoError(t, err)
		for _, line := range strings.Split(string(out), "\n") {
			require.NotRegexp(t, `^\s*::`, line, format)
			require.NotContains(t, line, "##[", format)
			for _, b := range []byte(line) {
				require.True(t, b >= 0x20 && b < 0x7f, "%s: byte %#x in %q", format, b, line)
			}
			if format == "markdown" {
				require.NotContains(t, line, "<img")
				require.NotContains(t, line, "`")
			}
		}
	}
	_, err := Compare(base, run(), Options{})
	require.NotContains(t, err.Error(), "\n")
}

func TestJSONHasNoNull(t *testing.T) {
	out, err := compared(t, run(), run()).Render("json")
	require.NoError(t, err)
	require.NotContains(t, string(out), "null")
	require.True(t, json.Valid(out))
}

// FuzzCompare: no two reports crash a comparison, and nothing that they say comes
// out as anything but printable text.
func FuzzCompare(f *testing.F) {
	for _, word := range []string{"contained", "escaped", "errored"} {
		r := timed(400, 1e6)
		r.Probes = append(r.Probes, result("P-A1", word))
		r = skipping(r, probes.SkippedProbe{Name: "P-A2", Reason: "\u202e::error::"})
		r.Notes = []string{}
		b, err := report.Encode(r)
		require.NoError(f, err)
		f.Add(b, bytes.Replace(b, []byte(word), []byte("::error::"), 2))
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
		c, err := Compare(x, y, Options{MaxSlowdown: 0.1})
		if err != nil {
			return
		}
		for _, format := range Formats() {
			out, err := c.Render(format)
			require.NoError(t, err)
			for _, v := range out {
				require.True(t, v == '\n' || v >= 0x20 && v < 0x7f, "%s: byte %#x", format, v)
			}
			require.NotRegexp(t, `(?m)^\s*::|##\[`, string(out))
		}
	})
}
