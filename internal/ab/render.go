package ab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/columns"
	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
)

// Configuration is what one arm was.
type Configuration struct {
	// Policy names the declared boundary, PolicySHA256 is the digest of what it
	// declares.
	Policy       string               `json:"policy"`
	PolicySHA256 string               `json:"policy_sha256"`
	Leaks        []string             `json:"leaks,omitempty"`
	Sandbox      *backends.Provenance `json:"sandbox,omitempty"`
}

// Report is a comparison with what it was made on.
type Report struct {
	Result
	GeneratedAt string          `json:"generated_at"`
	Backend     string          `json:"backend"`
	Harness     string          `json:"harness"`
	Base        Configuration   `json:"base"`
	Head        Configuration   `json:"head"`
	Host        hostcheck.Facts `json:"host"`
	// Steal is the fraction of processor time that the hypervisor below this
	// host kept for itself meanwhile; absent where the host does not say.
	Steal  *float64 `json:"steal,omitempty"`
	Rounds int      `json:"rounds"`
	// Iterations counts the samples asked for per block, after its warm-up.
	Iterations  int     `json:"iterations"`
	Alpha       float64 `json:"alpha"`
	MinEffect   float64 `json:"min_effect"`
	NoiseFactor float64 `json:"noise_factor"`
	// Notes say what a reader has to know, such as probes that did not run.
	Notes []string `json:"notes"`
}

// Formats lists the formats that Render knows.
func Formats() []string { return []string{"text", "markdown", "json"} }

// maxText bounds a text from a policy or a sandbox.
const maxText = 500

func clean(s string) string { return untrusted.Prose(s, maxText) }

// cleaned is a list that is not null in JSON.
func cleaned(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = clean(s)
	}
	return out
}

func (c Configuration) clean() Configuration {
	c.Policy, c.Leaks = clean(c.Policy), cleaned(c.Leaks)
	return c
}

// Render renders a report as text (also for an unknown format), Markdown or JSON.
func (r Report) Render(format string) ([]byte, error) {
	switch format {
	case "json":
		return r.json()
	case "markdown":
		return []byte(r.markdown()), nil
	}
	return []byte(r.text()), nil
}

func (r Report) json() ([]byte, error) {
	r.Base, r.Head, r.Notes = r.Base.clean(), r.Head.clean(), cleaned(r.Notes)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode comparison: %w", err)
	}
	return untrusted.JSON(b.Bytes()), nil
}

// headline is the verdict in one line.
func (r Report) headline() string {
	count := map[Verdict]int{}
	for _, m := range r.Metrics {
		count[m.Verdict]++
	}
	return fmt.Sprintf("%s: of %d metrics, %d regressed, %d improved, %d did not change, %d inconclusive",
		r.Verdict, len(r.Metrics), count[Regression], count[Improvement], count[NoChange], count[Inconclusive])
}

// named are the lines that quote a policy, a sandbox or a probe.
func (r Report) named() []string {
	return append([]string{"base: " + r.Base.describe(), "head: " + r.Head.describe()}, r.Notes...)
}

// facts describe how the comparison was made, in our own words.
func (r Report) facts() []string {
	out := []string{
		fmt.Sprintf("%s, %d rounds ABBA/BAAB on one host: %d blocks per arm, %d iterations each", r.Backend, r.Rounds, 2*r.Rounds, r.Iterations),
		fmt.Sprintf("a difference counts if p < %g after Holm's correction, over %s and over %g times the A/A noise, and there again in a second run", r.Alpha, percent(r.MinEffect), r.NoiseFactor),
	}
	if r.Steal != nil {
		out = append(out, fmt.Sprintf("the hypervisor below this host took %s of its processor time meanwhile", percent(*r.Steal)))
	}
	return append(out, "A/A: "+r.AA)
}

func (c Configuration) describe() string {
	s := c.Policy
	if len(c.Leaks) > 0 {
		s += ", weakened on purpose: " + strings.Join(c.Leaks, ", ")
	}
	if c.Sandbox != nil && c.Sandbox.Accelerator != "" {
		s += ", " + c.Sandbox.Accelerator
	}
	return s
}

var headings = []string{"METRIC", "BASE", "HEAD", "CHANGE", "INTERVAL", "P", "A/A", "NEEDS", "VERDICT"}

func (m Metric) row() []string {
	out := []string{clean(m.title()), m.Base.value(m.Statistic), m.Head.value(m.Statistic)}
	if m.AB == nil {
		return append(out, "", "", "", "", "", string(m.Verdict))
	}
	return append(out, signed(m.AB.Change), m.AB.interval(), strconv.FormatFloat(m.AB.PHolm, 'f', 4, 64), signed(m.AA.Change), percent(m.Threshold), string(m.Verdict))
}

func signed(v float64) string {
	if math.Abs(v) < 0.0005 {
		v = 0 // also what is minus nothing
	}
	return fmt.Sprintf("%+.1f %%", 100*v)
}

func (t Test) interval() string {
	if t.Low == nil {
		return "unbounded"
	}
	return fmt.Sprintf("[%s, %s]", signed(*t.Low), signed(*t.High))
}

func (s Side) value(what Statistic) string {
	switch {
	case s.Value == nil:
		return "failed"
	case what == Failures:
		return fmt.Sprintf("%d of %d", s.Failed, s.Failed+s.Samples)
	}
	return milliseconds(*s.Value)
}

func milliseconds(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.3gs", v/1000)
	case v >= 1:
		return fmt.Sprintf("%.4gms", v)
	}
	return fmt.Sprintf("%.3gus", v*1000)
}

// details are the sentences beside the table.
func (m Metric) details() []string {
	out := []string{m.title() + ": " + m.Why}
	if m.Statistic != P50 {
		return out
	}
	for _, s := range []struct {
		arm Arm
		Side
	}{{Base, m.Base}, {Head, m.Head}} {
		out = append(out, fmt.Sprintf("%s, %s: %d samples, %d failed, %d of the warm-up discarded, drift %s from first to last third, lag-1 autocorrelation %.2f",
			m.Name, s.arm, s.Samples, s.Failed, s.Warmup, signed(s.Drift), s.Lag1))
	}
	return out
}

func (r Report) text() string {
	var b strings.Builder
	fmt.Fprintln(&b, r.headline())
	for _, f := range slices.Concat(r.named(), r.facts()) {
		fmt.Fprintln(&b, "  "+clean(f))
	}
	rows := [][]string{headings}
	for _, m := range r.Metrics {
		rows = append(rows, m.row())
	}
	b.WriteString("\n" + columns.Align(rows) + "\n")
	for _, m := range r.Metrics {
		for _, d := range m.details() {
			fmt.Fprintln(&b, "  "+clean(d))
		}
	}
	return b.String()
}

func (r Report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "### A/B latency: %s\n\n", r.headline())
	for _, f := range r.named() {
		fmt.Fprintf(&b, "- %s\n", md(f))
	}
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "- %s\n", html.EscapeString(clean(f)))
	}
	fmt.Fprintf(&b, "\n| %s |\n|%s\n", strings.ToLower(strings.Join(headings, " | ")), strings.Repeat("---|", len(headings)))
	for _, m := range r.Metrics {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(m.row(), " | "))
	}
	b.WriteString("\n")
	for _, m := range r.Metrics {
		for _, d := range m.details() {
			fmt.Fprintf(&b, "- %s\n", html.EscapeString(clean(d)))
		}
	}
	return b.String()
}

func md(s string) string { return untrusted.Markdown(backends.NewText([]byte(s)), maxText*4) }
