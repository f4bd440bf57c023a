package workflows

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// A host runs workflows with nektos/act, without containers: the steps are
// processes of this machine. Actions of others are replaced by stand-ins, because
// a test downloads none; ours is this tree.
type host struct {
	t     *testing.T
	repo  string // what a job checks out
	tree  string // this tree, as a checkout would bring it
	store string // what jobs hand to each other
	args  []string
}

// standIns are others' actions as far as the examples use them.
var standIns = map[string]string{
	"actions/checkout": `inputs: {repository: {}, ref: {}, path: {}, persist-credentials: {}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'mkdir -p "$TO" && cp -r "$STAND_IN_TREE/." "$TO"', env: {TO: "${{ inputs.path }}"}}
`,
	"actions/upload-artifact": `inputs: {name: {}, path: {}, if-no-files-found: {}}
runs:
  using: composite
  steps:
    - shell: bash
      run: mkdir -p "$STAND_IN_STORE/$NAME" && if [ -d "$FROM" ]; then cp -r "$FROM/." "$STAND_IN_STORE/$NAME"; else cp "$FROM" "$STAND_IN_STORE/$NAME"; fi
      env: {NAME: "${{ inputs.name }}", FROM: "${{ inputs.path }}"}
`,
	"actions/download-artifact": `inputs: {name: {}, pattern: {}, path: {}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'mkdir -p "$TO" && cp -r "$STAND_IN_STORE"/$PATTERN "$TO"', env: {TO: "${{ inputs.path }}", PATTERN: "${{ inputs.pattern }}"}}
`,
	"mikepenz/action-junit-report": `inputs: {report_paths: {}, check_name: {}, include_passed: {}, require_tests: {}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'grep -q "<testcase" "$FILE" && cp "$FILE" "$STAND_IN_STORE"', env: {FILE: "${{ inputs.report_paths }}"}}
`,
	"github/codeql-action/upload-sarif": `inputs: {sarif_file: {}, category: {}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'grep -q "2.1.0" "$FILE" && cp "$FILE" "$STAND_IN_STORE"', env: {FILE: "${{ inputs.sarif_file }}"}}
`,
}

func newHost(t *testing.T) *host {
	t.Helper()
	if testing.Short() {
		t.Skip("boots machines in workflows; fix: run without -short")
	}
	testreq.Need(t, "linux", "go", "git", "act")
	h := &host{t: t, repo: t.TempDir(), tree: t.TempDir(), store: t.TempDir()}
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	list.Dir = root
	names, err := list.Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed and not yet committed
		}
		require.NoError(t, err)
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		put(t, filepath.Join(h.tree, name), string(text), info.Mode().Perm())
	}
	commit(t, h.tree)
	// One job after the other: each of them watches clocks and processes.
	h.args = []string{"--concurrent-jobs", "1", "--no-cache-server", "--local-repository", ours + "@v1=" + h.tree,
		"--env", "STAND_IN_TREE=" + h.tree, "--env", "STAND_IN_STORE=" + h.store}
	for _, label := range []string{"ubuntu-24.04", "self-hosted"} {
		h.args = append(h.args, "--platform", label+"=-self-hosted")
	}
	for _, name := range []string{"GOMODCACHE", "GOCACHE"} {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		require.NoError(t, err)
		h.args = append(h.args, "--env", name+"="+strings.TrimSpace(string(out)))
	}
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	h.args = append(h.args, "--env", "XDG_CACHE_HOME="+cache) // guest images are made once
	return h
}

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
}

func commit(t *testing.T, dir string) {
	t.Helper()
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "t"}} {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

// run runs the workflow of a repository, and returns its log and whether all jobs
// succeeded.
func (h *host) run(repo, event, workflow string, args ...string) (string, bool) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), "act", append(append([]string{event, "--workflows", workflow}, h.args...), args...)...)
	cmd.Dir = repo
	home := h.t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+home+"/.cache", "XDG_STATE_HOME="+home+"/state", "XDG_CONFIG_HOME="+home+"/config")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	err := cmd.Run()
	require.NoError(h.t, h.t.Context().Err())
	return log.String(), err == nil
}

var pin = regexp.MustCompile(`uses: ([A-Za-z0-9/._-]+)@([0-9a-f]{40})`)

// example runs one of docs/examples in a repository of somebody else's, with the
// given changes: there is no release to install, and no time for every probe.
func (h *host) example(event, name string, changes ...string) (string, bool) {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs", "examples", name))
	require.NoError(h.t, err)
	text := string(b)
	for i := 0; i < len(changes); i += 2 {
		require.Contains(h.t, text, changes[i])
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	stands := h.t.TempDir()
	for _, m := range pin.FindAllStringSubmatch(text, -1) {
		require.Contains(h.t, standIns, m[1])
		owner := strings.Join(strings.SplitN(m[1], "/", 3)[:2], "/")
		dir := filepath.Join(stands, owner)
		put(h.t, filepath.Join(dir, strings.TrimPrefix(m[1], owner), "action.yml"), "name: stand-in\ndescription: stand-in\n"+standIns[m[1]], 0o644)
		h.args = append(h.args, "--local-repository", owner+"@"+m[2]+"="+dir)
	}
	policy, err := os.ReadFile(filepath.Join(root, "docs", "examples", "policy.yaml"))
	require.NoError(h.t, err)
	for _, file := range []string{"policy.yaml", "policy-before.yaml"} {
		put(h.t, filepath.Join(h.repo, "sandbox", file), string(policy), 0o644)
	}
	put(h.t, filepath.Join(h.repo, ".github", "workflows", "example.yml"), text, 0o644)
	commit(h.t, h.repo)
	return h.run(h.repo, event, ".github/workflows/example.yml")
}

func TestSelfTestRuns(t *testing.T) {
	testreq.Need(t, "bwrap", "userns", "cgroup")
	h := newHost(t)
	log, ok := h.run(h.tree, "push", ".github/workflows/self-test.yml")
	require.True(t, ok, log)
	require.Equal(t, 7, strings.Count(log, "ended as expected:"), log)
}

// TestKVMIsNotTakenForGranted: where there is no KVM, the workflow that is there
// for KVM fails, although the machine was attacked and the leak found.
func TestKVMIsNotTakenForGranted(t *testing.T) {
	testreq.Need(t, "qemu")
	h := newHost(t)
	log, ok := h.run(h.tree, "push", ".github/workflows/kvm.yml", "--job", "leak")
	if ok {
		require.Contains(t, log, "ended as expected: --accelerator kvm")
		return
	}
	require.Contains(t, log, `expected accelerator kvm, but it is "tcg"`)
	require.NotContains(t, log, "expected P-A1")
	require.NotContains(t, log, "expected outcome")
}

const source = "@v1\n        with:\n          install: source"

func TestExamplePRGate(t *testing.T) {
	testreq.Need(t, "qemu")
	h := newHost(t)
	log, ok := h.example("pull_request", "pr-gate.yml", "@v1\n        with:", source, "probes: adversarial", "probes: A1,A7")
	require.True(t, ok, log)
	r, err := report.ReadFile(filepath.Join(h.store, "sandbox-report", "report.json"))
	require.NoError(t, err, log)
	require.Equal(t, probes.Summary{Total: 2, Passed: 2}, r.Summary)
	require.Equal(t, "agents", r.Environment.Policy)
}

func TestExamplePublishReports(t *testing.T) {
	testreq.Need(t, "bwrap", "userns", "cgroup")
	h := newHost(t)
	changes := []string{"@v1\n        with:", source, "backend: qemu\n", "backend: bwrap\n", "probes: adversarial", "probes: A1,A7"}
	log, ok := h.example("push", "publish-reports.yml", changes...)
	require.True(t, ok, log)
	require.FileExists(t, filepath.Join(h.store, "report.sarif"), log)
	require.FileExists(t, filepath.Join(h.store, "junit.xml"), log)
}

func TestExampleMatrixMerge(t *testing.T) {
	testreq.Need(t, "qemu", "bwrap", "userns", "cgroup")
	changes := []string{"@v1\n        with:", source, "run: redteam/scripts/install.sh", "run: BSM_INSTALL=source redteam/scripts/install.sh",
		"probes: adversarial", "probes: A1,A7"}
	t.Run("all are there", func(t *testing.T) {
		h := newHost(t)
		log, ok := h.example("push", "matrix-merge.yml", changes...)
		require.True(t, ok, log)
		require.Contains(t, log, "merged from 3 reports")
		require.Contains(t, log, "gate passed: 4 of 4 probes passed")
	})
	t.Run("a shard is missing", func(t *testing.T) {
		h := newHost(t)
		log, ok := h.example("push", "matrix-merge.yml", append(changes, "          - {backend: qemu, shard: 2/2, name: qemu-2}\n", "")...)
		require.False(t, ok)
		require.Contains(t, log, "Failure - Main Merge", log)
	})
	// Only bwrap has a report; the other row dies before it has one.
	died := append(slices.Clone(changes), "{backend: bwrap, shard: 1/1, name: bwrap-1}", "{backend: nothing, shard: 1/1, name: nothing-1}",
		"{backend: qemu, shard: 1/2, name: qemu-1}", "{backend: bwrap, shard: 1/1, name: bwrap-1}", "          - {backend: qemu, shard: 2/2, name: qemu-2}\n", "")
	t.Run("a backend is missing", func(t *testing.T) {
		h := newHost(t)
		log, ok := h.example("push", "matrix-merge.yml", died...)
		require.False(t, ok)
		require.Contains(t, log, "no report is of backend qemu", log)
		require.Contains(t, log, "Failure - Main Merge", log)
	})
	t.Run("a row died", func(t *testing.T) {
		h := newHost(t)
		log, ok := h.example("push", "matrix-merge.yml", append(died, "--expect bwrap,qemu", "--expect bwrap")...)
		require.False(t, ok)
		require.Contains(t, log, "gate passed: 2 of 2 probes passed on bwrap", "what is there is whole")
		require.Contains(t, log, "Failure - Main No row of the matrix failed or died", log)
	})
}

func TestExampleNightlyLatency(t *testing.T) {
	h := newHost(t)
	log, ok := h.example("workflow_dispatch", "nightly-latency.yml", "run: redteam/scripts/install.sh", "run: BSM_INSTALL=source redteam/scripts/install.sh",
		"ab --sandbox qemu", "ab --sandbox mock --iterations 5")
	require.True(t, ok, log)
	require.Contains(t, log, "| metric | base | head |", log)
	require.Contains(t, log, "nothing to remove")
}

func TestExampleReleaseChecklist(t *testing.T) {
	testreq.Need(t, "linux", "go")
	bin := filepath.Join(t.TempDir(), "bsm-redteam")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/bsm-redteam")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	examples, err := filepath.Abs(filepath.Join(root, "docs", "examples"))
	require.NoError(t, err)
	dir := t.TempDir()
	check := func(policy string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(examples, "release-checklist.sh"), "mock", policy, dir)
		cmd.Env = append(os.Environ(), "BSM="+bin, "ITERATIONS=5")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	text, err := check(filepath.Join(examples, "policy.yaml"))
	require.NoError(t, err, text)
	require.Contains(t, text, "mock is calibrated")
	require.Contains(t, text, "gate passed")
	require.Contains(t, text, "nothing to remove")

	require.NoError(t, os.Rename(filepath.Join(dir, "report.json"), filepath.Join(dir, "last-release.json")))
	leaks := filepath.Join(t.TempDir(), "leaks.yaml")
	require.NoError(t, os.WriteFile(leaks, []byte("name: agents\nleaks: [leak-a1]\nlimits: {memory: 256MiB, pids: 128}\negress: {promise: none}\n"), 0o600))
	text, err = check(leaks)
	require.Error(t, err, text)
	require.Contains(t, text, "regression: P-A1-net-egress")
	require.NotContains(t, text, "5. Nothing was left behind")
}
