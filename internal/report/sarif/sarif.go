// Package sarif writes a report as SARIF 2.1.0, for GitHub code scanning.
//
// There is one run per backend, in a category of its own, and one result per
// probe that failed or errored; a run in which everything passed has none, which
// closes the alerts of earlier ones. An escape is an error; a weakness and a
// probe without an answer are warnings. A probe without an answer keeps the rule
// and the fingerprint of its escapes, so that an open alert does not close
// because a run could not tell.
//
// GitHub refuses a run that says of itself that it was not successful, and leaves
// its alerts as they are. A run in which no probe was run says so, and one that was
// ended early: nothing tested must not look like nothing found. A probe that was skipped beside others that
// ran is a notification; its alert does close.
package sarif

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

// The bounds of GitHub code scanning on one file.
const (
	maxRuns    = 20
	maxResults = 25_000 // and as many rules
	maxGzipped = 10_000_000
	// maxMessage is in characters. GitHub names no bound for a result; this is
	// the one for descriptions.
	maxMessage = 1024
)

const (
	levelError   = "error"
	levelWarning = "warning"
	levelNote    = "note"

	name   = "bsm-redteam"
	schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
	// fingerprint is the only partial fingerprint that GitHub looks at. The
	// upload action computes one from the located line where there is none,
	// which would change with every edit of that line.
	fingerprint = "primaryLocationLineHash"
)

// Fallback locates results where neither a policy file nor a workflow is known.
// It need not exist: GitHub then shows an alert without a line of code.
const Fallback = ".github/workflows/sandbox-redteam.yml"

// Options say where in the user's repository a finding belongs. GitHub refuses a
// whole file for one result without a place. Paths are relative to the root of
// the repository; one that is not is passed over.
type Options struct {
	// PolicyPath is the policy file of the run, the first choice.
	PolicyPath string
	// WorkflowPath is the calling workflow, the second. See WorkflowFile.
	WorkflowPath string
	// Partial is set for a run that was ended early: it was not successful, so
	// that it closes no alert of a probe that it did not get to.
	Partial bool
}

// WorkflowFile returns the path of the workflow in a GITHUB_WORKFLOW_REF such as
// "owner/name/.github/workflows/ci.yml@refs/heads/main", "" when it has none.
func WorkflowFile(ref string) string {
	file, _, _ := strings.Cut(ref, "@")
	parts := strings.SplitN(file, "/", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[2]
}

// Encode returns r in SARIF, indented. A report that GitHub could not take whole
// is refused.
func Encode(r probes.Report, o Options) ([]byte, error) { return encode(r, o, catalog.All()) }

func encode(r probes.Report, o Options, known []probes.Probe) ([]byte, error) {
	at := place(o)
	doc := log{Schema: schema, Version: "2.1.0", Runs: []run{}}
	list := report.Backends(r)
	if len(list) > maxRuns {
		return nil, fmt.Errorf("sarif: the report is of %d backends; code scanning takes %d runs in a file; fix: encode the reports before they are merged", len(list), maxRuns)
	}
	for _, backend := range list {
		one := runOf(r, backend, at, known)
		if o.Partial {
			one.Invocations[0].ExecutionSuccessful = false
		}
		if n := max(len(one.Results), len(one.Tool.Driver.Rules)); n > maxResults {
			return nil, fmt.Errorf("sarif: %d results of backend %s; code scanning takes %d", n, untrusted.Prose(backend, 0), maxResults)
		}
		doc.Runs = append(doc.Runs, one)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		return nil, fmt.Errorf("encode sarif: %w", err)
	}
	if n, err := gzipped(b.Bytes()); err != nil || n > maxGzipped {
		return nil, cmp.Or(err, fmt.Errorf("sarif: %d bytes when compressed; code scanning takes %d; fix: encode the reports before they are merged", n, maxGzipped))
	}
	return b.Bytes(), nil
}

// gzipped is the size of b on its way to GitHub. What fits as it is, is not
// compressed to find out.
func gzipped(b []byte) (int, error) {
	if len(b) <= maxGzipped {
		return len(b), nil
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		return 0, fmt.Errorf("sarif: %w", err)
	}
	if err := w.Close(); err != nil {
		return 0, fmt.Errorf("sarif: %w", err)
	}
	return z.Len(), nil
}

// place is the URI of every result.
func place(o Options) string {
	for _, p := range []string{o.PolicyPath, o.WorkflowPath} {
		if uri, ok := relative(p); ok {
			return uri
		}
	}
	return Fallback
}

// Usable reports whether a path is relative and stays in the repository.
func Usable(p string) bool {
	_, ok := relative(p)
	return ok
}

// relative returns a path as a URI reference without scheme, host or dots.
func relative(p string) (uri string, ok bool) {
	p = path.Clean(strings.ReplaceAll(p, `\`, "/"))
	drive := len(p) > 1 && p[1] == ':'
	if p == "." || p == ".." || strings.HasPrefix(p, "../") || path.IsAbs(p) || drive {
		return "", false
	}
	return (&url.URL{Path: p}).String(), true
}

// category is a path of one element, whatever the backend is called.
func category(backend string) string {
	return name + "/" + url.PathEscape(cmp.Or(untrusted.Prose(backend, 100), "unknown")) + "/"
}

func runOf(r probes.Report, backend, at string, known []probes.Probe) run {
	out := run{
		Tool:              tool{driver{Name: name, InformationURI: home, Rules: []rule{}}},
		AutomationDetails: automationDetails{category(backend)},
		Results:           []result{},
	}
	rules := rulebook{index: map[string]int{}, known: map[string]probes.Probe{}}
	for _, p := range known {
		rules.known[p.Name] = p
	}
	call := invocation{ToolExecutionNotifications: []notification{}}
	for _, m := range report.RunsOn(r, backend) {
		if t, err := time.Parse(time.RFC3339, m.GeneratedAt); err == nil {
			call.EndTimeUTC = max(call.EndTimeUTC, t.UTC().Format(probes.TimeLayout))
		}
		if m.Environment != nil {
			out.Tool.Driver.Version = untrusted.Prose(m.Environment.Harness, 100)
		}
	}
	for _, w := range report.Warnings(r, backend) {
		call.ToolExecutionNotifications = append(call.ToolExecutionNotifications, notification{Level: levelWarning, Message: message{Text: untrusted.Prose(w, maxMessage/5)}})
	}
	for _, p := range r.Probes {
		if r.BackendOf(p) != backend {
			continue
		}
		call.ExecutionSuccessful = true
		id, i := rules.of(p)
		if p.Errored || !p.Passed {
			out.Results = append(out.Results, resultOf(p, backend, id, i, at))
		}
	}
	for _, p := range r.SkippedProbes {
		if report.SkippedOn(r, p) != backend {
			continue
		}
		id, i := rules.of(probes.Result{Name: p.Name})
		call.ToolExecutionNotifications = append(call.ToolExecutionNotifications,
			notification{Level: levelNote, Message: message{Text: "skipped: " + untrusted.Prose(p.Reason, maxMessage/5)}, AssociatedRule: &ruleReference{id, i}})
	}
	out.Tool.Driver.Rules = append(out.Tool.Driver.Rules, rules.list...)
	out.Invocations = []invocation{call}
	return out
}

// rulebook collects the rules of a run, each once.
type rulebook struct {
	list  []rule
	index map[string]int
	known map[string]probes.Probe
}

func (b *rulebook) of(p probes.Result) (id string, i int) {
	id = cmp.Or(untrusted.Prose(p.Name, 50), "unnamed")
	i, ok := b.index[id]
	if ok {
		return id, i
	}
	next := unknownRule(id, p)
	if known, ok := b.known[p.Name]; ok {
		next = ruleOf(known)
	}
	b.list = append(b.list, next)
	b.index[id] = len(b.list) - 1
	return id, len(b.list) - 1
}

func resultOf(p probes.Result, backend, id string, i int, at string) result {
	sum := sha256.Sum256([]byte(name + "\x00" + p.Name + "\x00" + backend))
	return result{
		RuleID: id, RuleIndex: i, Level: level(p), Message: message{Text: says(p, backend)},
		Locations:           []location{{physicalLocation{artifactLocation{at}, region{StartLine: 1}}}},
		PartialFingerprints: map[string]string{fingerprint: hex.EncodeToString(sum[:16])},
		Properties: resultProperties{Backend: untrusted.Prose(backend, 100), Verdict: verdict(p),
			Severity: untrusted.Prose(string(p.Severity), 50), ValidatedAgainst: untrusted.Prose(p.ValidatedAgainst, 100)},
	}
}

func verdict(p probes.Result) string {
	if p.Verdict == "" {
		return strings.ToLower(report.Verdict(p))
	}
	return untrusted.Prose(string(p.Verdict), 50)
}

// level is that of one result. A failed probe without a verdict is of another
// program; it is taken for an escape.
func level(p probes.Result) string {
	if p.Errored || p.Verdict == probes.Weak {
		return levelWarning
	}
	return levelError
}

// says is the text of an alert: what was found, and what it rests on.
func says(p probes.Result, backend string) string {
	word := verdict(p)
	why := strings.TrimPrefix(untrusted.Prose(cmp.Or(p.ErrorMessage, p.Reason), maxMessage/5), word+": ")
	parts := []string{fmt.Sprintf("%s on %s: %s", word, untrusted.Prose(backend, 50), why)}
	if p.Errored {
		parts = append(parts, "The boundary was neither shown to hold nor seen to fail")
	}
	if p.Witness != nil {
		parts = append(parts, fmt.Sprintf("Witness (%s): %s", untrusted.Prose(p.Witness.Kind, 50), untrusted.Prose(p.Witness.Summary, maxMessage/10)))
	}
	if p.Control != nil {
		word := "did not succeed"
		if p.Control.OK {
			word = "succeeded"
		}
		parts = append(parts, fmt.Sprintf("Control (%s) %s", untrusted.Prose(p.Control.Target, 50), word))
	}
	// A text in brackets before one in parentheses would be a link.
	return cut(strings.ReplaceAll(strings.Join(parts, ". ")+".", "](", "] ("), maxMessage)
}
