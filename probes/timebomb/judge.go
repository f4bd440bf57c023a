package timebomb

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// early is what the two ends' clocks may differ by.
const early = 5 * time.Millisecond

// stallFactor is how many of the host's own stalls a call may meet on its way.
const stallFactor = 10

// restless is how much of a core a VMM may use before the attack: in one that is
// busy already no survivor would show.
const restless = 0.5

// survived is what the control has to show: the survivor, seen by the witness
// that the attack is judged by.
func (v *salvo) survived(s shot) bool {
	if v.inside {
		return v.watchAlive && s.seen && len(s.alive) > 0
	}
	return v.cpuErr == nil && v.readErr == nil && s.beating() && v.after > v.idle+spinning
}

// judge turns what was seen of one bomb into the facts of its sub-case.
func (v *salvo) judge(s *shot, c *probes.Case) {
	if v.inside {
		c.Attempted, c.WitnessAlive = s.seen, v.watchAlive && s.seen
	} else {
		c.Attempted = s.beats[0] > 0
		c.WitnessAlive = v.cpuErr == nil && v.readErr == nil && v.idle <= restless && v.busy > v.idle+spinning
	}
	v.judgeCall(s, c)
	v.judgeTree(s, c)
	if !c.Crossed && c.Doubt == "" {
		c.Doubt = v.silence(s)
	}
}

// judgeCall looks at how and when the call ended, by the host's clock.
func (v *salvo) judgeCall(s *shot, c *probes.Case) {
	after := s.elapsed.Round(time.Millisecond)
	switch {
	case s.elapsed > v.deadline+v.late && v.stalled > v.late/4 && s.elapsed <= v.deadline+v.late+stallFactor*v.stalled:
		c.Doubt = fmt.Sprintf("the call ended after %s, but this host was %s late itself", after, v.stalled.Round(time.Millisecond))
	case s.elapsed > v.deadline+v.late:
		c.Crossed = true
		c.Witness = fmt.Sprintf("the call with a deadline of %s held the host for %s", v.deadline, after)
	case errors.Is(s.err, backends.ErrToolTimeout) && s.elapsed < v.deadline-early:
		c.Doubt = fmt.Sprintf("a timeout was reported after %s, before the deadline of %s", after, v.deadline)
	case errors.Is(s.err, backends.ErrToolTimeout):
		c.Witness = fmt.Sprintf("timeout after %s (deadline %s), nothing alive afterwards", after, v.deadline)
	case s.err != nil:
		c.Doubt = "the call failed, but not with a timeout: " + oneLine(s.err)
	case s.code == wire.ExitNoTool:
		c.Doubt = "the tool is missing"
	default:
		// A bomb outlasts any deadline, and one that nothing ends is too late
		// above. Around the deadline a busy host cannot tell which came first.
		c.Doubt = fmt.Sprintf("the bomb ended by itself with exit code %d after %s, its deadline was %s", s.code, after, v.deadline)
	}
}

// judgeTree looks for what is alive after the call.
func (v *salvo) judgeTree(s *shot, c *probes.Case) {
	spins := !v.inside && v.cpuErr == nil && v.after > v.idle+spinning
	switch {
	case v.interrupted && !errors.Is(s.err, backends.ErrToolTimeout):
		// We ended the call, its deadline did not: what is alive had the right
		// to be, and judgeCall has said so.
	case len(s.alive) > 0:
		c.Crossed = true
		c.Witness = fmt.Sprintf("%d processes of the tool are alive on the host after its deadline", len(s.alive))
	case s.beating() && !v.inside && v.cpuErr == nil && v.after >= v.idle+corroborated:
		c.Crossed = true
		c.Witness = fmt.Sprintf("the survivor still beats, and the VMM uses %.0f %% of a core (idle %.0f %%)", 100*v.after, 100*v.idle)
	case spins && !v.anyBeat():
		// The guest shows no survivor, or answers no more, but the host sees it
		// work.
		c.Crossed = true
		c.Witness = fmt.Sprintf("the guest shows no survivor that beats, but the VMM uses %.0f %% of a core (idle %.0f %%)", 100*v.after, 100*v.idle)
	case s.beating() && c.Doubt == "":
		c.Doubt = "the survivor's counter advances, but the host sees nothing of it"
	}
}

func (v *salvo) anyBeat() bool {
	for i := range v.shots {
		if v.shots[i].beating() {
			return true
		}
	}
	return false
}

// silence says what the witness failed to see.
func (v *salvo) silence(s *shot) string {
	switch {
	case v.inside && !v.watchAlive:
		return "the process watch does not find the host's own process"
	case v.inside && !s.seen && s.beats[0] > 0:
		return "the bomb beat inside, but the process watch never saw it: it looks at another machine"
	case v.inside && !s.seen:
		return "the process watch never saw the bomb"
	case !v.inside && v.cpuErr != nil:
		return "no processor time: " + oneLine(v.cpuErr)
	case !v.inside && v.readErr != nil:
		return oneLine(v.readErr)
	case !v.inside && v.idle > restless:
		return fmt.Sprintf("the VMM used %.0f %% of a core before the attack, in which no survivor would show", 100*v.idle)
	case !v.inside && s.beats[0] == 0:
		return "no beat of the bomb was ever read"
	case !v.inside && v.busy <= v.idle+spinning:
		return "the processor meter did not notice the bombs"
	}
	return ""
}

func (v *salvo) summary(cases []probes.Case) string {
	var bad []string
	longest := time.Duration(0)
	for i, c := range cases {
		if c.Crossed {
			bad = append(bad, c.Name+": "+c.Witness)
		}
		longest = max(longest, v.shots[i].elapsed)
	}
	if len(bad) > 0 {
		return strings.Join(bad, "; ")
	}
	s := fmt.Sprintf("%d calls with a deadline of %s ended within %s", len(cases), v.deadline, longest.Round(time.Millisecond))
	if v.inside {
		return s + "; none of their processes was on the host afterwards"
	}
	return s + fmt.Sprintf("; no counter advanced, the VMM's share of a core was %.0f %% before, %.0f %% during, %.0f %% after", 100*v.idle, 100*v.busy, 100*v.after)
}

func (v *salvo) evidence() map[string]any {
	ms, beats := map[string]float64{}, map[string][2]int64{}
	for _, s := range v.shots {
		ms[s.Mode], beats[s.Mode] = float64(s.elapsed.Microseconds())/1000, s.beats
	}
	e := map[string]any{"beats_read_twice": beats, "deadline_ms": float64(v.deadline.Microseconds()) / 1000, "allowed_late_ms": v.late.Milliseconds(), "elapsed_ms": ms}
	if !v.inside {
		e["processor_share"] = map[string]float64{"idle": v.idle, "during": v.busy, "after": v.after}
	}
	if v.readErr != nil {
		e["beats_not_read"] = oneLine(v.readErr)
	}
	return e
}
