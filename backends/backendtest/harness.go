// Package backendtest is the conformance suite that every backend runs. It
// knows a sandbox only through package backends, and the agent's tools only by
// name, so that a backend which passes is one that the probes can work with.
package backendtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Harness is what the suite needs to know about a backend. Every field without
// a stated default is required: a backend that cannot say what it leaves behind
// has not been tested.
type Harness struct {
	// New makes an instance that is not booted.
	New func(t testing.TB, leaks ...string) backends.Sandbox
	// Leftovers lists what instances of this backend have on the host now:
	// processes, sockets, temporary directories, mounts, cgroups. The suite
	// compares it with what was there before.
	Leftovers func(t testing.TB) []string
	// Kill ends a booted instance behind its back, as a crash would.
	Kill func(t testing.TB, sb backends.Sandbox)
	// Disagree makes exactly the named sources disagree at the next reset of a
	// booted instance, and returns what undoes it. nil uses the first tamper
	// of each source that backends.Tamperable offers.
	Disagree func(t testing.TB, sb backends.Sandbox, sources ...backends.Source) (undo func())
	// Deadline is long enough for any tool to have started, on the slowest
	// machine, and short enough to be waited out. Zero means 500 ms.
	Deadline time.Duration
	// Slack is how long after its deadline a tool may be reported dead. Zero
	// means 2 s.
	Slack time.Duration
	// BootTimeout bounds a boot. Zero means 60 s.
	BootTimeout time.Duration
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	require.NotNil(t, h.New, "Harness.New is required")
	require.NotNil(t, h.Leftovers, "Harness.Leftovers is required")
	require.NotNil(t, h.Kill, "Harness.Kill is required")
	if h.Deadline == 0 {
		h.Deadline = 500 * time.Millisecond
	}
	if h.Slack == 0 {
		h.Slack = 2 * time.Second
	}
	if h.BootTimeout == 0 {
		h.BootTimeout = time.Minute
	}
	if h.Disagree == nil {
		h.Disagree = disagreeByTampers
	}
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"lifecycle", (*suite).lifecycle},
		{"concurrent boots", (*suite).concurrentBoots},
		{"before boot and after shutdown", (*suite).notBooted},
		{"cancel during boot", (*suite).cancelDuringBoot},
		{"crash", (*suite).crash},
		{"shutdown under a call", (*suite).shutdownUnderCall},
		{"results", (*suite).results},
		{"output", (*suite).output},
		{"concurrent calls", (*suite).concurrentCalls},
		{"cancelled call", (*suite).cancelledCall},
		{"deadline", (*suite).deadline},
		{"reset", (*suite).reset},
		{"divergence", (*suite).divergence},
		{"resets do not grow", (*suite).growth},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := h.Leftovers(t)
			routines := goleak.IgnoreCurrent()
			s := &suite{T: t, h: h, before: before}
			c.run(s)
			s.nothingLeft("at the end")
			require.NoError(t, goleak.Find(routines))
		})
	}
}

// suite is one subtest.
type suite struct {
	*testing.T
	h      Harness
	before []string
}

// make returns an instance that is shut down before the subtest ends.
func (s *suite) make() backends.Sandbox {
	s.Helper()
	sb := s.h.New(s.T)
	require.Equal(s, backends.StateNotBooted, sb.State())
	return sb
}

// boot returns a ready instance.
func (s *suite) boot() backends.Sandbox {
	s.Helper()
	sb := s.make()
	s.bootAgain(sb)
	return sb
}

func (s *suite) bootAgain(sb backends.Sandbox) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), s.h.BootTimeout)
	defer cancel()
	require.NoError(s, sb.Boot(ctx))
	require.Equal(s, backends.StateReady, sb.State())
	// A failing subtest must not leave its instance to the next one.
	s.Cleanup(func() { s.shutdownQuietly(sb) })
}

func (s *suite) shutdownQuietly(sb backends.Sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), s.h.BootTimeout)
	defer cancel()
	if err := sb.Shutdown(ctx); err != nil {
		s.Errorf("shutdown: %v", err)
	}
}

// shutdown ends sb and requires that nothing of it is left.
func (s *suite) shutdown(sb backends.Sandbox) {
	s.Helper()
	require.NoError(s, sb.Shutdown(s.Context()))
	require.Equal(s, backends.StateNotBooted, sb.State())
	s.nothingLeft("after shutdown")
}

func (s *suite) nothingLeft(when string) {
	s.Helper()
	for _, what := range s.h.Leftovers(s) {
		if !slices.Contains(s.before, what) {
			s.Errorf("left on the host %s: %s", when, what)
		}
	}
}

// typed requires an error with a stable code.
func (s *suite) typed(err error, doing string) {
	s.Helper()
	require.Error(s, err, doing)
	require.NotEmpty(s, backends.CodeOf(err), "%s: the error has no code: %v", doing, err)
}
