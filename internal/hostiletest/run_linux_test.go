package hostiletest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// maxRSS is what the program may take for outputs of 16 MiB.
const maxRSS = 200 << 20

// program builds the command and, beside it, an agent whose tools report the
// corpus in every field and print 16 MiB of NUL.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"build", "-trimpath", "-o", filepath.Join(dir, "bsm-redteam"), "../../cmd/bsm-redteam"},
		{"build", "-trimpath", "-tags", "bsm_variant_hostile", "-ldflags=-s -w -buildid=", "-o", filepath.Join(dir, "bsm-agent"), "../../cmd/bsm-agent"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return filepath.Join(dir, "bsm-redteam")
}

// launched is what came of one run of the program.
type launched struct {
	stdout, stderr []byte
	code           int
	files          map[string][]byte // of the runner, by variable
	rss            int64             // of the program and its children, the greatest
}

// launcher names the file for the peak when this program is to start another.
const launcher = "BSM_TEST_LAUNCHER_PEAK"

func TestMain(m *testing.M) {
	peak := os.Getenv(launcher)
	if peak == "" {
		os.Exit(m.Run())
	}
	_ = os.Unsetenv(launcher)
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		panic(err)
	}
	rss := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	if err := os.WriteFile(peak, []byte(strconv.FormatInt(rss, 10)), 0o600); err != nil {
		panic(err)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

func launch(t *testing.T, bin string, env []string, args ...string) launched {
	t.Helper()
	dir := t.TempDir()
	// A process begins with the peak of the one that started it, which here is
	// a whole test: so this program starts itself again, and that the command.
	self, err := os.Executable()
	require.NoError(t, err)
	peak := filepath.Join(dir, "peak")
	cmd := exec.CommandContext(t.Context(), self, append([]string{bin}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "RUNNER_TEMP="+dir, "GITHUB_WORKSPACE="+dir, "GITHUB_ACTIONS=true", launcher+"="+peak)
	cmd.Env = append(cmd.Env, env...)
	names := []string{"GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STATE", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"}
	for _, name := range names {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		cmd.Env = append(cmd.Env, name+"="+path)
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	l := launched{stdout: out.Bytes(), stderr: errOut.Bytes(), code: cmd.ProcessState.ExitCode(), files: map[string][]byte{}}
	said, err := os.ReadFile(peak)
	require.NoError(t, err)
	l.rss, err = strconv.ParseInt(string(said), 10, 64)
	require.NoError(t, err)
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		l.files[name] = b
	}
	return l
}

// A guest that is hostile in everything that it says, behind the real program on
// a real sandbox: its job's log, outputs, summary and reports hold texts only.
func TestARunAgainstAHostileGuest(t *testing.T) {
	testreq.Need(t, "bwrap")
	bin := program(t)
	t.Run("on the command line", func(t *testing.T) {
		l := launch(t, bin, nil, "--sandbox", "bwrap", "--probes", "A1,A2,A3,A7", "--verbose", "-o", "-")
		require.Equal(t, 1, l.code, "%s", l.stderr)
		quiet(t, l.stderr)
		quiet(t, l.stdout)
		rep, err := report.Read(l.stdout)
		require.NoError(t, err)
		require.Equal(t, 0, rep.Summary.Passed, "a guest's word passes nothing")
		attempts := 0
		for _, p := range rep.Probes {
			attempts += len(p.Attempts)
		}
		require.Greater(t, attempts, len(Corpus()), "the guest's list is in the report")
		has := shown(l.stdout)
		for _, s := range Corpus() {
			require.True(t, has([]byte(strings.ToValidUTF8(string(s.Bytes), "\ufffd"))), s.Name)
		}
		t.Logf("peak memory: %d MiB", l.rss>>20)
		require.Less(t, l.rss, int64(maxRSS))
	})
	t.Run("as a step of a job", func(t *testing.T) {
		l := launch(t, bin, []string{"INPUT_BACKEND=bwrap", "INPUT_PROBES=A1,A8", "INPUT_VERBOSE=true"}, "action")
		require.Equal(t, 1, l.code, "%s", l.stderr)
		r := runnertest.New(runnertest.Matchers()...)
		r.Print(l.stdout)
		r.Print(l.stderr)
		r.OutputFile(l.files["GITHUB_OUTPUT"])
		r.SummaryFile(l.files["GITHUB_STEP_SUMMARY"])
		require.False(t, r.Failed)
		for _, name := range []string{"GITHUB_ENV", "GITHUB_STATE", "GITHUB_PATH"} {
			require.Empty(t, l.files[name], name)
		}
		require.Empty(t, r.Masks)
		require.NotEmpty(t, r.Summary)
		require.Equal(t, "fail", r.Outputs["verdict"])
		require.Equal(t, "0", r.Outputs["passed"])
		for name, value := range r.Outputs {
			require.NotContains(t, value, Token, name)
		}
		require.NotEmpty(t, r.Annotations)
		require.LessOrEqual(t, len(r.Annotations), runnertest.MaxAnnotations)
		require.Zero(t, r.Lost)
		for _, a := range r.Annotations {
			require.Empty(t, a.Matcher, "%+v", a)
			require.NotContains(t, a.Properties["file"], Token)
			require.NotContains(t, a.Properties["title"], Token)
		}
		for _, c := range r.Commands {
			require.Contains(t, []string{"error", "warning", "notice"}, c.Name)
		}
		t.Logf("peak memory: %d MiB", l.rss>>20)
		require.Less(t, l.rss, int64(maxRSS))
		for _, name := range []string{"report-junit", "report-sarif"} {
			b, err := os.ReadFile(r.Outputs[name])
			require.NoError(t, err)
			require.NotEmpty(t, structure(t, strings.TrimPrefix(name, "report-"), b))
			require.Empty(t, sprung(b), name)
		}
	})
}
