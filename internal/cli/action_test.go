package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/actions"
	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
	"github.com/brainst0rm/sandbox-redteam/internal/gate"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// outputsAgree requires that the runner gets a verdict and the numbers of the
// report from a file of outputs: agree FILE VERDICT.
func outputsAgree(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: agree FILE VERDICT")
	}
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	pairs, err := runnertest.ParsePairs(b)
	ts.Check(err)
	got := map[string]string{}
	for _, p := range pairs {
		got[p.Key] = p.Value
	}
	r, err := report.ReadFile(got[actions.OutReportJSON])
	ts.Check(err)
	mock := 0
	for _, p := range r.Probes {
		if p.ValidatedAgainst == probes.MockOnly {
			mock++
		}
	}
	for _, want := range []struct {
		name string
		n    int
	}{{actions.OutPassed, r.Summary.Passed}, {actions.OutFailed, r.Summary.Failed}, {actions.OutErrored, r.Summary.Errored}, {actions.OutSkipped, r.Summary.Skipped}, {actions.OutMockOnly, mock}} {
		if got[want.name] != strconv.Itoa(want.n) {
			ts.Fatalf("output %s is %q, the report has %d", want.name, got[want.name], want.n)
		}
	}
	for _, name := range []string{actions.OutReportJUnit, actions.OutReportSARIF} {
		_, err := os.Stat(got[name])
		ts.Check(err)
		if filepath.Dir(got[name]) != got[actions.OutReportDir] {
			ts.Fatalf("%s is not in %s", got[name], got[actions.OutReportDir])
		}
	}
	if got[actions.OutVerdict] != args[1] || got[actions.OutVersion] == "" {
		ts.Fatalf("verdict %q of version %q, want %s", got[actions.OutVerdict], got[actions.OutVersion], args[1])
	}
}

// annotatesOnly requires that what a step printed does nothing but make
// annotations of our own: annotates out.txt err.txt.
func annotatesOnly(ts *testscript.TestScript, neg bool, args []string) {
	r := runnertest.New(runnertest.Matchers()...)
	for _, name := range args {
		b, err := os.ReadFile(ts.MkAbs(name))
		ts.Check(err)
		r.Print(b)
	}
	if neg || len(r.Annotations) == 0 {
		ts.Fatalf("usage: annotates FILE..., of which one has an annotation")
	}
	for _, a := range r.Annotations {
		if !strings.HasPrefix(a.Properties["title"], "bsm-redteam") {
			ts.Fatalf("not ours: %+v", a)
		}
	}
	if len(r.Commands) != len(r.Annotations) {
		ts.Fatalf("%d commands for %d annotations: %+v", len(r.Commands), len(r.Annotations), r.Commands)
	}
	r.Commands, r.Annotations = nil, nil
	if did := r.Untouched(); did != "" || r.Lost > 0 {
		ts.Fatalf("%s (%d annotations lost)", did, r.Lost)
	}
}

func TestEveryFlagOfAnInputExists(t *testing.T) {
	in := map[string]string{}
	for _, i := range actions.Inputs() {
		if i.Run {
			in[i.Name] = ""
		}
	}
	for _, f := range flagOf {
		require.Contains(t, in, f.input)
	}
	o, err := runOptionsOf(in)
	require.NoError(t, err)
	want := newRunOptions()
	require.NoError(t, err)
	want.onUnavailable = "fail"
	require.Equal(t, "fail", o.onUnavailable, "a job that tested nothing must not look green")
	require.Equal(t, 1000, o.iterations, "an input that is not set leaves the flag's default")
	require.Equal(t, "all", o.probes)
}

func TestAnnotationsAreTheWorstFirst(t *testing.T) {
	d := gate.Decision{
		Reasons: []gate.Reason{
			{Kind: gate.KindErrored, Probe: "P-E", Text: "e"}, {Kind: gate.KindFailed, Probe: "P-M", Severity: probes.SeverityMedium, Text: "m"},
			{Kind: gate.KindEmpty, Text: "empty"}, {Kind: gate.KindFailed, Probe: "P-C", Severity: probes.SeverityCritical, Text: "c"},
			{Kind: gate.KindRegression, Probe: "P-M", Text: "r"}, {Kind: gate.KindStopped, Text: "s"}, {Kind: gate.KindFailed, Probe: "P-U", Text: "unknown"},
		},
		Warnings: []gate.Reason{{Kind: gate.KindMock, Text: "mock"}, {Kind: gate.KindWeak, Probe: "P-W", Text: "w"}, {Kind: gate.KindLeaks, Text: "l"}},
	}
	var got []string
	for _, a := range annotations(d, "policy.yaml") {
		got = append(got, string(a.Level)+" "+a.Message)
		require.Equal(t, "policy.yaml", a.File)
	}
	require.Equal(t, []string{"error s", "error c", "error m", "error unknown", "error r", "error e", "error empty", "warning l", "warning w", "warning mock"}, got)

	for range 20 {
		d.Reasons = append(d.Reasons, gate.Reason{Kind: gate.KindErrored, Text: "e"})
	}
	all := annotations(d, "")
	require.Len(t, all, actions.MaxAnnotations)
	require.Equal(t, "mock", all[9].Message, "the mock is named whatever else there is")
	require.Equal(t, "s", all[0].Message)

	ok := annotations(gate.Decision{OK: true, Reasons: []gate.Reason{{Kind: gate.KindAccepted, Text: "fine"}}}, "")
	require.Equal(t, actions.Notice, ok[0].Level)
}

func TestEveryKindHasItsGravity(t *testing.T) {
	for _, k := range []gate.Kind{gate.KindFailed, gate.KindErrored, gate.KindState, gate.KindRegression, gate.KindEmpty, gate.KindMockOnly, gate.KindSkipped,
		gate.KindMock, gate.KindLeaks, gate.KindBaseline, gate.KindWeak, gate.KindStopped, gate.KindMissing, gate.KindAccepted} {
		require.True(t, slices.Contains(gravity, k), k)
	}
}
