package report

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// sample is a report with every optional part.
func sample() probes.Report {
	results := []probes.Result{
		{Name: "P-A1-net-egress", AttackerClass: "A1", Expectation: probes.ShouldFail, ValidatedAgainst: "validated-qemu", Description: "d & <d>",
			Passed: true, Reason: "contained", DurationMS: 12, Evidence: map[string]any{"errno": "EACCES"}, Verdict: probes.Contained,
			Control: &probes.Control{Target: "open agent", OK: true, Summary: "4 of 4"}, Witness: &probes.Witness{Kind: "canary listeners", Summary: "no token arrived at 6 canaries"},
			Attempts:  []probes.ReportedAttempt{{Case: "tcp", Op: "connect", Target: "127.0.0.1:1", Result: "denied", Errno: "EPERM", DataLength: 2, DataSHA256: strings.Repeat("ab", 32)}},
			Cases:     []probes.Case{{Name: "tcp", Required: true, Proved: true, Controlled: true, WitnessAlive: true, Attempted: true, Verdict: probes.Contained}},
			NotTested: []probes.NotTested{{Case: "icmp", Reason: "no raw socket"}}},
		{Name: "P-A2-fs-escape", AttackerClass: "A2", Expectation: probes.ShouldFail, ValidatedAgainst: probes.MockOnly, Description: "d",
			Reason: "escaped: shadow: the secret left", DurationMS: 1500, Verdict: probes.Escaped, Severity: probes.SeverityCritical},
		{Name: "P-A3-process-escape", AttackerClass: "A3", Expectation: probes.ShouldFail, ValidatedAgainst: probes.MockOnly, Description: "d",
			Reason: "inconclusive: kill: the control did not succeed", Errored: true, ErrorMessage: "inconclusive: kill: the control did not succeed", Verdict: probes.Inconclusive},
		{Name: "P-LAT-boot", AttackerClass: "LAT", Expectation: probes.ShouldPass, ValidatedAgainst: "validated-qemu", Description: "d", Passed: true, Verdict: probes.Contained, Reason: "n=3", DurationMS: 3000},
	}
	skipped := []probes.SkippedProbe{{Name: "P-A8-vsock-poison", Reason: "no channel", NeverHosts: true}}
	return probes.Report{
		SchemaVersion: "1.0", GeneratedAt: "2026-04-27T12:00:00.000Z", Backend: "qemu", FinalSandboxState: backends.StateReady,
		Probes: results, Latency: map[string]probes.Distribution{"P-LAT-boot": {Samples: 3, P50: 0.5, P90: 12, P95: 1200, P99: 12000, Mean: 1, Min: 0.1, Max: 12000}},
		Summary: probes.Summarise(results, skipped), Notes: []string{"a note", probes.ProvenanceNote(results)}, SkippedProbes: skipped, Baseline: "recorded-in-run",
		Environment: &probes.Environment{Host: probes.HostFacts{OS: "linux", Arch: "amd64", CPUs: 2}, Colocated: true, ColocatedBy: "pid 7",
			Sandbox: &backends.Provenance{Accelerator: "tcg", VMMVersion: "9", VMMPID: 7, Digests: map[string]string{"kernel": strings.Repeat("00", 32)}}, Leaks: []string{"user-net"},
			FailSeverity: probes.SeverityLow, Harness: "devel", HarnessSHA256: strings.Repeat("33", 32)},
	}
}

func TestReadTakesWhatEncodeWrote(t *testing.T) {
	b, err := Encode(sample())
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(b, []byte("{\n  \"schema_version\": \"1.0\",\n  \"generated_at\"")))
	require.Contains(t, string(b), `"d & <d>"`)
	got, err := Read(b)
	require.NoError(t, err)
	require.Equal(t, sample(), got)
}

func TestEncodeWritesEmptyListsNotNull(t *testing.T) {
	b, err := Encode(probes.Report{SchemaVersion: "1.0"})
	require.NoError(t, err)
	require.NotContains(t, string(b), "null")
	require.Contains(t, string(b), `"probes": []`)
	require.Contains(t, string(b), `"latency": {}`)
}

// TestReadTakesThePeersReport: our schema is a superset of the peer's.
func TestReadTakesThePeersReport(t *testing.T) {
	b, err := os.ReadFile("testdata/peer-shape.json")
	require.NoError(t, err)
	r, err := Read(b)
	require.NoError(t, err)
	require.Equal(t, 3, r.Summary.Skipped)
}

func TestReadRefuses(t *testing.T) {
	good, err := Encode(sample())
	require.NoError(t, err)
	swap := func(old, new string) string {
		require.Contains(t, string(good), old)
		return strings.Replace(string(good), old, new, 1)
	}
	for name, c := range map[string]struct{ doc, want string }{
		"nothing":            {"", "empty"},
		"truncated":          {string(good[:len(good)/2]), "not JSON"},
		"an array":           {"[]", "not a report"},
		"a number":           {"1", "not a report"},
		"null":               {"null", "schema_version"},
		"two documents":      {string(good) + "{}", "after the report"},
		"another schema":     {swap(`"schema_version": "1.0"`, `"schema_version": "2.0"`), `"2.0"`},
		"no summary":         {swap(`"summary": {`, `"sumary": {`), "summary is missing"},
		"unknown key":        {swap(`"baseline":`, `"based":`), "based"},
		"repeated key":       {swap(`"backend": "qemu"`, `"backend": "qemu", "Backend": "mock"`), "appears twice"},
		"repeated deep key":  {swap(`"passed": true,`, `"passed": false, "passed": true,`), "appears twice"},
		"repeated by a fold": {swap(`"passed": true,`, "\"passed\": false, \"pa\u017f\u017fed\": true,"), "appears twice"},
		"an escaped fold":    {swap(`"passed": true,`, `"passed": false, "pa\u017f\u017fed": true,`), "appears twice"},
		"a bottomless list":  {strings.Repeat("[", 8<<20), "nested more than 1000 deep"},
		"a time below zero":  {swap(`"duration_ms": 12`, `"duration_ms": -12`), "took -12 ms"},
		"a wrong sum":        {swap(`"total": 5`, `"total": 6`), "does not add up"},
		"wrong counts":       {swap(`"passed": 2`, `"passed": 3`), "does not add up"},
		"a lie that adds up": {strings.Replace(swap(`"passed": 2`, `"passed": 3`), `"failed": 1`, `"failed": 0`, 1), "its probes are"},
		"a negative":         {strings.Replace(swap(`"total": 5`, `"total": 0`), `"skipped": 1`, `"skipped": -4`, 1), "negative"},
		"a state":            {swap(`"final_sandbox_state": "ready"`, `"final_sandbox_state": "fine"`), "fine"},
		"a provenance":       {swap(`"validated_against": "mock-only"`, `"validated_against": "trust me"`), "trust me"},
		"a time":             {swap(`2026-04-27T12:00:00.000Z`, `yesterday`), "generated_at"},
		"twice":              {swap(`"P-A2-fs-escape"`, `"P-A1-net-egress"`), "listed twice"},
		"skipped and run":    {swap(`"P-A8-vsock-poison"`, `"P-A1-net-egress"`), "listed twice"},
		"passed by escape":   {swap(`"verdict": "contained"`, `"verdict": "escaped"`), "passed with the verdict"},
		"a type":             {swap(`"duration_ms": 12`, `"duration_ms": "12"`), "not a report"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read([]byte(c.doc))
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err = ReadFile(t.TempDir() + "/missing.json")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// FuzzRead: nothing crashes the reader, and what it accepts adds up and survives
// another round.
func FuzzRead(f *testing.F) {
	good, err := Encode(sample())
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"schema_version":"1.0"}`))
	f.Add([]byte(`[[{"a":{}}]]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Read(b)
		if err != nil {
			return
		}
		s := r.Summary
		require.Equal(t, s.Total, s.Passed+s.Failed+s.Errored+s.Skipped)
		again, err := Encode(r)
		require.NoError(t, err)
		_, err = Read(again)
		require.NoError(t, err)
	})
}
