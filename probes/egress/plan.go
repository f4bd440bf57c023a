package egress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

type executor = backends.Executor

// hostNames are names that a hosts file may map to the host. No resolver is
// asked for them.
var hostNames = []string{"localhost", "host.docker.internal", "host.containers.internal", "gateway.docker.internal", "host.lima.internal"}

// aim is one canary as one transport of one sub-case reaches it.
type aim struct {
	cas      string
	via      string
	required bool
	listener *canary.Listener
	// guest is the address as seen from inside; the listener has the host's.
	guest string
}

// plan holds the canaries of one run of the probe and what leads to them.
type plan struct {
	addresses  []backends.HostAddress
	listeners  []*canary.Listener
	aims       []aim
	controlled []bool
	strangers  map[*canary.Listener]int
	alive      map[*canary.Listener]error
	missing    []probes.NotTested
	cleanup    func() error
}

// newPlan starts a canary for every transport on every host address.
func newPlan(env *probes.Env) (*plan, error) {
	p := &plan{addresses: addresses(env.Sandbox)}
	for i, a := range p.addresses {
		if err := p.listenIP(env, a, i == 0); err != nil {
			p.stop()
			return nil, err
		}
	}
	l, err := canary.ListenAbstract()
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start the abstract socket canary: %w", err)
	}
	p.add(env, l, aim{cas: attack.ViaAbstract, via: attack.ViaAbstract, required: true, guest: l.Path})
	dir, remove, err := canary.Reachable(env.Dir, canary.Identity(env.Sandbox))
	if err == nil {
		p.cleanup = remove
		if l, err = canary.ListenUnix(dir); err == nil {
			p.add(env, l, aim{cas: attack.ViaUnix, via: attack.ViaUnix, guest: l.Path})
		}
	}
	if err != nil {
		p.missing = append(p.missing, probes.NotTested{Case: attack.ViaUnix, Reason: "no canary: " + err.Error()})
	}
	return p, nil
}

// addresses are those that the backend names, else plain loopback.
func addresses(sb backends.Sandbox) []backends.HostAddress {
	if h, ok := sb.(backends.HostAddresser); ok {
		if list := h.HostAddresses(); len(list) > 0 {
			return list
		}
	}
	four, six := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	return []backends.HostAddress{{Guest: four, Host: four, Via: "loopback"}, {Guest: six, Host: six, Via: "loopback"}}
}

// start is one kind of canary on an address.
type start struct {
	via    string
	listen func(netip.Addr) (*canary.Listener, error)
}

// listenIP starts the IP canaries of one address. The first IPv4 address must
// work; an address that this host lacks is reported as not tested.
func (p *plan) listenIP(env *probes.Env, a backends.HostAddress, first bool) error {
	suffix := "4"
	if a.Host.Is6() && !a.Host.Is4In6() {
		suffix = "6"
	}
	required := suffix == "4"
	suffix += p.tag(a, first)
	starts := []start{{attack.ViaTCP, canary.ListenTCP}, {attack.ViaUDP, canary.ListenUDP}, {attack.ViaDNS, canary.ListenDNS}}
	for _, s := range starts {
		l, err := s.listen(a.Host)
		if err != nil && first && required {
			return fmt.Errorf("start the %s canary on %s: %w", s.via, a.Host, err)
		}
		if err != nil {
			p.missing = append(p.missing, probes.NotTested{Case: s.via + suffix, Reason: "no canary: " + err.Error()})
			continue
		}
		guest := a.Guest.String()
		p.add(env, l, aim{cas: s.via + suffix, via: s.via, required: required, guest: guest})
		switch {
		case s.via == attack.ViaTCP:
			p.aims = append(p.aims, aim{cas: "name" + suffix, via: attack.ViaName, listener: l, guest: guest})
			if env.Policy.Egress.Proxy != "" {
				p.aims = append(p.aims, aim{cas: "past-proxy" + suffix, via: attack.ViaTCP, required: required, listener: l, guest: guest})
			}
		case s.via == attack.ViaUDP && required:
			p.aims = append(p.aims, aim{cas: "raw" + suffix, via: attack.ViaRaw, listener: l, guest: guest})
		}
	}
	if !required {
		return nil
	}
	for _, s := range []start{{attack.ViaICMP, canary.ListenICMP}, {attack.ViaPacket, canary.ListenPacket}} {
		l, err := s.listen(a.Host)
		if err != nil {
			p.missing = append(p.missing, probes.NotTested{Case: s.via + suffix, Reason: "no witness: " + err.Error()})
			continue
		}
		p.add(env, l, aim{cas: s.via + suffix, via: s.via, guest: a.Guest.String()})
	}
	return nil
}

// tag tells the sub-cases of further addresses of a family apart.
func (p *plan) tag(a backends.HostAddress, first bool) string {
	if first {
		return ""
	}
	for _, other := range p.addresses {
		if other == a {
			break
		}
		if other.Host.Is4() == a.Host.Is4() {
			return " via " + a.Via + " " + a.Guest.String()
		}
	}
	return ""
}

func (p *plan) add(env *probes.Env, l *canary.Listener, a aim) {
	a.listener = l
	p.listeners, p.aims = append(p.listeners, l), append(p.aims, a)
	env.Sabotage(l.Kind(), l.Stop)
}

func (p *plan) stop() {
	for _, l := range slices.Backward(p.listeners) {
		l.Stop()
	}
	if p.cleanup != nil {
		_ = p.cleanup()
	}
}

// arm draws a fresh token per aim and announces it to its canary. Visits
// without a token count from here: what the control's own proof on the host's
// loopback left behind is no visit of the sandbox.
func (p *plan) arm() []string {
	p.strangers = make(map[*canary.Listener]int, len(p.listeners))
	for _, l := range p.listeners {
		p.strangers[l] = l.Anonymous()
	}
	tokens := make([]string, len(p.aims))
	for i, a := range p.aims {
		tokens[i] = a.listener.Token()
		a.listener.Expect(tokens[i])
	}
	return tokens
}

// side says whose addresses the targets carry.
type side int

const (
	hostSide side = iota
	guestSide
)

func (p *plan) targets(s side, tokens []string) []attack.EgressTarget {
	out := make([]attack.EgressTarget, 0, len(p.aims)+1)
	for i, a := range p.aims {
		t := attack.EgressTarget{Case: a.cas, Via: a.via, Address: a.guest, Port: a.listener.Port, Token: tokens[i]}
		if s == hostSide && a.listener.Addr.IsValid() {
			t.Address = a.listener.Addr.String()
		}
		if a.via == attack.ViaName {
			t.Names = hostNames
		}
		out = append(out, t)
	}
	return append(out, attack.EgressTarget{Case: attack.ViaVsock, Via: attack.ViaVsock})
}

// reached says per aim whether its canary saw the token.
func (p *plan) reached(tokens []string) []bool {
	out := make([]bool, len(p.aims))
	for i, a := range p.aims {
		out[i] = a.listener.Seen(tokens[i]) > 0
	}
	return out
}

// check visits every canary from the host. Since each records visits in order,
// one that saw this visit has recorded all earlier ones.
func (p *plan) check(ctx context.Context) {
	p.alive = make(map[*canary.Listener]error, len(p.listeners))
	for _, l := range p.listeners {
		p.alive[l] = l.SelfCheck(ctx)
	}
}
