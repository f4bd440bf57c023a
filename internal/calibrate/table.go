package calibrate

import (
	"fmt"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

// marks are the cells of the table.
var marks = map[probes.Verdict]string{
	probes.Escaped: "ESC", probes.Weak: "weak", probes.Contained: ".", probes.Inconclusive: "err", probes.Skipped: "skip",
}

// Table draws the matrix: a row per variant, a column per probe.
func (m Matrix) Table() string {
	width := max(len("base"), len(m.Backend))
	for _, r := range m.Rows {
		width = max(width, len(r.Leak.Name))
	}
	var b strings.Builder
	end := func(line string) { b.WriteString(strings.TrimRight(line, " ") + "\n") }
	head := fmt.Sprintf("%-*s  %-5s", width, m.Backend, "class")
	for _, p := range m.Probes {
		head += fmt.Sprintf("  %-4s", column(p))
	}
	end(head)
	line := func(name, class string, r Row) {
		text := fmt.Sprintf("%-*s  %-5s", width, name, class)
		for _, p := range m.Probes {
			text += fmt.Sprintf("  %-*s", max(4, len(column(p))), marks[r.Answers[p.Name]])
		}
		if r.NotBuilt != "" {
			text += "  <- leak not built"
		}
		if len(r.Problems) > 0 {
			text += "  <- PROBLEM"
		}
		end(text)
	}
	line("base", "", m.Base)
	for _, r := range m.Rows {
		line(r.Leak.Name, r.Leak.Class, r)
	}
	b.WriteString("ESC escaped, weak, . contained, err no answer, skip skipped, blank not run\n")
	return b.String()
}

// column is the short name of a probe: its class, or for the latencies its end.
func column(p probes.Probe) string {
	parts := strings.SplitN(p.Name, "-", 3)
	if p.Class == probes.ClassLatency && len(parts) == 3 {
		return parts[2]
	}
	return string(p.Class)
}
