package installtest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scripts is where the real ones lie.
const scripts = "../.."

// A step is one call of a script with the environment of a runner.
type step struct {
	t      *testing.T
	script string
	// dir holds what the runner gives a job.
	dir string
	env map[string]string
}

// newStep calls script from a checkout of its own, in which lock is the release
// lock.
func newStep(t *testing.T, script, lock string) *step {
	t.Helper()
	checkout := filepath.Join(t.TempDir(), "checkout")
	copyScripts(t, checkout, lock)
	return stepOf(t, filepath.Join(checkout, "scripts", script))
}

func stepOf(t *testing.T, script string) *step {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir()) // install.sh names no links
	require.NoError(t, err)
	s := &step{t: t, script: script, dir: dir}
	for _, dir := range []string{"tools", "temp", "home", "workspace", "bin"} {
		require.NoError(t, os.Mkdir(filepath.Join(s.dir, dir), 0o755))
	}
	s.env = map[string]string{
		"PATH": s.path("bin") + ":" + os.Getenv("PATH"), "HOME": s.path("home"),
		"RUNNER_OS": "Linux", "RUNNER_ARCH": "X64", "RUNNER_TOOL_CACHE": s.path("tools"), "RUNNER_TEMP": s.path("temp"),
		"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": s.path("workspace"), "GITHUB_OUTPUT": s.path("output"),
	}
	// What a failed attempt waits for is no subject of a test.
	s.tool("sleep", "exit 0")
	return s
}

func (s *step) path(elem ...string) string { return filepath.Join(append([]string{s.dir}, elem...)...) }

// tool puts a shell script before everything else in PATH.
func (s *step) tool(name, body string) {
	s.t.Helper()
	writeScript(s.t, s.path("bin", name), body)
}

func (s *step) set(pairs ...string) *step {
	for i := 0; i < len(pairs); i += 2 {
		s.env[pairs[i]] = pairs[i+1]
	}
	return s
}

// only makes PATH hold nothing but the tools of this machine that are named.
func (s *step) only(tools ...string) {
	s.t.Helper()
	dir := s.t.TempDir()
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		require.NoError(s.t, err)
		path, err = filepath.Abs(path)
		require.NoError(s.t, err)
		require.NoError(s.t, os.Symlink(path, filepath.Join(dir, tool)))
	}
	s.env["PATH"] = dir
}

// command is the call, not yet started.
func (s *step) command() *exec.Cmd {
	s.t.Helper()
	bash, err := exec.LookPath("bash")
	require.NoError(s.t, err)
	cmd := exec.CommandContext(s.t.Context(), bash, s.script)
	cmd.Dir = s.path("workspace")
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return cmd
}

// A result is what came out of one call.
type result struct {
	t    *testing.T
	code int
	log  string
	// outputs are what the step said to later ones.
	outputs map[string]string
}

func (s *step) run() result {
	s.t.Helper()
	var log bytes.Buffer
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = &log, &log
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(s.t, err)
	}
	return s.result(cmd, log.String())
}

func (s *step) result(cmd *exec.Cmd, log string) result {
	s.t.Helper()
	r := result{t: s.t, code: cmd.ProcessState.ExitCode(), log: log, outputs: map[string]string{}}
	b, err := os.ReadFile(s.env["GITHUB_OUTPUT"])
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(s.t, err)
	}
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		require.True(s.t, ok && !strings.Contains(key, "<<"), "output line %q", line)
		r.outputs[key] = value
	}
	s.tame(log)
	return r
}

// tame requires that a runner finds no command in log but the one annotation of
// an error.
func (s *step) tame(log string) {
	s.t.Helper()
	require.NotContains(s.t, log, "##[")
	annotations := 0
	for line := range strings.Lines(log) {
		if line := strings.TrimSpace(line); strings.HasPrefix(line, "::") {
			require.Regexp(s.t, `^::error title=sandbox-redteam::[ -~]+$`, line)
			annotations++
		}
	}
	require.LessOrEqual(s.t, annotations, 1)
}

// fails requires one error that holds every text, no output, and nothing left.
func (s *step) fails(texts ...string) result {
	s.t.Helper()
	r := s.run()
	require.NotZero(s.t, r.code, r.log)
	require.Empty(s.t, r.outputs)
	lines := 0
	for line := range strings.Lines(r.log) {
		if text, ok := strings.CutPrefix(line, "::error title=sandbox-redteam::"); ok {
			lines++
			for _, want := range texts {
				require.Contains(s.t, text, want)
			}
		}
	}
	require.Equal(s.t, 1, lines, r.log)
	require.NotContains(s.t, r.log, "unbound variable")
	require.NotContains(s.t, r.log, "command not found")
	require.Empty(s.t, s.installed())
	require.Empty(s.t, s.leftovers())
	return r
}

// succeeds returns the installed binary.
func (s *step) succeeds() (result, string) {
	s.t.Helper()
	r := s.run()
	require.Zero(s.t, r.code, r.log)
	require.Len(s.t, r.outputs, 2)
	require.Empty(s.t, s.leftovers())
	return r, r.outputs["bin"]
}

// installed lists what is in the tool cache for good.
func (s *step) installed() []string { return s.glob("bsm-redteam/bin/*/*") }

// leftovers lists what a finished step must not leave.
func (s *step) leftovers() []string { return s.glob("bsm-redteam/.tmp.*") }

func (s *step) glob(pattern string) []string {
	s.t.Helper()
	list, err := filepath.Glob(filepath.Join(s.env["RUNNER_TOOL_CACHE"], pattern))
	require.NoError(s.t, err)
	return list
}

func copyScripts(t *testing.T, checkout, lock string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(checkout, "scripts"), 0o755))
	for _, name := range []string{"runner.sh", "install.sh", "prepare-host.sh", "with-fuse.sh"} {
		b, err := os.ReadFile(filepath.Join(scripts, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(checkout, "scripts", name), b, 0o755))
	}
	write(t, filepath.Join(checkout, "scripts", "release.lock"), lock)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func writeScript(t *testing.T, path, body string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}
