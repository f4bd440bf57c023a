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
	width := len("base")
	for _, r := range m.Rows {
		width = max(width, len(r.Leak.Name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s  %-5s", width, m.Backend, "class")
	for _, p := range m.Probes {
		fmt.Fprintf(&b, "  %-4s", column(p))
	}
	b.WriteString("\n")
	line := func(name, class string, r Row) {
		fmt.Fprintf(&b, "%-*s  %-5s", width, name, class)
		for _, p := range m.Probes {
			cell, ok := marks[r.Answers[p.Name]]
			if !ok {
				cell = ""
			}
			fmt.Fprintf(&b, "  %-*s", max(4, len(column(p))), cell)
		}
		if len(r.Problems) > 0 {
			b.WriteString("  <- PROBLEM")
		}
		b.WriteString("\n")
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
