package runnertest

import (
	"regexp"
	"slices"
	"strings"
)

// Matcher is a problem matcher of one pattern: a regular expression that another
// action of the job registered, and which of its groups are what. A line that
// matches becomes an annotation.
type Matcher struct {
	Owner                                 string
	Pattern                               *regexp.Regexp
	File, Line, Column, Severity, Message int // groups; 0 is none
	// Any are words one of which stands in every line that matches, so that
	// most lines need not be searched; empty asks for none.
	Any []string
}

// Matchers are those which the common set-up actions and linters register, with
// patterns that match at least what theirs do: setup-go's (anywhere in the line,
// with or without a position), those of C compilers, TypeScript, .NET and
// eslint's compact format.
func Matchers() []Matcher { return slices.Clone(common) }

var common = []Matcher{
	{Owner: "go", Pattern: regexp.MustCompile(`([/\\].+\.go):(?:(\d+):(\d+):)? (.*)`), File: 1, Line: 2, Column: 3, Message: 4, Any: []string{".go:"}},
	{Owner: "gcc", Pattern: regexp.MustCompile(`^(.*?):(\d+):(\d*):?\s+(?:fatal\s+)?(warning|error):\s+(.*)$`), File: 1, Line: 2, Column: 3, Severity: 4, Message: 5, Any: []string{"error:", "warning:"}},
	{Owner: "tsc", Pattern: regexp.MustCompile(`^(\S.*)[(:](\d+)[,:](\d+)(?:\):\s+|\s+-\s+)(error|warning|info)\s+(TS\d+)\s*:\s*(.*)$`), File: 1, Line: 2, Column: 3, Severity: 4, Message: 6, Any: []string{"error", "warning", "info"}},
	{Owner: "csc", Pattern: regexp.MustCompile(`^(\S.*)\((\d+)(?:,(\d+))?(?:,\d+)*\):\s+(error|warning)\s+([A-Za-z]+\d+):\s*(.*)$`), File: 1, Line: 2, Column: 3, Severity: 4, Message: 6, Any: []string{"error", "warning", "info"}},
	{Owner: "eslint-compact", Pattern: regexp.MustCompile(`^(.+):\sline\s(\d+),\scol\s(\d+),\s(Error|Warning|Info)\s-\s(.+)\s\((.+)\)$`), File: 1, Line: 2, Column: 3, Severity: 4, Message: 5, Any: []string{"col"}},
}

func (m Matcher) match(line string) (Annotation, bool) {
	if len(m.Any) > 0 && !slices.ContainsFunc(m.Any, func(word string) bool { return strings.Contains(line, word) }) {
		return Annotation{}, false
	}
	g := m.Pattern.FindStringSubmatch(line)
	if g == nil {
		return Annotation{}, false
	}
	group := func(i int) string {
		if i == 0 {
			return ""
		}
		return g[i]
	}
	a := Annotation{Level: strings.ToLower(group(m.Severity)), Message: group(m.Message), Matcher: m.Owner, Properties: map[string]string{}}
	if a.Level == "" {
		a.Level = levelError
	}
	if strings.TrimSpace(a.Message) == "" || a.Level != levelError && a.Level != levelWarning && a.Level != "notice" {
		return Annotation{}, false
	}
	for name, i := range map[string]int{"file": m.File, "line": m.Line, "col": m.Column} {
		if v := group(i); v != "" {
			a.Properties[name] = v
		}
	}
	return a, true
}
