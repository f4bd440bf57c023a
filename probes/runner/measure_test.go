package runner

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// real is a sandbox with a process of its own.
type real struct {
	*box
	pid int
}

func (r real) Provenance() backends.Provenance {
	return backends.Provenance{VMMPID: r.pid, Baseline: "recorded-in-run"}
}

// watched names its process and says nothing of what it is.
type watched struct {
	*box
	pid int
}

func (w watched) HostPIDs(context.Context) ([]int, error) { return []int{w.pid}, nil }

func (watched) InsideIsHost() bool { return true }

func child(t *testing.T) *exec.Cmd {
	t.Helper()
	testreq.Need(t, "linux", "sleep")
	c := exec.Command("sleep", "600")
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func held3() probes.Case {
	return probes.Case{Name: "c", Required: true, Proved: true, Controlled: true, WitnessAlive: true, Attempted: true, Verdict: probes.Contained}
}

func TestProvenanceIsMeasured(t *testing.T) {
	alive := child(t).Process.Pid
	dead := child(t)
	require.NoError(t, dead.Process.Kill())
	_ = dead.Wait()

	zombie := child(t)
	require.NoError(t, zombie.Process.Kill())
	require.Eventually(t, func() bool { _, state, _ := parentOf(zombie.Process.Pid); return state == "Z" }, 5*time.Second, time.Millisecond)

	named := func(name string, pid int) backends.Sandbox {
		b := newBox()
		b.name = name
		return real{b, pid}
	}
	without := func(change func(*probes.Case)) []probes.Case {
		c := held3()
		change(&c)
		return []probes.Case{c}
	}
	whole := []probes.Case{held3()}
	crossed := without(func(c *probes.Case) { c.Crossed, c.Verdict, c.Proved = true, probes.Escaped, false })
	latency := map[string]probes.Distribution{"P-LAT-x": {Samples: 3}}
	for name, c := range map[string]struct {
		sb    backends.Sandbox
		class probes.Class
		out   probes.Outcome
		want  string
	}{
		"everything held":               {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, "validated-qemu"},
		"merge's word":                  {named("chv-and-vf", alive), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"the mock":                      {named("mock", alive), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"no process at all":             {newBox(), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"a process, but no provenance":  {watched{newBox(), alive}, "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"a dead process":                {named("qemu", dead.Process.Pid), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"a process that is not reaped":  {named("qemu", zombie.Process.Pid), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"somebody else's process":       {named("qemu", os.Getppid()), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"pid 1":                         {named("qemu", 1), "A1", probes.Outcome{Verdict: probes.Contained, Cases: whole}, probes.MockOnly},
		"no sub-case":                   {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Contained}, probes.MockOnly},
		"no proof":                      {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Contained, Cases: without(func(c *probes.Case) { c.Proved = false })}, probes.MockOnly},
		"no control":                    {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Contained, Cases: without(func(c *probes.Case) { c.Controlled = false })}, probes.MockOnly},
		"no witness":                    {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Contained, Cases: without(func(c *probes.Case) { c.WitnessAlive = false })}, probes.MockOnly},
		"one required sub-case without": {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Contained, Cases: append(without(func(c *probes.Case) { c.Proved = false }), held3())}, probes.MockOnly},
		"an escape":                     {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Escaped, Cases: crossed}, "validated-qemu"},
		"inconclusive":                  {named("qemu", alive), "A1", probes.Outcome{Verdict: probes.Inconclusive, Cases: whole}, probes.MockOnly},
		"latency with samples":          {named("qemu", alive), "LAT", probes.Outcome{Verdict: probes.Contained, Latency: latency}, "validated-qemu"},
		"latency without":               {named("qemu", alive), "LAT", probes.Outcome{Verdict: probes.Contained}, probes.MockOnly},
	} {
		t.Run(name, func(t *testing.T) {
			p := answers("P", c.class, "")
			p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) { return c.out, nil }
			rep, err := (&Runner{Sandbox: c.sb, Probes: []probes.Probe{p}}).Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.want, rep.Probes[0].ValidatedAgainst)
		})
	}
}

// An error after an answer takes the provenance along.
func TestASpoiledAnswerIsNotValidated(t *testing.T) {
	b := newBox()
	b.name, b.reset = "qemu", func(int) error { return backends.ErrResetFailed }
	p := answers("P", "A1", "")
	p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) {
		return probes.Outcome{Verdict: probes.Contained, Cases: []probes.Case{held3()}}, nil
	}
	rep, err := (&Runner{Sandbox: real{b, child(t).Process.Pid}, Probes: []probes.Probe{p}}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, rep.Probes[0].Errored)
	require.Equal(t, probes.MockOnly, rep.Probes[0].ValidatedAgainst)
}

func TestColocationNeedsALiveDescendant(t *testing.T) {
	c := child(t)
	near := answers("P", "A1", probes.Contained)
	near.Needs = []probes.Need{probes.NeedColocation}
	rep, err := (&Runner{Sandbox: real{newBox(), c.Process.Pid}, Probes: []probes.Probe{near}}).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, rep.Summary.Passed)
	require.True(t, rep.Environment.Colocated)
	require.Equal(t, "recorded-in-run", rep.Baseline)

	rep, err = (&Runner{Sandbox: real{newBox(), os.Getppid()}, Probes: []probes.Probe{near}}).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, rep.Summary.Skipped)
	require.False(t, rep.Environment.Colocated)
}

// TestEveryRequestedProbeIsAccountedFor is the law of the summary.
func TestEveryRequestedProbeIsAccountedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBox()
		if n := rapid.IntRange(0, 4).Draw(t, "boot that fails"); n > 0 {
			b.boot = func() error {
				if b.boots == n {
					return errors.New("no")
				}
				return nil
			}
		}
		if n := rapid.IntRange(0, 3).Draw(t, "reset that fails"); n > 0 {
			b.reset = func(i int) error {
				if i == n {
					return backends.ErrResetFailed
				}
				return nil
			}
		}
		verdicts := []probes.Verdict{probes.Contained, probes.Weak, probes.Escaped, probes.Inconclusive, probes.Skipped, ""}
		list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) probes.Probe {
			p := answers("P", rapid.SampledFrom([]probes.Class{"A1", "A6", "LAT"}).Draw(t, "class"), rapid.SampledFrom(verdicts).Draw(t, "verdict"))
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				p.Needs = []probes.Need{probes.NeedMeter}
			case 1:
				p.Run = func(context.Context, *probes.Env) (probes.Outcome, error) { panic("x") }
			case 2:
				p.Run = func(_ context.Context, env *probes.Env) (probes.Outcome, error) {
					env.Sandbox.(*box).fail()
					return probes.Outcome{}, errors.New("x")
				}
			}
			return p
		}), 0, 6).Draw(t, "probes")
		rep, err := (&Runner{Sandbox: b, Probes: list}).Run(context.Background())
		require.NoError(t, err)
		s := rep.Summary
		require.Equal(t, len(list), s.Total)
		require.Equal(t, s.Total, s.Passed+s.Failed+s.Errored+s.Skipped)
		require.Len(t, list, len(rep.Probes)+len(rep.SkippedProbes))
		require.Equal(t, backends.StateNotBooted, b.State())
	})
}

func TestTargetKeepsExactlyItsAbilities(t *testing.T) {
	for name, e := range map[string]backends.Executor{
		"none": newBox(), "meter": struct {
			*box
			backends.Metered
		}{newBox(), nil},
		"all": struct {
			*box
			backends.Metered
			backends.HostProcesses
			backends.ChannelTapper
		}{newBox(), nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			closed := false
			got := target(e, func() error { closed = true; return nil })
			for _, has := range []func(any) bool{
				func(v any) bool { _, ok := v.(backends.Metered); return ok },
				func(v any) bool { _, ok := v.(backends.HostProcesses); return ok },
				func(v any) bool { _, ok := v.(backends.ChannelTapper); return ok },
			} {
				require.Equal(t, has(e), has(got))
			}
			require.NoError(t, got.Close())
			require.True(t, closed)
		})
	}
}
