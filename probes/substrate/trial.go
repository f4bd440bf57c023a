package substrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// tamperOf finds a change of this very sandbox by name.
func tamperOf(sb backends.Sandbox, name string) (backends.Tamperable, backends.Tamper, error) {
	list, ok := sb.(backends.Tamperable)
	if !ok {
		return nil, backends.Tamper{}, errors.New("this sandbox cannot be tampered with")
	}
	tampers := list.Tampers()
	i := slices.IndexFunc(tampers, func(t backends.Tamper) bool { return t.Name == name })
	if i < 0 {
		return nil, backends.Tamper{}, fmt.Errorf("this sandbox has no change named %s", name)
	}
	return list, tampers[i], nil
}

// controls shows for each change that it goes unseen with the comparison off,
// and that its undo leaves a clean sandbox. All of it fits into one sandbox as
// long as nothing fails.
func controls(ctx context.Context, yard *yard, trials []*trial, env *probes.Env) {
	for i, t := range trials {
		sb, err := yard.take(ctx)
		if err != nil {
			t.why = "no sandbox for the control: " + oneLine(err)
			continue
		}
		t.control(ctx, sb)
		if env.Progress != nil {
			env.Progress(i+1, 2*len(trials))
		}
	}
}

func (t *trial) control(ctx context.Context, sb backends.Sandbox) {
	list, tamper, err := tamperOf(sb, t.tamper.Name)
	if err != nil {
		t.why = oneLine(err)
		return
	}
	undo, err := tamper.Apply(ctx)
	if err != nil {
		t.why = "the change could not be made: " + oneLine(err)
		return
	}
	st, err := list.ResetIgnoring(ctx, tamper.Source)
	t.unseen = err == nil
	if err != nil {
		t.why = "with the comparison off the reset fails all the same: " + verdictOf(st, err)
	}
	if err := undo(); err != nil {
		t.why = "the change could not be undone: " + oneLine(err)
		return
	}
	if !t.unseen {
		return
	}
	st, err = sb.Reset(ctx)
	t.clean = err == nil && st.VerificationPassed
	if !t.clean {
		t.why = "after the undo a reset is not clean: " + verdictOf(st, err)
	}
}

// attacks makes each change again and has the full reset notice it. Every
// noticed one costs its sandbox.
func attacks(ctx context.Context, yard *yard, trials []*trial, env *probes.Env) {
	for i, t := range trials {
		sb, err := yard.take(ctx)
		if err != nil {
			t.doubt = "no sandbox to attack: " + oneLine(err)
			continue
		}
		t.attack(ctx, sb)
		if env.Progress != nil {
			env.Progress(len(trials)+i+1, 2*len(trials))
		}
	}
}

func (t *trial) attack(ctx context.Context, sb backends.Sandbox) {
	_, tamper, err := tamperOf(sb, t.tamper.Name)
	if err != nil {
		t.doubt = oneLine(err)
		return
	}
	undo, err := tamper.Apply(ctx)
	if err != nil {
		t.doubt = "the change could not be made: " + oneLine(err)
		return
	}
	t.tried = true
	t.state, t.err = sb.Reset(ctx)
	t.after = sb.State()
	if t.noticed() {
		_, err := sb.Execute(ctx, backends.Invocation{Tool: "noop", Deadline: callDeadline})
		t.ran = err == nil
	}
	if err := undo(); err != nil {
		t.doubt = "the change could not be undone: " + oneLine(err)
	}
}

// noticed: the reset stopped with a divergence that names the right source.
func (t *trial) noticed() bool {
	d, ok := errors.AsType[*backends.DivergenceError](t.err)
	return ok && slices.Contains(d.Sources, t.tamper.Source)
}

func (t *trial) judge() probes.Case {
	c := probes.Case{Name: t.tamper.Name, Required: true, Proved: t.clean, Controlled: t.unseen, WitnessAlive: t.clean, Attempted: t.tried, Doubt: t.doubt}
	d, diverged := errors.AsType[*backends.DivergenceError](t.err)
	switch {
	case !t.tried:
	case t.err == nil:
		c.Crossed = true
		c.Witness = fmt.Sprintf("%s, and the reset passed", t.tamper.About)
	case !diverged && errors.Is(t.err, backends.ErrResetDivergence):
		c.Doubt = "the divergence does not say which source disagreed"
	case !diverged:
		c.Doubt = "the reset failed, but not with a divergence: " + oneLine(t.err)
	case !t.noticed():
		c.Doubt = fmt.Sprintf("the divergence names %v instead of %s", d.Sources, t.tamper.Source)
	case t.state.VerificationPassed || t.state.VerificationDetails.DivergenceAction != backends.ActionHalt:
		c.Doubt = fmt.Sprintf("the divergence comes with verification_passed %t and divergence_action %q", t.state.VerificationPassed, t.state.VerificationDetails.DivergenceAction)
	case t.after != backends.StateFailed || t.ran:
		c.Missing, c.Severity = fmt.Sprintf("the divergence did not halt the sandbox (state %s)", t.after), probes.SeverityHigh
	default:
		c.Witness = fmt.Sprintf("divergence in %s, halted", t.tamper.Source)
	}
	if !c.Crossed && t.why != "" {
		c.Doubt = t.why
	}
	return c
}

func (t *trial) attempt() probes.Attempt {
	a := probes.Attempt{Case: t.tamper.Name, Op: "tamper", Target: string(t.tamper.Source), Result: wire.ResultError, Detail: t.tamper.About}
	switch {
	case t.tried && t.err == nil:
		a.Result = wire.ResultOK
	case t.noticed():
		a.Result = wire.ResultDenied
	}
	return a
}

// verdictOf says in a line what a reset answered.
func verdictOf(st backends.ResetState, err error) string {
	if err != nil {
		return oneLine(err)
	}
	return fmt.Sprintf("verification_passed is %t", st.VerificationPassed)
}
