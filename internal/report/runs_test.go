package report_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// TestTheTestReportsAreReports: what the renderers are tested with is what Read
// lets through.
func TestTheTestReportsAreReports(t *testing.T) {
	for name, r := range reporttest.All() {
		if name == "empty" || name == "hostile" {
			continue
		}
		b, err := report.Encode(r)
		require.NoError(t, err)
		_, err = report.Read(b)
		require.NoError(t, err, name)
	}
}

func TestBackendsAndTheirRuns(t *testing.T) {
	r := reporttest.Failing()
	require.Equal(t, []string{"qemu"}, report.Backends(r))
	runs := report.RunsOn(r, "qemu")
	require.Len(t, runs, 1)
	require.Equal(t, r.Environment, runs[0].Environment)
	require.Empty(t, report.RunsOn(r, "bwrap"))

	r = reporttest.Merged()
	require.Equal(t, []string{"bwrap", "qemu"}, report.Backends(r))
	require.Len(t, report.RunsOn(r, "bwrap"), 2)
	require.Len(t, report.RunsOn(r, "qemu"), 1)
	require.Equal(t, "bwrap", report.SkippedOn(r, r.SkippedProbes[0]))

	require.Equal(t, []string{"chv"}, report.Backends(reporttest.Skipped()))
	require.Equal(t, []string{"vf"}, report.Backends(probes.Report{Backend: "vf"}))
	require.Equal(t, []string{"vf"}, report.Backends(probes.Report{Backend: "vf+chv", MergedFrom: []probes.MergedRun{{Backend: "vf"}}}))
}

func TestWarnings(t *testing.T) {
	require.Empty(t, report.Warnings(reporttest.Clean(), "qemu"))
	require.Equal(t, []string{"the sandbox was weakened on purpose: user-net, no-seccomp"}, report.Warnings(reporttest.Failing(), "qemu"))
	require.Equal(t, []string{"the sandbox was weakened on purpose: user-net, no-seccomp"}, report.Warnings(reporttest.Merged(), "bwrap"), "once for both shards")
	require.Empty(t, report.Warnings(reporttest.Merged(), "qemu"))
	require.Len(t, report.Warnings(probes.Report{Backend: "stub"}, "stub"), 1)
}
