package junit

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// reader is an independent consumer of JUnit files, with the digest of its wheel.
const reader = "junitparser==5.0.3 --hash=sha256:553535b8cd1672a9c8bd2c7326ae1ae69279267fbc562106b5aa44d3c5f769af\n"

// python returns an interpreter that can import the reader. Without it the test
// is skipped, or fails where BSM_REQUIRE has "junitparser".
func python(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	wants := filepath.Join(dir, "requirements.txt")
	require.NoError(t, os.WriteFile(wants, []byte(reader), 0o600))
	bin := filepath.Join(dir, "venv", "bin", "python")
	for _, step := range []struct {
		argv []string
		fix  string
	}{
		{[]string{"python3", "-m", "venv", filepath.Join(dir, "venv")}, "sudo apt-get install python3-venv"},
		{[]string{bin, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--only-binary=:all:", "--require-hashes", "-r", wants}, "let pip reach its package index"},
	} {
		if out, err := exec.Command(step.argv[0], step.argv[1:]...).CombinedOutput(); err != nil {
			testreq.Lacks(t, "junitparser", fmt.Errorf("%w: %s; fix: %s", err, strings.TrimSpace(string(out)), step.fix))
		}
	}
	return bin
}

type readSuite struct {
	Name                             string
	Tests, Failures, Errors, Skipped int
	Seconds                          float64
	Properties                       map[string]string
	Cases                            []readCase
}

type readCase struct {
	Name, Class, Kind, Message, Text string
	Seconds                          float64
}

// TestAnIndependentReaderAgrees: junitparser finds in every file the suites, the
// counts, the kinds and the texts of the report.
func TestAnIndependentReaderAgrees(t *testing.T) {
	bin := python(t)
	dir := t.TempDir()
	args := []string{"testdata/read.py"}
	var reports []probes.Report
	for name, r := range reporttest.All() {
		doc, err := Encode(r)
		require.NoError(t, err)
		path := filepath.Join(dir, name+".xml")
		require.NoError(t, os.WriteFile(path, doc, 0o600))
		args, reports = append(args, path), append(reports, r)
	}
	cmd := exec.Command(bin, args...)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	require.NoError(t, err, errOut.String())
	var files [][]readSuite
	require.NoError(t, json.Unmarshal(out, &files))
	require.Len(t, files, len(reports))
	for i, r := range reports {
		agrees(t, r, files[i])
	}
}

func agrees(t *testing.T, r probes.Report, suites []readSuite) {
	t.Helper()
	var got probes.Summary
	require.Len(t, suites, len(report.Backends(r)))
	for i, s := range suites {
		require.Equal(t, text(report.Backends(r)[i]), s.Name)
		count := map[string]int{}
		for _, c := range s.Cases {
			count[c.Kind]++
		}
		require.Equal(t, []int{len(s.Cases), count["failed"], count["errored"], count["skipped"]}, []int{s.Tests, s.Failures, s.Errors, s.Skipped})
		got.Total += s.Tests
		got.Failed += s.Failures
		got.Errored += s.Errors
		got.Skipped += s.Skipped
		got.Passed += count["passed"]
		require.Equal(t, text(r.SchemaVersion), s.Properties["schema_version"])
	}
	require.Equal(t, r.Summary, got)
	for _, p := range r.Probes {
		c := find(t, suites, text(r.BackendOf(p)), text(p.Name))
		require.InDelta(t, float64(p.DurationMS)/1000, c.Seconds, 1e-9)
		want := "failed"
		switch {
		case p.Errored:
			want = "errored"
		case p.Passed:
			want = "passed"
		}
		require.Equal(t, want, c.Kind, p.Name)
		require.Contains(t, c.Text, "reason: "+text(p.Reason)+"\n")
		if p.Witness != nil {
			require.Contains(t, c.Text, "witness saw: "+text(p.Witness.Summary)+"\n")
		}
		if want == "failed" {
			require.Equal(t, text(p.Reason), c.Message)
		}
	}
	for _, p := range r.SkippedProbes {
		c := find(t, suites, text(report.SkippedOn(r, p)), text(p.Name))
		require.Equal(t, "skipped", c.Kind)
		require.Equal(t, text(p.Reason), c.Message)
	}
}

func find(t *testing.T, suites []readSuite, suite, name string) readCase {
	t.Helper()
	for _, s := range suites {
		for _, c := range s.Cases {
			if s.Name == suite && c.Name == name {
				return c
			}
		}
	}
	require.Fail(t, "no such case", "%s in %s", name, suite)
	return readCase{}
}
