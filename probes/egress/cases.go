package egress

import (
	"fmt"
	"slices"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// cases turns what the canaries saw into sub-cases.
func (p *plan) cases(env *probes.Env, t canary.Trial, tokens []string) []probes.Case {
	seen := p.reached(tokens)
	out := make([]probes.Case, 0, len(p.aims)+len(p.missing)+1)
	for i, a := range p.aims {
		out = append(out, p.judgeAim(env, t, i, a, seen[i]))
	}
	for _, m := range p.missing {
		out = append(out, probes.Case{Name: m.Case, NotTested: m.Reason})
	}
	why := "socket() only; AF_VSOCK is not dialled"
	for _, at := range t.Tried(attack.ViaVsock) {
		if at.Result != "ok" {
			why = "the sandbox has no AF_VSOCK socket, or refuses it"
		}
	}
	return append(out, probes.Case{Name: attack.ViaVsock, NotTested: why})
}

func (p *plan) judgeAim(env *probes.Env, t canary.Trial, i int, a aim, seen bool) probes.Case {
	c := probes.Case{Name: a.cas, Required: a.required, Proved: t.Proved(a.cas), Controlled: p.controlled[i],
		Attempted: len(t.Tried(a.cas)) > 0, WitnessAlive: p.alive[a.listener] == nil}
	if allowed(env, a) {
		c.Required, c.NotTested = false, "the policy allows this address"
		return c
	}
	c.Crossed = seen
	switch {
	case seen:
		c.Witness = fmt.Sprintf("the %s received the token of this run", a.listener.Kind())
		return c
	case !c.WitnessAlive:
		// A canary that was started and died takes its sub-case's answer with it.
		c.Doubt = p.alive[a.listener].Error()
	case a.listener.Anonymous() > p.strangers[a.listener]:
		c.Doubt = fmt.Sprintf("the %s had %d visits without a token", a.listener.Kind(), a.listener.Anonymous()-p.strangers[a.listener])
	case t.Claimed(a.cas) && a.via != attack.ViaICMP: // a sandbox's own kernel answers an echo to its loopback
		c.Doubt = "the guest claims an answer that the canary never gave"
	default:
		c.Witness = fmt.Sprintf("the %s saw nothing", a.listener.Kind())
	}
	if why := t.Impossible(a.cas); why != "" && !c.Required && c.Doubt == "" {
		c.NotTested = why
	}
	return c
}

// allowed reports whether the policy permits the address as seen from inside.
func allowed(env *probes.Env, a aim) bool {
	list := env.Policy.Egress.Allow
	return slices.Contains(list, "*") || slices.Contains(list, a.guest) ||
		slices.Contains(list, fmt.Sprintf("%s:%d", a.guest, a.listener.Port))
}
