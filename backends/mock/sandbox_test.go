package mock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func boot(t *testing.T, names ...string) *Sandbox {
	s, err := newSandbox(backends.Options{Leaks: names})
	require.NoError(t, err)
	require.NoError(t, s.Boot(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Shutdown(context.Background())) })
	return s
}

func TestEveryTamperIsSeenAndSeenByItsSource(t *testing.T) {
	s := boot(t)
	names := map[string]bool{}
	for _, tm := range s.Tampers() {
		require.False(t, names[tm.Name], "%s is listed twice", tm.Name)
		names[tm.Name] = true
	}
	for name := range names {
		t.Run(name, func(t *testing.T) {
			s := boot(t)
			var tm backends.Tamper
			for _, x := range s.Tampers() {
				if x.Name == name {
					tm = x
				}
			}
			undo, err := tm.Apply(t.Context())
			if tm.NotCovered != "" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			st, err := s.ResetIgnoring(t.Context(), tm.Source)
			require.NoError(t, err, "with its one comparison off the change goes unseen")
			require.True(t, st.VerificationPassed)
			_, err = s.Reset(t.Context())
			var div *backends.DivergenceError
			require.ErrorAs(t, err, &div)
			require.Equal(t, []backends.Source{tm.Source}, div.Sources)
			require.NoError(t, undo())
			require.NoError(t, s.Shutdown(t.Context()))
			require.NoError(t, s.Boot(t.Context()))
			_, err = s.Reset(t.Context())
			require.NoError(t, err, "an untampered reset is clean")
		})
	}
}

// A decoder that waits for ever leaves only the end of the sandbox.
func TestUnconfirmedDeathKillsTheSandbox(t *testing.T) {
	s := boot(t, leakDecoder)
	_, err := s.Execute(t.Context(), backends.Invocation{Tool: attack.ChannelPoison, Deadline: 50 * time.Millisecond,
		Params: attack.ChannelPoisonParams{Nonce: wire.NewNonceString(), Mode: attack.PoisonTruncated, HoldMS: 60_000}})
	var timeout *backends.ToolTimeoutError
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.SandboxKilled)
	require.Equal(t, backends.StateFailed, s.State())
	require.ErrorIs(t, s.Boot(t.Context()), backends.ErrBootFailed)
	require.NoError(t, s.Shutdown(t.Context()))
	require.NoError(t, s.Boot(t.Context()))
}

// Each class crosses with its own leak and with no other.
func TestALeakOpensItsOwnClassOnly(t *testing.T) {
	for _, l := range Entry().Leaks {
		t.Run(l.Name, func(t *testing.T) {
			for _, other := range Entry().Leaks {
				if other.Name == l.Name || other.Name == leakLatency {
					continue
				}
				require.Error(t, other.Prove(t.Context(), boot(t, l.Name)), "%s also opens what %s does", l.Name, other.Name)
			}
		})
	}
}

func TestOpenTargetHasNoBoundary(t *testing.T) {
	s := boot(t)
	exec, closer, err := s.OpenTarget(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, closer()) }()
	for _, prove := range []func(context.Context, backends.Sandbox) error{proveEgress, proveFiles, proveProcesses, proveLimits, proveTree} {
		require.NoError(t, prove(t.Context(), openSandbox{exec, exec.(backends.Metered)}))
	}
	// It is another world: nothing of that is seen in the sandbox.
	u, err := s.Usage(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, baseMemory, u.PeakBytes)
	require.Equal(t, baseTasks, u.Tasks)
}

// openSandbox lends an executor the rest of the interface.
type openSandbox struct {
	backends.Executor
	backends.Metered
}

var errNoSandbox = errors.New("an open target is no sandbox")

func (openSandbox) Backend() string                { return "open" }
func (openSandbox) Boot(context.Context) error     { return errNoSandbox }
func (openSandbox) Shutdown(context.Context) error { return errNoSandbox }
func (openSandbox) State() backends.State          { return backends.StateReady }
func (openSandbox) Reset(context.Context) (backends.ResetState, error) {
	return backends.ResetState{}, errNoSandbox
}

func TestRefusals(t *testing.T) {
	_, err := newSandbox(backends.Options{RequireBaseline: true})
	require.ErrorContains(t, err, "--require-baseline")
	_, err = newSandbox(backends.Options{Leaks: []string{leakEgress, "user-net"}})
	require.ErrorContains(t, err, `"user-net"`)
}

// The mock visits loopback only, whatever it is told.
func TestVisitsStayOnLoopback(t *testing.T) {
	for _, address := range []string{"192.0.2.1", "10.0.2.2", "169.254.169.254", "::", "2001:db8::1", "canary.invalid", ""} {
		require.Error(t, visit(t.Context(), attack.EgressTarget{Via: attack.ViaTCP, Address: address, Port: 9, Token: "t"}, time.Second))
		require.Error(t, visit(t.Context(), attack.EgressTarget{Via: attack.ViaUDP, Address: address, Port: 9, Token: "t"}, time.Second))
	}
}

func BenchmarkBoot(b *testing.B) {
	s, err := newSandbox(backends.Options{})
	require.NoError(b, err)
	for b.Loop() {
		if err := errors.Join(s.Boot(b.Context()), s.Shutdown(b.Context())); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReset(b *testing.B) {
	s, err := newSandbox(backends.Options{})
	require.NoError(b, err)
	require.NoError(b, s.Boot(b.Context()))
	for b.Loop() {
		if _, err := s.Reset(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, s.Shutdown(b.Context()))
}

func BenchmarkRoundtrip(b *testing.B) {
	s, err := newSandbox(backends.Options{})
	require.NoError(b, err)
	require.NoError(b, s.Boot(b.Context()))
	for b.Loop() {
		if _, err := s.Execute(b.Context(), backends.Invocation{Tool: "noop"}); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, s.Shutdown(b.Context()))
}
