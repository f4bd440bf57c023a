// Package probedoc writes the pages under docs/probes from the probes' own
// metadata.
package probedoc

import (
	"fmt"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Page returns the page of p in Markdown.
func Page(p probes.Probe) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n", p.Name, p.Description)
	fmt.Fprintf(&b, "| | |\n|---|---|\n| attacker class | %s |\n| expectation | %s |\n| severity of an escape | %s |\n| who is hurt | %s |\n",
		p.Class, p.Expectation, p.Severity, p.Harm)
	row(&b, "needs", p.Needs)
	row(&b, "side effects", p.SideEffects)
	row(&b, "technique ids", p.Techniques)
	row(&b, "MITRE ATT&CK", p.ATTACK)
	if p.Budget > 0 && p.Class != probes.ClassLatency {
		fmt.Fprintf(&b, "| time budget | %s |\n", p.Budget)
	}
	fmt.Fprintf(&b, "\n## Why a pass proves something\n\n%s\n\n## What a pass does not prove\n\n%s\n", p.Why, p.Limits)
	if len(p.References) > 0 {
		b.WriteString("\n## Sources\n\n")
		for _, r := range p.References {
			fmt.Fprintf(&b, "- %s\n", r)
		}
	}
	return b.String()
}

func row[T ~string](b *strings.Builder, name string, values []T) {
	if len(values) == 0 {
		return
	}
	s := make([]string, len(values))
	for i, v := range values {
		s[i] = string(v)
	}
	fmt.Fprintf(b, "| %s | %s |\n", name, strings.Join(s, ", "))
}

// Index returns the page that lists all of them.
func Index(all []probes.Probe) string {
	var b strings.Builder
	b.WriteString("# Probes\n\nGenerated from the probes' own metadata; `bsm-redteam explain NAME` prints the same pages.\n\n| probe | class | attacks |\n|---|---|---|\n")
	for _, p := range all {
		first, _, _ := strings.Cut(p.Description, ". ")
		fmt.Fprintf(&b, "| [%s](%s.md) | %s | %s |\n", p.Name, p.Name, p.Class, strings.TrimSuffix(first, "."))
	}
	return b.String()
}
