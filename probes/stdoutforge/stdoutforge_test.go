package stdoutforge

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/hostiletest"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/stdoutforge/payload"
)

// world runs the real payload in process; mangle stands for what a particular
// sandbox does to the result.
type world struct {
	backends.Sandbox
	mangle func(inv backends.Invocation, e backends.Execution) (backends.Execution, error)
}

func (w world) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	params, err := json.Marshal(inv.Params)
	if err != nil {
		return backends.Execution{}, err
	}
	var stdout, stderr bytes.Buffer
	code := payload.Run(ctx, wire.ToolInput{Name: inv.Tool, Params: params, Stdout: &stdout, Stderr: &stderr})
	e := backends.Execution{ID: inv.ID, ExitCode: code, Stdout: backends.NewText(stdout.Bytes()), Stderr: backends.NewText(stderr.Bytes())}
	if w.mangle == nil {
		return e, nil
	}
	return w.mangle(inv, e)
}

func (world) Close() error { return nil }

// rawWorld renders its guest's output as it is.
type rawWorld struct{ world }

func (rawWorld) Render(_ string, t backends.Text) (string, bool) { return string(t.Bytes()), true }

func attackWith(t *testing.T, sb backends.Sandbox, change ...func(*probes.Env)) probes.Outcome {
	t.Helper()
	env := &probes.Env{Sandbox: sb, Open: func(context.Context, probes.OpenOptions) (probes.Target, error) { return world{}, nil }}
	for _, f := range change {
		f(env)
	}
	out, err := run(t.Context(), env)
	require.NoError(t, err)
	return out
}

func TestContained(t *testing.T) {
	out := attackWith(t, world{})
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
	require.Len(t, out.Cases, len(traps()))
	require.True(t, out.Control.OK, out.Control.Summary)
}

// A client that reads stdout as frames believes the forged result.
func TestStdoutParsedAsFrames(t *testing.T) {
	out := attackWith(t, world{mangle: func(inv backends.Invocation, e backends.Execution) (backends.Execution, error) {
		b := e.Stdout.Bytes()
		if len(b) < 4 || int(binary.BigEndian.Uint32(b)) != len(b)-4 {
			return e, nil
		}
		var r wire.ToolResult
		require.NoError(t, json.Unmarshal(b[4:], &r))
		return backends.Execution{ID: r.CommandID, ExitCode: r.ExitCode, Stdout: backends.NewText([]byte(r.Stdout))}, nil
	}})
	require.Equal(t, probes.Escaped, out.Verdict)
	require.Contains(t, out.Reason, "result-frame")
}

func TestRawRendererIsSeen(t *testing.T) {
	out := attackWith(t, rawWorld{})
	require.Equal(t, probes.Escaped, out.Verdict)
	for _, c := range out.Cases {
		if len(traps()[indexOf(c.Name)].kinds) > 0 {
			require.True(t, c.Crossed, c.Name)
		}
	}
}

func TestAnswerUnderAnotherIDIsAnEscape(t *testing.T) {
	out := attackWith(t, world{mangle: func(_ backends.Invocation, e backends.Execution) (backends.Execution, error) {
		e.ID = "another"
		return e, nil
	}})
	require.Equal(t, probes.Escaped, out.Verdict, out.Reason)
}

// Consumers that fell for the control and then fall for nothing are dead.
func TestWitnessThatDiesAfterTheControl(t *testing.T) {
	var kill func()
	sb := world{mangle: func(_ backends.Invocation, e backends.Execution) (backends.Execution, error) {
		kill()
		return e, nil
	}}
	out := attackWith(t, sb, func(e *probes.Env) { e.Fault = func(_ string, stop func()) { kill = stop } })
	require.True(t, out.Cases[0].Controlled)
	require.False(t, out.Cases[0].WitnessAlive)
	require.Contains(t, out.Witness.Summary, "0 of 7")
	require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
}

// blindWorld renders its guest's output as nothing.
type blindWorld struct{ world }

func (blindWorld) Render(string, backends.Text) (string, bool) { return "", true }

// A rendering in which nothing can spring because nothing is there proves
// nothing.
func TestEmptyRenderingIsInconclusive(t *testing.T) {
	out := attackWith(t, blindWorld{})
	require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
	require.Contains(t, out.Reason, "does not show what was printed")
}

func indexOf(name string) int {
	for i, t := range traps() {
		if t.name == name {
			return i
		}
	}
	return -1
}

func TestWhatIsMissingIsInconclusive(t *testing.T) {
	cases := map[string]struct {
		sb     backends.Sandbox
		change func(*probes.Env)
	}{
		"tool missing": {sb: world{mangle: func(inv backends.Invocation, _ backends.Execution) (backends.Execution, error) {
			return backends.Execution{ID: inv.ID, ExitCode: wire.ExitNoTool, Stderr: backends.NewText([]byte("no such tool"))}, nil
		}}},
		"guest only says it did": {sb: world{mangle: func(inv backends.Invocation, e backends.Execution) (backends.Execution, error) {
			rec := wire.NewRecorder(attack.StdoutForge, inv.Params.(attack.StdoutForgeParams).Nonce)
			rec.Try(wire.Outcome(inv.Params.(attack.StdoutForgeParams).Case, "write", "stdout", nil))
			var b bytes.Buffer
			require.NoError(t, rec.Write(&b))
			e.Stderr = backends.NewText(b.Bytes())
			return e, nil
		}}},
		"output altered": {sb: world{mangle: func(_ backends.Invocation, e backends.Execution) (backends.Execution, error) {
			e.Stdout = backends.NewText(append([]byte("x"), e.Stdout.Bytes()...))
			return e, nil
		}}},
		"call fails": {sb: world{mangle: func(backends.Invocation, backends.Execution) (backends.Execution, error) {
			return backends.Execution{}, errors.New("broken")
		}}},
		"witness stopped": {sb: world{}, change: func(e *probes.Env) { e.Fault = func(_ string, stop func()) { stop() } }},
		"no open target": {sb: world{}, change: func(e *probes.Env) {
			e.Open = func(context.Context, probes.OpenOptions) (probes.Target, error) { return nil, errors.New("no agent") }
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var change []func(*probes.Env)
			if tc.change != nil {
				change = append(change, tc.change)
			}
			out := attackWith(t, tc.sb, change...)
			require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
		})
	}
}

// The exit code is the guest's word: it changes nothing.
func TestExitCodeDoesNotMatter(t *testing.T) {
	out := attackWith(t, world{mangle: func(_ backends.Invocation, e backends.Execution) (backends.Execution, error) {
		e.ExitCode = 1
		return e, nil
	}})
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
}

// The naive runner falls for whatever the model of the real one falls for.
func TestNaiveRunner(t *testing.T) {
	samples := hostiletest.Corpus()
	for _, trap := range traps() {
		samples = append(samples, hostiletest.Sample{Name: trap.name, Bytes: trap.content(hostiletest.Token, "id")})
	}
	fell := 0
	for _, s := range samples {
		r := runnertest.New(runnertest.Matchers()[0])
		r.Print(s.Bytes)
		if r.Untouched() != "" && bytes.Contains(s.Bytes, []byte(hostiletest.Token)) {
			fell++
			require.True(t, commandPromoted(s.Bytes, hostiletest.Token), "%s: %s", s.Name, r.Untouched())
		}
	}
	require.Greater(t, fell, 30)
	r := runnertest.New(runnertest.Matchers()[0])
	r.Print(workflowCommands(hostiletest.Token, "id"))
	require.Len(t, r.Commands, 5)
	require.Len(t, r.Annotations, 3, "the warning, the error and the compiler's message")
}

// Every naive consumer falls for the raw bytes and for none of our renderings.
func TestTraps(t *testing.T) {
	for _, trap := range traps() {
		t.Run(trap.name, func(t *testing.T) {
			raw := trap.content("0123456789abcdef", "id")
			require.True(t, trap.springs(raw, "0123456789abcdef"))
			require.False(t, trap.springs(raw, "another token"))
			render := rendering(world{})
			for _, kind := range trap.kinds {
				require.False(t, trap.springs([]byte(render(kind, backends.NewText(raw))), "0123456789abcdef"), kind)
			}
		})
	}
}
