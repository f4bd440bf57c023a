package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box is a scripted sandbox.
type box struct {
	mu     sync.Mutex
	name   string
	state  backends.State
	boots  int
	downs  int
	boot   func() error
	reset  func(n int) error
	resets int
}

func newBox() *box { return &box{name: "scripted", state: backends.StateNotBooted} }

func (b *box) Backend() string { return b.name }

func (b *box) Boot(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.boots++
	if b.boot != nil {
		if err := b.boot(); err != nil {
			b.state = backends.StateFailed
			return err
		}
	}
	b.state = backends.StateReady
	return nil
}

func (b *box) Execute(context.Context, backends.Invocation) (backends.Execution, error) {
	return backends.Execution{}, nil
}

func (b *box) Reset(context.Context) (backends.ResetState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resets++
	if b.reset != nil {
		if err := b.reset(b.resets); err != nil {
			b.state = backends.StateFailed
			return backends.ResetState{}, err
		}
	}
	return backends.ResetState{}, nil
}

func (b *box) Shutdown(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.downs++
	b.state = backends.StateNotBooted
	return nil
}

func (b *box) State() backends.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *box) fail() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = backends.StateFailed
}

// answers is a probe that gives one answer.
func answers(name string, class probes.Class, v probes.Verdict) probes.Probe {
	return probes.Probe{Name: name, Class: class, Expectation: probes.ShouldFail, Description: "d",
		Run: func(context.Context, *probes.Env) (probes.Outcome, error) {
			return probes.Outcome{Verdict: v, Reason: string(v), Severity: probes.SeverityHigh}, nil
		}}
}

func adds(t *testing.T, rep probes.Report, requested int) {
	t.Helper()
	s := rep.Summary
	require.Equal(t, requested, s.Total)
	require.Equal(t, s.Total, s.Passed+s.Failed+s.Errored+s.Skipped)
	require.Equal(t, s.Total, len(rep.Probes)+len(rep.SkippedProbes))
}

func TestCleanRunEndsReadyAndShutsDown(t *testing.T) {
	b := newBox()
	rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{answers("P-A1-x", "A1", probes.Contained), answers("P-A2-x", "A2", probes.Contained)},
		Now: func() time.Time { return time.Date(2026, 4, 27, 12, 0, 0, 5e6, time.UTC) }}).Run(t.Context())
	require.NoError(t, err)
	adds(t, rep, 2)
	require.True(t, rep.Clean())
	require.Equal(t, backends.StateReady, rep.FinalSandboxState)
	require.Equal(t, "2026-04-27T12:00:00.005Z", rep.GeneratedAt)
	require.Equal(t, "scripted", rep.Backend)
	require.Equal(t, 2, b.resets)
	require.Equal(t, backends.StateNotBooted, b.State())
	require.Equal(t, []string{"validation-provenance: mock-only=2 validated-chv=0 validated-vf=0 validated-chv-and-vf=0 (total=2)"}, rep.Notes)
}

func TestVerdictsBecomeStatuses(t *testing.T) {
	weak := answers("P-A2-weak", "A2", probes.Weak)
	measured := answers("P-LAT-x", "LAT", probes.Weak)
	measured.Expectation = probes.ShouldPass
	for name, c := range map[string]struct {
		probe                   probes.Probe
		threshold               probes.Severity
		passed, failed, errored int
	}{
		"contained":                {answers("P", "A1", probes.Contained), "", 1, 0, 0},
		"escaped":                  {answers("P", "A1", probes.Escaped), "", 0, 1, 0},
		"inconclusive":             {answers("P", "A1", probes.Inconclusive), "", 0, 0, 1},
		"a made-up verdict":        {answers("P", "A1", "fine"), "", 0, 0, 1},
		"no verdict":               {answers("P", "A1", ""), "", 0, 0, 1},
		"skipped is no answer":     {answers("P", "A1", probes.Skipped), "", 0, 0, 1},
		"weak above the threshold": {weak, probes.SeverityMedium, 0, 1, 0},
		"weak at the threshold":    {weak, probes.SeverityHigh, 0, 1, 0},
		"weak below the threshold": {weak, probes.SeverityCritical, 1, 0, 0},
		"weak by default":          {weak, "", 0, 1, 0},
		"a failed measurement":     {measured, probes.SeverityCritical, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rep, err := (&Runner{Sandbox: newBox(), Probes: []probes.Probe{c.probe}, FailSeverity: c.threshold}).Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, probes.Summary{Total: 1, Passed: c.passed, Failed: c.failed, Errored: c.errored}, rep.Summary)
			require.Equal(t, c.passed == 1, rep.Clean())
			require.Equal(t, cmp.Or(c.threshold, probes.SeverityMedium), rep.Environment.FailSeverity, "what passed with a finding rests on it")
		})
	}
}

func TestTheReportNamesTheProgram(t *testing.T) {
	rep, err := (&Runner{Sandbox: newBox(), Version: "v1.2.3", Digest: func() string { return "ab" }}).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "v1.2.3", rep.Environment.Harness)
	require.Equal(t, "ab", rep.Environment.HarnessSHA256)

	gone := newBox()
	gone.boot = func() error { return &backends.Error{Code: backends.ErrNotAvailable, Doing: "look for qemu"} }
	asked := false
	rep, err = (&Runner{Sandbox: gone, Digest: func() string { asked = true; return "ab" }}).Run(t.Context())
	require.NoError(t, err)
	require.Empty(t, rep.Environment.HarnessSHA256)
	require.False(t, asked, "a report of skips has nothing that a digest would say more about")
}

func TestUnavailableSkipsEverything(t *testing.T) {
	gone := &backends.Error{Code: backends.ErrNotAvailable, Doing: "look for qemu", Fix: "apt-get install qemu-system-x86"}
	b := newBox()
	b.boot = func() error { return gone }
	for name, r := range map[string]*Runner{
		"boot": {Sandbox: b},
		"new":  {Backend: "chv", New: func() (backends.Sandbox, error) { return nil, gone }},
	} {
		t.Run(name, func(t *testing.T) {
			r.Probes = []probes.Probe{answers("P-A1-x", "A1", probes.Contained), answers("P-A2-x", "A2", probes.Contained)}
			rep, err := r.Run(t.Context())
			require.NoError(t, err)
			adds(t, rep, 2)
			require.Equal(t, 2, rep.Summary.Skipped)
			require.True(t, rep.Unavailable)
			require.Empty(t, rep.Probes)
			require.Contains(t, rep.Notes[0], "sandbox not available on this host")
			require.Contains(t, rep.Notes[0], "apt-get install qemu-system-x86")
		})
	}
}

func TestBootFailureErrorsEveryProbe(t *testing.T) {
	b := newBox()
	b.boot = func() error { return backends.Errorf(backends.ErrBootFailed, "boot", "no answer") }
	rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{answers("P-A1-x", "A1", probes.Contained), answers("P-LAT-x", "LAT", probes.Contained)}}).Run(t.Context())
	require.NoError(t, err)
	adds(t, rep, 2)
	require.Equal(t, 2, rep.Summary.Errored)
	require.False(t, rep.Clean())
	require.Contains(t, rep.Notes[0], "boot failed: ")
	require.Equal(t, 1, b.downs, "what a failed boot left is shut down")
}

func TestTeardownAlwaysRunsAndPanicsAreErrors(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		change   func(*probes.Probe)
		tornDown bool
		want     string
	}{
		"run error": {func(p *probes.Probe) {
			p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) { return probes.Outcome{}, boom }
		}, true, "boom"},
		"run panic": {func(p *probes.Probe) {
			p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) { panic("ouch") }
		}, true, "panic: ouch at runner/runner_test.go"},
		"setup error": {func(p *probes.Probe) { p.Setup = func(context.Context, *probes.Env) error { return boom } }, false, "setup: boom"},
		"setup panic": {func(p *probes.Probe) { p.Setup = func(context.Context, *probes.Env) error { panic("early") } }, false, "setup: panic: early"},
		"no run":      {func(p *probes.Probe) { p.Run = nil }, true, "no Run"},
		"error and pass": {func(p *probes.Probe) {
			p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) {
				return probes.Outcome{Verdict: probes.Contained}, boom
			}
		}, true, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			torn := false
			p := answers("P-A1-x", "A1", probes.Contained)
			p.Teardown = func(ctx context.Context, _ *probes.Env) error { torn = true; return ctx.Err() }
			c.change(&p)
			rep, err := (&Runner{Sandbox: newBox(), Probes: []probes.Probe{p, answers("P-A2-x", "A2", probes.Contained)}}).Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.tornDown, torn)
			require.Equal(t, probes.Summary{Total: 2, Passed: 1, Errored: 1}, rep.Summary)
			require.Contains(t, rep.Probes[0].ErrorMessage, c.want)
			require.Contains(t, rep.Probes[0].Reason, "framework error: ")
			require.False(t, rep.Probes[0].Passed)
		})
	}
}

func TestTeardownErrorsSpoilAPassButNotAFailure(t *testing.T) {
	for v, want := range map[probes.Verdict]probes.Summary{
		probes.Contained: {Total: 1, Errored: 1},
		probes.Escaped:   {Total: 1, Failed: 1},
		probes.Weak:      {Total: 1, Failed: 1},
	} {
		p := answers("P-A1-x", "A1", v)
		run := p.Run
		p.Run = func(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
			o, err := run(ctx, env)
			o.Severity = probes.SeverityHigh
			return o, err
		}
		p.Teardown = func(context.Context, *probes.Env) error { return errors.New("left something") }
		rep, err := (&Runner{Sandbox: newBox(), Probes: []probes.Probe{p}}).Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, rep.Summary)
		require.Equal(t, "teardown: left something", rep.Probes[0].ErrorMessage)
	}
}

func TestAnEscapeSurvivesALaterError(t *testing.T) {
	p := answers("P-A1-x", "A1", "")
	p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) {
		return probes.Outcome{Verdict: probes.Escaped, Reason: "escaped: seen"}, errors.New("then the harness broke")
	}
	rep, err := (&Runner{Sandbox: newBox(), Probes: []probes.Probe{p}}).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, rep.Summary.Failed)
	require.Equal(t, "escaped: seen", rep.Probes[0].Reason)
	require.Contains(t, rep.Probes[0].ErrorMessage, "harness broke")
}

func TestResetFailureIsNeverSwallowed(t *testing.T) {
	diverged := &backends.DivergenceError{Sources: []backends.Source{backends.SourceFSHash}}
	broken := backends.Errorf(backends.ErrResetFailed, "reset", "disk full")
	for name, c := range map[string]struct {
		class   probes.Class
		err     error
		errored int
	}{
		"divergence after A2":     {"A2", diverged, 1},
		"failure after A2":        {"A2", broken, 1},
		"failure after P-A6":      {"A6", broken, 1},
		"divergence after P-A6":   {"A6", diverged, 0},
		"a failure after latency": {"LAT", broken, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox()
			b.reset = func(n int) error {
				if n == 1 {
					return c.err
				}
				return nil
			}
			rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{answers("P", c.class, probes.Contained), answers("Q", "A7", probes.Contained)}}).Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.errored, rep.Summary.Errored)
			require.Contains(t, rep.Notes[0], "post-P reset")
			require.Equal(t, 2, b.boots, "the next probe gets a fresh sandbox")
			require.Equal(t, backends.StateReady, rep.FinalSandboxState)
			require.True(t, rep.Probes[1].Passed)
		})
	}
}

// A probe that had sandboxes of its own to tamper with explains no divergence of
// the run's.
func TestAnUnexpectedDivergenceAfterTamperingCounts(t *testing.T) {
	rep, err := (&Runner{New: func() (backends.Sandbox, error) {
		b := newBox()
		b.reset = func(int) error { return &backends.DivergenceError{Sources: []backends.Source{backends.SourceFSHash}} }
		return b, nil
	}, Probes: []probes.Probe{answers("P", "A6", probes.Contained)}}).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, rep.Summary.Errored, rep.Notes)
}

func TestAFailedSandboxIsReplacedAlsoAfterTheLastProbe(t *testing.T) {
	var made []*box
	p := answers("P-A6-substrate-lie", "A6", probes.Contained)
	p.Run = func(_ context.Context, env *probes.Env) (probes.Outcome, error) {
		env.Sandbox.(*box).fail()
		return probes.Outcome{Verdict: probes.Contained}, nil
	}
	rep, err := (&Runner{New: func() (backends.Sandbox, error) { b := newBox(); made = append(made, b); return b, nil }, Probes: []probes.Probe{p}}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, rep.Clean())
	require.Equal(t, backends.StateReady, rep.FinalSandboxState)
	require.Len(t, made, 2)
	for _, b := range made {
		require.Equal(t, backends.StateNotBooted, b.State(), "nothing is left running")
	}
}

func TestAFreshBootFailureEndsInFailedAndCountsEveryProbe(t *testing.T) {
	b := newBox()
	b.boot = func() error {
		if b.boots > 1 {
			return errors.New("no more")
		}
		return nil
	}
	b.reset = func(int) error { return errors.New("broken") }
	rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{answers("P", "A1", probes.Contained), answers("Q", "A2", probes.Contained), answers("R", "A3", probes.Contained)}}).Run(t.Context())
	require.NoError(t, err)
	adds(t, rep, 3)
	require.Equal(t, 3, rep.Summary.Errored)
	require.Equal(t, backends.StateFailed, rep.FinalSandboxState)
	require.False(t, rep.Clean())
}

func TestLatencyGetsAFreshBootOnceAfterAttacks(t *testing.T) {
	b := newBox()
	var boots []int
	lat := answers("P-LAT-a", "LAT", probes.Contained)
	lat.Run = func(context.Context, *probes.Env) (probes.Outcome, error) {
		boots = append(boots, b.boots)
		return probes.Outcome{Verdict: probes.Contained, Latency: map[string]probes.Distribution{"P-LAT-a": {Samples: 3}}}, nil
	}
	rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{answers("P", "A1", probes.Contained), lat, lat}}).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{2, 2}, boots)
	require.Equal(t, 3, rep.Latency["P-LAT-a"].Samples)
}

func TestOverBudgetIsCancelledAndIsolated(t *testing.T) {
	b := newBox()
	slow := answers("P-slow", "A5", probes.Contained)
	slow.Budget = 20 * time.Millisecond
	torn := false
	slow.Run = func(ctx context.Context, _ *probes.Env) (probes.Outcome, error) {
		<-ctx.Done()
		return probes.Outcome{Verdict: probes.Contained}, nil
	}
	slow.Teardown = func(context.Context, *probes.Env) error { torn = true; return nil }
	rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{slow, answers("Q", "A2", probes.Contained)}}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, torn)
	require.Equal(t, probes.Summary{Total: 2, Passed: 1, Errored: 1}, rep.Summary)
	require.Contains(t, rep.Probes[0].ErrorMessage, "exceeded its budget of 20ms")
	require.Equal(t, 2, b.boots)
	require.Equal(t, 1, b.resets, "a cancelled probe's sandbox is not reset but replaced")
}

func TestInterruptedRunIsAPartialReport(t *testing.T) {
	b := newBox()
	ctx, cancel := context.WithCancel(t.Context())
	mid := answers("P-mid", "A2", probes.Contained)
	mid.Run = func(ctx context.Context, _ *probes.Env) (probes.Outcome, error) {
		cancel()
		<-ctx.Done()
		return probes.Outcome{}, ctx.Err()
	}
	rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{answers("P", "A1", probes.Contained), mid, answers("Q", "A3", probes.Contained)}}).Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	adds(t, rep, 3)
	require.Equal(t, probes.Summary{Total: 3, Passed: 1, Errored: 1, Skipped: 1}, rep.Summary)
	require.Equal(t, "interrupted before it ran", rep.SkippedProbes[0].Reason)
	require.Equal(t, backends.StateNotBooted, b.State())
}

func TestInterruptedFreshBootRanNothing(t *testing.T) {
	b := newBox()
	ctx, cancel := context.WithCancel(t.Context())
	b.boot = func() error {
		if b.boots == 1 {
			return nil
		}
		cancel()
		return ctx.Err()
	}
	rep, err := (&Runner{Sandbox: b, Probes: []probes.Probe{answers("P", "A1", probes.Contained), answers("L", probes.ClassLatency, probes.Contained)}}).Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, probes.Summary{Total: 2, Passed: 1, Skipped: 1}, rep.Summary)
	require.Equal(t, interrupted, rep.SkippedProbes[0].Reason)
}

func TestEveryCheckpointIsAWholeReport(t *testing.T) {
	list := []probes.Probe{answers("P", "A1", probes.Contained), answers("Q", "A2", probes.Escaped), answers("R", "A3", probes.Contained)}
	var points []probes.Report
	r := &Runner{Sandbox: newBox(), Probes: list, Checkpoint: func(rep probes.Report) { points = append(points, rep) }}
	rep, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Len(t, points, 1+len(list), "one before the boot, one after every probe")
	for i, p := range points {
		adds(t, p, len(list))
		require.Len(t, p.Probes, i)
		require.Equal(t, rep.Probes[:i], p.Probes)
		for k, s := range p.SkippedProbes {
			require.Equal(t, list[i+k].Name, s.Name)
			require.Equal(t, interrupted, s.Reason)
		}
	}
	require.Equal(t, backends.StateNotBooted, points[0].FinalSandboxState)
	require.Equal(t, backends.StateReady, points[1].FinalSandboxState)
}

func TestNeedsExclusionsAndSideEffects(t *testing.T) {
	with := func(name string, n ...probes.Need) probes.Probe {
		p := answers(name, "A1", probes.Contained)
		p.Needs = n
		return p
	}
	forks := answers("P-forks", "A4", probes.Contained)
	forks.SideEffects = []probes.SideEffect{probes.EffectForks}
	r := &Runner{Sandbox: newBox(), Foreign: true, Fuse: func(context.Context) error { return errors.New("no cgroup") },
		Exclusions: []backends.Exclusion{{Probe: "P-never", Reason: "has no disk"}},
		Probes: []probes.Probe{with("P-never"), with("P-meter", probes.NeedMeter), with("P-channel", probes.NeedChannel), with("P-tamper", probes.NeedTamper),
			with("P-near", probes.NeedColocation), with("P-fuse", probes.NeedFuse), with("P-odd", "magic"), forks, with("P-reset", probes.NeedReset)}}
	rep, err := r.Run(t.Context())
	require.NoError(t, err)
	adds(t, rep, 9)
	require.Equal(t, 1, rep.Summary.Passed)
	require.Equal(t, "P-reset", rep.Probes[0].Name)
	reasons := map[string]probes.SkippedProbe{}
	for _, s := range rep.SkippedProbes {
		reasons[s.Name] = s
		require.Equal(t, s.Name == "P-never", s.NeverHosts)
	}
	require.Equal(t, "has no disk", reasons["P-never"].Reason)
	require.Contains(t, reasons["P-fuse"].Reason, "no cgroup")
	require.Contains(t, reasons["P-near"].Reason, "no process of the sandbox is a live descendant")
	require.Contains(t, reasons["P-odd"].Reason, `"magic"`)
	require.Contains(t, reasons["P-forks"].Reason, "--allow-disruptive")

	r.AllowDisruptive = true
	rep, err = r.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, rep.Summary.Passed)
}

func TestFreshSandboxesThatAProbeForgetsAreShutDown(t *testing.T) {
	var made []*box
	p := answers("P", "A6", probes.Contained)
	p.Run = func(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
		_, err := env.Fresh(ctx)
		return probes.Outcome{Verdict: probes.Contained}, err
	}
	rep, err := (&Runner{New: func() (backends.Sandbox, error) { b := newBox(); made = append(made, b); return b, nil }, Probes: []probes.Probe{p}}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, rep.Clean())
	require.Len(t, made, 2)
	require.Equal(t, backends.StateNotBooted, made[1].State())
}

func TestTheProbesDirectoryIsPrivateAndGoesAway(t *testing.T) {
	var dir string
	p := answers("P", "A1", "")
	p.Run = func(_ context.Context, env *probes.Env) (probes.Outcome, error) {
		dir = env.Dir
		fi, err := os.Stat(dir)
		if err == nil && fi.Mode().Perm() != 0o700 {
			err = errors.New("open to others")
		}
		return probes.Outcome{Verdict: probes.Contained}, errors.Join(err, os.WriteFile(dir+"/x", nil, 0o600))
	}
	rep, err := (&Runner{Sandbox: newBox(), Probes: []probes.Probe{p}}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, rep.Clean(), "%+v", rep.Probes)
	require.NoDirExists(t, dir)
}

func TestAutoBootAndShutdownOptOut(t *testing.T) {
	b := newBox()
	_, err := (&Runner{NoAutoBoot: true}).Run(t.Context())
	require.Error(t, err)
	rep, err := (&Runner{Sandbox: b, NoAutoBoot: true, Probes: []probes.Probe{answers("P", "A1", probes.Contained)}}).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, rep.Summary.Errored)
	require.NoError(t, b.Boot(t.Context()))
	rep, err = (&Runner{Sandbox: b, NoAutoBoot: true, NoAutoShutdown: true, Probes: []probes.Probe{answers("P", "A1", probes.Contained)}}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, rep.Clean())
	require.Equal(t, backends.StateReady, b.State())
}

func TestReportsHoldNoLootAndNoGuestStructure(t *testing.T) {
	p := answers("P", "A2", "")
	p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) {
		return probes.Outcome{Verdict: probes.Inconclusive, Reason: "it said \x1b[2J ::error:: and \u202e", Witness: probes.Witness{Kind: "w", Summary: "##[error]x"},
			Attempts: []probes.Attempt{{Case: "c", Op: "read", Result: "ok", Data: []byte("topsecret")}}}, nil
	}
	rep, err := (&Runner{Sandbox: newBox(), Probes: []probes.Probe{p}}).Run(t.Context())
	require.NoError(t, err)
	b, err := json.Marshal(rep)
	require.NoError(t, err)
	for _, bad := range []string{"topsecret", "dG9wc2VjcmV0", "\\u001b", "\u202e", "\\u202e", "##["} {
		require.NotContains(t, string(b), bad)
	}
	require.Equal(t, 9, rep.Probes[0].Attempts[0].DataLength)
	require.True(t, strings.HasPrefix(rep.Probes[0].Reason, "it said "))
}

func TestScratchLeavesRoomForSockets(t *testing.T) {
	got, err := scratch("/var/tmp")
	require.NoError(t, err)
	require.Equal(t, "/var/tmp", got)
	got, err = scratch("/" + strings.Repeat("x", maxScratch))
	require.NoError(t, err)
	require.Equal(t, "/tmp", got)
}
