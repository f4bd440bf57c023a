package workflows

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// link is a relative one in Markdown, perhaps to a heading.
var link = regexp.MustCompile(`\]\(([^):#]*)(?:#([a-z0-9-]+))?\)`)

// anchors are the headings of a page, as GitHub names them.
func anchors(text string) (list []string) {
	drop := regexp.MustCompile(`[^a-z0-9 -]`)
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(strings.TrimSpace(line), "#"), " "); ok && strings.HasPrefix(line, "#") {
			list = append(list, strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(title), ""), " ", "-"))
		}
	}
	return list
}

func TestEveryExampleIsExplained(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "ci.md"))
	require.NoError(t, err)
	entries, err := os.ReadDir(filepath.Join(root, "docs", "examples"))
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name() != "policy.yaml" && e.Name() != "zizmor.yaml" { // what the others use
			require.Contains(t, string(page), "](examples/"+e.Name()+")")
		}
	}
	// A recipe says when it fits, what it costs and where it ends.
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		if title, _, _ := strings.Cut(section, "\n"); title != "Without GitHub" {
			for _, part := range []string{"**When**:", "**Costs**:", "**Limits**:"} {
				require.Contains(t, section, part, title)
			}
		}
	}
}

// TestNoSARIFOfASkip: code scanning refuses it, and the job would fail that the
// gate let pass.
func TestNoSARIFOfASkip(t *testing.T) {
	uploads := 0
	for _, f := range files(t) {
		for _, j := range f.jobs() {
			for _, step := range j.steps() {
				if f.example && strings.Contains(value(get(step, "uses")), "/upload-sarif@") {
					uploads++
					require.Contains(t, value(get(step, "if")), "&& steps.redteam.outputs.verdict != 'skip' &&", f.path)
				}
			}
		}
	}
	require.NotZero(t, uploads)
}

func TestLinksOfThePages(t *testing.T) {
	for _, name := range []string{"ci.md", "container-image.md", "releasing.md"} {
		page, err := os.ReadFile(filepath.Join(root, "docs", name))
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(page), -1) {
			if m[1] != "" {
				_, err := os.Stat(filepath.Join(root, "docs", m[1]))
				require.NoError(t, err, name)
			} else {
				require.Contains(t, anchors(string(page)), m[2], name)
			}
		}
	}
}

// TestRunnerValues: the keys are those of the chart, and the runner is given
// nothing that the page advises against.
func TestRunnerValues(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "examples", "arc-values.yaml"))
	require.NoError(t, err)
	var values struct {
		URL      string `yaml:"githubConfigUrl"`
		Secret   string `yaml:"githubConfigSecret"`
		Name     string `yaml:"runnerScaleSetName"`
		Template struct {
			Spec struct {
				Containers []struct {
					Name            string
					Command         []string
					SecurityContext map[string]any `yaml:"securityContext"`
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &values))
	require.NotEmpty(t, values.URL)
	require.NotEmpty(t, values.Secret)
	require.Len(t, values.Template.Spec.Containers, 1)
	runner := values.Template.Spec.Containers[0]
	require.Equal(t, "runner", runner.Name, "the chart looks for that name")
	require.Equal(t, false, runner.SecurityContext["allowPrivilegeEscalation"])
	require.NotContains(t, string(text), "privileged: true")

	f, err := os.ReadFile(filepath.Join(root, "docs", "examples", "arc.yml"))
	require.NoError(t, err)
	require.Contains(t, string(f), "runs-on: "+values.Name+" ")
}
