// Package egress is P-A1: can anything inside reach a listener on the host that
// the policy does not allow?
package egress

import (
	"context"
	"fmt"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	// toolDeadline bounds one execution of the payload: every attempt times
	// out by itself long before.
	toolDeadline = 25 * time.Second
	// machineTimeout bounds one attempt in a guest that may be emulated.
	machineTimeout = 1500 * time.Millisecond
)

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name:        "P-A1-net-egress",
		Class:       probes.ClassNetEgress,
		Expectation: probes.ShouldFail,
		Description: "Sends a token from inside to canary listeners on the host: by TCP, UDP and DNS, by ICMP, raw and packet sockets, over IPv4 and IPv6, by address and by name, " +
			"through abstract and path-named unix sockets, and past a declared proxy. The closed list of addresses holds only loopback and the sandbox's own gateway.",
		Why: "Each transport first reaches a listener of its own inside the sandbox (so the tool works there), then a canary from an open agent on the host (so the route and the canary work). " +
			"If the same canary, which still answers the host afterwards, never saw the attack's token, the boundary is what stopped it. Exit codes and error texts of the guest play no part.",
		Limits: "Only the host's own addresses are tried: a pass does not show that other machines, a cloud metadata service or a forwarding resolver are out of reach. " +
			"AF_VSOCK is not dialled. Covert channels by timing, cache or disk load are not tested. Where the runtime promises no egress filter an open network is the operator's finding, and the report says so.",
		Severity:   probes.SeverityHigh,
		Harm:       "exfiltration",
		Techniques: []string{"E01", "E02", "E03", "E04", "E05", "E06", "E07", "E10", "E11", "E17", "E20"},
		ATTACK:     []string{"T1048", "T1071.004", "T1095", "T1041"},
		References: []string{"RFC 768", "RFC 792", "RFC 1035", "man 7 unix", "man 7 packet", "man 7 network_namespaces", "CVE-2020-15257"},
		Needs:      []probes.Need{probes.NeedColocation},
		Run:        run,
	}
}

func run(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	o := probes.Outcome{Evidence: map[string]any{}}
	p, err := newPlan(env)
	if err != nil {
		return o, err
	}
	defer p.stop()

	control := probes.Control{Target: "open agent on this host"}
	tokens := p.arm()
	open, err := env.Open(ctx, probes.OpenOptions{})
	if err != nil {
		control.Summary = "no open target: " + err.Error()
	} else {
		t := execute(ctx, open, p.targets(hostSide, tokens))
		if t.Err != nil {
			control.Summary = t.Err.Error()
		}
		if err := open.Close(); err != nil {
			env.Log.Warn("open target did not close", "err", err)
		}
	}
	p.controlled = p.reached(tokens)

	tokens = p.arm()
	trial := execute(ctx, env.Sandbox, p.targets(guestSide, tokens))
	p.check(ctx)
	o.Cases = p.cases(env, trial, tokens)
	if trial.Report != nil {
		o.Attempts = trial.Report.Attempts
	} else {
		o.Evidence["payload"] = trial.Err.Error()
	}
	judge(&o, control, p, env)
	return o, nil
}

func execute(ctx context.Context, ex executor, targets []attack.EgressTarget) canary.Trial {
	return canary.Run(ctx, ex, attack.NetEgress, toolDeadline, func(nonce string) any {
		p := attack.EgressParams{Nonce: nonce, Targets: targets}
		if m, ok := ex.(backends.Machine); ok && m.IsMachine() {
			p.TimeoutMS = machineTimeout.Milliseconds()
		}
		return p
	})
}

func judge(o *probes.Outcome, control probes.Control, p *plan, env *probes.Env) {
	o.Judge(probes.SeverityHigh)
	visited, controlled, required := 0, 0, 0
	for _, c := range o.Cases {
		if c.Crossed {
			visited++
		}
		if c.Required {
			required++
			if c.Controlled {
				controlled++
			}
		}
	}
	control.OK = required > 0 && controlled == required
	if control.Summary == "" {
		control.Summary = fmt.Sprintf("%d of %d required transports reached their canary", controlled, required)
	}
	o.Control = control
	o.Witness = probes.Witness{Kind: "canary listeners",
		Summary: fmt.Sprintf("%d canaries listened, %d transports arrived from the sandbox", len(p.listeners), visited)}
	o.Evidence["addresses"] = p.addresses
	if promise := env.Policy.Egress.Promise; promise != "" {
		o.Evidence["egress_promise"] = promise
	}
	if o.Verdict == probes.Escaped {
		o.Evidence["finding_owner"] = "sandbox"
		if env.Policy.Egress.Promise == "operator" {
			o.Evidence["finding_owner"] = "operator"
			o.Reason += " (the runtime promises no egress filter: this is the operator's finding)"
		}
	}
}
