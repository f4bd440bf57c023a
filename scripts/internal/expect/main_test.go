package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func written(t *testing.T) string {
	t.Helper()
	r := probes.Report{SchemaVersion: probes.SchemaVersion, GeneratedAt: "2026-01-02T03:04:05.000Z", Backend: "qemu", FinalSandboxState: backends.StateReady,
		Probes: []probes.Result{
			{Name: "P-A1-net-egress", AttackerClass: "A1", Expectation: probes.ShouldFail, ValidatedAgainst: "validated-qemu", Description: "d", Reason: "r", Verdict: probes.Escaped},
			{Name: "P-A2-fs-escape", AttackerClass: "A2", Expectation: probes.ShouldFail, ValidatedAgainst: probes.MockOnly, Description: "d", Reason: "r", Passed: true, Verdict: probes.Contained},
		},
		Latency: map[string]probes.Distribution{}, Summary: probes.Summary{Total: 2, Passed: 1, Failed: 1}, Notes: []string{},
		Environment: &probes.Environment{Sandbox: &backends.Provenance{Accelerator: "kvm"}}}
	b, err := json.Marshal(r)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "report.json")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	_, err = report.ReadFile(path)
	require.NoError(t, err)
	return path
}

func TestExpect(t *testing.T) {
	path := written(t)
	outputs := func(change map[string]string) string {
		o := map[string]string{"verdict": "fail", "passed": "1", "failed": "1", "errored": "0", "skipped": "0", "mock-only": "1", "report-json": path}
		for k, v := range change {
			o[k] = v
		}
		b, err := json.Marshal(o)
		require.NoError(t, err)
		return string(b)
	}
	as := func(change ...string) map[string]string { return map[string]string{change[0]: change[1]} }
	for name, c := range map[string]struct {
		args   []string
		change map[string]string
		want   string
	}{
		"as expected":              {[]string{"--probe", "P-A1-net-egress=escaped", "--accelerator", "kvm", "outcome=failure", "verdict=fail", "passed!=0"}, nil, ""},
		"nothing expected":         {nil, nil, "nothing would be checked"},
		"only flags":               {[]string{"--accelerator", "kvm"}, nil, "nothing would be checked"},
		"other outcome":            {[]string{"outcome=success"}, nil, `outcome is "failure"`},
		"other verdict":            {[]string{"verdict=pass"}, nil, `verdict is "fail"`},
		"not zero":                 {[]string{"errored!=0"}, nil, `errored is "0"`},
		"no such output":           {[]string{"passd=1"}, nil, "no output passd"},
		"no assertion":             {[]string{"verdict"}, nil, "neither NAME=VALUE"},
		"a count that lies":        {[]string{"outcome=failure"}, as("failed", "0"), `output failed is "0", the report says 1`},
		"a provenance that lies":   {[]string{"outcome=failure"}, as("mock-only", "0"), `output mock-only is "0", the report says 1`},
		"other verdict of a probe": {[]string{"--probe", "P-A1-net-egress=contained", "outcome=failure"}, nil, `it is "escaped"`},
		"a probe that did not run": {[]string{"--probe", "P-A3-process-escape=escaped", "outcome=failure"}, nil, `it is ""`},
		"other accelerator":        {[]string{"--accelerator", "tcg", "outcome=failure"}, nil, `it is "kvm"`},
		"no report":                {[]string{"outcome=failure"}, as("report-json", ""), ""},
		"no report to look into":   {[]string{"--accelerator", "kvm", "outcome=failure"}, as("report-json", ""), "there is no report"},
		"report is gone":           {[]string{"outcome=failure"}, as("report-json", path+".gone"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(c.args, "failure", outputs(c.change))
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
	require.ErrorContains(t, run([]string{"outcome=failure"}, "failure", ""), "read $OUTPUTS")
}
