package framepoison

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/framepoison/payload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sandbox is the real agent and the real client over a pipe of this process:
// the channel is real, the boundary is not what this probe is about.
type sandbox struct {
	backends.Sandbox
	*guest.Client
	stop func()
	// forge replaces the result of a poisoning call.
	forge func(inv backends.Invocation, e backends.Execution, err error) (backends.Execution, error)
	once  sync.Once
	// onInject is called before bytes are written to the agent.
	onInject func()
	// injected is called after they were.
	injected func()
}

func (s *sandbox) Inject(ctx context.Context, b []byte) error {
	if s.onInject != nil {
		s.onInject()
	}
	err := s.Client.Inject(context.WithoutCancel(ctx), b)
	if s.injected != nil {
		s.injected()
	}
	return err
}

func (s *sandbox) State() backends.State { return backends.StateReady }

func (s *sandbox) Reset(context.Context) (backends.ResetState, error) {
	return backends.ResetState{}, errors.ErrUnsupported
}

func (s *sandbox) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	e, err := s.Client.Execute(ctx, inv)
	if s.forge != nil && inv.Tool == attack.ChannelPoison {
		return s.forge(inv, e, err)
	}
	return e, err
}

func (s *sandbox) Close() error {
	var err error
	s.once.Do(func() {
		err = s.Client.Close()
		s.stop()
	})
	return err
}

func start(t *testing.T, tools agent.Table, o guest.Options) *sandbox {
	t.Helper()
	host, inside := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = agent.Serve(ctx, inside, agent.Options{Table: tools, Digest: "d"})
	}()
	o.Dial = func(context.Context) (io.ReadWriteCloser, error) { return host, nil }
	c, err := guest.Connect(t.Context(), o)
	require.NoError(t, err)
	s := &sandbox{Client: c, stop: func() { cancel(); <-done }}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func table() agent.Table {
	return agent.Table{
		"noop":               {InProcess: true, Run: func(context.Context, wire.ToolInput) int { return 0 }},
		attack.ChannelPoison: {InProcess: true, Channel: true, Run: payload.Run},
	}
}

func attackWith(t *testing.T, sb *sandbox, change ...func(*probes.Env)) probes.Outcome {
	t.Helper()
	env := &probes.Env{Sandbox: sb, Open: func(context.Context, probes.OpenOptions) (probes.Target, error) {
		return start(t, table(), guest.Options{}), nil
	}}
	for _, f := range change {
		f(env)
	}
	out, err := run(t.Context(), env)
	require.NoError(t, err)
	return out
}

func TestContained(t *testing.T) {
	out := attackWith(t, start(t, table(), guest.Options{}))
	require.Equal(t, probes.Contained, out.Verdict, "%s %+v", out.Reason, out.Control)
	require.True(t, out.Control.OK, out.Control.Summary)
	require.Empty(t, out.NotTested)
	require.Len(t, out.Cases, len(attack.PoisonModes())+len(injected))
}

// A decoder without cap and deadline is caught, by its effect on the host.
func TestNoLimitsIsCaught(t *testing.T) {
	out := attackWith(t, start(t, table(), guest.Options{NoLimits: true, Grace: 200 * time.Millisecond}))
	require.Equal(t, probes.Escaped, out.Verdict, out.Reason)
}

// A run that is ended in the middle of an attack blames nobody.
func TestInterruptionIsNoEscape(t *testing.T) {
	for _, mode := range append(attack.PoisonModes(), "inject") {
		t.Run(mode, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sb := start(t, table(), guest.Options{})
			sb.forge = func(inv backends.Invocation, e backends.Execution, err error) (backends.Execution, error) {
				if inv.Params.(attack.ChannelPoisonParams).Mode == mode {
					cancel()
					return backends.Execution{}, ctx.Err()
				}
				return e, err
			}
			if mode == "inject" {
				sb.onInject = cancel
			}
			env := &probes.Env{Sandbox: sb, Open: func(context.Context, probes.OpenOptions) (probes.Target, error) {
				return start(t, table(), guest.Options{}), nil
			}}
			out, err := run(ctx, env)
			require.ErrorIs(t, err, context.Canceled)
			require.NotEqual(t, probes.Escaped, out.Verdict, out.Reason)
		})
	}
}

func TestForgedAnswerIsCaught(t *testing.T) {
	sb := start(t, table(), guest.Options{})
	sb.forge = func(inv backends.Invocation, e backends.Execution, err error) (backends.Execution, error) {
		if inv.Params.(attack.ChannelPoisonParams).Mode == attack.PoisonInjection {
			e.ExitCode, err = attack.ForgedExit, nil
		}
		return e, err
	}
	out := attackWith(t, sb)
	require.Equal(t, probes.Escaped, out.Verdict)
	require.Contains(t, out.Reason, "believed a forged answer")
}

func TestWhatIsMissingIsInconclusive(t *testing.T) {
	missing := table()
	delete(missing, attack.ChannelPoison)
	liar := table()
	liar[attack.ChannelPoison] = agent.Tool{InProcess: true, Run: func(ctx context.Context, in wire.ToolInput) int {
		in.Channel = io.Discard // it reports writes that never reach the channel
		return payload.Run(ctx, in)
	}}
	cases := map[string]struct {
		tools  agent.Table
		change func(*probes.Env)
	}{
		"tool missing":             {tools: missing},
		"guest only says it wrote": {tools: liar},
		"tap stopped":              {tools: table(), change: stopping("channel tap")},
		"meter stopped":            {tools: table(), change: stopping("heap meter")},
		"no open target": {tools: table(), change: func(e *probes.Env) {
			e.Open = func(context.Context, probes.OpenOptions) (probes.Target, error) { return nil, errors.New("no agent") }
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && strings.Contains(name, "stopped") {
				t.Skip("-short: each stopped witness is waited for")
			}
			var change []func(*probes.Env)
			if tc.change != nil {
				change = append(change, tc.change)
			}
			out := attackWith(t, start(t, tc.tools, guest.Options{}), change...)
			require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
		})
	}
}

func stopping(kind string) func(*probes.Env) {
	return func(e *probes.Env) {
		e.Fault = func(k string, stop func()) {
			if k == kind {
				stop()
			}
		}
	}
}

// Each mode's bytes break the naive decoder; a well-formed answer does not.
func TestNaiveDecoder(t *testing.T) {
	for _, mode := range attack.PoisonModes() {
		require.True(t, naiveBreaks(mode, attack.PoisonBytes(mode, wire.NewNonceString(), "id"), "id"), mode)
		var sound frameBytes
		require.NoError(t, wire.WriteFrame(&sound, []byte(`{"type":"ToolResult","command_id":"id","exit_code":0,"stdout":"","stderr":"","evidence_hash":""}`)))
		require.False(t, naiveBreaks(mode, sound, "id"), mode)
	}
	require.Nil(t, attack.PoisonBytes("no such mode", "n", "id"))
}

func TestMeter(t *testing.T) {
	m := startMeter()
	b := make([]byte, 100<<20)
	growth, alive := m.end()
	require.Greater(t, growth, int64(maxGrowth))
	require.True(t, alive)
	require.Len(t, b, 100<<20)

	m = startMeter()
	m.stop()
	_, alive = m.end()
	require.False(t, alive, "a stopped meter has to be noticed")
}
