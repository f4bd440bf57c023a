package substrate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContained(t *testing.T) {
	out, d := try(t, habits{})
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
	require.Len(t, out.Cases, 5)
	require.True(t, out.Control.OK, out.Control.Summary)
	require.Equal(t, []probes.NotTested{{Case: "truth", Reason: "a lie that equals the truth"}}, out.NotTested)
	require.Len(t, d.made, 3, "one sandbox for each divergence, and none to spare")
	require.Contains(t, out.Witness.Summary, "3 of 3")
}

// A backend of which there can be only one is booted again after each
// divergence.
func TestOnlyOneSandbox(t *testing.T) {
	own := newWorld(habits{})
	out, err := run(t.Context(), &probes.Env{Sandbox: own})
	require.NoError(t, err)
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
	require.Equal(t, backends.StateFailed, own.State(), "the runner boots a fresh one")
}

// A sandbox that can be rearmed serves for all changes, as long as it is clean
// afterwards.
func TestRearm(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		broken bool
		boots  int
	}{
		"works":             {boots: 1},
		"fails":             {err: errors.New("no"), boots: 3},
		"is not clean then": {broken: true, boots: 3},
	} {
		t.Run(name, func(t *testing.T) {
			times := 0
			d := &dock{wrap: func(w *world) backends.Sandbox {
				times++
				return &rearming{world: w, err: tc.err, broken: tc.broken}
			}}
			own := &rearming{world: newWorld(habits{})}
			out, err := run(t.Context(), &probes.Env{Sandbox: own, Fresh: d.fresh})
			require.NoError(t, err)
			require.Zero(t, own.times, "the run's own sandbox is never halted")
			require.Equal(t, probes.Contained, out.Verdict, out.Reason)
			require.Equal(t, tc.boots, times)
			for _, w := range d.made {
				require.Equal(t, 1, w.stopped)
			}
		})
	}
}

// The sandbox that will be halted boots while the controls run, not after them.
func TestTheNextBootsMeanwhile(t *testing.T) {
	d := &dock{}
	asked := make(chan struct{})
	var once sync.Once
	own := newWorld(habits{ignoring: func() error {
		select {
		case <-asked:
			return nil
		case <-time.After(10 * time.Second):
			return errors.New("no other sandbox was asked for by now")
		}
	}})
	out, err := run(t.Context(), &probes.Env{Sandbox: own, Fresh: func(ctx context.Context) (backends.Sandbox, error) {
		once.Do(func() { close(asked) })
		return d.fresh(ctx)
	}})
	require.NoError(t, err)
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
}

func TestEscapes(t *testing.T) {
	for name, tc := range map[string]struct {
		h       habits
		crossed []string
	}{
		"nothing is ever noticed": {habits{reset: func([]backends.Source) (backends.ResetState, error) { return clean() }}, []string{"disk", "guest", "vmm"}},
		"one source is not compared": {habits{reset: func(bad []backends.Source) (backends.ResetState, error) {
			if len(bad) == 0 || bad[0] == backends.SourceVMMState {
				return clean()
			}
			return diverged(bad...)
		}}, []string{"vmm"}},
		"nothing is restored": {habits{keeps: true}, []string{"restores"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, _ := try(t, tc.h)
			require.Equal(t, probes.Escaped, out.Verdict, out.Reason)
			require.Equal(t, probes.SeverityCritical, out.Severity)
			var crossed []string
			for _, c := range out.Cases {
				if c.Crossed {
					crossed = append(crossed, c.Name)
				}
			}
			require.Equal(t, tc.crossed, crossed)
		})
	}
}

func TestWhatIsMissingIsInconclusive(t *testing.T) {
	no := errors.New("no")
	for name, h := range map[string]habits{
		"always diverges": {reset: func([]backends.Source) (backends.ResetState, error) { return diverged(backends.Sources()...) }},
		"diverges with the comparison off": {ignoring: func() error {
			_, err := diverged(backends.SourceFSHash)
			return err
		}},
		"wrong source": {reset: func(bad []backends.Source) (backends.ResetState, error) {
			if len(bad) == 0 {
				return clean()
			}
			if bad[0] == backends.SourceFSHash {
				return diverged(backends.SourceVMMState)
			}
			return diverged(bad...)
		}},
		"no source": {reset: func(bad []backends.Source) (backends.ResetState, error) {
			if len(bad) == 0 {
				return clean()
			}
			return backends.ResetState{}, backends.ErrResetDivergence
		}},
		"another failure": {reset: func(bad []backends.Source) (backends.ResetState, error) {
			if len(bad) == 0 {
				return clean()
			}
			return backends.ResetState{}, backends.ErrResetFailed
		}},
		"clean resets are not verified": {reset: func(bad []backends.Source) (backends.ResetState, error) {
			if len(bad) == 0 {
				return backends.ResetState{}, nil
			}
			return diverged(bad...)
		}},
		"divergence without halt": {reset: func(bad []backends.Source) (backends.ResetState, error) {
			if len(bad) == 0 {
				return clean()
			}
			_, err := diverged(bad...)
			st, _ := clean()
			return st, err
		}},
		"cannot be changed":            {apply: func() error { return no }},
		"cannot be undone":             {undo: func() error { return no }},
		"marker tool missing":          {noTool: true},
		"marker gone before the reset": {forgets: true},
		"marker proves nothing":        {mute: true},
		"nothing can look afterwards":  {dulls: true},
	} {
		t.Run(name, func(t *testing.T) {
			out, _ := try(t, h)
			require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
		})
	}
}

// A divergence that is reported but does not stop the sandbox is a finding.
func TestNoHaltIsWeak(t *testing.T) {
	out, _ := try(t, habits{stays: true})
	require.Equal(t, probes.Weak, out.Verdict, out.Reason)
	require.Equal(t, probes.SeverityHigh, out.Severity)
	require.Contains(t, out.Reason, "did not halt")
}

// Without a sandbox that may be halted there is no answer.
func TestNoSandbox(t *testing.T) {
	d := &dock{h: habits{noBoot: true}}
	out, err := run(t.Context(), &probes.Env{Sandbox: newWorld(habits{}), Fresh: d.fresh})
	require.NoError(t, err)
	require.Equal(t, probes.Inconclusive, out.Verdict)
	require.Contains(t, out.Reason, "no room")
}

func TestMetadata(t *testing.T) {
	p := New()
	require.Equal(t, Name, p.Name)
	for _, s := range []string{p.Description, p.Why, p.Limits, p.Harm} {
		require.NotEmpty(t, s)
	}
	require.NotEmpty(t, p.References)
}
