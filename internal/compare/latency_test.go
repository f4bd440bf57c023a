package compare

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// timed is a report with n boots at 1, 2, 3, ... steps of the given nanoseconds.
func timed(n int, step int64) probes.Report {
	p := result("P-LAT-boot", "contained")
	p.AttackerClass = probes.ClassLatency
	samples := make([]int64, n)
	for i := range samples {
		samples[i] = int64(i+1) * step
	}
	p.Samples = map[string][]int64{"P-LAT-boot": samples}
	r := run(p)
	r.Latency["P-LAT-boot"] = probes.Distribution{Samples: n}
	return r
}

func at(c Comparison, percentile string) Shift {
	for _, s := range c.Latency {
		if s.Percentile == percentile {
			return s
		}
	}
	return Shift{}
}

func TestIntervalsAreExact(t *testing.T) {
	c := compared(t, timed(1000, 1e6), timed(1000, 1e6))
	for p, want := range map[string]probes.Interval{"p50": {Low: 469, High: 532}, "p90": {Low: 881, High: 919}, "p95": {Low: 936, High: 964}, "p99": {Low: 983, High: 997}} {
		require.Equal(t, want, *at(c, p).Base.CI95, p)
		require.Equal(t, NoShift, at(c, p).Direction)
	}
	require.NotContains(t, c.text(), decides)
}

func TestShifts(t *testing.T) {
	slow := compared(t, timed(1000, 1e6), timed(1000, 1.2e6))
	require.Equal(t, Slower, at(slow, "p50").Direction)
	require.InDelta(t, 0.2, at(slow, "p50").Change, 1e-9)
	require.Empty(t, slow.Regressions, "a shift alone is no regression")
	require.Contains(t, slow.text(), decides)
	require.Equal(t, Faster, at(compared(t, timed(1000, 1.2e6), timed(1000, 1e6)), "p50").Direction)
	again := timed(1000, 1.2e6)
	again.Environment.Sandbox.Digests[backends.MadeByRun+"ram"] = "sha256:dd"
	require.Equal(t, Slower, at(compared(t, timed(1000, 1e6), again), "p50").Direction, "no two runs have the same golden memory")
	require.Equal(t, NoShift, at(compared(t, timed(1000, 1e6), timed(1000, 1.1e6)), "p50").Direction, "the intervals touch")
	require.Equal(t, NoShift, at(compared(t, timed(200000, 1e3), timed(200000, 1.04e3)), "p50").Direction, "disjoint, but under 5 %")
}

func TestMaxSlowdown(t *testing.T) {
	base, head := timed(1000, 1e6), timed(1000, 1.5e6)
	c, err := Compare(base, head, Options{MaxSlowdown: 0.25})
	require.NoError(t, err)
	require.Equal(t, WhatLatency, c.Regressions[0].What)
	require.Equal(t, "P-LAT-boot p50 was 500ms in the baseline and is 750ms now, over the 25 % that are allowed", c.Regressions[0].Text)
	require.Len(t, c.Regressions, 4)
	c, err = Compare(base, head, Options{MaxSlowdown: 0.6})
	require.NoError(t, err)
	require.Empty(t, c.Regressions)
	head.Environment.Host.CPU = "another"
	c, err = Compare(base, head, Options{MaxSlowdown: 0.01})
	require.NoError(t, err)
	require.Empty(t, c.Regressions, "what is inconclusive is no regression")
}

func TestWhyALatencyIsInconclusive(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*probes.Report)
		want   string
	}{
		"cpu":         {func(r *probes.Report) { r.Environment.Host.CPU = "Other" }, "other host: cpu was Example and is Other"},
		"kernel":      {func(r *probes.Report) { r.Environment.Host.Kernel = "6.9" }, "kernel was 6.8 and is 6.9"},
		"governor":    {func(r *probes.Report) { r.Environment.Host.Governor = "powersave" }, "governor was performance and is powersave"},
		"nested":      {func(r *probes.Report) { r.Environment.Host.Virtualised = "hypervisor" }, "virtualised was unknown and is hypervisor"},
		"VMM":         {func(r *probes.Report) { r.Environment.Sandbox.VMMVersion = "10" }, "other sandbox: VMM was 9.2 and is 10"},
		"image":       {func(r *probes.Report) { r.Environment.Sandbox.Digests["kernel"] = "sha256:bb" }, "digest of kernel was sha256:aa and is sha256:bb"},
		"new image":   {func(r *probes.Report) { r.Environment.Sandbox.Digests["disk"] = "sha256:cc" }, "digest of disk was unknown and is sha256:cc"},
		"policy":      {func(r *probes.Report) { r.Environment.PolicySHA256 = "ff" }, "policy was qemu default and is qemu default ff"},
		"leak":        {func(r *probes.Report) { r.Environment.Leaks = []string{"user-net"} }, "leaks was none and is user-net"},
		"emulated":    {func(r *probes.Report) { r.Environment.Sandbox.Accelerator = "tcg" }, "the head was emulated"},
		"no sandbox":  {func(r *probes.Report) { r.Environment.Sandbox = nil }, "provenance was unknown and is none"},
		"nothing":     {func(r *probes.Report) { r.Environment = nil }, "the head does not say what host it was measured on"},
		"nameless":    {func(r *probes.Report) { r.Environment.Host.CPU = "" }, "the head does not name its CPU and kernel"},
		"failures":    {func(r *probes.Report) { r.Probes[0].Evidence = map[string]any{"iterations_failed": 3.0} }, "3 iterations of the head failed"},
		"too few":     {func(r *probes.Report) { r.Probes[0].Samples["P-LAT-boot"] = []int64{1, 2, 3, 4, 5} }, "n too small: the head has 5 samples, p50 needs 6"},
		"no interval": {func(r *probes.Report) { r.Probes[0].Samples = nil }, "the head has neither samples nor intervals"},
	} {
		t.Run(name, func(t *testing.T) {
			base, head := timed(1000, 1e6), timed(1000, 9e6)
			c.change(&head)
			got := compared(t, base, head)
			s := at(got, "p50")
			require.Equal(t, Inconclusive, s.Direction)
			require.Contains(t, strings.Join(s.Why, "\n"), c.want)
			require.Contains(t, got.text(), "inconclusive, ")
		})
	}
}

// p99 needs 368 samples, which p50 does not.
func TestEachPercentileHasItsOwnNeed(t *testing.T) {
	c := compared(t, timed(367, 1e6), timed(368, 1e6))
	require.Equal(t, []string{"n too small: the base has 367 samples, p99 needs 368"}, at(c, "p99").Why)
	require.Equal(t, NoShift, at(c, "p95").Direction)
}

func TestIntervalsOfTheReportServeWithoutSamples(t *testing.T) {
	base, head := timed(1000, 1e6), timed(1000, 1e6)
	base.Probes[0].Samples, head.Probes[0].Samples = nil, nil
	d := probes.Distribution{Samples: 1000, P50: 10, CI95: map[string]probes.Interval{"p50": {Low: 9, High: 11}}}
	base.Latency["P-LAT-boot"] = d
	d.P50, d.CI95 = 20, map[string]probes.Interval{"p50": {Low: 19, High: 21}}
	head.Latency["P-LAT-boot"] = d
	require.Equal(t, Slower, at(compared(t, base, head), "p50").Direction)
}

// A forged count costs nothing, and a forged number breaks no format.
func TestForgedNumbers(t *testing.T) {
	base, head := timed(10, 1), timed(10, 1)
	base.Probes[0].Samples, head.Probes[0].Samples = nil, nil
	base.Latency["P-LAT-boot"] = probes.Distribution{Samples: math.MaxInt, P50: math.SmallestNonzeroFloat64}
	head.Latency["P-LAT-boot"] = probes.Distribution{Samples: math.MaxInt, P50: math.MaxFloat64}
	c := compared(t, base, head)
	for _, f := range Formats() {
		_, err := c.Render(f)
		require.NoError(t, err)
	}
}

func TestShutdownsBelongToTheBoots(t *testing.T) {
	r := timed(1000, 1e6)
	r.Latency["P-LAT-shutdown"] = r.Latency["P-LAT-boot"]
	r.Probes[0].Samples["P-LAT-shutdown"] = r.Probes[0].Samples["P-LAT-boot"]
	c := compared(t, r, r)
	require.Len(t, c.Latency, 8)
	for _, s := range c.Latency {
		require.Equal(t, NoShift, s.Direction)
	}
}

// TestGolden pins every format on reports with something in every section.
func TestGolden(t *testing.T) {
	with := func(r probes.Report, more ...probes.Result) probes.Report {
		r.Probes = append(r.Probes, more...)
		return r
	}
	weak := result("P-A5", "contained")
	weak.Cases = []probes.Case{{Name: "setsid", Verdict: probes.Contained}}
	untested := result("P-A5", "contained")
	untested.Cases = []probes.Case{{Name: "setsid", Verdict: probes.Skipped, NotTested: "no control on this host"}}
	base := skipping(with(timed(400, 1e6), result("P-A1", "contained"), result("P-A2", "escaped"), result("P-A3", "contained"), result("P-A4", "escaped"), weak, result("P-A7", "errored")))
	head := skipping(with(timed(1000, 2e6), result("P-A1", "weak"), result("P-A2", "contained"), untested, result("P-A6", "contained"), result("P-A7", "errored")),
		probes.SkippedProbe{Name: "P-A4", Reason: "no meter"})
	head.GeneratedAt, head.Environment.Harness = "2026-11-22T10:00:00.000Z", "2"
	head.Probes[0].Samples["P-LAT-boot"] = head.Probes[0].Samples["P-LAT-boot"][:300]
	// What is compared are reports as they are read.
	for _, r := range []*probes.Report{&base, &head} {
		r.Notes = []string{}
		b, err := report.Encode(*r)
		require.NoError(t, err)
		*r, err = report.Read(b)
		require.NoError(t, err)
	}
	c := compared(t, base, head)
	for format, file := range map[string]string{"text": "text.golden", "markdown": "markdown.golden", "json": "json.golden"} {
		out, err := c.Render(format)
		require.NoError(t, err)
		path := filepath.Join("testdata", file)
		if *update {
			require.NoError(t, os.MkdirAll("testdata", 0o755))
			require.NoError(t, os.WriteFile(path, out, 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(out), format)
	}
}
