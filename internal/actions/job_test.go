package actions

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
)

// environment is that of a step, with the files that the runner makes.
func environment(t *testing.T, more map[string]string) func(string) string {
	t.Helper()
	dir := t.TempDir()
	env := map[string]string{"GITHUB_OUTPUT": dir + "/output", "GITHUB_STEP_SUMMARY": dir + "/summary", "GITHUB_WORKSPACE": dir, "RUNNER_TEMP": dir}
	for _, name := range []string{"output", "summary"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for k, v := range more {
		env[k] = v
	}
	return func(name string) string { return env[name] }
}

func TestInputs(t *testing.T) {
	j := New(nil, environment(t, map[string]string{
		"INPUT_BACKEND": " qemu ", "INPUT_FAIL_ON": "never", "INPUT_PROBES": "A1,\n  A2\r\n\nP-A5-time-bomb,\n", "INPUT_CONFIG": "-rf/ο κόσμος.yaml",
		"INPUT_INSTALL": "source",
	}))
	in, err := j.Inputs()
	require.NoError(t, err)
	require.Equal(t, "qemu", in[InBackend])
	require.Equal(t, "never", in[InFailOn])
	require.Equal(t, "A1,A2,P-A5-time-bomb", in[InProbes])
	require.Equal(t, "-rf/ο κόσμος.yaml", in[InConfig])
	require.Empty(t, in[InBaseline])
	require.NotContains(t, in, "install", "a script reads it")
}

func TestHostileInputsAreRefused(t *testing.T) {
	for name, v := range map[string]string{
		"line break": "a\nverdict=pass", "carriage return": "a\r::error::x", "nul": "a\x00b", "escape": "\x1b[2Jx", "next line": "a\u0085b",
		"long": strings.Repeat("a", maxInput+1),
	} {
		for _, input := range []string{InBackend, InConfig, InReportDir} {
			_, err := New(nil, environment(t, map[string]string{"INPUT_" + upper(input): v})).Inputs()
			require.ErrorContains(t, err, "input "+input, name)
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 200)
		}
	}
}

func full() Outputs {
	return Outputs{Verdict: Failed, Counts: &Counts{Passed: 1, Failed: 2, Errored: 3, Skipped: 4, MockOnly: 5, Regressions: 6},
		Paths: Paths{Dir: "/r", JSON: "/r/report.json", JUnit: "/r/junit.xml", SARIF: "/r/report.sarif"}, Version: "v1.2.3-rc.1+x"}
}

// outputs reads what the runner would take.
func outputs(t *testing.T, env func(string) string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(env("GITHUB_OUTPUT"))
	require.NoError(t, err)
	pairs, err := runnertest.ParsePairs(b)
	require.NoError(t, err)
	out := map[string]string{}
	for _, p := range pairs {
		out[p.Key] = p.Value
	}
	return out
}

func TestOutputsAreThoseOfTheTable(t *testing.T) {
	env := environment(t, nil)
	wanted, err := New(nil, env).SetOutputs(full())
	require.NoError(t, err)
	require.True(t, wanted)
	got := outputs(t, env)
	require.Len(t, got, len(OutputTable()))
	for i, o := range OutputTable() {
		require.Contains(t, got, o.Name)
		if i >= 1 && i <= 6 {
			require.Equal(t, strconv.Itoa(i), got[o.Name])
		}
	}
	require.Equal(t, "fail", got[OutVerdict])
	require.Equal(t, "/r/junit.xml", got[OutReportJUnit])
}

func TestTheLastOutputsCount(t *testing.T) {
	env := environment(t, nil)
	j := New(nil, env)
	o := full()
	for _, v := range []Verdict{Cancelled, Passed} {
		o.Verdict, o.Counts.Regressions = v, -1
		_, err := j.SetOutputs(o)
		require.NoError(t, err)
	}
	got := outputs(t, env)
	require.Equal(t, "pass", got[OutVerdict])
	require.Empty(t, got[OutRegressions], "nothing was compared")
}

func TestAnErrorHasNoNumbers(t *testing.T) {
	env := environment(t, nil)
	_, err := New(nil, env).SetOutputs(Outputs{Verdict: Errored, Version: "v1"})
	require.NoError(t, err)
	got := outputs(t, env)
	require.Equal(t, "error", got[OutVerdict])
	require.NotContains(t, got, OutPassed)
}

// go-githubactions writes a heredoc with a delimiter that everybody knows. A value
// that ends it would forge another output.
func TestNoOutputCanEndTheHeredoc(t *testing.T) {
	const forged = "x\n_GitHubActionsFileCommandDelimeter_\nverdict<<E\npass\nE\n"
	for name, change := range map[string]func(*Outputs){
		"verdict": func(o *Outputs) { o.Verdict = forged },
		"dir":     func(o *Outputs) { o.Paths.Dir = forged },
		"json":    func(o *Outputs) { o.Paths.JSON = forged },
		"junit":   func(o *Outputs) { o.Paths.JUnit = "a\rb" },
		"sarif":   func(o *Outputs) { o.Paths.SARIF = "a\u2028b\x00" },
		"version": func(o *Outputs) { o.Version = forged },
	} {
		env := environment(t, nil)
		o := full()
		change(&o)
		_, err := New(nil, env).SetOutputs(o)
		require.Error(t, err, name)
		require.Empty(t, outputs(t, env), "%s: all of them or none", name)
	}
}

func TestWithoutARunner(t *testing.T) {
	j := New(nil, func(string) string { return "" })
	wanted, err := j.SetOutputs(full())
	require.NoError(t, err)
	require.False(t, wanted)
	wanted, err = j.Summary([]byte("x"))
	require.NoError(t, err)
	require.False(t, wanted)
	require.Empty(t, j.Relative("policy.yaml"))
}

func TestFilesThatCannotBeWrittenAreErrors(t *testing.T) {
	dir := t.TempDir()
	j := New(nil, environment(t, map[string]string{"GITHUB_OUTPUT": dir, "GITHUB_STEP_SUMMARY": dir + "/no/such"}))
	wanted, err := j.SetOutputs(full())
	require.True(t, wanted)
	require.ErrorContains(t, err, "write the outputs")
	_, err = j.Summary([]byte("x"))
	require.ErrorContains(t, err, "write the summary")
	require.ErrorContains(t, New(broken{}, os.Getenv).Annotate([]Annotation{{Level: Error, Message: "x"}}), "write the annotations")
}

func TestSummaryIsAppended(t *testing.T) {
	env := environment(t, nil)
	for _, s := range []string{"a\n", "b\n"} {
		wanted, err := New(nil, env).Summary([]byte(s))
		require.NoError(t, err)
		require.True(t, wanted)
	}
	b, err := os.ReadFile(env("GITHUB_STEP_SUMMARY"))
	require.NoError(t, err)
	require.Equal(t, "a\nb\n", string(b))
}

func TestAnnotations(t *testing.T) {
	var out bytes.Buffer
	list := []Annotation{
		{Level: Error, Title: "bsm-redteam: P-A1", Message: "50% escaped: the guest said \x1b[2J\n::add-mask::e ##[error]x", File: "dir/policy.yaml"},
		{Level: Warning, Title: "a,b\nc", Message: strings.Repeat("é", 5000)},
	}
	require.NoError(t, New(&out, os.Getenv).Annotate(list))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	require.Equal(t, `::error file=dir/policy.yaml,line=1,title=bsm-redteam%3A P-A1::50%25 escaped: the guest said \x1b[2J\n::add-mask::e #\x23[error]x`, lines[0])
	require.True(t, strings.HasPrefix(lines[1], `::warning title=a%2Cb\nc::\xc3\xa9`))
	require.Less(t, len(lines[1]), 4096+50)
	for _, l := range lines {
		for i := range len(l) {
			require.True(t, l[i] >= ' ' && l[i] <= '~')
		}
	}
}

func TestAtMostTenAnnotations(t *testing.T) {
	var list []Annotation
	for i := range 25 {
		list = append(list, Annotation{Level: Error, Message: strconv.Itoa(i)})
	}
	kept := []Annotation{{Level: Warning, Message: "kept"}}
	got := Bounded(list, kept)
	require.Len(t, got, MaxAnnotations)
	for i := range 8 {
		require.Equal(t, strconv.Itoa(i), got[i].Message)
	}
	require.Contains(t, got[8].Message, "and 17 more")
	require.Equal(t, "kept", got[9].Message)
	require.Equal(t, "8", list[8].Message, "the list is left alone")
	require.Len(t, Bounded(list[:9], kept), 10)
	require.Equal(t, "8", Bounded(list[:9], kept)[8].Message, "ten fit")
	require.Len(t, Bounded(nil, list), 9, "what is kept is bounded too")

	var out bytes.Buffer
	require.NoError(t, New(&out, os.Getenv).Annotate(list))
	require.Equal(t, MaxAnnotations, strings.Count(out.String(), "\n"))
}

func TestRelative(t *testing.T) {
	dir := t.TempDir()
	j := New(nil, environment(t, map[string]string{"GITHUB_WORKSPACE": dir}))
	for file, want := range map[string]string{
		dir + "/a/policy.yaml": "a/policy.yaml", dir + "/a/../b.yaml": "b.yaml", dir + "/../b.yaml": "", "/etc/passwd": "", "": "",
	} {
		require.Equal(t, want, j.Relative(file), file)
	}
}

func TestReportDir(t *testing.T) {
	temp := t.TempDir()
	j := New(nil, environment(t, map[string]string{"RUNNER_TEMP": temp}))
	a, err := j.ReportDir("")
	require.NoError(t, err)
	b, err := j.ReportDir("")
	require.NoError(t, err)
	require.NotEqual(t, a, b, "two jobs at once")
	require.Equal(t, temp, filepath.Dir(a))
	t.Chdir(temp)
	c, err := j.ReportDir("-r/eports")
	require.NoError(t, err)
	require.DirExists(t, c)
	require.True(t, filepath.IsAbs(c))
	require.NoError(t, os.WriteFile(temp+"/file", nil, 0o600))
	_, err = j.ReportDir(temp + "/file/x")
	require.ErrorContains(t, err, "make the report directory")
	_, err = New(nil, environment(t, map[string]string{"RUNNER_TEMP": temp + "/none"})).ReportDir("")
	require.ErrorContains(t, err, "make the report directory")
}

func TestTablesHoldTogether(t *testing.T) {
	seen := map[string]bool{}
	for _, in := range Inputs() {
		require.Regexp(t, `^[a-z][a-z-]*$`, in.Name)
		require.False(t, seen[in.Name], in.Name)
		seen[in.Name] = true
		require.NotEmpty(t, in.About)
		require.NotEmpty(t, in.Default)
		require.True(t, in.Run || in.Install != "" || in.Prepare != "", "nobody reads %s", in.Name)
		require.False(t, strings.ContainsAny(in.About+in.Default, "|\n"), "a cell of a table")
	}
	seen = map[string]bool{}
	for _, o := range OutputTable() {
		require.False(t, seen[o.Name], o.Name)
		seen[o.Name] = true
		require.False(t, strings.ContainsAny(o.About, "|\n"), "a cell of a table")
	}
}
