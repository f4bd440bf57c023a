// Package procescape is P-A3: can anything inside see, signal, trace or read a
// process of the host?
package procescape

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// toolDeadline bounds one execution of the payload.
const toolDeadline = 10 * time.Second

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name:        "P-A3-process-escape",
		Class:       probes.ClassProcessEscape,
		Expectation: probes.ShouldFail,
		Description: "Looks for canary processes of the host from inside, by the number that they have on the host and by name, and tries to signal them with kill and pidfd, to trace them, to read their memory and to take their open files. " +
			"It enters their mount namespace and that of PID 1, reads a System V segment of the host, asks every foreign virtio port to signal, pushes a line into the controlling terminal, and asks for PID 1.",
		Why: "Each way has a canary process of its own, a child of the harness that only a signal, a tracer or a change of its memory can alter; the host sees how it ended, whether something woke it and whether its memory is whole. " +
			"Its command line, memory and open file hold secrets that never enter the sandbox and are searched in everything that comes out. The payload did all of it to a child of its own inside, and an open agent with the sandbox's host identity did it to a canary on the host.",
		Limits: "Host processes of other identities than the one that the sandbox maps to are not tried. Ways that this host refuses to an open agent too (Yama, missing capabilities) are listed as not tested. " +
			"PID 1 gets signal 0 only, except in a virtual machine of ours, where it is our own agent; that the host's init is unharmed follows from that and is not a test.",
		Severity:    probes.SeverityCritical,
		Harm:        "escape",
		Techniques:  []string{"P01", "P02", "P03", "P05", "P07", "P10", "P12"},
		ATTACK:      []string{"T1611", "T1055.008", "T1057", "T1489"},
		References:  []string{"man 7 pid_namespaces", "man 2 ptrace", "man 2 process_vm_readv", "man 2 pidfd_getfd", "man 2 setns", "man 7 sysvipc", "CVE-2017-5226", "CVE-2019-5736"},
		Needs:       []probes.Need{probes.NeedColocation},
		SideEffects: []probes.SideEffect{probes.EffectSignals},
		Run:         run,
	}
}

func run(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	o := probes.Outcome{Evidence: map[string]any{}}
	id := canary.Identity(env.Sandbox)
	dir, remove, err := canary.Reachable(env.Dir, id)
	if err != nil {
		return o, fmt.Errorf("make a place for the canaries: %w", err)
	}
	defer func() {
		if err := remove(); err != nil {
			env.Log.Warn("canary directory not removed", "err", err)
		}
	}()
	init := initStart()

	control := probes.Control{Target: "open agent on this host"}
	cp, err := newPen(env, dir, id, "")
	if err != nil {
		return o, err
	}
	defer cp.stop()
	controlled := sighting{}
	open, err := env.Open(ctx, probes.OpenOptions{})
	if err != nil {
		control.Summary = "no open target: " + err.Error()
	} else {
		controlled = cp.execute(ctx, open, func(p *attack.ProcEscapeParams) {
			if cp.terminal != nil {
				p.TTY = cp.terminal.Path
			}
		})
		if controlled.Err != nil {
			control.Summary = controlled.Err.Error()
		}
		if err := open.Close(); err != nil {
			env.Log.Warn("open target did not close", "err", err)
		}
	}

	shared := ""
	if s, ok := env.Sandbox.(backends.SharedTerminal); ok {
		if path, ok := s.HostTerminal(); ok {
			shared = path
		}
	}
	ap, err := newPen(env, dir, id, shared)
	if err != nil {
		return o, err
	}
	defer ap.stop()
	machine := false
	if m, ok := env.Sandbox.(backends.Machine); ok {
		machine = m.IsMachine()
	}
	attacked := ap.execute(ctx, env.Sandbox, func(p *attack.ProcEscapeParams) { p.VM = machine })
	o.Cases = cases(cp, ap, controlled, attacked)
	if attacked.Report != nil {
		o.Attempts = attacked.Report.Attempts
	} else {
		o.Evidence["payload"] = attacked.Err.Error()
	}
	o.Evidence["host_init_unchanged"] = init != "" && init == initStart()
	judge(&o, control, attacked)
	return o, nil
}

// initStart tells one PID 1 of the host from another.
func initStart() string {
	b, err := os.ReadFile("/proc/1/stat")
	if err != nil {
		return ""
	}
	return startTime(string(b))
}

func judge(o *probes.Outcome, control probes.Control, s sighting) {
	o.Judge(probes.SeverityCritical)
	controlled, required := 0, 0
	for _, c := range o.Cases {
		if c.Required {
			required++
			if c.Controlled {
				controlled++
			}
		}
	}
	control.OK = required > 0 && controlled == required
	if control.Summary == "" {
		control.Summary = fmt.Sprintf("%d of %d required ways reached a canary process", controlled, required)
	}
	o.Control = control
	unharmed := 0
	for _, st := range s.states {
		if !st.Harmed() && !st.Woken {
			unharmed++
		}
	}
	o.Witness = probes.Witness{Kind: "canary processes", Summary: fmt.Sprintf("%d of %d canary processes alive and untouched", unharmed, len(s.states))}
}
