package backendtest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// RunEntry checks a backend's catalogue entry: its leaks are complete, every
// one is accepted, and an unknown one is refused by name. It boots nothing.
func RunEntry(t *testing.T, e backends.Entry, o backends.Options) {
	require.NotEmpty(t, e.Name)
	require.NotEmpty(t, e.Title)
	require.NotNil(t, e.Doctor)
	require.NotNil(t, e.New)

	sb, err := e.New(o)
	require.NoError(t, err)
	require.Equal(t, e.Name, sb.Backend())
	require.Equal(t, backends.StateNotBooted, sb.State())

	unknown := o
	unknown.Leaks = []string{"no-such-leak"}
	_, err = e.New(unknown)
	require.ErrorContains(t, err, "no-such-leak")

	seen := map[string]bool{}
	for _, l := range e.Leaks {
		require.NotEmpty(t, l.Name)
		require.False(t, seen[l.Name], "leak %s is listed twice", l.Name)
		seen[l.Name] = true
		require.NotEmpty(t, l.Class, l.Name)
		require.NotEmpty(t, l.About, l.Name)
		require.NotEmpty(t, l.Expect, "leak %s names no probe that has to catch it", l.Name)
		require.NotNil(t, l.Prove, "leak %s cannot be proven", l.Name)
		with := o
		with.Leaks = []string{l.Name}
		_, err := e.New(with)
		require.NoError(t, err, l.Name)
	}
	for _, x := range e.NeverHosts {
		require.NotEmpty(t, x.Probe)
		require.NotEmpty(t, x.Reason, x.Probe)
	}

	d := e.Doctor(t.Context(), o)
	require.NotEmpty(t, d.Findings)
	for _, f := range d.Findings {
		require.NotEmpty(t, f.What)
		if !f.OK {
			require.NotEmpty(t, f.Fix, "the finding %q has no fix", f.What)
		}
	}
}

// RunLeaks boots a variant for each leak and has it proven real; a sandbox
// without the leak must not pass the same proof, or the proof shows nothing.
func RunLeaks(t *testing.T, e backends.Entry, o backends.Options) {
	boot := func(t *testing.T, leaks ...string) backends.Sandbox {
		with := o
		with.Leaks = leaks
		sb, err := e.New(with)
		require.NoError(t, err)
		if err = sb.Boot(t.Context()); errors.Is(err, backends.ErrLeakNotBuilt) {
			t.Skip(err)
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sb.Shutdown(context.Background())) })
		return sb
	}
	for _, l := range e.Leaks {
		if l.NeedsOwnHost {
			continue
		}
		t.Run(l.Name, func(t *testing.T) {
			require.NoError(t, l.Prove(t.Context(), boot(t, l.Name)), "the leak is not real")
			require.Error(t, l.Prove(t.Context(), boot(t)), "the proof holds without the leak")
		})
	}
}
