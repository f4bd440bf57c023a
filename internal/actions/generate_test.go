package actions

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "rewrite the tables of action.yml and README.md")

// table is one generated block of a file.
type table struct {
	begin, end string
	lines      []string
}

func (b table) in(t *testing.T, text string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, b.begin+"\n"), b.begin)
	require.Equal(t, 1, strings.Count(text, b.end+"\n"), b.end)
	head, rest, _ := strings.Cut(text, b.begin+"\n")
	_, tail, ok := strings.Cut(rest, b.end+"\n")
	require.True(t, ok, "%s comes before %s", b.end, b.begin)
	return head + b.begin + "\n" + strings.Join(b.lines, "") + b.end + "\n" + tail
}

func yamlTable(name, indent string, lines []string) table {
	for i, l := range lines {
		lines[i] = indent + l + "\n"
	}
	return table{indent + "# begin " + name, indent + "# end " + name, lines}
}

func markdownTable(name string, lines []string) table {
	for i, l := range lines {
		lines[i] = l + "\n"
	}
	return table{"<!-- begin " + name + ": go test ./internal/actions -update -->", "<!-- end " + name + " -->", lines}
}

// plainText drops the marks of Markdown, which action.yml does not know.
func plainText(s string) string { return strings.ReplaceAll(s, "`", "") }

func env(variable, input string) string { return variable + ": ${{ inputs." + input + " }}" }

func tablesOf(file string) []table {
	var inputs, outputs, install, prepare, run []string
	if file == "README.md" {
		inputs = []string{"| input | meaning | default |", "|---|---|---|"}
		for _, in := range Inputs() {
			inputs = append(inputs, fmt.Sprintf("| `%s` | %s | %s |", in.Name, in.About, in.Default))
		}
		outputs = []string{"| output | meaning |", "|---|---|"}
		for _, o := range OutputTable() {
			outputs = append(outputs, fmt.Sprintf("| `%s` | %s |", o.Name, o.About))
		}
		return []table{markdownTable("inputs", inputs), markdownTable("outputs", outputs)}
	}
	for _, in := range Inputs() {
		inputs = append(inputs, in.Name+":", fmt.Sprintf("  description: %q", plainText(in.About+"; default: "+in.Default)), "  required: false")
		if in.Expression != "" {
			inputs = append(inputs, "  default: "+in.Expression)
		}
		if in.Install != "" {
			install = append(install, env(in.Install, in.Name))
		}
		if in.Prepare != "" {
			prepare = append(prepare, env(in.Prepare, in.Name))
		}
		if in.Run {
			run = append(run, env(in.Variable(), in.Name))
		}
	}
	for _, o := range OutputTable() {
		value := "steps.run.outputs." + o.Name
		if o.Otherwise != "" {
			value += " || '" + o.Otherwise + "'"
		}
		outputs = append(outputs, o.Name+":", fmt.Sprintf("  description: %q", plainText(o.About)), "  value: ${{ "+value+" }}")
	}
	return []table{yamlTable("inputs", "  ", inputs), yamlTable("outputs", "  ", outputs),
		yamlTable("install", "        ", install), yamlTable("prepare", "        ", prepare), yamlTable("run", "        ", run)}
}

func TestTablesAreCurrent(t *testing.T) {
	for _, file := range []string{"action.yml", "README.md"} {
		b, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		want := string(b)
		for _, x := range tablesOf(file) {
			want = x.in(t, want)
		}
		if *update {
			require.NoError(t, os.WriteFile("../../"+file, []byte(want), 0o644))
			continue
		}
		require.Equal(t, want, string(b), "%s is not what internal/actions says; run go test ./internal/actions -update", file)
	}
}

// metadata is action.yml as the runner reads it.
type metadata struct {
	Name, Description, Author string
	Branding                  struct{ Icon, Color string }
	Inputs                    map[string]struct {
		Description, Default string
		Required             bool
	}
	Outputs map[string]struct{ Description, Value string }
	Runs    struct {
		Using string
		Steps []struct {
			Name, ID, If, Shell, Run, Uses string
			Env                            map[string]string
		}
	}
}

func TestActionFile(t *testing.T) {
	f, err := os.Open("../../action.yml")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	var m metadata
	require.NoError(t, dec.Decode(&m))
	require.Equal(t, "composite", m.Runs.Using)
	require.NotEmpty(t, m.Branding.Icon)
	require.NotEmpty(t, m.Branding.Color)

	require.Len(t, m.Inputs, len(Inputs()))
	used := map[string]bool{}
	for _, s := range m.Runs.Steps {
		require.Empty(t, s.Uses, "an action inside an action is somebody else's code")
		require.Equal(t, "bash", s.Shell)
		require.Regexp(t, regexp.MustCompile(`^("\$GITHUB_ACTION_PATH/scripts/[a-z-]+\.sh"|exec ("\$GITHUB_ACTION_PATH/scripts/with-fuse.sh" )?"\$BSM_BIN" [a-z]+)$`), s.Run, "one line, and no expression in it")
		for _, v := range s.Env {
			m := regexp.MustCompile(`^\$\{\{ (inputs|steps\.install\.outputs)\.([a-z-]+) \}\}$`).FindStringSubmatch(v)
			require.NotNil(t, m, v)
			if m[1] == "inputs" {
				used[m[2]] = true
			}
		}
	}
	for _, in := range Inputs() {
		require.True(t, used[in.Name], "no step reads %s", in.Name)
		require.Equal(t, in.Expression, m.Inputs[in.Name].Default, "a default in action.yml would override the user's files")
		require.False(t, m.Inputs[in.Name].Required, "GitHub does not enforce it")
	}
	require.Len(t, m.Outputs, len(OutputTable()))
	run := slices.IndexFunc(m.Runs.Steps, func(s struct {
		Name, ID, If, Shell, Run, Uses string
		Env                            map[string]string
	}) bool {
		return s.ID == "run"
	})
	require.Equal(t, `exec "$GITHUB_ACTION_PATH/scripts/with-fuse.sh" "$BSM_BIN" action`, m.Runs.Steps[run].Run, "exec: the runner's signals reach the entry process only")
	last := m.Runs.Steps[len(m.Runs.Steps)-1]
	require.Contains(t, last.If, "always()")
	require.Contains(t, last.Run, "reap")
}

// TestReadmeWorkflow: what people copy first works.
func TestReadmeWorkflow(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(b), "```yaml\n")
	require.True(t, ok)
	text, _, ok := strings.Cut(rest, "```\n")
	require.True(t, ok)
	require.LessOrEqual(t, strings.Count(text, "\n"), 10, "ten lines")
	var w struct {
		On          string
		Permissions map[string]string
		Jobs        map[string]struct {
			RunsOn string `yaml:"runs-on"`
			Steps  []struct {
				Uses string
				With map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(strings.NewReader(text))
	dec.KnownFields(true)
	require.NoError(t, dec.Decode(&w))
	require.Empty(t, w.Permissions, "the action needs none")
	names := map[string]bool{}
	for _, in := range Inputs() {
		names[in.Name] = true
	}
	for _, job := range w.Jobs {
		for _, s := range job.Steps {
			require.Equal(t, "brainst0rm/sandbox-redteam@v1", s.Uses)
			require.NotEmpty(t, s.With[InBackend])
			for name := range s.With {
				require.True(t, names[name], name)
			}
		}
	}
}
