package compare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/columns"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
)

// Formats lists the formats that Render knows.
func Formats() []string { return []string{"text", "markdown", "json"} }

// Render renders a comparison as text (also for an unknown format), Markdown or
// JSON.
func (c Comparison) Render(format string) ([]byte, error) {
	switch format {
	case "json":
		return c.json()
	case "markdown":
		return []byte(c.markdown()), nil
	}
	return []byte(c.text()), nil
}

func (c Comparison) json() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(c); err != nil {
		return nil, fmt.Errorf("encode comparison: %w", err)
	}
	return untrusted.JSON(b.Bytes()), nil
}

// Headline is the verdict in one line.
func (c Comparison) Headline() string {
	slower, faster, unknown := 0, 0, 0
	for _, s := range c.Latency {
		switch s.Direction {
		case Slower:
			slower++
		case Faster:
			faster++
		case Inconclusive:
			unknown++
		}
	}
	parts := []string{count(len(c.Regressions), "regression"), count(len(c.Fixes), "fix"), fmt.Sprintf("%d new, %d gone, %d unchanged", len(c.New), len(c.Gone), c.Unchanged)}
	if len(c.Inconclusive) > 0 {
		parts = append(parts, fmt.Sprintf("%d without an answer", len(c.Inconclusive)))
	}
	if len(c.Latency) > 0 {
		parts = append(parts, fmt.Sprintf("latency: %d slower, %d faster, %d inconclusive", slower, faster, unknown))
	}
	return strings.Join(parts, "; ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if what == "fix" {
		what = "fixe"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// section is a list under a title.
type section struct {
	title string
	list  []Finding
}

func (c Comparison) sections() []section {
	all := []section{{"Regressions", c.Regressions}, {"Fixes", c.Fixes}, {"New", c.New}, {"Gone", c.Gone}, {"Changed", c.Changed}, {"Inconclusive", c.Inconclusive}}
	return slices.DeleteFunc(all, func(s section) bool { return len(s.list) == 0 })
}

// decides is what makes a latency shift more than a hint.
const decides = "Two runs that were not interleaved show a shift, not its cause: bsm-redteam ab decides."

func (c Comparison) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "base: %s of %s, %d of %d passed\n", c.Base.Backend, c.Base.GeneratedAt, c.Base.Summary.Passed, c.Base.Summary.Total)
	fmt.Fprintf(&b, "head: %s of %s, %d of %d passed\n", c.Head.Backend, c.Head.GeneratedAt, c.Head.Summary.Passed, c.Head.Summary.Total)
	fmt.Fprintf(&b, "%s\n", c.Headline())
	for _, line := range c.Context {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	for _, s := range c.sections() {
		fmt.Fprintf(&b, "\n%s\n", strings.ToUpper(s.title))
		for _, f := range s.list {
			fmt.Fprintf(&b, "  %s\n", f.Text)
		}
	}
	if len(c.Latency) == 0 {
		return b.String()
	}
	rows := [][]string{{"LATENCY", "", "BASE", "HEAD", "CHANGE", ""}}
	for _, s := range c.Latency {
		rows = append(rows, []string{s.name(), s.Percentile, s.Base.String(), s.Head.String(), s.change(), string(s.Direction)})
	}
	b.WriteString("\n" + columns.Align(rows))
	for _, r := range c.reasons() {
		fmt.Fprintf(&b, "  inconclusive, %s: %s\n", r.of, r.why)
	}
	if c.shifted() {
		fmt.Fprintf(&b, "  %s\n", decides)
	}
	return b.String()
}

func (s Shift) name() string {
	if s.Backend != "" {
		return s.Backend + "/" + s.Metric
	}
	return s.Metric
}

// change prints the relative change, and nothing where that would be misread.
func (s Shift) change() string {
	if s.Base.Value <= 0 {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", 100*s.Change)
}

// String prints the value with its interval.
func (e Estimate) String() string {
	if e.CI95 == nil {
		return fmt.Sprintf("%s n=%d", duration(e.Value), e.Samples)
	}
	return fmt.Sprintf("%s [%s, %s] n=%d", duration(e.Value), duration(e.CI95.Low), duration(e.CI95.High), e.Samples)
}

func (c Comparison) shifted() bool {
	return slices.ContainsFunc(c.Latency, func(s Shift) bool { return s.Direction == Slower || s.Direction == Faster })
}

// reason is why latencies could not be compared.
type reason struct{ why, of string }

// reasons groups the latencies that are inconclusive by why, so that one reason
// is said once.
func (c Comparison) reasons() []reason {
	var order []string
	of := map[string][]string{}
	for _, s := range c.Latency {
		for _, why := range s.Why {
			if of[why] == nil {
				order = append(order, why)
			}
			of[why] = append(of[why], s.name()+" "+s.Percentile)
		}
	}
	var out []reason
	for _, why := range order {
		what := strings.Join(of[why], ", ")
		if len(of[why]) == len(c.Latency) {
			what = "all latencies"
		}
		out = append(out, reason{why, what})
	}
	return out
}

// duration prints milliseconds with three significant digits.
func duration(v float64) string {
	unit, name := v*1000, "us"
	switch {
	case v >= 1000:
		unit, name = v/1000, "s"
	case v >= 1:
		unit, name = v, "ms"
	}
	digits := 0
	switch {
	case unit < 10:
		digits = 2
	case unit < 100:
		digits = 1
	}
	return strconv.FormatFloat(unit, 'f', digits, 64) + name
}

func (c Comparison) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "### Comparison: %s\n\n", c.Headline())
	fmt.Fprintf(&b, "| | backend | of | passed |\n|---|---|---|---|\n")
	for _, s := range []struct {
		name string
		Side
	}{{"base", c.Base}, {"head", c.Head}} {
		fmt.Fprintf(&b, "| %s | %s | %s | %d of %d |\n", s.name, md(s.Backend), md(s.GeneratedAt), s.Summary.Passed, s.Summary.Total)
	}
	if len(c.Context) > 0 {
		b.WriteString("\n")
		for _, line := range c.Context {
			fmt.Fprintf(&b, "- %s\n", md(line))
		}
	}
	for _, s := range c.sections() {
		fmt.Fprintf(&b, "\n#### %s\n\n| probe | base | head | |\n|---|---|---|---|\n", s.title)
		for _, f := range s.list {
			name := f.Probe
			if f.Backend != "" {
				name = f.Backend + "/" + name
			}
			if name == "" {
				name = "the run"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", md(name), md(f.From), md(f.To), md(f.Text))
		}
	}
	if len(c.Latency) > 0 {
		b.WriteString("\n#### Latency\n\n| | | base, 95 % interval | head, 95 % interval | change | |\n|---|---|---|---|---|---|\n")
		for _, s := range c.Latency {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", md(s.name()), s.Percentile, s.Base, s.Head, s.change(), s.Direction)
		}
		b.WriteString("\n")
		for _, r := range c.reasons() {
			fmt.Fprintf(&b, "- inconclusive, %s: %s\n", md(r.of), md(r.why))
		}
		if c.shifted() {
			b.WriteString("- " + decides + "\n")
		}
	}
	return b.String()
}

func md(s string) string { return untrusted.Markdown(backends.NewText([]byte(s)), maxText*4) }
