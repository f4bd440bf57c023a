// Package junit writes a report as JUnit XML, for the test views of CI systems.
//
// There is one suite per backend and one case per probe. A probe that failed is
// a failure, one without an answer an error, one that did not run skipped; the
// counts are those of the report's summary. The format has no place for attempts
// and raw evidence: they are in the JSON report.
package junit

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	// name is that of the whole document.
	name = "bsm-redteam"
	// maxText bounds one text of the report, in bytes.
	maxText = 4096
	// maxUnnamed bounds skipped probes that a report counts without naming them.
	maxUnnamed = 1000
)

// text makes a string of a report fit for XML 1.0: a report file may come from
// anywhere, and the library copies control bytes into the document.
func text(s string) string { return untrusted.Prose(s, maxText) }

// Encode returns r as an XML 1.0 document. A report whose summary disagrees with
// its probes is refused: no document could agree with it.
func Encode(r probes.Report) ([]byte, error) {
	var err error
	if r.SkippedProbes, err = skips(r); err != nil {
		return nil, err
	}
	if counted := probes.Summarise(r.Probes, r.SkippedProbes); counted != r.Summary {
		return nil, fmt.Errorf("junit: the report's summary is %+v, but its probes are %+v", r.Summary, counted)
	}
	var doc junit.Testsuites
	doc.Name = name
	total := 0.0 // of what anybody may have written, it cannot overflow
	for _, backend := range report.Backends(r) {
		s := junit.Testsuite{ID: len(doc.Suites), Name: text(backend), Package: name}
		properties(&s, r, backend)
		for _, w := range report.Warnings(r, backend) {
			if s.SystemErr == nil {
				s.SystemErr = &junit.Output{}
			}
			s.SystemErr.Data += "warning: " + text(w) + "\n"
		}
		ms := 0.0
		for _, p := range r.Probes {
			if r.BackendOf(p) == backend {
				s.AddTestcase(ran(p, s.Name, r.Latency))
				ms += float64(p.DurationMS)
			}
		}
		for _, p := range r.SkippedProbes {
			if report.SkippedOn(r, p) == backend {
				s.AddTestcase(junit.Testcase{Name: text(p.Name), Classname: class(s.Name), Status: string(probes.Skipped), Time: seconds(0),
					Skipped: &junit.Result{Message: text(p.Reason), Type: kind(p)}})
			}
		}
		s.Time = seconds(ms)
		total += ms
		doc.AddSuite(s)
	}
	doc.Time = seconds(total)
	b := bytes.NewBufferString(xml.Header)
	if err := doc.WriteXML(b); err != nil {
		return nil, fmt.Errorf("encode junit: %w", err)
	}
	return b.Bytes(), nil
}

// skips are the skipped probes, with a stand-in for each that the report only
// counts, as reports of other programs in this schema may.
func skips(r probes.Report) ([]probes.SkippedProbe, error) {
	unnamed := r.Summary.Skipped - len(r.SkippedProbes)
	if unnamed > maxUnnamed {
		return nil, fmt.Errorf("junit: the report counts %d skipped probes that it does not name; at most %d can be shown", unnamed, maxUnnamed)
	}
	list := slices.Clone(r.SkippedProbes)
	for i := range unnamed {
		list = append(list, probes.SkippedProbe{Name: fmt.Sprintf("unnamed-%d", i+1), Reason: "the report counts this probe as skipped and does not name it"})
	}
	return list, nil
}

func class(suite string) string { return name + "." + suite }

func kind(p probes.SkippedProbe) string {
	if p.NeverHosts {
		return "never-hosts"
	}
	return string(probes.Skipped)
}

// ran is the case of a probe that was run.
func ran(p probes.Result, suite string, latency map[string]probes.Distribution) junit.Testcase {
	verdict := string(p.Verdict)
	if verdict == "" {
		verdict = strings.ToLower(report.Verdict(p))
	}
	verdict = text(verdict)
	tc := junit.Testcase{Name: text(p.Name), Classname: class(suite), Time: seconds(float64(p.DurationMS)), Status: verdict}
	result := &junit.Result{Message: text(p.Reason), Type: verdict, Data: body(p, latency)}
	switch {
	case p.Errored:
		if p.ErrorMessage != "" {
			result.Message = text(p.ErrorMessage)
		}
		tc.Error = result
	case p.Passed:
		tc.SystemOut = &junit.Output{Data: result.Data}
	default:
		tc.Failure = result
	}
	return tc
}

// body says in lines what a result rests on. The library has no properties of a
// case, so they stand here.
func body(p probes.Result, latency map[string]probes.Distribution) string {
	var b strings.Builder
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, text(value))
		}
	}
	line("verdict", string(p.Verdict))
	line("severity", string(p.Severity))
	line("reason", p.Reason)
	if p.ErrorMessage != p.Reason {
		line("error", p.ErrorMessage)
	}
	if p.Evidence["representative"] == false {
		line("representative", "no, the machine was emulated")
	}
	line("attacker_class", string(p.AttackerClass))
	line("validated_against", p.ValidatedAgainst)
	if p.Witness != nil {
		line("witness", p.Witness.Kind)
		line("witness saw", p.Witness.Summary)
	}
	if p.Control != nil {
		line("control", p.Control.Target)
		line("control succeeded", strconv.FormatBool(p.Control.OK))
		line("control saw", p.Control.Summary)
	}
	if d, ok := latency[probes.Qualified(p.Backend, p.Name)]; ok {
		line("latency", fmt.Sprintf("n=%d p50=%gms p90=%gms p95=%gms p99=%gms mean=%gms min=%gms max=%gms", d.Samples, d.P50, d.P90, d.P95, d.P99, d.Mean, d.Min, d.Max))
	}
	for _, c := range p.Cases {
		fmt.Fprintf(&b, "case %s: %s\n", text(c.Name), caseLine(c))
	}
	for _, n := range p.NotTested {
		fmt.Fprintf(&b, "not tested %s: %s\n", text(n.Case), text(n.Reason))
	}
	return b.String()
}

// caseLine says what a sub-case came to, and what is missing where it has no
// answer.
func caseLine(c probes.Case) string {
	parts := []string{text(string(c.Verdict))}
	if !c.Required {
		parts = append(parts, "optional")
	}
	for _, lacks := range []struct {
		has  bool
		what string
	}{{c.Attempted, "not attempted"}, {c.Proved, "not proved inside"}, {c.Controlled, "no control"}, {c.WitnessAlive, "witness not alive"}} {
		if !lacks.has {
			parts = append(parts, lacks.what)
		}
	}
	for _, s := range []string{string(c.Severity), c.Doubt, c.Missing, c.NotTested, c.Witness} {
		if s != "" {
			parts = append(parts, text(s))
		}
	}
	return strings.Join(parts, "; ")
}

func seconds(ms float64) string { return strconv.FormatFloat(ms/1000, 'f', 3, 64) }

// properties says where the verdicts of a suite were reached. Where several runs
// were merged into one suite, those of each begin with its number.
func properties(s *junit.Testsuite, r probes.Report, backend string) {
	add := adder{s, ""}
	add.text("schema_version", r.SchemaVersion)
	count := map[string]int{}
	for _, p := range r.Probes {
		if r.BackendOf(p) == backend {
			count[p.ValidatedAgainst]++
		}
	}
	for _, v := range slices.Sorted(maps.Keys(count)) {
		add.text("validated_against."+v, strconv.Itoa(count[v]))
	}
	runs := report.RunsOn(r, backend)
	for i, run := range runs {
		if at, err := time.Parse(time.RFC3339, run.GeneratedAt); err == nil && s.Timestamp == "" {
			s.SetTimestamp(at)
		}
		if len(runs) > 1 {
			add.prefix = fmt.Sprintf("run.%d.", i+1)
		}
		add.run(run)
	}
}

// adder adds properties, without the empty ones.
type adder struct {
	suite  *junit.Testsuite
	prefix string
}

func (a adder) text(key, value string) {
	if value != "" {
		a.suite.AddProperty(text(a.prefix+key), text(value))
	}
}

func (a adder) run(m probes.MergedRun) {
	a.text("generated_at", m.GeneratedAt)
	a.text("report_sha256", m.SHA256)
	a.text("final_sandbox_state", string(m.FinalSandboxState))
	a.text("baseline", m.Baseline)
	e := m.Environment
	if e == nil {
		return
	}
	a.text("harness", e.Harness)
	a.text("harness_sha256", e.HarnessSHA256)
	a.text("fail_severity", string(e.FailSeverity))
	a.text("policy", e.Policy)
	a.text("policy_sha256", e.PolicySHA256)
	a.text("leaks", strings.Join(e.Leaks, ","))
	if e.Shard != nil {
		a.text("shard", e.Shard.String())
	}
	a.text("co_located", strconv.FormatBool(e.Colocated))
	a.text("co_located_by", e.ColocatedBy)
	a.text("host.os", e.Host.OS)
	a.text("host.arch", e.Host.Arch)
	a.text("host.kernel", e.Host.Kernel)
	a.text("host.cpu", e.Host.CPU)
	a.text("host.virtualised", e.Host.Virtualised)
	a.text("host.rootless", strconv.FormatBool(e.Host.Rootless))
	a.text("host.lsm", e.Host.LSMMode)
	a.text("host.cgroup", e.Host.Cgroup)
	if v := e.Sandbox; v != nil {
		a.text("accelerator", v.Accelerator)
		a.text("vmm_version", v.VMMVersion)
		if v.VMMPID != 0 {
			a.text("vmm_pid", strconv.Itoa(v.VMMPID))
		}
		for _, k := range slices.Sorted(maps.Keys(v.Digests)) {
			a.text("digest."+k, v.Digests[k])
		}
		a.text("hardening", strings.Join(v.Hardening, ","))
	}
}
