package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// A job is one run of the real action.yml by nektos/act in host mode, which is a
// runner without a container around it: the steps are processes of this machine.
// act differs from GitHub's runner where package runnertest does not: it sets
// INPUT_*, leaves RUNNER_ENVIRONMENT empty and kills a cancelled step at once.
type job struct {
	t    *testing.T
	repo string // what the job checks out
	home string
	tmp  string
	out  string // where its last step keeps what it saw
	env  []string
}

// newJob prepares a repository with this tree's action and the given workflow
// step inputs, and a home of its own.
func newJob(t *testing.T) *job {
	t.Helper()
	testreq.Need(t, "linux", "go", "git", "act")
	j := &job{t: t, repo: t.TempDir(), home: t.TempDir(), out: t.TempDir()}
	tmp, err := os.MkdirTemp("/tmp", "bsm-t-") // short: sockets have to fit
	require.NoError(t, err)
	// A VM's canaries have to be open to the user that its agent maps to.
	require.NoError(t, os.Chmod(tmp, 0o755))
	j.tmp = tmp
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(tmp)) })
	j.export()
	return j
}

// export copies the tracked files of this tree, as a checkout would bring them.
func (j *job) export() {
	j.t.Helper()
	list := exec.Command("git", "ls-files", "-z")
	list.Dir = "../.."
	names, err := list.Output()
	require.NoError(j.t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		from := filepath.Join("../..", name)
		fi, err := os.Lstat(from)
		if err != nil {
			continue // removed and not yet committed
		}
		b, err := os.ReadFile(from)
		require.NoError(j.t, err)
		j.write(name, string(b), fi.Mode().Perm())
	}
	require.NoError(j.t, os.RemoveAll(filepath.Join(j.repo, ".github/workflows")))
}

func (j *job) write(name, text string, mode os.FileMode) {
	j.t.Helper()
	path := filepath.Join(j.repo, name)
	require.NoError(j.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(j.t, os.WriteFile(path, []byte(text), mode))
}

// workflow is a job with one use of the action, and a step that keeps what a
// workflow can see of it.
const workflow = `on: push
jobs:
  gate:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v5
      - id: redteam
        uses: ./
        with:
INPUTS
      - if: always()
        env:
          OUTCOME: ${{ steps.redteam.outcome }}
          OUTPUTS: ${{ toJSON(steps.redteam.outputs) }}
          REPORTS: ${{ steps.redteam.outputs.report-dir }}
        run: |
          printf '%s' "$OUTCOME" > "$KEEP/outcome"
          printf '%s' "$OUTPUTS" > "$KEEP/outputs.json"
          [ -z "$REPORTS" ] || cp -r "$REPORTS" "$KEEP/reports"
`

// inputs are the `with` of the action.
type inputs map[string]string

func (in inputs) yaml() string {
	var b strings.Builder
	for k, v := range in {
		q, _ := json.Marshal(v) // JSON strings are YAML strings
		b.WriteString("          " + k + ": " + string(q) + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

// seen is what a workflow sees of a job that ended.
type seen struct {
	log     string
	ok      bool // of the job
	outcome string
	outputs map[string]string
	summary string
	reports string // a copy of report-dir
}

func (j *job) command(in inputs) *exec.Cmd {
	j.t.Helper()
	j.write(".github/workflows/gate.yml", strings.Replace(workflow, "INPUTS", in.yaml(), 1), 0o644)
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "t"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = j.repo
		out, err := cmd.CombinedOutput()
		require.NoError(j.t, err, string(out))
	}
	cache, err := os.UserCacheDir()
	require.NoError(j.t, err)
	args := []string{"push", "-P", "ubuntu-latest=-self-hosted", "--no-cache-server", "--json",
		// The images and the modules that this machine already has.
		"--env", "XDG_CACHE_HOME=" + cache, "--env", "TMPDIR=" + j.tmp, "--env", "KEEP=" + j.out,
		"--env", "GOMODCACHE=" + goenv(j.t, "GOMODCACHE"), "--env", "GOCACHE=" + goenv(j.t, "GOCACHE")}
	cmd := exec.Command("act", args...)
	cmd.Dir = j.repo
	cmd.Env = append(os.Environ(), "HOME="+j.home, "XDG_CACHE_HOME="+j.home+"/.cache", "XDG_STATE_HOME="+j.home+"/state", "XDG_CONFIG_HOME="+j.home+"/config")
	cmd.Env = append(cmd.Env, j.env...)
	return cmd
}

func goenv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

func (j *job) run(in inputs) seen {
	j.t.Helper()
	cmd := j.command(in)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return j.look(out.Bytes(), err == nil)
}

// look reads what the job left: its log, and what its last step kept.
func (j *job) look(log []byte, ok bool) seen {
	j.t.Helper()
	s := seen{ok: ok, outputs: map[string]string{}, reports: filepath.Join(j.out, "reports")}
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, 16<<20)
	var b strings.Builder
	for lines.Scan() {
		var line struct {
			Msg string `json:"msg"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			line.Msg = lines.Text()
		}
		b.WriteString(strings.TrimRight(line.Msg, "\n") + "\n")
	}
	require.NoError(j.t, lines.Err())
	s.log = b.String()
	outcome, err := os.ReadFile(filepath.Join(j.out, "outcome"))
	require.NoError(j.t, err, s.log)
	s.outcome = string(outcome)
	kept, err := os.ReadFile(filepath.Join(j.out, "outputs.json"))
	require.NoError(j.t, err)
	require.NoError(j.t, json.Unmarshal(kept, &s.outputs), string(kept))
	if summary, err := os.ReadFile(filepath.Join(j.out, "summary.md")); err == nil {
		s.summary = html.UnescapeString(string(summary)) // as it is read
	}
	return s
}
