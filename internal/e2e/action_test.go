package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// with returns the inputs that every test here gives, and its own. act empties
// the file of the summary between the steps of a composite action, so a script
// around the program keeps it.
func (j *job) with(bin string, in inputs) inputs {
	keeper := filepath.Join(j.tmp, "bsm-redteam")
	text := "#!/bin/sh\n" + bin + ` "$@"; code=$?
[ "$1" != action ] || cp "$GITHUB_STEP_SUMMARY" "$KEEP/summary.md"
exit $code
`
	require.NoError(j.t, os.WriteFile(keeper, []byte(text), 0o755))
	out := inputs{"install": "none", "bin": keeper, "prepare-host": "never", "attestation": "off"}
	for k, v := range in {
		out[k] = v
	}
	return out
}

// readReport reads the JSON report that the job kept.
func (s seen) readReport(t *testing.T) probes.Report {
	t.Helper()
	r, err := report.ReadFile(filepath.Join(s.reports, filepath.Base(s.outputs["report-json"])))
	require.NoError(t, err, s.log)
	return r
}

// agrees requires that every number in the outputs is the report's.
func (s seen) agrees(t *testing.T) probes.Report {
	t.Helper()
	r := s.readReport(t)
	mock := 0
	for _, p := range r.Probes {
		if p.ValidatedAgainst == probes.MockOnly {
			mock++
		}
	}
	for name, want := range map[string]int{"passed": r.Summary.Passed, "failed": r.Summary.Failed, "errored": r.Summary.Errored, "skipped": r.Summary.Skipped, "mock-only": mock} {
		require.Equal(t, strconv.Itoa(want), s.outputs[name], "output %s\n%s", name, s.log)
	}
	for _, name := range []string{"report-json", "report-junit", "report-sarif"} {
		require.FileExists(t, filepath.Join(s.reports, filepath.Base(s.outputs[name])), name)
		require.Equal(t, s.outputs["report-dir"], filepath.Dir(s.outputs[name]))
	}
	require.NotEmpty(t, s.outputs["version"])
	require.Contains(t, []string{"success", "failure"}, s.outcome)
	require.Equal(t, s.outcome == "success", s.ok, "the job ends as the step does")
	return r
}

func TestActionMock(t *testing.T) {
	p := build(t)
	t.Run("passes, and says that it proves nothing", func(t *testing.T) {
		j := newJob(t)
		s := j.run(j.with(p.bin, inputs{"backend": "mock", "iterations": "20"}))
		r := s.agrees(t)
		require.Equal(t, "success", s.outcome, s.log)
		require.Equal(t, "pass", s.outputs["verdict"])
		require.Equal(t, 11, r.Summary.Passed)
		require.Equal(t, "11", s.outputs["mock-only"])
		require.Contains(t, s.log, "proves nothing about a boundary")
		require.Contains(t, s.summary, "proves nothing about a boundary")
	})
	t.Run("built from the checkout", func(t *testing.T) {
		j := newJob(t)
		s := j.run(inputs{"backend": "mock", "iterations": "5", "install": "source", "prepare-host": "never"})
		s.agrees(t)
		require.Equal(t, "success", s.outcome, s.log)
	})
	t.Run("a release that is not there is an error", func(t *testing.T) {
		j := newJob(t)
		s := j.run(inputs{"backend": "mock", "prepare-host": "never"})
		require.Equal(t, "failure", s.outcome)
		require.Equal(t, "error", s.outputs["verdict"], "also where the program was not even started")
		require.Contains(t, s.log, "no release yet, use install: source")
	})
	t.Run("nothing tested fails, unless that is allowed", func(t *testing.T) {
		for _, c := range []struct {
			in      inputs
			outcome string
		}{
			{inputs{"backend": "chv"}, "failure"},
			{inputs{"backend": "chv", "on-unavailable": "skip"}, "failure"},
			{inputs{"backend": "chv", "on-unavailable": "skip", "fail-on": "never"}, "failure"},
			{inputs{"backend": "chv", "allow-empty": "true"}, "failure"},
			{inputs{"backend": "chv", "on-unavailable": "skip", "allow-empty": "true"}, "success"},
		} {
			j := newJob(t)
			s := j.run(j.with(p.bin, c.in))
			s.agrees(t)
			require.Equal(t, c.outcome, s.outcome, "%v\n%s", c.in, s.log)
			require.Equal(t, "0", s.outputs["passed"])
			require.Equal(t, "11", s.outputs["skipped"])
		}
	})
	t.Run("a regression against the baseline fails", func(t *testing.T) {
		j := newJob(t)
		base := filepath.Join(j.repo, "main.json")
		run := p.command("--sandbox", "mock", "--probes", "A1,A2", "-o", base)
		out, err := run.CombinedOutput()
		require.NoError(t, err, string(out))
		j.write("policy.yaml", "leaks: [leak-a1]\n", 0o644)
		s := j.run(j.with(p.bin, inputs{"backend": "mock", "probes": "A1,A2", "baseline": "main.json", "config": "policy.yaml", "fail-on": "regression"}))
		s.agrees(t)
		require.Equal(t, "failure", s.outcome, s.log)
		require.Equal(t, "1", s.outputs["regressions"])
		require.Contains(t, s.log, "regression: P-A1-net-egress")
		require.Contains(t, s.summary, "regression: P-A1-net-egress")
	})
}

func TestActionVM(t *testing.T) {
	testreq.Need(t, "qemu")
	if testing.Short() {
		t.Skip("a battery in an emulated machine takes half a minute; leave -short out")
	}
	p := build(t)
	j := newJob(t)
	s := j.run(j.with(p.bin, inputs{"backend": "qemu", "iterations": "2"}))
	r := s.agrees(t)
	require.Equal(t, "success", s.outcome, s.log)
	require.Equal(t, 11, r.Summary.Passed)
	require.Equal(t, "0", s.outputs["mock-only"])
	require.Empty(t, s.outputs["regressions"], "nothing was compared")
}

func TestActionNamespaces(t *testing.T) {
	testreq.Need(t, "linux", "bwrap", "userns", "cgroup")
	p := build(t)
	t.Run("a leak fails, naming probe and witness", func(t *testing.T) {
		j := newJob(t)
		j.write("policy.yaml", "leaks: [share-net]\n", 0o644)
		s := j.run(j.with(p.bin, inputs{"backend": "bwrap", "probes": "adversarial", "config": "policy.yaml"}))
		r := s.agrees(t)
		require.Equal(t, "failure", s.outcome, s.log)
		require.Equal(t, "fail", s.outputs["verdict"])
		require.Equal(t, 1, r.Summary.Failed)
		for _, text := range []string{s.log, s.summary} {
			require.Contains(t, text, "P-A1-net-egress")
			require.Contains(t, text, "canary received the token of this run")
		}
	})
	t.Run("one probe without provenance fails, whatever fail-on says", func(t *testing.T) {
		// An agent without its attack tools: P-A1 cannot prove that it ran.
		toolless := filepath.Join(p.home, "toolless")
		require.NoError(t, os.MkdirAll(toolless, 0o755))
		bin := filepath.Join(toolless, "bsm-redteam")
		require.NoError(t, os.Link(p.bin, bin))
		cmd := exec.Command("go", "build", "-trimpath", "-tags", "bsm_variant_toolless", "-o", filepath.Join(toolless, "bsm-agent"), "./cmd/bsm-agent")
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		j := newJob(t)
		s := j.run(j.with(bin, inputs{"backend": "bwrap", "probes": "P-A1-net-egress,P-LAT-roundtrip", "iterations": "20", "fail-on": "never"}))
		s.agrees(t)
		require.Equal(t, "1", s.outputs["passed"], s.log)
		require.Equal(t, "1", s.outputs["mock-only"])
		require.Equal(t, "failure", s.outcome)
		require.Contains(t, s.log, "still mock-only: P-A1-net-egress")
		require.Contains(t, s.summary, "still mock-only: P-A1-net-egress")
	})
	t.Run("two jobs at once on one runner do not collide", func(t *testing.T) {
		home, tmp := t.TempDir(), ""
		var jobs [2]*job
		for i := range jobs {
			jobs[i] = newJob(t)
			if i == 0 {
				tmp = jobs[i].tmp
			}
			jobs[i].home, jobs[i].tmp = home, tmp
		}
		var all [2]seen
		var wg sync.WaitGroup
		for i, j := range jobs {
			wg.Go(func() { all[i] = j.run(j.with(p.bin, inputs{"backend": "bwrap", "iterations": "50"})) })
		}
		wg.Wait()
		for _, s := range all {
			s.agrees(t)
			require.Equal(t, "success", s.outcome, s.log)
			require.Equal(t, "11", s.outputs["passed"])
		}
	})
	t.Run("a cancelled job leaves a partial report and no process", func(t *testing.T) {
		j := newJob(t)
		cmd := j.command(inputs{"install": "none", "bin": p.bin, "prepare-host": "never", "backend": "bwrap", "probes": "A1,P-LAT-roundtrip", "iterations": "3000000", "report-dir": "kept"})
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		require.NoError(t, cmd.Start())
		var inside []process
		require.Eventually(t, func() bool {
			inside = tree(t, strconv.Itoa(cmd.Process.Pid))
			return j.started() && slices.ContainsFunc(inside, func(p process) bool { return p.comm == "bsm-agent" })
		}, time.Minute, 20*time.Millisecond, "no sandbox came up")
		// act ends a cancelled step with SIGKILL: what is left is reap's.
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		_ = cmd.Wait()
		s := j.look(log.Bytes(), false)
		require.Equal(t, "failure", s.outcome, s.log)
		gone(t, inside)
		r, err := report.ReadFile(filepath.Join(s.reports, "report.json"))
		require.NoError(t, err, s.log)
		require.Equal(t, 1, r.Summary.Passed, "the probe before the cancellation")
		require.Equal(t, 1, r.Summary.Skipped)
		require.Equal(t, "interrupted before it ran", r.SkippedProbes[0].Reason)
		// act ends a cancelled composite action without its last step, which
		// GitHub's runner does run; here it is run by hand.
		reap := exec.Command(p.bin, "reap")
		reap.Env = cmd.Env
		out, err := reap.CombinedOutput()
		require.NoError(t, err, string(out))
		left, err := os.ReadDir(j.tmp)
		require.NoError(t, err)
		require.Empty(t, left, string(out))
	})
}

// started reports whether the long probe of a job runs.
func (j *job) started() bool {
	list, _ := filepath.Glob(j.home + "/.cache/act/*/hostexecutor/kept/report.json")
	for _, file := range list {
		b, err := os.ReadFile(file)
		if r, bad := report.Read(b); err == nil && bad == nil && len(r.Probes) == 1 {
			return true
		}
	}
	return false
}

// gone requires that processes end.
func gone(t *testing.T, list []process) {
	t.Helper()
	require.Eventually(t, func() bool {
		left := running(t)
		return !slices.ContainsFunc(list, func(p process) bool {
			return slices.ContainsFunc(left, func(q process) bool { return p.pid == q.pid && p.start == q.start })
		})
	}, 10*time.Second, 10*time.Millisecond, "processes of the sandbox are left")
}

// TestRunnersCancel sends what GitHub's runner sends to the entry process of a
// cancelled step: SIGINT, then SIGTERM after 7.5 s, then SIGKILL after 2.5 s.
func TestRunnersCancel(t *testing.T) {
	testreq.Need(t, "linux", "go", "bwrap", "userns", "cgroup", "bash")
	p := build(t)
	for _, backend := range []string{"mock", "bwrap", "qemu"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "qemu" {
				testreq.Need(t, "qemu")
			}
			dir := t.TempDir()
			script := filepath.Join(dir, "step.sh")
			require.NoError(t, os.WriteFile(script, []byte("exec \"$BSM_BIN\" action\n"), 0o600))
			cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", script)
			cache, err := os.UserCacheDir()
			require.NoError(t, err)
			cmd.Env = append(slices.Clone(p.env), "XDG_CACHE_HOME="+cache, "BSM_BIN="+p.bin, "INPUT_BACKEND="+backend, "INPUT_PROBES=A1,P-LAT-roundtrip", "INPUT_ITERATIONS=3000000",
				"INPUT_REPORT_DIR="+dir+"/reports", "RUNNER_TEMP="+dir, "GITHUB_WORKSPACE="+dir, "GITHUB_OUTPUT="+dir+"/output", "GITHUB_STEP_SUMMARY="+dir+"/summary")
			for _, name := range []string{"output", "summary"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
			}
			var log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &log, &log
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			json := filepath.Join(dir, "reports/report.json")
			require.Eventually(t, func() bool {
				r, err := report.ReadFile(json)
				return err == nil && len(r.Probes) == 1
			}, time.Minute, 20*time.Millisecond, "the first probe did not end")
			inside := tree(t, strconv.Itoa(cmd.Process.Pid))
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
			select {
			case <-ended:
			case <-time.After(7500 * time.Millisecond):
				t.Fatal("still there when the runner would send SIGTERM")
			}
			require.Equal(t, 130, cmd.ProcessState.ExitCode(), log.String())
			gone(t, inside)
			r, err := report.ReadFile(json)
			require.NoError(t, err)
			require.Equal(t, 2, r.Summary.Total)
			require.Equal(t, 1, r.Summary.Passed)
			outputs, err := os.ReadFile(filepath.Join(dir, "output"))
			require.NoError(t, err)
			require.Contains(t, string(outputs), "passed")
			summary, err := os.ReadFile(filepath.Join(dir, "summary"))
			require.NoError(t, err)
			require.Contains(t, string(summary), "cancelled")
			require.Empty(t, p.recorded())
		})
	}
}
