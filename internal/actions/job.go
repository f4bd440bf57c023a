package actions

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/sethvargo/go-githubactions"

	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
)

// Job is the step that this process is, as the runner sees it.
type Job struct {
	getenv func(string) string
	gh     *githubactions.Action
}

// New returns the step with the given stdout and environment.
func New(out io.Writer, getenv func(string) string) *Job {
	return &Job{getenv: getenv, gh: githubactions.New(githubactions.WithWriter(out), githubactions.WithGetenv(getenv))}
}

// maxInput bounds an input. Longer ones are no path, name or list of ours.
const maxInput = 8 << 10

// Inputs reads the inputs of the program by name. Blanks around a value do not
// count; the lines of a list are joined by commas. A value with control
// characters is refused: no input needs one.
func (j *Job) Inputs() (map[string]string, error) {
	out := map[string]string{}
	for _, in := range Inputs() {
		if !in.Run {
			continue
		}
		v := j.gh.GetInput(strings.ReplaceAll(in.Name, "-", "_"))
		if in.List {
			v = joined(v)
		}
		switch {
		case len(v) > maxInput:
			return nil, fmt.Errorf("input %s is %d bytes long, at most %d are accepted", in.Name, len(v), maxInput)
		case strings.ContainsFunc(v, unicode.IsControl):
			return nil, fmt.Errorf("input %s: %q has a control character or line break", in.Name, v)
		}
		out[in.Name] = v
	}
	return out, nil
}

// joined makes one comma list of lines.
func joined(v string) string {
	var parts []string
	for part := range strings.FieldsFuncSeq(v, func(r rune) bool { return r == '\n' || r == '\r' || r == ',' }) {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ",")
}

// Verdict is what a job came to.
type Verdict string

// The verdicts of a job.
const (
	Passed      Verdict = "pass"
	Failed      Verdict = "fail"
	Skipped     Verdict = "skip" // nothing was tested, and that was allowed
	Unavailable Verdict = "unavailable"
	TimedOut    Verdict = "timeout"
	Cancelled   Verdict = "cancelled"
	Errored     Verdict = "error"
)

var verdicts = []Verdict{Passed, Failed, Skipped, Unavailable, TimedOut, Cancelled, Errored}

// Counts are the numbers of a report.
type Counts struct {
	Passed, Failed, Errored, Skipped, MockOnly int
	// Regressions is negative when nothing was compared.
	Regressions int
}

// Paths are the places of the reports; an empty one does not exist.
type Paths struct{ Dir, JSON, JUnit, SARIF string }

// Outputs are the outputs of the action.
type Outputs struct {
	Verdict Verdict
	Counts  *Counts // nil without a report
	Paths   Paths
	Version string
}

// SetOutputs gives the outputs to the runner, which takes the last value of each.
// It reports whether there is a runner that wants them.
func (j *Job) SetOutputs(o Outputs) (wanted bool, err error) {
	values, err := o.values()
	if err != nil {
		return true, err
	}
	if j.getenv("GITHUB_OUTPUT") == "" {
		return false, nil
	}
	return true, j.carefully("write the outputs", func() {
		for _, v := range values {
			j.gh.SetOutput(v.name, v.value)
		}
	})
}

type value struct{ name, value string }

// values are the outputs in the order of the table. None can end the runner's
// heredoc, whose delimiter is fixed: no value has a line break.
func (o Outputs) values() ([]value, error) {
	if !slices.Contains(verdicts, o.Verdict) {
		return nil, fmt.Errorf("verdict %q is unknown", o.Verdict)
	}
	list := []value{{OutVerdict, string(o.Verdict)}}
	if c := o.Counts; c != nil {
		for _, n := range []struct {
			name string
			n    int
		}{{OutPassed, c.Passed}, {OutFailed, c.Failed}, {OutErrored, c.Errored}, {OutSkipped, c.Skipped}, {OutMockOnly, c.MockOnly}, {OutRegressions, c.Regressions}} {
			v := strconv.Itoa(n.n)
			if n.n < 0 {
				v = ""
			}
			list = append(list, value{n.name, v})
		}
	}
	for _, p := range []value{{OutReportJSON, o.Paths.JSON}, {OutReportJUnit, o.Paths.JUnit}, {OutReportSARIF, o.Paths.SARIF}, {OutReportDir, o.Paths.Dir}} {
		if strings.ContainsFunc(p.value, unicode.IsControl) {
			return nil, fmt.Errorf("output %s: %q has a control character", p.name, p.value)
		}
		list = append(list, p)
	}
	if !versions.MatchString(o.Version) {
		return nil, fmt.Errorf("output %s: %q is no version", OutVersion, o.Version)
	}
	return append(list, value{OutVersion, o.Version}), nil
}

var versions = regexp.MustCompile(`^[0-9A-Za-z.+_()-]*$`)

// carefully calls go-githubactions, which panics where it cannot write.
func (j *Job) carefully(doing string, f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s: %v", doing, v)
		}
	}()
	f()
	return nil
}

// Summary appends Markdown to the job's summary. It reports whether there is a
// runner that wants it.
func (j *Job) Summary(markdown []byte) (wanted bool, err error) {
	name := j.getenv("GITHUB_STEP_SUMMARY")
	if name == "" {
		return false, nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return true, fmt.Errorf("write the summary: %w", err)
	}
	_, err = f.Write(markdown)
	if err = errors.Join(err, f.Close()); err != nil {
		return true, fmt.Errorf("write the summary: %w", err)
	}
	return true, nil
}

// Level is that of an annotation.
type Level string

// The levels.
const (
	Error   Level = "error"
	Warning Level = "warning"
	Notice  Level = "notice"
)

// Annotation is one remark beside a job's result, and at a file in a pull request.
type Annotation struct {
	Level   Level
	Title   string // our own words
	Message string // rendered like any text from a sandbox
	File    string // relative to the workspace; empty is none
}

// MaxAnnotations is how many of one level the runner keeps of a step, and so how
// many we issue at all.
const MaxAnnotations = 10

// maxMessage stays below the runner's limit of 4096 characters.
const maxMessage = 4000

// Bounded is what the runner keeps of list, the worst of which come first, and of
// kept, which none of those may crowd out. What is left out is counted.
func Bounded(list, kept []Annotation) []Annotation {
	kept = kept[:min(len(kept), MaxAnnotations-1)]
	room := MaxAnnotations - len(kept)
	if more := len(list) - room; more > 0 {
		list = slices.Clone(list[:room])
		list[room-1] = Annotation{Level: list[room-1].Level, Title: "bsm-redteam",
			Message: fmt.Sprintf("and %d more; the job's summary and log have all of them", more+1)}
	}
	return slices.Concat(list, kept)
}

// Annotate issues annotations, at most ten.
func (j *Job) Annotate(list []Annotation) error {
	list = Bounded(list, nil)
	return j.carefully("write the annotations", func() {
		for _, a := range list {
			props := githubactions.CommandProperties{"title": line(a.Title, 200)}
			if a.File != "" {
				props["file"], props["line"] = line(a.File, 1000), "1"
			}
			j.gh.IssueCommand(&githubactions.Command{Name: string(a.Level), Properties: props, Message: line(a.Message, maxMessage)})
		}
	})
}

// line is s as one line of printable ASCII of at most limit bytes.
func line(s string, limit int) string {
	const cut = " [cut]"
	s = untrusted.Prose(s, limit)
	if len(s) > limit {
		s = s[:limit-len(cut)] + cut
	}
	return s
}

// Relative returns where a file lies in the workspace, or "" when it lies outside
// or there is none.
func (j *Job) Relative(file string) string {
	workspace := j.getenv("GITHUB_WORKSPACE")
	if workspace == "" || file == "" {
		return ""
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(workspace, abs)
	if err != nil || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.ToSlash(rel)
}

// ReportDir makes the directory for the reports: the one that was asked for, or
// a new one where the runner keeps temporary files.
func (j *Job) ReportDir(asked string) (string, error) {
	dir := asked
	if asked == "" {
		temp := j.getenv("RUNNER_TEMP")
		if temp == "" {
			temp = os.TempDir()
		}
		made, err := os.MkdirTemp(temp, "bsm-redteam-")
		if err != nil {
			return "", fmt.Errorf("make the report directory: %w", err)
		}
		dir = made
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the report directory: %w", err)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("report directory: %w", err)
	}
	return dir, nil
}
