// Package substrate is P-A6: what a reset rests on is changed behind the
// sandbox's back, and the next reset has to notice.
package substrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Name is the probe's id.
const Name = "P-A6-substrate-lie"

// callDeadline bounds the calls to the anchor.
const callDeadline = 10 * time.Second

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name: Name, Class: probes.ClassSubstrate, Expectation: probes.ShouldFail,
		Description: "Between two resets one thing that a reset rests on is changed behind the sandbox's back: a byte of its disk or root file system, of the stored snapshot, of the recorded baseline, the state that the VMM's API reports, or what the guest says of itself. " +
			"Each time the next reset has to stop with SANDBOX_RESET_DIVERGENCE. A marker that was left inside has to be gone after a reset.",
		Why: "For every change a reset without it was clean before and after, the same reset with only the comparison of that one source switched off let the change pass, and the full one named that source and halted the sandbox. " +
			"So it was the comparison that noticed, and neither an accident nor a reset that always fails. The marker could be read back until the reset.",
		Limits: "A lie that equals the truth cannot be noticed by any comparison and is listed as not tested. A compromised host agent or an image that was hostile when its baseline was recorded is out of reach: the baseline is what everything is compared with. " +
			"The changes are made in files and answers that belong to the sandbox, and those that have to halt it to sandboxes of the probe's own.",
		Severity:   probes.SeverityCritical,
		Harm:       "integrity",
		Techniques: []string{"Z01", "Z02", "Z03", "Z05"},
		ATTACK:     []string{"T1565.001", "T1542", "T1601"},
		References: []string{
			"the seed's sandbox package: three sources, any one that disagrees halts, no quorum",
			"the seed's red-team package, attacker class A6", "NIST SP 800-193, Platform Firmware Resiliency: detection",
		},
		Needs:       []probes.Need{probes.NeedTamper, probes.NeedReset},
		SideEffects: []probes.SideEffect{probes.EffectWrites, probes.EffectResets},
		Budget:      180 * time.Second,
		Run:         run,
	}
}

// anchorCase is the sub-case of the marker.
const anchorCase = attack.AnchorCase

// trial is one change and what became of it.
type trial struct {
	tamper backends.Tamper
	// clean: without the change a reset passed, before it and after its undo.
	clean bool
	// unseen: with the source's comparison off the changed reset passed.
	unseen bool
	// why says what kept the two from being shown.
	why string

	tried bool
	err   error // of the reset that had to notice
	state backends.ResetState
	after backends.State
	ran   bool // a call was still answered after the divergence
	doubt string
}

func run(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	out := probes.Outcome{
		Witness: probes.Witness{Kind: "three-source verification on the host"},
		Control: probes.Control{Target: "the same sandboxes: untampered, and with one comparison switched off"},
	}
	yard := newYard(env)
	defer yard.close()
	sb, err := yard.take(ctx)
	if err != nil {
		return out, err
	}
	restores := anchor(ctx, sb, &out)
	trials, uncovered := newTrials(sb)
	if len(trials) == 0 {
		return out, errors.New("the sandbox names nothing to tamper with")
	}
	if restores.clean {
		yard.expect(len(trials))
		controls(ctx, yard, trials, env)
		yard.spare()
		attacks(ctx, yard, trials, env)
	} else {
		for _, t := range trials {
			t.why = restores.why
		}
	}
	out.Cases = append(out.Cases, restores.Case)
	for _, t := range trials {
		out.Cases = append(out.Cases, t.judge())
		out.Attempts = append(out.Attempts, t.attempt())
	}
	out.Cases = append(out.Cases, uncovered...)
	out.Judge(probes.SeverityCritical)
	summarise(&out, trials)
	return out, ctx.Err()
}

// newTrials lists what has to be noticed, and what no comparison could notice.
func newTrials(sb backends.Sandbox) (trials []*trial, uncovered []probes.Case) {
	list, ok := sb.(backends.Tamperable)
	if !ok {
		return nil, nil
	}
	for _, t := range list.Tampers() {
		if t.NotCovered == "" {
			trials = append(trials, &trial{tamper: t})
		} else {
			uncovered = append(uncovered, probes.Case{Name: t.Name, NotTested: t.NotCovered})
		}
	}
	return trials, uncovered
}

// anchored is the sub-case of the marker; clean says that its reset passed.
type anchored struct {
	probes.Case
	clean bool
	why   string
}

// anchor leaves a marker, sees it, resets, and looks again. That it was there
// until the reset is the control: nothing but the reset took it away.
func anchor(ctx context.Context, sb backends.Sandbox, out *probes.Outcome) anchored {
	a := anchored{Case: probes.Case{Name: anchorCase, Required: true}}
	marker := wire.NewNonceString()
	wrote, err := call(ctx, sb, marker, true)
	if err != nil {
		a.Doubt = "the marker could not be left: " + oneLine(err)
	} else {
		out.Attempts = append(out.Attempts, wrote.Attempts...)
		a.Proved = wrote.Proved(anchorCase)
		a.Attempted = found(wrote) > 0
		before, err := call(ctx, sb, marker, false)
		a.Controlled = err == nil && found(before) > 0
	}
	st, err := sb.Reset(ctx)
	if err != nil || !st.VerificationPassed {
		a.why = "a reset without any change is not clean: " + verdictOf(st, err)
		if a.Doubt == "" {
			a.Doubt = a.why
		}
		return a
	}
	a.clean = true
	if a.Doubt != "" {
		return a
	}
	after, err := call(ctx, sb, marker, false)
	switch {
	case err != nil:
		a.Doubt = "the marker could not be looked for after the reset: " + oneLine(err)
	case found(after) > 0:
		a.Crossed = true
		a.Witness = "a file that was left inside survived the reset"
	default:
		a.WitnessAlive = after.Proved(anchorCase)
		a.Witness = fmt.Sprintf("a marker in %d places was gone after the reset", found(wrote))
	}
	return a
}

func call(ctx context.Context, sb backends.Sandbox, marker string, drop bool) (*wire.PayloadReport, error) {
	nonce := wire.NewNonceString()
	e, err := sb.Execute(ctx, backends.Invocation{Tool: attack.SubstrateAnchor, Deadline: callDeadline,
		Params: attack.SubstrateAnchorParams{Nonce: nonce, Marker: marker, Drop: drop}})
	if err != nil {
		return nil, err
	}
	r, err := wire.ParsePayloadReport(e.Stdout.Bytes(), attack.SubstrateAnchor, nonce)
	if err != nil {
		return nil, fmt.Errorf("exit code %d: %w", e.ExitCode, err)
	}
	if len(r.Tried(anchorCase)) == 0 {
		return nil, wire.ErrNothingTried
	}
	return r, nil
}

// found counts the places where the marker was left or is.
func found(r *wire.PayloadReport) int {
	n := 0
	for _, a := range r.Tried(anchorCase) {
		if a.Result == wire.ResultOK {
			n++
		}
	}
	return n
}

func summarise(out *probes.Outcome, trials []*trial) {
	shown, seen := 0, 0
	for _, t := range trials {
		if t.clean && t.unseen {
			shown++
		}
		if t.noticed() {
			seen++
		}
	}
	out.Control.OK = shown == len(trials)
	out.Control.Summary = fmt.Sprintf("%d of %d changes went unseen with the one comparison off, between clean resets", shown, len(trials))
	out.Witness.Summary = fmt.Sprintf("%d of %d changes ended in %s naming the source", seen, len(trials), backends.ErrResetDivergence)
	for _, c := range out.Cases {
		if c.Crossed {
			out.Witness.Summary += "; " + c.Name + ": " + c.Witness
		}
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
