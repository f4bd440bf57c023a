package workflows

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

const (
	root       = "../.."
	actionlint = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
	zizmor     = "zizmor==1.32.0"
)

// files reads every workflow of ours, examples included.
func files(t *testing.T) []file {
	t.Helper()
	var list []file
	for dir, example := range map[string]bool{".github/workflows": false, "docs/examples": true} {
		paths, err := filepath.Glob(filepath.Join(root, dir, "*.yml"))
		require.NoError(t, err)
		require.NotEmpty(t, paths, dir)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			f, err := parse(filepath.ToSlash(path), text, example)
			require.NoError(t, err)
			list = append(list, f)
		}
	}
	slices.SortFunc(list, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return list
}

// executable reports why a script that a workflow names cannot be run.
func executable(path string) error {
	info, err := os.Stat(filepath.Join(root, path))
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() || info.Mode().IsRegular() && info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}

func TestWorkflowsKeepTheRules(t *testing.T) {
	a, err := readAction(filepath.Join(root, "action.yml"))
	require.NoError(t, err)
	require.Contains(t, a.inputs, "backend")
	require.Contains(t, a.outputs, "verdict")
	all := files(t)
	for _, f := range all {
		require.Empty(t, lint(f, a, executable))
	}
	require.Empty(t, pins(all))
}

// TestTheRulesBite: each rule finds what it is there for, and nothing in a
// workflow that keeps them.
func TestTheRulesBite(t *testing.T) {
	a := action{inputs: []string{"backend"}, outputs: []string{"verdict"}}
	const commit = "3d3c42e5aac5ba805825da76410c181273ba90b1"
	good := `on: push
permissions: {}
concurrency: x
jobs:
  a:
    runs-on: ubuntu-24.04
    timeout-minutes: 1
    steps:
      - uses: actions/checkout@` + commit + ` # v7.0.1
        with: {persist-credentials: false}
      - id: redteam
        uses: ./
        with: {backend: mock}
      - run: scripts/there "$X"
        env:
          X: ${{ steps.redteam.outputs.verdict }}
`
	exists := func(path string) error {
		if path == "scripts/there" {
			return nil
		}
		return errors.New(path + " is not there")
	}
	check := func(text string, example bool) []string {
		f, err := parse("x.yml", []byte(text), example)
		require.NoError(t, err)
		return lint(f, a, exists)
	}
	require.Empty(t, check(good, false))
	for want, change := range map[string][2]string{
		"no `permissions: {}`":       {"permissions: {}", "permissions: {contents: write}"},
		"no `permissions: {}` at":    {"permissions: {}\n", ""},
		"no concurrency":             {"concurrency: x\n", ""},
		"no timeout-minutes":         {"    timeout-minutes: 1\n", ""},
		"not pinned":                 {"@" + commit, "@v7"},
		"is not pinned to a full":    {commit, commit[:39]},
		"no comment with its exact":  {" # v7.0.1", ""},
		"no comment":                 {" # v7.0.1", " # v7"},
		"leaves its credentials":     {"        with: {persist-credentials: false}\n", ""},
		"checkout leaves":            {"persist-credentials: false", "persist-credentials: true"},
		"no input bakend":            {"backend: mock", "bakend: mock"},
		"no output verdikt":          {"outputs.verdict", "outputs.verdikt"},
		"spliced into the script":    {`"$X"`, `${{ steps.redteam.outputs.verdict }}`},
		"scripts/gone is not there":  {"scripts/there", "scripts/gone"},
		"on pull_request_target":     {"on: push", "on: pull_request_target"},
		"on workflow_run":            {"on: push", "on: {workflow_run: {workflows: [a]}}"},
		"on pull_request_target: it": {"on: push", "on: [push, pull_request_target]"},
		"which is not checked here":  {"    runs-on: ubuntu-24.04\n", "    uses: a/b/.github/workflows/c.yml@v1\n"},
		"@v1 is not pinned":          {"uses: ./", "uses: " + ours + "@v1"},
	} {
		require.Contains(t, good, change[0])
		got := check(strings.Replace(good, change[0], change[1], 1), false)
		require.Len(t, got, 1, "%s: %v", want, got)
		require.Contains(t, got[0], want)
	}
	example := strings.Replace(good, "uses: ./", "uses: "+ours+"@v1", 1)
	require.Empty(t, check(example, true))
	require.Len(t, check(good, true), 1, "an example must be what others can use")
	for _, bad := range []string{"", "[]", "a: [", "x"} {
		_, err := parse("x.yml", []byte(bad), false)
		require.Error(t, err, bad)
	}

	one, err := parse("1.yml", []byte(good), false)
	require.NoError(t, err)
	other, err := parse("2.yml", []byte(strings.Replace(good, commit, strings.Repeat("0", 40), 1)), false)
	require.NoError(t, err)
	require.Empty(t, pins([]file{one, one}))
	require.Len(t, pins([]file{one, other}), 1)
}

func paths(t *testing.T) (list []string) {
	for _, f := range files(t) {
		rel, err := filepath.Rel(root, f.path)
		require.NoError(t, err)
		list = append(list, rel)
	}
	return list
}

func TestActionlint(t *testing.T) {
	testreq.Need(t, "go", "shellcheck")
	bin := tool(t)
	run := func(paths ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), bin, append([]string{"-no-color", "-shellcheck", "shellcheck"}, paths...)...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(paths(t)...)
	require.NoError(t, err, out)

	// It looks into action.yml only through a use of it, and into scripts only
	// with shellcheck: both must be on.
	bad := filepath.Join(t.TempDir(), "bad.yml")
	require.NoError(t, os.WriteFile(bad, []byte("on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo $UNQUOTED\n"), 0o600))
	out, err = run(bad)
	require.Error(t, err)
	require.Contains(t, out, "SC2086")
}

// tool builds actionlint at its exact version.
func tool(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "install", actionlint)
	cmd.Env = append(os.Environ(), "GOBIN="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		testreq.Lacks(t, "actionlint", fmt.Errorf("%w: %s; fix: let this machine reach a proxy of Go modules", err, strings.TrimSpace(string(out))))
	}
	return filepath.Join(dir, "actionlint")
}

func TestZizmor(t *testing.T) {
	venv := filepath.Join(t.TempDir(), "venv")
	for _, step := range []struct {
		args []string
		fix  string
	}{
		{[]string{"python3", "-m", "venv", venv}, "sudo apt-get install python3-venv"},
		{[]string{filepath.Join(venv, "bin", "pip"), "install", "--quiet", "--no-deps", zizmor}, "let this machine reach a Python package index"},
	} {
		if out, err := exec.CommandContext(t.Context(), step.args[0], step.args[1:]...).CombinedOutput(); err != nil {
			testreq.Lacks(t, "zizmor", fmt.Errorf("%w: %s; fix: %s", err, strings.TrimSpace(string(out)), step.fix))
		}
	}
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(venv, "bin", "zizmor"), append([]string{"--offline", "--quiet", "--color=never", "--format=plain"}, args...)...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(".github/workflows", ".github/dependabot.yml", "action.yml", "--config", ".github/zizmor.yml", "--persona", "pedantic")
	require.NoError(t, err, out)
	var examples []string
	for _, path := range paths(t) {
		if strings.HasPrefix(path, "docs/") {
			examples = append(examples, path)
		}
	}
	out, err = run(append(examples, "--config", "docs/examples/zizmor.yaml")...)
	require.NoError(t, err, out)

	bad := filepath.Join(t.TempDir(), "bad.yml")
	require.NoError(t, os.WriteFile(bad, []byte("on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo ${{ github.head_ref }}\n"), 0o600))
	out, err = run(bad)
	require.Error(t, err)
	require.Contains(t, out, "template-injection")
}
