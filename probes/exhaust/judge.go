package exhaust

import (
	"fmt"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// passedLimit is what the control has to show: the payload, unhindered, goes
// well past the limit (memory: half as much again), under the meter.
func (x *trial) passedLimit() bool {
	switch {
	case !x.meter.alive || x.report == nil:
		return false
	case x.limit == 0:
		return x.meter.peak-x.meter.base >= x.enough()
	case x.name == attack.ExhaustMemory:
		return x.meter.peak > max(x.limit*3/2, x.limit+x.margin)
	}
	return x.meter.peak > x.limit+x.margin
}

// judge turns one run into the facts of its sub-case.
func (x *trial) judge(c *probes.Case) {
	m := x.meter
	c.WitnessAlive = m.alive
	if x.report != nil {
		c.Proved = x.report.Proved(x.name)
		c.Attempted = len(x.report.Tried(x.name)) > 0
	}
	switch {
	case x.machine:
		x.judgeMachine(c)
	case x.limit == 0:
		x.judgeUndeclared(c)
	default:
		x.judgeDeclared(c)
	}
	// Doubts that outweigh what was found, the host's sight of a crossing apart.
	switch {
	case !m.alive && x.report != nil:
		c.Doubt = "the meter fell silent"
	case x.report == nil:
		c.Doubt = x.doubt
	}
	if !x.recovered && c.Doubt == "" && c.Missing == "" {
		c.Missing, c.Severity = "the sandbox did not answer again after its "+x.name+" was exhausted", probes.SeverityMedium
		if x.resetErr != nil {
			c.Missing += ", and its reset failed: " + oneLine(x.resetErr)
		}
	}
}

// judgeDeclared: the host meters the resource itself, against a declared limit.
func (x *trial) judgeDeclared(c *probes.Case) {
	m := x.meter
	c.Witness = fmt.Sprintf("meter peaked at %s, limit %s", x.amount(m.peak), x.amount(x.limit))
	switch {
	case m.peak > x.limit+x.margin:
		c.Crossed = true
		c.Witness = fmt.Sprintf("the meter rose to %s although the limit is %s (margin %s)", x.amount(m.peak), x.amount(x.limit), x.amount(x.margin))
	case m.peak < x.enough():
		c.Doubt = fmt.Sprintf("the meter saw only %s of the limit of %s used (payload: %s): the limit was not put to the test", x.amount(m.peak), x.amount(x.limit), x.end)
	case x.end == attack.EndStopped && m.stops <= 0:
		c.Doubt = fmt.Sprintf("the payload says that it took %s unhindered, the meter saw %s; it may not be looking at the same thing, or swap stretches the limit", x.amount(x.reached), x.amount(m.peak))
	case x.end == attack.EndBroken && m.stops <= 0:
		c.Doubt = "no kill and no refusal was seen"
	case x.end == attack.EndKilled && x.name == attack.ExhaustMemory && m.stopsSeen && m.stops <= 0:
		c.Doubt = "the payload says that it was killed, but the host's kernel counts no kill"
	default:
		c.Witness += ", " + x.stopText()
	}
}

// judgeUndeclared: nothing is promised, so only an absent limit can be found.
func (x *trial) judgeUndeclared(c *probes.Case) {
	m := x.meter
	grown := m.peak - m.base
	c.Witness = fmt.Sprintf("meter rose by %s, no limit declared", x.amount(grown))
	switch {
	case m.stops > 0, (x.end == attack.EndKilled || x.end == attack.EndRefused) && grown >= max(x.margin, x.reached/2):
		c.Witness += ", " + x.stopText()
	case grown >= x.enough():
		c.Missing = fmt.Sprintf("no %s limit is declared, and none was found up to %s", x.name, x.amount(x.stop))
		c.Severity = probes.SeverityHigh
		if x.name != attack.ExhaustMemory {
			c.Severity = probes.SeverityMedium
		}
	default:
		c.Doubt = fmt.Sprintf("the payload says %s at %s, but the meter rose by %s only", x.end, x.amount(x.reached), x.amount(grown))
	}
}

// judgeMachine: the resource belongs to a guest kernel. The host's fact is that
// the VMM did not grow with it.
func (x *trial) judgeMachine(c *probes.Case) {
	m := x.meter
	grown := m.peak - m.base
	c.Witness = fmt.Sprintf("the VMM grew by %s while its guest took %d", x.amount(grown), x.reached)
	switch {
	case grown > machineGrowth:
		c.Crossed = true
		c.Witness = fmt.Sprintf("the VMM grew by %s on the host while its guest exhausted its own", x.amount(grown))
	case x.limit > 0 && x.reached > x.limit+x.margin:
		c.Missing = fmt.Sprintf("the guest kernel allowed %s, declared are %s", x.amount(x.reached), x.amount(x.limit))
		c.Severity = probes.SeverityMedium
	case x.reached < x.aim()/2:
		// The agent's own tasks count towards the limit too, but not for half of it.
		c.Doubt = fmt.Sprintf("the payload took %d of %d only (%s): the limit was not put to the test", x.reached, x.aim(), x.end)
	case x.end == attack.EndRefused, x.end == attack.EndKilled:
		c.Witness += ", then the guest kernel refused"
	case x.reached < x.enough():
		c.Doubt = fmt.Sprintf("the payload took %d of %d only, and nothing refused it (%s)", x.reached, x.aim(), x.end)
	}
}

// stopText says who saw the end.
func (x *trial) stopText() string {
	switch {
	case x.meter.stops > 0 && x.name == attack.ExhaustPids:
		return fmt.Sprintf("the host's kernel refused %d forks", x.meter.stops)
	case x.meter.stops > 0:
		return fmt.Sprintf("the host's kernel counts %d kills", x.meter.stops)
	case x.end == attack.EndKilled:
		return "then the payload's worker was killed"
	}
	return "then the kernel refused more"
}

func (x *trial) evidence() map[string]any {
	return map[string]any{
		"declared_limit": x.limit, "margin": x.margin, "payload_stop": x.stop,
		"meter_base": x.meter.base, "meter_peak": x.meter.peak, "meter_samples": x.meter.samples, "meter_method": x.meter.method,
		"host_kills_or_refusals": x.meter.stops, "payload_reached": x.reached, "payload_end": x.end, "recovered": x.recovered,
	}
}
