package calibrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// still is a sandbox that does nothing.
type still struct{ downs *int }

func (still) Backend() string            { return "still" }
func (still) Boot(context.Context) error { return nil }
func (still) Execute(context.Context, backends.Invocation) (backends.Execution, error) {
	return backends.Execution{}, nil
}
func (still) Reset(context.Context) (backends.ResetState, error) { return backends.ResetState{}, nil }
func (s still) Shutdown(context.Context) error                   { *s.downs++; return nil }
func (still) State() backends.State                              { return backends.StateReady }

var real = func(context.Context, backends.Sandbox) error { return nil }

func leaks() []backends.Leak {
	return []backends.Leak{
		{Name: "one", Class: "A1", Expect: []string{"P-A1-x"}, Prove: real},
		{Name: "two", Class: "A2", Expect: []string{"P-A2-x"}, Prove: real},
	}
}

func list() []probes.Probe {
	return []probes.Probe{{Name: "P-A1-x", Class: "A1"}, {Name: "P-A2-x", Class: "A2"}}
}

// script makes a suite in which a leak turns the answer of its probe into what
// the table says, and everything else is contained.
func script(answers map[string]probes.Result) (Suite, *int) {
	downs := 0
	s := Suite{
		Entry: backends.Entry{Name: "still", Leaks: leaks()}, Probes: list(),
		New: func([]string) (backends.Sandbox, error) { return still{&downs}, nil },
	}
	s.Run = func(_ context.Context, with []string, run []probes.Probe) (probes.Report, error) {
		rep := probes.Report{FinalSandboxState: backends.StateReady}
		for _, p := range run {
			res := probes.Result{Name: p.Name, AttackerClass: p.Class, Passed: true, Verdict: probes.Contained}
			if a, ok := answers[strings.Join(with, "")+"/"+p.Name]; ok {
				a.Name, a.AttackerClass = p.Name, p.Class
				res = a
			}
			rep.Probes = append(rep.Probes, res)
		}
		return rep, nil
	}
	return s, &downs
}

func good() map[string]probes.Result {
	return map[string]probes.Result{
		"one/P-A1-x": {Verdict: probes.Escaped},
		"two/P-A2-x": {Verdict: probes.Weak},
	}
}

func TestCalibrated(t *testing.T) {
	s, downs := script(good())
	m, err := s.Calibrate(t.Context())
	require.NoError(t, err)
	require.True(t, m.OK(), m.Complaints())
	require.Equal(t, 2, *downs, "the sandboxes of the ground truth are shut down")
	require.Equal(t, strings.Join([]string{
		"still  class  A1    A2",
		"base          .     .",
		"one    A1     ESC",
		"two    A2           weak",
		"ESC escaped, weak, . contained, err no answer, skip skipped, blank not run\n",
	}, "\n"), m.Table())
}

func TestFullRunsEverythingEverywhere(t *testing.T) {
	s, _ := script(good())
	s.Full = true
	m, err := s.Calibrate(t.Context())
	require.NoError(t, err)
	require.True(t, m.OK())
	require.Len(t, m.Rows[0].Answers, 2)
}

func TestComplaints(t *testing.T) {
	for name, c := range map[string]struct {
		key    string
		answer probes.Result
		want   []string
	}{
		"the base raises something":      {"/P-A1-x", probes.Result{Verdict: probes.Escaped, Reason: "seen"}, []string{"base: P-A1-x raised escaped: seen"}},
		"the base has a weakness":        {"/P-A1-x", probes.Result{Verdict: probes.Weak, Passed: true, Reason: "low"}, []string{"base: P-A1-x raised weak: low"}},
		"the base has no answer":         {"/P-A1-x", probes.Result{Errored: true, ErrorMessage: "boom"}, []string{"base: P-A1-x errored: boom"}},
		"an error does not catch":        {"one/P-A1-x", probes.Result{Verdict: probes.Escaped, Errored: true, Reason: "r"}, []string{"leak one: P-A1-x answered escaped: r", "leak one: no probe of class A1 caught it", "P-A1-x is failed by no leak"}},
		"inconclusive does not catch":    {"one/P-A1-x", probes.Result{Verdict: probes.Inconclusive, Errored: true, Reason: "r"}, []string{"leak one: P-A1-x answered inconclusive: r", "leak one: no probe of class A1 caught it", "P-A1-x is failed by no leak"}},
		"contained does not catch":       {"two/P-A2-x", probes.Result{Verdict: probes.Contained, Passed: true, Reason: "r"}, []string{"leak two: P-A2-x answered contained: r", "leak two: no probe of class A2 caught it", "P-A2-x is failed by no leak"}},
		"failed without a verdict is no": {"two/P-A2-x", probes.Result{Reason: "r"}, []string{"leak two: P-A2-x answered : r", "leak two: no probe of class A2 caught it", "P-A2-x is failed by no leak"}},
	} {
		t.Run(name, func(t *testing.T) {
			answers := good()
			answers[c.key] = c.answer
			s, _ := script(answers)
			m, err := s.Calibrate(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.want, m.Complaints())
			require.False(t, m.OK())
			if !strings.HasPrefix(c.key, "/") {
				require.Contains(t, m.Table(), "<- PROBLEM")
			}
		})
	}
}

func TestALeakHasToBeRealAndOfItsClass(t *testing.T) {
	s, downs := script(good())
	s.Entry.Leaks[0].Prove = func(context.Context, backends.Sandbox) error { return errors.New("nothing leaks") }
	s.Entry.Leaks[1].Class = "A7"
	m, err := s.Calibrate(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"leak one: not shown to be real: nothing leaks", "leak two: no probe of class A7 caught it", "P-A1-x is failed by no leak"}, m.Complaints())
	require.Equal(t, 2, *downs)

	s.Entry.Leaks[0].Prove = nil
	m, err = s.Calibrate(t.Context())
	require.NoError(t, err)
	require.Contains(t, m.Complaints()[0], "no ground truth")
}

// What the kernel does not let exist is said, and is neither a miss nor a catch.
func TestALeakThatCannotBeBuiltIsNoMiss(t *testing.T) {
	s, _ := script(good())
	s.Entry.Leaks = append(s.Entry.Leaks, backends.Leak{Name: "three", Class: "A1", Expect: []string{"P-A1-x"},
		Prove: func(context.Context, backends.Sandbox) error {
			return fmt.Errorf("%w: the kernel", backends.ErrLeakNotBuilt)
		}})
	var said []string
	s.Watch = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	m, err := s.Calibrate(t.Context())
	require.NoError(t, err)
	require.True(t, m.OK(), m.Complaints())
	require.Len(t, m.Built(), 2)
	require.Contains(t, said, "  NOT BUILT: leak not built: the kernel")
	require.Contains(t, m.Table(), "three  A1                 <- leak not built\n")

	s.Entry.Leaks = s.Entry.Leaks[1:]
	m, err = s.Calibrate(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"P-A1-x is failed by no leak"}, m.Complaints())
}

func TestALeakOfThisHostNeedsConsent(t *testing.T) {
	s, downs := script(good())
	s.Entry.Leaks[1].NeedsOwnHost = true
	m, err := s.Calibrate(t.Context())
	require.NoError(t, err)
	require.Contains(t, m.Complaints()[0], "leak two: not run")
	require.Equal(t, 1, *downs, "it was not even booted")
	s.OwnHost = true
	m, err = s.Calibrate(t.Context())
	require.NoError(t, err)
	require.True(t, m.OK())
}

func TestWhatTheBackendNeverHostsNeedsNoLeak(t *testing.T) {
	answers := good()
	delete(answers, "two/P-A2-x")
	s, _ := script(answers)
	s.Entry.Leaks = s.Entry.Leaks[:1]
	s.Entry.NeverHosts = []backends.Exclusion{{Probe: "P-A2-x", Reason: "no files"}}
	m, err := s.Calibrate(t.Context())
	require.NoError(t, err)
	require.True(t, m.OK(), m.Complaints())
}

func TestThereIsSomethingToCalibrate(t *testing.T) {
	s, _ := script(good())
	s.Probes = nil
	_, err := s.Calibrate(t.Context())
	require.ErrorContains(t, err, "no probe")
	s, _ = script(good())
	s.Entry.Leaks = nil
	_, err = s.Calibrate(t.Context())
	require.ErrorContains(t, err, "no leaking variant")
	s, _ = script(good())
	s.Run = func(context.Context, []string, []probes.Probe) (probes.Report, error) {
		return probes.Report{Unavailable: true, Notes: []string{"why"}}, nil
	}
	_, err = s.Calibrate(t.Context())
	require.ErrorIs(t, err, backends.ErrNotAvailable)
}
