package markdown

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

var update = flag.Bool("update", false, "write the golden files")

func clean() probes.Report {
	r := probes.Report{
		SchemaVersion: probes.SchemaVersion, GeneratedAt: "2026-11-21T10:00:00.000Z", Backend: "qemu", FinalSandboxState: backends.StateReady, Baseline: "persisted",
		Probes: []probes.Result{
			{Name: "P-A1-net-egress", AttackerClass: probes.ClassNetEgress, Expectation: probes.ShouldFail, ValidatedAgainst: "validated-qemu", Passed: true, DurationMS: 412,
				Verdict: probes.Contained, Reason: "11 of 13 sub-cases contained", Witness: &probes.Witness{Kind: "canary listeners", Summary: "7 canaries listened, 0 transports arrived from the sandbox"},
				NotTested: []probes.NotTested{{Case: "proxy", Reason: "the policy names no proxy"}}},
			{Name: "P-A4-resource-exhaust", AttackerClass: probes.ClassExhaustion, Expectation: probes.ShouldFail, ValidatedAgainst: "validated-qemu", Passed: true, DurationMS: 2600,
				Verdict: probes.Weak, Severity: probes.SeverityLow, Reason: "weak: inodes: no limit on inodes"},
			{Name: "P-LAT-reset", AttackerClass: probes.ClassLatency, Expectation: probes.ShouldPass, ValidatedAgainst: "validated-qemu", Passed: true, DurationMS: 4100,
				Verdict: probes.Contained, Reason: "20 iterations, none failed", Evidence: map[string]any{"representative": false}},
		},
		Latency:       map[string]probes.Distribution{"P-LAT-reset": {Samples: 20, P50: 184.2, P90: 199.9, P95: 203, P99: 210.4, Mean: 186, Min: 0.97, Max: 12345.6}},
		SkippedProbes: []probes.SkippedProbe{{Name: "P-A6-substrate-lie", Reason: "needs a reset that restores", NeverHosts: true}},
		Environment: &probes.Environment{
			Host: probes.HostFacts{OS: "linux", Arch: "amd64", Kernel: "6.8.0", CPU: "Some CPU @ 3 GHz", CPUs: 4, LSM: []string{"lockdown", "apparmor"}, LSMMode: "apparmor: enabled", Cgroup: "v2", Yama: "1", Userns: "allowed", Virtualised: "kvm"},
			Sandbox: &backends.Provenance{Accelerator: "tcg", VMMVersion: "QEMU emulator version 7.2.22", VMMPID: 4711,
				Digests: map[string]string{"kernel": strings.Repeat("a1", 32), "agent": strings.Repeat("0f", 32)}, Hardening: []string{"seccomp", "uid 65534"}},
			Colocated: true, ColocatedBy: "the guest's boot id is that of a VMM of this run", Policy: "default for qemu", Harness: "v1.2.3",
		},
		Notes: []string{"the agent was built from source", "validation-provenance: mock-only=0 (total=3)"},
	}
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	return r
}

func merged() probes.Report {
	r := probes.Report{
		SchemaVersion: probes.SchemaVersion, GeneratedAt: "2026-11-21T10:00:00.000Z", Backend: "merged", FinalSandboxState: backends.StateFailed,
		Probes: []probes.Result{
			{Name: "P-A1-net-egress", Backend: "bwrap", ValidatedAgainst: "validated-bwrap", DurationMS: 500, Verdict: probes.Escaped, Severity: probes.SeverityCritical,
				Reason: "escaped: tcp4: the tcp4 canary received the token of this run"},
			{Name: "P-A1-net-egress", Backend: "stub", ValidatedAgainst: probes.MockOnly, DurationMS: 1, Passed: true, Verdict: probes.Contained, Reason: "all contained"},
			{Name: "P-A2-fs-escape", Backend: "bwrap", ValidatedAgainst: probes.MockOnly, DurationMS: 90, Errored: true, Verdict: probes.Inconclusive, Reason: "inconclusive: read: the control did not succeed",
				ErrorMessage: "inconclusive: read: the control did not succeed"},
		},
		SkippedProbes: []probes.SkippedProbe{{Name: "P-A4-resource-exhaust", Backend: "bwrap", Reason: "no memory cgroup"}},
		Environment:   &probes.Environment{Leaks: []string{"share-net"}},
	}
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	return r
}

// hostileText is what a report of an attacker might say.
const hostileText = "ok | **PASSED** |\n\n# ✅ all good\n<img src=x onerror=y> [a](javascript:x) @octocat #1 GH-1 :tada: www.a.example \u202e\u200b\x1b[2J\x00`x` ~~~ $x$ </code></details><!-- &lt; \\"

func hostile() probes.Report {
	r := probes.Report{
		SchemaVersion: hostileText, GeneratedAt: hostileText, Backend: hostileText, FinalSandboxState: backends.StateReady, Baseline: hostileText,
		Probes: []probes.Result{{Name: hostileText, Backend: hostileText, ValidatedAgainst: hostileText, Verdict: hostileText, Severity: hostileText, Reason: hostileText,
			NotTested: []probes.NotTested{{Case: hostileText, Reason: hostileText}}, Witness: &probes.Witness{Summary: hostileText}, ErrorMessage: hostileText}},
		Latency:       map[string]probes.Distribution{hostileText: {Samples: 1}},
		SkippedProbes: []probes.SkippedProbe{{Name: hostileText, Backend: hostileText, Reason: hostileText}},
		Environment: &probes.Environment{Leaks: []string{hostileText}, Harness: hostileText, Policy: hostileText, ColocatedBy: hostileText,
			Host:    probes.HostFacts{OS: hostileText, Arch: hostileText, Kernel: hostileText, CPU: hostileText, LSM: []string{hostileText}, LSMMode: hostileText, Cgroup: hostileText, Yama: hostileText, Userns: hostileText, Virtualised: hostileText},
			Sandbox: &backends.Provenance{Accelerator: hostileText, VMMVersion: hostileText, Hardening: []string{hostileText}, Digests: map[string]string{hostileText: hostileText}}},
		Notes: []string{hostileText},
	}
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	return r
}

func TestGolden(t *testing.T) {
	mock := clean()
	mock.Backend, mock.Environment = "stub", nil
	empty := probes.Report{Backend: "qemu", FinalSandboxState: backends.StateNotBooted, Summary: probes.Summary{Total: 2, Skipped: 2}}
	for name, tc := range map[string]struct {
		r probes.Report
		o Options
	}{
		"clean":   {clean(), Options{OK: true, Reasons: []string{"3 of 4 probes passed on qemu"}}},
		"merged":  {merged(), Options{Reasons: []string{"P-A1-net-egress failed: escaped: tcp4: the tcp4 canary received the token of this run", "P-A2-fs-escape errored: inconclusive: read: the control did not succeed"}}},
		"several": {reporttest.Merged(), Options{Reasons: []string{"a reason"}, Warnings: []string{"bwrap/P-A4-resource-exhaust passed with a finding below the threshold (low): no quota"}}},
		"mock":    {mock, Options{OK: true, Reasons: []string{"3 of 4 probes passed on stub"}}},
		"empty":   {empty, Options{}},
		"hostile": {hostile(), Options{OK: true, Reasons: []string{hostileText}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Summary(tc.r, tc.o)
			path := filepath.Join("testdata", name+".md")
			if *update {
				require.NoError(t, os.WriteFile(path, got, 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
	}
}

// quoted finds our renderings of a report's strings.
var quoted = regexp.MustCompile(`<code>((?:[A-Za-z0-9 ]|&#[0-9]+;)*)</code>`)

// shape is a summary with every string of the report taken out.
func shape(b []byte) string { return quoted.ReplaceAllString(string(b), "<code></code>") }

// With the strings of a report taken out, the summary of a hostile report is that
// of a harmless one: no string reached its structure.
func TestNoStringIsStructure(t *testing.T) {
	want := shape(Summary(fill("harmless"), Options{Reasons: []string{"harmless"}, Warnings: []string{"harmless"}}))
	require.NotContains(t, want, "harmless")
	short := hostileText[:nameBytes]
	require.Equal(t, want, shape(Summary(fill(short), Options{Reasons: []string{short}, Warnings: []string{short}})))
	rapid.Check(t, func(t *rapid.T) {
		s := "x" + string(rapid.SliceOfN(rapid.Byte(), 0, nameBytes-1).Draw(t, "bytes"))
		got := Summary(fill(s), Options{Reasons: []string{s}, Warnings: []string{s}})
		require.Equal(t, want, shape(got))
		for _, m := range quoted.FindAllSubmatch(got, -1) {
			_, err := strconv.Unquote(`"` + html.UnescapeString(string(m[1])) + `"`)
			require.NoError(t, err, "what was shown can be read back")
		}
	})
}

// fill is hostile with another text, short enough that no string is cut.
func fill(s string) probes.Report {
	r := hostile()
	r.Backend, r.GeneratedAt, r.Baseline, r.Notes = s, s, s, []string{s}
	x := &r.Probes[0]
	x.Name, x.Backend, x.Verdict, x.Severity, x.Reason, x.ErrorMessage = s, s, probes.Verdict(s), probes.Severity(s), s, s
	x.ValidatedAgainst = "v"
	x.NotTested = []probes.NotTested{{Case: s, Reason: s}}
	r.SkippedProbes = []probes.SkippedProbe{{Name: s, Backend: s, Reason: s}}
	r.Latency = map[string]probes.Distribution{s: {Samples: 1}}
	r.Environment = &probes.Environment{Leaks: []string{s}, Harness: s, Policy: s, ColocatedBy: s, Host: probes.HostFacts{Kernel: s},
		Sandbox: &backends.Provenance{VMMVersion: s, Digests: map[string]string{s: s}}}
	return r
}

// A summary over the limit would be dropped whole. Whatever the report, it fits,
// says what it left out, and shows something of every section.
func TestItFitsAndSaysWhatIsMissing(t *testing.T) {
	r := clean()
	long := strings.Repeat("\x00", 5000)
	r.Backend, r.GeneratedAt, r.Environment.Leaks = long, long, []string{long, long, long, long, long, long, long, long, long}
	var reasons []string
	for i := range 20000 {
		name := fmt.Sprintf("P-%05d", i)
		reasons = append(reasons, name+" failed: "+long)
		r.Probes = append(r.Probes, probes.Result{Name: name, Reason: long, NotTested: []probes.NotTested{{Case: long, Reason: long}}})
		r.SkippedProbes = append(r.SkippedProbes, probes.SkippedProbe{Name: "S-" + name, Reason: long})
		r.Latency[name] = probes.Distribution{Samples: i}
		r.Notes = append(r.Notes, long)
	}
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	for _, limit := range []int{-1, 0, 1, MinLimit, 100 << 10, HardLimit, 10 * HardLimit} {
		got := Summary(r, Options{Reasons: reasons, Warnings: reasons, Limit: limit})
		want := min(max(limit, MinLimit), HardLimit)
		if limit <= 0 {
			want = DefaultLimit
		}
		require.LessOrEqual(t, len(got), want, "limit %d", limit)
		require.Greater(t, len(got), want/2, "limit %d", limit)
		for _, what := range []string{"reasons", "warnings", "results", "latencies", "entries"} {
			require.Regexp(t, `\*\*Truncated: [0-9]+ of [0-9]+ `+what+` are not shown`, string(got), "limit %d", limit)
		}
		if want > MinLimit {
			for _, first := range []string{"P&#45;00000 failed", "<code>7 canaries listened", "<code>P&#45;00000</code> |", "the whole probe:", "report made"} {
				require.Contains(t, string(got), first, "limit %d", limit)
			}
		}
		wellFormed(t, got)
	}
}

// wellFormed: the only element is <code>, and each one is closed.
func wellFormed(t *testing.T, b []byte) {
	t.Helper()
	plain := bytes.ReplaceAll(b, []byte("> ⚠️"), nil)
	d := xml.NewDecoder(bytes.NewReader(append(append([]byte("<x>"), plain...), "</x>"...)))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		if e, ok := tok.(xml.StartElement); ok {
			require.Contains(t, []string{"x", "code"}, e.Name.Local)
		}
	}
}

func TestWarnings(t *testing.T) {
	mock := clean()
	mock.Backend = "stub"
	require.Equal(t, []string{"The backend is the mock. This run proves nothing about a boundary."}, warnings(mock, true))
	require.Empty(t, warnings(clean(), true))
	require.Equal(t, []string{
		"1 of 3 results come from the mock. They prove nothing about a boundary.",
		"Deliberate weaknesses were built into the sandbox: <code>share&#45;net</code>",
		"The sandbox ended in the state failed.",
	}, warnings(merged(), false))
	require.Contains(t, warnings(merged(), true), "Probes that failed or errored: 2. The gate was told to accept that.")
}

func TestLatencyOfAnEmulatorIsMarked(t *testing.T) {
	r := clean()
	require.True(t, notRepresentative(r, "P-LAT-reset"))
	require.True(t, notRepresentative(r, "shutdown"), "as the run that it is of")
	r.Environment.Sandbox.Accelerator = "kvm"
	require.True(t, notRepresentative(r, "P-LAT-reset"), "the result says so")
	require.False(t, notRepresentative(r, "shutdown"))
	r.Probes[2].Evidence = nil
	require.False(t, notRepresentative(r, "P-LAT-reset"))
	require.NotContains(t, string(Summary(r, Options{})), "emulated")
}
