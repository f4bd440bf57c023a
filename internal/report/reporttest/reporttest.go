// Package reporttest holds reports for the tests of what renders them: clean,
// with every verdict, merged, empty, in the shape of another program, and with
// hostile bytes in every string.
package reporttest

import (
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// All returns the reports by name. Every call makes new ones.
func All() map[string]probes.Report {
	return map[string]probes.Report{
		"clean": Clean(), "failing": Failing(), "merged": Merged(), "skipped": Skipped(), "unnamed": Unnamed(),
		"empty": {}, "empty-qemu": whole(probes.Report{Backend: "qemu"}), "hostile": Hostile(Nasty),
	}
}

// Nasty is text that some output takes for structure: control bytes, ends of
// CDATA and of comments, markup, commands of the GitHub runner, bidi controls,
// invalid UTF-8.
const Nasty = "\x00\x1b[2J]]>--><!-- <b>&amp;|`\n::error::x ##[add-mask]a \u202e\uffff\xff\xfe\"'\\[l](https://example.invalid){0}\r"

func whole(r probes.Report) probes.Report {
	r.SchemaVersion, r.GeneratedAt, r.FinalSandboxState = probes.SchemaVersion, "2026-04-27T12:00:00.000Z", backends.StateReady
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	r.Notes = []string{probes.ProvenanceNote(r.Probes)}
	return r
}

func environment() *probes.Environment {
	return &probes.Environment{
		Host:      probes.HostFacts{OS: "linux", Arch: "amd64", Kernel: "6.12.0", CPU: "A CPU", CPUs: 2, LSMMode: "apparmor: enabled", Cgroup: "v2", Virtualised: "none"},
		Colocated: true, ColocatedBy: "the guest's VMM is pid 7 of this host", Policy: "qemu default", Harness: "v1.2.3",
		FailSeverity: probes.SeverityMedium, HarnessSHA256: strings.Repeat("33", 32),
		Sandbox: &backends.Provenance{Accelerator: "kvm", VMMVersion: "9.2.0", VMMPID: 7, Hardening: []string{"seccomp", "no-new-privs"},
			Digests: map[string]string{"kernel": strings.Repeat("00", 32), "rootfs": strings.Repeat("11", 32), "agent": strings.Repeat("22", 32)}},
	}
}

func contained(name string, class probes.Class) probes.Result {
	return probes.Result{Name: name, AttackerClass: class, Expectation: probes.ShouldFail, ValidatedAgainst: "validated-qemu", Description: "attacks " + name,
		Passed: true, Verdict: probes.Contained, Reason: "1 of 1 sub-cases contained, each with proof, control and a living witness", DurationMS: 412,
		Witness: &probes.Witness{Kind: "canary listeners", Summary: "7 canaries listened, 0 transports arrived from the sandbox"},
		Control: &probes.Control{Target: "open agent on this host", OK: true, Summary: "4 of 4 crossed"},
		Cases:   []probes.Case{{Name: "tcp4", Required: true, Proved: true, Controlled: true, WitnessAlive: true, Attempted: true, Witness: "0 visits", Verdict: probes.Contained}}}
}

func latency() (probes.Result, map[string]probes.Distribution) {
	p := contained("P-LAT-boot", probes.ClassLatency)
	p.Expectation, p.Cases, p.Control, p.DurationMS = probes.ShouldPass, nil, nil, 3000
	return p, map[string]probes.Distribution{p.Name: {Samples: 3, P50: 12.5, P90: 14, P95: 15, P99: 15, Mean: 13, Min: 12, Max: 15}}
}

// Clean is a report in which everything passed.
func Clean() probes.Report {
	lat, dist := latency()
	return whole(probes.Report{Backend: "qemu", Environment: environment(), Latency: dist, Baseline: "recorded-in-run",
		Probes: []probes.Result{contained("P-A1-net-egress", "A1"), contained("P-A2-fs-escape", "A2"), lat}})
}

// Failing is a report with every verdict.
func Failing() probes.Report {
	escaped := contained("P-A1-net-egress", "A1")
	escaped.Passed, escaped.Verdict, escaped.Severity = false, probes.Escaped, probes.SeverityHigh
	escaped.Reason = "escaped: tcp4: the tcp4 canary received the token of this run"
	escaped.Cases = []probes.Case{
		{Name: "tcp4", Required: true, Proved: true, Controlled: true, WitnessAlive: true, Attempted: true, Crossed: true, Witness: "the tcp4 canary received the token of this run", Verdict: probes.Escaped},
		{Name: "icmp", NotTested: "no raw socket on this host", Verdict: probes.Skipped},
	}
	escaped.NotTested = []probes.NotTested{{Case: "icmp", Reason: "no raw socket on this host"}}
	weak := contained("P-A3-process-escape", "A3")
	weak.Passed, weak.Verdict, weak.Severity, weak.Reason = false, probes.Weak, probes.SeverityMedium, "weak: seccomp: no filter is in force"
	below := contained("P-A4-resource-exhaust", "A4")
	below.Verdict, below.Severity, below.Reason = probes.Weak, probes.SeverityLow, "weak: disk: no quota"
	unsure := contained("P-A2-fs-escape", "A2")
	unsure.Passed, unsure.Errored, unsure.Verdict = false, true, probes.Inconclusive
	unsure.Reason = "inconclusive: shadow: the control did not succeed"
	unsure.ErrorMessage, unsure.Control.OK, unsure.ValidatedAgainst = unsure.Reason, false, probes.MockOnly
	unsure.Cases = []probes.Case{{Name: "shadow", Required: true, Proved: true, WitnessAlive: true, Attempted: true, Verdict: probes.Inconclusive}}
	broken := probes.Result{Name: "P-A5-time-bomb", AttackerClass: "A5", Expectation: probes.ShouldFail, ValidatedAgainst: probes.MockOnly, Description: "d",
		Errored: true, ErrorMessage: "framework error: no fuse", Reason: "framework error: no fuse"}
	lat, dist := latency()
	lat.Passed, lat.Verdict, lat.Severity, lat.Reason = false, probes.Weak, probes.SeverityHigh, "weak: 2 of 3 boots failed"
	e := environment()
	e.Leaks = []string{"user-net", "no-seccomp"}
	return whole(probes.Report{Backend: "qemu", Environment: e, Latency: dist, Probes: []probes.Result{escaped, unsure, weak, below, broken, contained("P-A6-substrate-lie", "A6"), lat},
		SkippedProbes: []probes.SkippedProbe{{Name: "P-A8-vsock-poison", Reason: "the backend has no channel", NeverHosts: true}, {Name: "P-A7-stdout-injection", Reason: "no renderer"}}})
}

// Merged is a report of two runs on bwrap, shards of one selection, and one on
// qemu, with some of the same probes.
func Merged() probes.Report {
	failing, clean := Failing(), Clean()
	out := probes.Report{Backend: "bwrap+qemu", Latency: map[string]probes.Distribution{}}
	part := func(r probes.Report, backend string, index, of int) {
		e := *r.Environment
		e.Shard = nil
		if of > 1 {
			e.Shard = &probes.Shard{Index: index, Of: of}
		}
		m := probes.MergedRun{SHA256: strings.Repeat("0"+strconv.Itoa(len(out.MergedFrom)), 32), Backend: backend, GeneratedAt: r.GeneratedAt, FinalSandboxState: r.FinalSandboxState, Environment: &e, Baseline: r.Baseline}
		for i, p := range r.Probes {
			if i%of == index-1 {
				p.Backend = backend
				out.Probes = append(out.Probes, p)
				m.Probes = append(m.Probes, p.Name)
			}
		}
		for i, p := range r.SkippedProbes {
			if i%of == index-1 {
				p.Backend = backend
				out.SkippedProbes = append(out.SkippedProbes, p)
				m.Probes = append(m.Probes, p.Name)
			}
		}
		for name, d := range r.Latency {
			out.Latency[probes.Qualified(backend, name)] = d
		}
		out.MergedFrom = append(out.MergedFrom, m)
	}
	part(failing, "bwrap", 1, 2)
	part(failing, "bwrap", 2, 2)
	part(clean, "qemu", 1, 1)
	for i := range out.Probes {
		p := &out.Probes[i]
		if p.ValidatedAgainst != probes.MockOnly {
			p.ValidatedAgainst = probes.ValidatedBy(p.Backend)
		}
	}
	return whole(out)
}

// Skipped is a report of a host that cannot run the backend.
func Skipped() probes.Report {
	return whole(probes.Report{Backend: "chv", SkippedProbes: []probes.SkippedProbe{
		{Name: "P-A1-net-egress", Reason: "SANDBOX_NOT_AVAILABLE: no /dev/kvm"}, {Name: "P-A2-fs-escape", Reason: "SANDBOX_NOT_AVAILABLE: no /dev/kvm"}}})
}

// Unnamed is a report of another program, which counts skipped probes without
// naming them.
func Unnamed() probes.Report {
	r := whole(probes.Report{Backend: "chv"})
	r.Summary = probes.Summary{Total: 3, Skipped: 3}
	return r
}

// Hostile is Failing with s in, or instead of, every string.
func Hostile(s string) probes.Report {
	r := Failing()
	for i := range r.Probes {
		p := &r.Probes[i]
		p.Name, p.AttackerClass, p.ValidatedAgainst = p.Name+s, probes.Class(s), "validated-"+s
		p.Description, p.Reason, p.ErrorMessage = s, s, s
		p.Severity, p.Evidence = probes.Severity(s), map[string]any{s: s}
		p.Witness, p.Control = &probes.Witness{Kind: s, Summary: s}, &probes.Control{Target: s, Summary: s}
		p.Cases = []probes.Case{{Name: s, Doubt: s, Missing: s, NotTested: s, Witness: s, Severity: probes.Severity(s), Verdict: probes.Verdict(s)}}
		p.NotTested = []probes.NotTested{{Case: s, Reason: s}}
		p.Attempts = []probes.ReportedAttempt{{Case: s, Op: s, Target: s, Result: s, Errno: s, Detail: s}}
		if !p.Passed {
			p.Verdict = probes.Verdict(s)
		}
	}
	for i := range r.SkippedProbes {
		p := &r.SkippedProbes[i]
		p.Name, p.Reason = p.Name+s, s
	}
	r.Backend, r.GeneratedAt, r.Baseline, r.FinalSandboxState, r.Notes = s, s, s, backends.State(s), []string{s}
	r.Latency = map[string]probes.Distribution{r.Probes[0].Name: {Samples: 1}}
	e := r.Environment
	e.Host = probes.HostFacts{OS: s, Arch: s, Kernel: s, CPU: s, LSM: []string{s}, LSMMode: s, Cgroup: s, Yama: s, Userns: s, Virtualised: s}
	e.ColocatedBy, e.Policy, e.PolicySHA256, e.Harness, e.HarnessSHA256, e.FailSeverity, e.Leaks = s, s, s, s, s, probes.Severity(s), []string{s}
	e.Sandbox = &backends.Provenance{Accelerator: s, VMMVersion: s, Digests: map[string]string{s: s}, Baseline: s, Hardening: []string{s}}
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	return r
}
