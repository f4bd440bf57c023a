package sarif

import (
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	home = "https://github.com/brainst0rm/sandbox-redteam"
	// pages hold one page per probe, generated from the same metadata.
	pages = home + "/blob/main/docs/probes/"
)

// GitHub's bounds on a rule: characters of a name and of a description, tags.
const (
	maxName        = 255
	maxDescription = 1024
	maxTags        = 20
)

// inside are the harms that stay inside the boundary. Any other crosses it, also
// one that this version does not know.
var inside = []string{"self denial of service", "internal escalation", "integrity"}

// scores are the middles of GitHub's bands for security-severity: critical above
// 9.0, high from 7.0, medium from 4.0, low from 0.1.
var scores = []string{"0.1", "2.0", "5.5", "8.0", "9.5"}

// score is the security-severity of a probe: its severity, one band lower where
// an escape crosses no boundary. A latency is no security finding and has none.
func score(p probes.Probe) string {
	if p.Class == probes.ClassLatency {
		return ""
	}
	i := slices.Index(probes.Severities(), p.Severity)
	if i < 0 {
		i = len(scores) - 1
	}
	if slices.Contains(inside, p.Harm) && i > 0 {
		i--
	}
	return scores[i]
}

// ruleOf describes a probe of the catalogue.
func ruleOf(p probes.Probe) rule {
	level, title := levelError, p.Harm
	if p.Class == probes.ClassLatency {
		level, title = levelWarning, "latency"
	}
	return rule{
		ID: p.Name, Name: p.Name,
		ShortDescription: message{Text: cut(p.Name+": "+title, maxDescription)}, // the alert's title
		FullDescription:  message{Text: cut(p.Description, maxDescription)},
		Help:             help(p), HelpURI: pages + p.Name + ".md",
		DefaultConfiguration: configuration{Level: level},
		Properties:           ruleProperties{Tags: tags(p), SecuritySeverity: score(p)},
	}
}

// unknownRule describes a probe of another version or program by what its report
// says.
func unknownRule(name string, p probes.Result) rule {
	text := untrusted.Prose(p.Description, maxDescription/5)
	if text == "" {
		text = "A probe that this version of the program does not know."
	}
	return rule{
		ID: name, Name: name,
		ShortDescription: message{Text: text}, FullDescription: message{Text: text}, Help: message{Text: text},
		HelpURI:              home,
		DefaultConfiguration: configuration{Level: levelError},
		Properties:           ruleProperties{Tags: []string{"security", "sandbox"}},
	}
}

func tags(p probes.Probe) []string {
	list := []string{"sandbox", "attacker-class/" + string(p.Class)}
	if p.Class == probes.ClassLatency {
		list = append(list, "performance")
	} else {
		list = append(list, "security")
	}
	if p.Harm != "" {
		boundary := "boundary/crossed"
		if slices.Contains(inside, p.Harm) {
			boundary = "boundary/inside"
		}
		list = append(list, boundary, "harm/"+strings.ReplaceAll(p.Harm, " ", "-"))
	}
	for _, id := range p.ATTACK {
		list = append(list, "external/mitre-attack/"+id)
	}
	return list[:min(len(list), maxTags)]
}

// help says why a finding counts and what a pass would not prove.
func help(p probes.Probe) message {
	var plain, md strings.Builder
	for _, part := range []struct{ title, text string }{
		{"What it does", p.Description}, {"Why a verdict counts", p.Why}, {"What a pass does not prove", p.Limits},
		{"Who is hurt by an escape", p.Harm}, {"MITRE ATT&CK", strings.Join(p.ATTACK, ", ")}, {"Sources", strings.Join(p.References, "; ")},
	} {
		if part.text == "" {
			continue
		}
		fmt.Fprintf(&plain, "%s: %s\n", part.title, part.text)
		fmt.Fprintf(&md, "## %s\n\n%s\n\n", part.title, part.text)
	}
	return message{Text: plain.String(), Markdown: md.String()}
}

// cut shortens a text of ours to n characters.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-3]) + "..."
}
