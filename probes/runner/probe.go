package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// probe accounts for one probe: skipped with a reason, or run and followed by a
// verified reset.
func (s *session) probe(ctx context.Context, i int, p probes.Probe) {
	if ctx.Err() != nil {
		s.skip(i, p, interrupted, false)
		return
	}
	if reason, never := s.unfit(ctx, p); reason != "" {
		s.skip(i, p, reason, never)
		return
	}
	if s.sb.State() != backends.StateReady || (p.Class == probes.ClassLatency && s.lastWasAttack()) {
		if err := s.fresh(ctx); err != nil {
			if ctx.Err() != nil {
				s.skip(i, p, interrupted, false)
				return
			}
			s.note("fresh boot before %s failed: %s", p.Name, err)
			s.add(i, errored(p, fmt.Errorf("not run, no fresh sandbox: %w", err)))
			return
		}
	}
	s.watch(Event{Probe: p.Name, Index: i, Of: len(s.Probes)})
	s.log.Debug("probe starts", "probe", p.Name)
	began := time.Now()
	a := s.attempt(ctx, i, p)
	res := s.result(p, a)
	res.DurationMS = time.Since(began).Milliseconds()
	s.ran = true
	if err := s.after(ctx, p, a.abandoned); err != nil {
		spoil(&res, err)
	}
	if !res.Errored {
		for name, d := range a.out.Latency {
			s.latency[name] = d
		}
	}
	s.add(i, res)
}

// lastWasAttack reports whether the present sandbox has hosted an attack.
func (s *session) lastWasAttack() bool {
	return s.ran && len(s.results) > 0 && s.results[len(s.results)-1].AttackerClass != probes.ClassLatency
}

// after brings the sandbox back to its golden state, or lets a fresh one take
// its place at the next probe. What it returns makes the probe errored.
func (s *session) after(ctx context.Context, p probes.Probe, abandoned bool) error {
	errs := []error{s.sweep()}
	switch {
	case abandoned: // the probe may still be at it: isolate the next one
		if err := s.stop(s.sb); err != nil {
			errs = append(errs, fmt.Errorf("shut down the abandoned sandbox: %w", err))
		}
		return errors.Join(errs...)
	case s.sb.State() == backends.StateFailed:
		if p.Class != probes.ClassSubstrate {
			s.note("sandbox failed after %s; the next probe gets a fresh one", p.Name)
		}
		return errors.Join(errs...)
	case s.sb.State() != backends.StateReady || ctx.Err() != nil:
		return errors.Join(errs...)
	}
	_, err := s.sb.Reset(ctx)
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.Is(err, backends.ErrResetDivergence) && p.Class == probes.ClassSubstrate && s.New == nil:
		// Where there could be others the probe left this one alone.
		s.note("post-%s reset diverged (expected for this class): %s", p.Name, err)
	case errors.Is(err, backends.ErrResetDivergence):
		s.note("post-%s reset diverged: %s", p.Name, err)
		errs = append(errs, fmt.Errorf("reset after the probe: %w", err))
	default:
		s.note("post-%s reset error: %s", p.Name, err)
		errs = append(errs, fmt.Errorf("reset after the probe: %w", err))
	}
	return errors.Join(errs...)
}

// answer is what one attempt at a probe came to.
type answer struct {
	out       probes.Outcome
	err       error // of setup or run
	teardown  error
	abandoned bool // it did not return after its budget: still running
}

// attempt carries out setup, run and teardown under the probe's budget.
func (s *session) attempt(ctx context.Context, i int, p probes.Probe) answer {
	budget := s.budget(p)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(<-chan time.Time)
	if budget > 0 {
		t := time.NewTimer(budget)
		defer t.Stop()
		over = t.C
	}
	env, cleanup, err := s.env(i, p)
	if err != nil {
		return answer{err: err}
	}
	done := make(chan answer, 1)
	go func() { done <- carryOut(ctx, p, env) }()
	var a answer
	select {
	case a = <-done:
	case <-over:
		cancel()
		a = s.await(done)
		a.err = fmt.Errorf("probe exceeded its budget of %s and was cancelled", budget)
		a.abandoned = true // also when it returned: its sandbox is in an unknown state
	case <-ctx.Done():
		a = s.await(done)
		a.err = errors.Join(fmt.Errorf("interrupted: %w", context.Cause(ctx)), a.err)
	}
	if err := cleanup(); err != nil {
		a.teardown = errors.Join(a.teardown, err)
	}
	return a
}

// await gives a cancelled probe time to return.
func (s *session) await(done <-chan answer) answer {
	t := time.NewTimer(grace + teardownTime)
	defer t.Stop()
	select {
	case a := <-done:
		return a
	case <-t.C:
		s.log.Error("a probe ignores its cancellation; it is left behind with its sandbox shut down")
		return answer{abandoned: true}
	}
}

// budget is how long p may take; 0 is no bound.
func (s *session) budget(p probes.Probe) time.Duration {
	switch {
	case p.Class == probes.ClassLatency && s.LatencyBudget > 0:
		return max(p.Budget, s.LatencyBudget+time.Minute)
	case p.Budget > 0:
		return p.Budget
	case p.Class == probes.ClassLatency: // every iteration has a deadline of its own
		return max(time.Duration(s.Iterations)*10*time.Second, probes.DefaultBudget)
	case s.Budget > 0:
		return s.Budget
	}
	return probes.DefaultBudget
}

func (s *session) env(i int, p probes.Probe) (*probes.Env, func() error, error) {
	dir, err := s.makeDir(i)
	if err != nil {
		return nil, nil, fmt.Errorf("make the probe's directory: %w", err)
	}
	sb := s.sb
	env := &probes.Env{
		Sandbox: sb, Fresh: s.freshFor(), Policy: s.Policy, Dir: dir,
		Open: func(ctx context.Context, o probes.OpenOptions) (probes.Target, error) {
			return s.openTarget(ctx, sb, dir, o)
		},
		Iterations: s.Iterations, LatencyBudget: s.LatencyBudget, RawSamples: s.RawSamples, Budgets: s.Budgets,
		Fault: s.Fault, Log: s.log.With("probe", p.Name),
		Progress: func(done, total int) {
			s.watch(Event{Probe: p.Name, Index: i, Of: len(s.Probes), Done: done, Total: total})
		},
	}
	return env, func() error { return os.RemoveAll(dir) }, nil
}

// makeDir makes the directory of probe i, below the run's own, which is the one
// that the ledger knows: a record on the disk takes longer than most probes on
// a simulated sandbox.
func (s *session) makeDir(i int) (string, error) {
	if s.dir == "" {
		base, err := scratch(os.TempDir())
		if err != nil {
			return "", err
		}
		dir := filepath.Join(base, "bsm-p-"+wire.NewNonceString()[:8])
		if s.dirEntry, err = s.Ledger.MakeDir(dir); err != nil {
			return "", err
		}
		s.dir = dir
		// Those below are private; a control that runs as another user has to
		// come to its own.
		if err := os.Chmod(dir, 0o711); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(s.dir, strconv.Itoa(i+1))
	return dir, os.Mkdir(dir, 0o700)
}

// removeDir removes what makeDir made.
func (s *session) removeDir() {
	if s.dir == "" {
		return
	}
	if err := errors.Join(os.RemoveAll(s.dir), s.dirEntry.Done()); err != nil {
		s.note("the run's directory was not removed: %s", err)
	}
}

// maxScratch leaves room for the names of sockets below a probe's directory: a
// Unix socket's whole path has to fit 108 bytes.
const maxScratch = 45

// scratch returns the directory for the probes' directories: temp, or /tmp where
// that is too long for sockets.
func scratch(temp string) (string, error) {
	temp, err := filepath.Abs(temp)
	if err == nil && len(temp) > maxScratch {
		return "/tmp", nil
	}
	return temp, err
}

// carryOut runs in a goroutine of its own. A panic is an error of the probe.
func carryOut(ctx context.Context, p probes.Probe, env *probes.Env) (a answer) {
	if p.Setup != nil {
		if a.err = guard(func() error { return p.Setup(ctx, env) }); a.err != nil {
			a.err = fmt.Errorf("setup: %w", a.err)
			return a
		}
	}
	if p.Teardown != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTime)
			defer cancel()
			if err := guard(func() error { return p.Teardown(ctx, env) }); err != nil {
				a.teardown = fmt.Errorf("teardown: %w", err)
			}
		}()
	}
	a.err = guard(func() (err error) {
		if p.Run == nil {
			return errors.New("the probe has no Run")
		}
		a.out, err = p.Run(ctx, env)
		return err
	})
	return a
}

func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v at %s", v, frame(debug.Stack()))
		}
	}()
	return f()
}
