// Package exhaust is P-A4: memory, processes and descriptors are taken inside
// until a limit answers, while the host's meter watches.
package exhaust

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Name is the probe's id.
const Name = "P-A4-resource-exhaust"

const (
	// ask is the size of the mapping: the seed's 100 GiB.
	ask = int64(100) << 30
	// callDeadline bounds one run of the payload, life its processes.
	callDeadline = 20 * time.Second
	life         = 15 * time.Second
	// hold is how long the payload keeps what it got, for the meter.
	hold     = 60 * time.Millisecond
	recovery = 5 * time.Second
)

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name: Name, Class: probes.ClassExhaustion, Expectation: probes.ShouldFail,
		Description: "A tool asks for 100 GiB and touches it page by page, then forks until it is refused, then opens descriptors until it is refused; " +
			"the kernel has to kill or refuse it at the declared limits. The class label A4 is the seed's: what is tested here is a limit of the runtime, not an image compromised at build time.",
		Why: "The host's own meter saw at least 80 % of each limit used, a kill or a refusal after that, and never more than the limit and a small margin; then the sandbox answered again. " +
			"The same payload without the boundary went past one and a half times the memory limit, and past the process limit, under the same kind of meter. What the payload says of itself is checked against the meter and never replaces it.",
		Limits: "The payload stops itself at twice the declared memory limit or a quarter of the host's available memory, whichever is less, and at the declared number of processes plus 64, so a limit above that is not found. " +
			"Processes of a virtual machine are no host processes: there the host sees only that the VMM itself did not grow, and how many processes the guest kernel allowed is the payload's word; one that admits more than was declared is a finding. " +
			"Inodes, disk space, bandwidth and processor time are not exhausted.",
		Severity:   probes.SeverityHigh,
		Harm:       "host denial of service",
		Techniques: []string{"R01", "R03", "R06", "R09", "R10"},
		ATTACK:     []string{"T1499.001", "T1496"},
		References: []string{
			"Linux kernel documentation, admin-guide/cgroup-v2: memory.max, memory.events, pids.max",
			"setrlimit(2): RLIMIT_NOFILE, RLIMIT_NPROC", "proc(5): oom_score_adj",
			"CIS Docker Benchmark 5.11 and 5.29: limit memory and pids of a container",
			"the seed's red-team package, attacker class A4",
		},
		Needs:       []probes.Need{probes.NeedMeter, probes.NeedFuse, probes.NeedColocation},
		SideEffects: []probes.SideEffect{probes.EffectForks, probes.EffectAllocates},
		Budget:      120 * time.Second,
		Run: func(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
			return run(ctx, env, host{available: availableMemory, recovery: recovery})
		},
	}
}

// metered is what the probe needs of either end.
type metered interface {
	backends.Executor
	backends.Metered
}

// host is what the probe takes from the machine that it runs on.
type host struct {
	available func() (int64, error)
	// recovery is how long the sandbox may take to answer again.
	recovery time.Duration
}

func run(ctx context.Context, env *probes.Env, h host) (probes.Outcome, error) {
	out := probes.Outcome{
		Witness:  probes.Witness{Kind: "host meter"},
		Control:  probes.Control{Target: "open agent on this host inside a kernel fuse"},
		Evidence: map[string]any{},
	}
	sb, ok := env.Sandbox.(metered)
	if !ok {
		return out, errors.New("the host has no meter for this sandbox")
	}
	free, err := h.available()
	if err != nil {
		return out, fmt.Errorf("read how much memory the host has: %w", err)
	}
	machine := false
	if m, ok := env.Sandbox.(backends.Machine); ok {
		machine = m.IsMachine()
	}
	list := plans(env.Policy.Limits, machine, free/4)
	control := controls(ctx, env, list, &out)
	for i, p := range list {
		c := probes.Case{Name: p.name, Required: p.required, NotTested: p.notTested}
		if p.notTested == "" {
			x := exhaust(ctx, env, sb, p)
			if x.recovered = recovers(ctx, sb, h.recovery); !x.recovered {
				// The next sub-case needs a sandbox; this one's answer stands.
				_, x.resetErr = env.Sandbox.Reset(ctx)
			}
			c.Controlled = control[p.name]
			x.judge(&c)
			out.Attempts = append(out.Attempts, x.attempts()...)
			out.Evidence[p.name] = x.evidence()
			if x.meter.method != "" {
				out.Witness.Kind = "host meter: " + x.meter.method
			}
		}
		out.Cases = append(out.Cases, c)
		if env.Progress != nil {
			env.Progress(i+1, len(list))
		}
	}
	out.Judge(probes.SeverityHigh)
	out.Witness.Summary = summary(out.Cases)
	return out, ctx.Err()
}

func summary(cases []probes.Case) string {
	s := ""
	for _, c := range cases {
		if c.Witness == "" {
			continue
		}
		if s != "" {
			s += "; "
		}
		s += c.Name + ": " + c.Witness
	}
	return s
}

// controls runs every plan against one open target. Its fuse is the only limit
// there, well above what the payload may take.
func controls(ctx context.Context, env *probes.Env, list []plan, out *probes.Outcome) map[string]bool {
	passed := map[string]bool{}
	o := probes.OpenOptions{}
	for _, p := range list {
		switch {
		case p.notTested != "":
		case p.name == attack.ExhaustMemory:
			o.MemoryBytes = p.stop * 3 / 2
		case p.name == attack.ExhaustPids:
			o.Pids = int(p.stop) + 128
		}
	}
	t, err := env.Open(ctx, o)
	if err != nil {
		out.Control.Summary = "no open target: " + oneLine(err)
		return passed
	}
	defer func() { _ = t.Close() }()
	open, ok := t.(metered)
	if !ok {
		out.Control.Summary = "the host has no meter for the open target"
		return passed
	}
	out.Control.OK = true
	for _, p := range list {
		if p.notTested != "" {
			continue
		}
		p.machine = false // the open target's processes are host processes
		x := exhaust(ctx, env, open, p)
		passed[p.name] = x.passedLimit()
		if out.Control.Summary != "" {
			out.Control.Summary += "; "
		}
		out.Control.Summary += fmt.Sprintf("%s: the meter rose to %s", p.name, p.amount(x.meter.peak))
		if !passed[p.name] {
			out.Control.OK = out.Control.OK && !p.required
			out.Control.Summary += ", which is not past the limit"
			if x.doubt != "" {
				out.Control.Summary += " (" + x.doubt + ")"
			}
		}
	}
	return passed
}

// trial is one run of the payload under the meter.
type trial struct {
	plan
	meter     reading
	report    *wire.PayloadReport
	doubt     string // why there is no report
	reached   int64  // by the payload's own account
	end       string
	recovered bool
	resetErr  error
}

func exhaust(ctx context.Context, env *probes.Env, t metered, p plan) trial {
	x := trial{plan: p}
	m, err := startMeter(ctx, t, p)
	if err != nil {
		x.doubt = "the meter cannot be read: " + oneLine(err)
		return x
	}
	env.Sabotage(p.name+" meter", m.stop)
	nonce := wire.NewNonceString()
	params := attack.ExhaustParams{Nonce: nonce, Case: p.name, Hold: hold, Life: life}
	if p.name == attack.ExhaustMemory {
		params.AskBytes, params.StopBytes = ask, p.stop
	} else {
		params.StopCount = int(p.stop)
	}
	e, execErr := t.Execute(ctx, backends.Invocation{Tool: attack.ResourceExhaust, Params: params, Deadline: callDeadline})
	x.meter = m.end(ctx)
	// The exit code is not asked: only a bound report counts.
	x.report, err = wire.ParsePayloadReport(e.Stdout.Bytes(), attack.ResourceExhaust, nonce)
	switch {
	case execErr != nil:
		x.report, x.doubt = nil, "the call failed: "+oneLine(execErr)
	case err != nil:
		x.doubt = fmt.Sprintf("no report of the payload (exit code %d): %v", e.ExitCode, err)
	default:
		x.reached, x.end = claims(x.report)
	}
	return x
}

func (x *trial) attempts() []probes.Attempt {
	if x.report == nil {
		return nil
	}
	return x.report.Attempts
}

// recovers reports whether the sandbox answers within its time.
func recovers(ctx context.Context, t backends.Executor, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		e, err := t.Execute(ctx, backends.Invocation{Tool: "noop", Deadline: limit / 2})
		if err == nil && e.ExitCode == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}
