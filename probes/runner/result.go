package runner

import (
	"bytes"
	"errors"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// errored is the result of a probe that came to no answer.
func errored(p probes.Probe, err error) probes.Result {
	msg := printable(err.Error())
	return probes.Result{
		Name: p.Name, AttackerClass: p.Class, Expectation: p.Expectation, ValidatedAgainst: probes.MockOnly,
		Description: p.Description, Errored: true, Verdict: probes.Inconclusive,
		Reason: "framework error: " + msg, ErrorMessage: msg,
	}
}

// result turns an answer into the report's entry.
func (s *session) result(p probes.Probe, a answer) probes.Result {
	if a.err != nil && a.out.Verdict != probes.Escaped {
		res := errored(p, errors.Join(a.err, a.teardown))
		res.Evidence = a.out.Evidence
		s.facts(&res, a.out)
		return res
	}
	out := a.out
	res := probes.Result{
		Name: p.Name, AttackerClass: p.Class, Expectation: p.Expectation,
		ValidatedAgainst: s.validated(p, out), Description: p.Description,
		Reason: printable(out.Reason), Evidence: out.Evidence,
		Verdict: out.Verdict, Severity: out.Severity,
	}
	s.facts(&res, out)
	switch out.Verdict {
	case probes.Contained:
		res.Passed = true
	case probes.Weak:
		// A measurement that has to succeed and did not is no finding to weigh.
		res.Passed = p.Expectation != probes.ShouldPass && !out.Severity.AtLeast(s.threshold())
	case probes.Escaped:
	default: // inconclusive, or a verdict that a probe must not return
		res.Errored, res.ErrorMessage = true, "inconclusive: "+printable(strings.TrimPrefix(out.Reason, "inconclusive: "))
		res.Verdict = probes.Inconclusive
	}
	if err := errors.Join(a.err, a.teardown); err != nil {
		spoil(&res, err)
	}
	return res
}

func (r *Runner) threshold() probes.Severity {
	if r.FailSeverity == "" {
		return probes.SeverityMedium
	}
	return r.FailSeverity
}

func (s *session) facts(res *probes.Result, out probes.Outcome) {
	if out.Witness != (probes.Witness{}) {
		w := probes.Witness{Kind: printable(out.Witness.Kind), Summary: printable(out.Witness.Summary)}
		res.Witness = &w
	}
	if out.Control != (probes.Control{}) {
		c := out.Control
		c.Target, c.Summary = printable(c.Target), printable(c.Summary)
		res.Control = &c
	}
	for _, c := range out.Cases {
		c.Witness, c.Doubt, c.Missing, c.NotTested = printable(c.Witness), printable(c.Doubt), printable(c.Missing), printable(c.NotTested)
		res.Cases = append(res.Cases, c)
	}
	for _, n := range out.NotTested {
		res.NotTested = append(res.NotTested, probes.NotTested{Case: n.Case, Reason: printable(n.Reason)})
	}
	res.Attempts = probes.ReportAttempts(out.Attempts)
	if s.RawSamples {
		res.Samples = out.Samples
	}
}

// spoil adds an error to a result. What the host saw and what already fails stays
// a failure: an error must not hide it.
func spoil(res *probes.Result, err error) {
	msg := printable(err.Error())
	if res.ErrorMessage != "" {
		msg = res.ErrorMessage + "; " + msg
	}
	res.ErrorMessage = msg
	if res.Verdict == probes.Escaped || (res.Verdict == probes.Weak && !res.Passed) {
		return
	}
	res.Passed, res.Errored = false, true
	if res.Verdict != probes.Inconclusive {
		res.Reason = "framework error: " + printable(err.Error()) + " (the probe had answered " + string(res.Verdict) + ")"
		res.Verdict = probes.Inconclusive
	}
	res.ValidatedAgainst = probes.MockOnly
}

// validated measures the provenance of one answer: the sandbox is a real one of
// this backend that has a live process of this run, and proof, control and
// witness of this probe all held.
func (s *session) validated(p probes.Probe, out probes.Outcome) string {
	name := probes.ValidatedBy(s.sb.Backend())
	if s.sb.Backend() == mockName || name == probes.ValidatedBoth || s.prov == nil || !s.coloc.ok || !held(p, out) {
		return probes.MockOnly
	}
	return name
}

func held(p probes.Probe, out probes.Outcome) bool {
	if p.Class == probes.ClassLatency {
		if out.Verdict != probes.Contained && out.Verdict != probes.Escaped && out.Verdict != probes.Weak {
			return false
		}
		for _, d := range out.Latency {
			if d.Samples > 0 {
				return true
			}
		}
		return false
	}
	answered := false
	for _, c := range out.Cases {
		held := c.Controlled && c.WitnessAlive && (c.Crossed || (c.Proved && c.Attempted))
		switch {
		case held && c.Verdict != probes.Inconclusive && c.Verdict != probes.Skipped:
			answered = true
		case c.Required && out.Verdict != probes.Escaped:
			return false
		}
	}
	return answered && out.Verdict != probes.Inconclusive
}

// printable keeps what is plain text and escapes everything else, so that no
// error text from a guest becomes structure anywhere.
func printable(s string) string {
	plain := utf8.ValidString(s) && !strings.Contains(s, "##") && !strings.HasPrefix(strings.TrimLeft(s, " "), "::")
	if plain && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	// Our own prose has quotes and line breaks; these are harmless as such.
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\n`, "; ").Replace(wire.Escape([]byte(s)))
}

// frame names the place of a panic from its stack: the first frame after the
// runtime's own.
func frame(stack []byte) string {
	lines := bytes.Split(stack, []byte("\n"))
	after := false
	for _, l := range lines {
		l := strings.TrimSpace(string(l))
		if strings.HasPrefix(l, "panic(") {
			after = true
			continue
		}
		file, _, ok := strings.Cut(l, " +0x")
		if after && ok && !strings.Contains(file, "/runtime/") {
			return path.Base(path.Dir(file)) + "/" + path.Base(file)
		}
	}
	return "an unknown place"
}
