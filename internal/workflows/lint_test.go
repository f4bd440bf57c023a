package workflows

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ours is the action by its public name. There is no release yet whose commit
// could be looked up, so examples alone use its major version.
const ours = "brainst0rm/sandbox-redteam"

// file is one workflow.
type file struct {
	path    string
	example bool // one of docs/examples, not of .github/workflows
	doc     *yaml.Node
}

func parse(path string, text []byte, example bool) (file, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return file{}, fmt.Errorf("%s: %w", path, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return file{}, fmt.Errorf("%s is no mapping", path)
	}
	return file{path, example, doc.Content[0]}, nil
}

// get returns the value of a key of a mapping, nil when it has none.
func get(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func value(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return n.Value
}

func keys(n *yaml.Node) (list []string) {
	if n != nil && n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			list = append(list, n.Content[i].Value)
		}
	}
	return list
}

// A job of a workflow.
type job struct {
	name string
	node *yaml.Node
}

func (f file) jobs() (list []job) {
	all := get(f.doc, "jobs")
	for _, name := range keys(all) {
		list = append(list, job{name, get(all, name)})
	}
	return list
}

func (j job) steps() []*yaml.Node {
	if s := get(j.node, "steps"); s != nil {
		return s.Content
	}
	return nil
}

var (
	pinned  = regexp.MustCompile(`^([A-Za-z0-9-]+/[A-Za-z0-9._/-]+)@([0-9a-f]{40})$`)
	comment = regexp.MustCompile(`^# v[0-9]+\.[0-9]+\.[0-9]+$`)
	output  = regexp.MustCompile(`steps\.([A-Za-z0-9_-]+)\.outputs\.([A-Za-z0-9_-]+)`)
	inRun   = regexp.MustCompile(`(?:^|[\s"'=])(\.?/?(?:scripts|\.ci)/[A-Za-z0-9._/-]+)`)
)

// action is what action.yml offers.
type action struct{ inputs, outputs []string }

func readAction(path string) (action, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return action{}, err
	}
	var doc struct {
		Inputs  map[string]any `yaml:"inputs"`
		Outputs map[string]any `yaml:"outputs"`
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return action{}, err
	}
	var a action
	for name := range doc.Inputs {
		a.inputs = append(a.inputs, name)
	}
	for name := range doc.Outputs {
		a.outputs = append(a.outputs, name)
	}
	return a, nil
}

// lint returns what is wrong with a workflow, one sentence each.
func lint(f file, a action, exists func(path string) error) (wrong []string) {
	say := func(n *yaml.Node, format string, args ...any) {
		line := 0
		if n != nil {
			line = n.Line
		}
		wrong = append(wrong, fmt.Sprintf("%s:%d: %s", f.path, line, fmt.Sprintf(format, args...)))
	}
	if p := get(f.doc, "permissions"); p == nil || p.Kind != yaml.MappingNode || len(p.Content) > 0 {
		say(p, "no `permissions: {}` at the top: every job asks for its own")
	}
	if !f.example && get(f.doc, "concurrency") == nil {
		say(f.doc, "no concurrency at the top")
	}
	for _, trigger := range triggers(f.doc) {
		if trigger == "pull_request_target" || trigger == "workflow_run" {
			say(f.doc, "on %s: it runs others' code with our permissions", trigger)
		}
	}
	for _, j := range f.jobs() {
		if get(j.node, "timeout-minutes") == nil {
			say(j.node, "job %s has no timeout-minutes", j.name)
		}
		if get(j.node, "uses") != nil {
			say(j.node, "job %s is another workflow, which is not checked here", j.name)
		}
		byID := map[string]bool{} // steps that use our action
		for _, s := range j.steps() {
			uses, run := get(s, "uses"), get(s, "run")
			if uses != nil {
				lintUses(f, s, uses, a, say)
				byID[value(get(s, "id"))] = isOurs(uses.Value)
			}
			if run != nil {
				if strings.Contains(run.Value, "${{") {
					say(run, "an expression in run is spliced into the script: hand it over in env")
				}
				for _, m := range inRun.FindAllStringSubmatch(run.Value, -1) {
					if err := exists(m[1]); err != nil && !f.example {
						say(run, "%v", err)
					}
				}
			}
		}
		for _, text := range scalars(j.node) {
			for _, m := range output.FindAllStringSubmatch(text.Value, -1) {
				if byID[m[1]] && !slices.Contains(a.outputs, m[2]) {
					say(text, "the action has no output %s", m[2])
				}
			}
		}
	}
	return wrong
}

func isOurs(uses string) bool { return uses == "./" || strings.HasPrefix(uses, ours+"@") }

func lintUses(f file, step, uses *yaml.Node, a action, say func(*yaml.Node, string, ...any)) {
	m := pinned.FindStringSubmatch(uses.Value)
	switch {
	case uses.Value == "./" && !f.example:
	case uses.Value == ours+"@v1" && f.example:
	case m == nil:
		say(uses, "%s is not pinned to a full commit", uses.Value)
	case !comment.MatchString(uses.LineComment):
		say(uses, "%s has no comment with its exact tag", uses.Value)
	}
	with := get(step, "with")
	if isOurs(uses.Value) {
		for _, name := range keys(with) {
			if !slices.Contains(a.inputs, name) {
				say(with, "the action has no input %s", name)
			}
		}
	}
	if strings.HasPrefix(uses.Value, "actions/checkout@") && value(get(with, "persist-credentials")) != "false" {
		say(uses, "checkout leaves its credentials for every later step: persist-credentials: false")
	}
}

func triggers(doc *yaml.Node) []string {
	on := get(doc, "on")
	if on == nil {
		return nil
	}
	switch on.Kind {
	case yaml.ScalarNode:
		return []string{on.Value}
	case yaml.SequenceNode:
		var list []string
		for _, n := range on.Content {
			list = append(list, n.Value)
		}
		return list
	}
	return keys(on)
}

// scalars returns every scalar below n.
func scalars(n *yaml.Node) (list []*yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		return []*yaml.Node{n}
	}
	for _, c := range n.Content {
		list = append(list, scalars(c)...)
	}
	return list
}

// pins returns the conflicts between pins: the
// same tag of one repository cannot be two commits.
func pins(files []file) (conflicts []string) {
	seen := map[string]string{}
	for _, f := range files {
		for _, j := range f.jobs() {
			for _, s := range j.steps() {
				uses := get(s, "uses")
				m := pinned.FindStringSubmatch(value(uses))
				if m == nil {
					continue
				}
				owner := strings.Join(strings.SplitN(m[1], "/", 3)[:2], "/")
				key := owner + " " + uses.LineComment
				if before, ok := seen[key]; ok && before != m[2] {
					conflicts = append(conflicts, fmt.Sprintf("%s:%d: %s is %s elsewhere", f.path, uses.Line, key, before))
				}
				seen[key] = m[2]
			}
		}
	}
	return conflicts
}
