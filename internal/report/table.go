package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

// The widths between which a table is laid out.
const (
	minWidth = 60
	maxWidth = 160
)

// row is one line of the table.
type row struct{ backend, probe, verdict, witness, time string }

// Table writes the result table: probe, verdict, witness in one line, time; in
// front of them the backend, where there are several. It is at most width columns
// wide. The strings of r are printed as they are: the caller has made them plain.
func Table(w io.Writer, r probes.Report, width int) error {
	width = min(max(width, minWidth), maxWidth)
	rows := []row{{"BACKEND", "PROBE", "VERDICT", "WITNESS", "TIME"}}
	several := false
	for _, p := range r.Probes {
		several = several || p.Backend != ""
		rows = append(rows, row{p.Backend, p.Name, Verdict(p), Says(p, r.Latency), seconds(p.DurationMS)})
	}
	for _, s := range r.SkippedProbes {
		several = several || s.Backend != ""
		rows = append(rows, row{s.Backend, s.Name, "skipped", s.Reason, "-"})
	}
	var zeroth, first, second, last int
	for _, x := range rows {
		zeroth, first, second, last = max(zeroth, len(x.backend)), max(first, len(x.probe)), max(second, len(x.verdict)), max(last, len(x.time))
	}
	room := width - first - second - last - 6
	if several {
		room -= zeroth + 2
	}
	var b strings.Builder
	for _, x := range rows {
		if several {
			fmt.Fprintf(&b, "%-*s  ", zeroth, x.backend)
		}
		fmt.Fprintf(&b, "%-*s  %-*s  %s  %*s\n", first, x.probe, second, x.verdict, padded(x.witness, room), last, x.time)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Verdict is the word for a result in tables and progress lines.
func Verdict(p probes.Result) string {
	switch {
	case p.Errored && p.Verdict == probes.Inconclusive && strings.HasPrefix(p.ErrorMessage, "inconclusive"):
		return "inconclusive"
	case p.Errored:
		return "errored"
	case p.Verdict != "":
		v := string(p.Verdict)
		if !p.Passed && p.Verdict == probes.Escaped {
			v = "ESCAPED"
		} else if p.Verdict == probes.Weak {
			v += " (" + string(p.Severity) + ")"
		}
		return v
	case p.Passed:
		return "passed"
	}
	return "FAILED"
}

// Says is the one line that a result rests on: why it has none, or else what
// the witness saw.
func Says(p probes.Result, latency map[string]probes.Distribution) string {
	if d, ok := latency[probes.Qualified(p.Backend, p.Name)]; ok && p.Passed {
		says := fmt.Sprintf("n=%d p50=%s p95=%s p99=%s", d.Samples, ms(d.P50), ms(d.P95), ms(d.P99))
		if p.Evidence["representative"] == false {
			return says + ", emulated: not representative"
		}
		return says + " max=" + ms(d.Max)
	}
	if p.Passed && p.Verdict == probes.Contained && p.Witness != nil && p.Witness.Summary != "" {
		return p.Witness.Summary
	}
	for _, prefix := range []string{"escaped: ", "inconclusive: ", "weak: ", "framework error: "} {
		if rest, ok := strings.CutPrefix(p.Reason, prefix); ok {
			return rest
		}
	}
	return p.Reason
}

// ms prints milliseconds with three significant digits.
func ms(v float64) string {
	d := time.Duration(v * float64(time.Millisecond))
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0fms", v)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1fms", v)
	}
	return fmt.Sprintf("%dus", d.Microseconds())
}

func seconds(ms int64) string { return fmt.Sprintf("%.1fs", float64(ms)/1000) }

// padded brings s to exactly room columns of one line.
func padded(s string, room int) string {
	s = strings.Join(strings.Fields(s), " ")
	n := utf8.RuneCountInString(s)
	if n <= room {
		return s + strings.Repeat(" ", room-n)
	}
	if room < 4 {
		return strings.Repeat(" ", max(room, 0))
	}
	runes := []rune(s)
	return string(runes[:room-3]) + "..."
}

// Findings returns the sentences that the table had no room for: one per probe
// that failed, errored or is weak.
func Findings(r probes.Report) []string {
	var out []string
	for _, p := range r.Probes {
		if p.Passed && p.Verdict != probes.Weak {
			continue
		}
		name := probes.Qualified(p.Backend, p.Name)
		out = append(out, name+": "+p.Reason)
		if p.ErrorMessage != "" && !strings.Contains(p.Reason, strings.TrimPrefix(p.ErrorMessage, "inconclusive: ")) {
			out = append(out, name+": "+p.ErrorMessage)
		}
	}
	return slices.Compact(out)
}
