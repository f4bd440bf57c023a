// Package procescape is P-A3: can anything inside see, signal, trace or read a
// process of the host?
package procescape

import "github.com/brainst0rm/sandbox-redteam/probes"

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name:        "P-A3-process-escape",
		Class:       probes.ClassProcessEscape,
		Expectation: probes.ShouldFail,
		Description: "Looks for canary processes of the host from inside, by the number that they have on the host and by name, and tries to signal them with kill and pidfd, to trace them, to read their memory and to take their open files. " +
			"It enters their mount namespace and that of PID 1, reads a System V segment of the host, asks every foreign virtio port to signal, pushes a line into the controlling terminal, and asks for PID 1. On a shared kernel the host also reads which system-call filter is in force around the sandbox.",
		Why: "Each way has a canary process, or a mark on one, of its own: a child of the harness that only a signal, a tracer or a change of its memory can alter; the host sees how it ended, whether something woke it and whether its memory is whole. " +
			"Its command line, memory and open file hold secrets that never enter the sandbox and are searched in everything that comes out. The payload did all of it to a child of its own inside, and an open agent with the sandbox's host identity did it to a canary on the host.",
		Limits: "Host processes of other identities than the one that the sandbox maps to are not tried. Ways that this host refuses to an open agent too (Yama, missing capabilities) are listed as not tested. " +
			"PID 1 gets signal 0 only, except in a virtual machine of ours, where it is our own agent; that the host's init is unharmed follows from that and is not a test.",
		Severity:    probes.SeverityCritical,
		Harm:        "escape",
		Techniques:  []string{"P01", "P02", "P03", "P05", "P07", "P10", "P12", "C11"},
		ATTACK:      []string{"T1611", "T1055.008", "T1057", "T1489"},
		References:  []string{"man 7 pid_namespaces", "man 2 ptrace", "man 2 process_vm_readv", "man 2 pidfd_getfd", "man 2 setns", "man 7 sysvipc", "CVE-2017-5226", "CVE-2019-5736"},
		Needs:       []probes.Need{probes.NeedColocation},
		SideEffects: []probes.SideEffect{probes.EffectSignals},
		Run:         run,
	}
}
