//go:build linux

package egress

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary/canarytest"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/egress/payload"
)

func TestMain(m *testing.M) {
	canarytest.Main(map[string]wire.ToolFunc{attack.NetEgress: payload.Run})
	goleak.VerifyTestMain(m)
}

var (
	open   = canarytest.Process(false)
	closed = canarytest.Process(true)
)

func outcome(t *testing.T, env *probes.Env) probes.Outcome {
	t.Helper()
	o, err := New().Run(t.Context(), env)
	require.NoError(t, err)
	return o
}

func find(t *testing.T, o probes.Outcome, name string) probes.Case {
	t.Helper()
	i := slices.IndexFunc(o.Cases, func(c probes.Case) bool { return c.Name == name })
	require.NotEqual(t, -1, i, "no sub-case %s", name)
	return o.Cases[i]
}

func TestNamespaceContains(t *testing.T) {
	canarytest.Namespaces(t)
	o := outcome(t, canarytest.Env(t, closed, open))
	require.Equal(t, probes.Contained, o.Verdict, o.Reason)
	require.True(t, o.Control.OK, o.Control.Summary)
	for _, name := range []string{"tcp4", "udp4", "dns4", "abstract"} {
		require.Equal(t, probes.Contained, find(t, o, name).Verdict, name)
	}
}

func TestNoBoundaryEscapes(t *testing.T) {
	for name, guest := range map[string]canarytest.Executor{"honest": open, "says exit 1 after doing it": canarytest.Mute(open)} {
		t.Run(name, func(t *testing.T) {
			o := outcome(t, canarytest.Env(t, guest, open))
			require.Equal(t, probes.Escaped, o.Verdict, o.Reason)
			for _, c := range []string{"tcp4", "udp4", "dns4", "abstract", "unix"} {
				require.True(t, find(t, o, c).Crossed, c)
			}
			if os.Geteuid() == 0 {
				for _, c := range []string{"icmp4", "raw4", "packet4"} {
					require.True(t, find(t, o, c).Crossed, c)
				}
			}
		})
	}
}

func TestNothingIsConcludedFrom(t *testing.T) {
	boast := canarytest.Boaster("tcp4", "udp4", "dns4", "abstract", "unix", "tcp6", "udp6", "dns6")
	idle := canarytest.Executor(func(context.Context, backends.Invocation) (backends.Execution, error) {
		return backends.Execution{ExitCode: 1, Stdout: backends.NewText([]byte("{}"))}, nil
	})
	for name, c := range map[string]struct{ guest, control canarytest.Executor }{
		"a missing tool":                 {canarytest.Missing(), open},
		"a guest that only boasts":       {boast, open},
		"a guest that tried nothing":     {idle, open},
		"a control without the tool":     {closed, canarytest.Missing()},
		"a control behind the boundary":  {closed, closed},
		"a control that is only claimed": {closed, boast},
	} {
		t.Run(name, func(t *testing.T) {
			canarytest.Namespaces(t)
			o := outcome(t, canarytest.Env(t, c.guest, c.control))
			require.Equal(t, probes.Inconclusive, o.Verdict, o.Reason)
		})
	}
}

func TestStoppingAnyCanaryIsNoticed(t *testing.T) {
	canarytest.Namespaces(t)
	var kinds []string
	env := canarytest.Env(t, closed, open)
	env.Fault = func(kind string, _ func()) { kinds = append(kinds, kind) }
	outcome(t, env)
	require.GreaterOrEqual(t, len(kinds), 5)
	for i, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			env, n := canarytest.Env(t, closed, open), 0
			env.Fault = func(_ string, stop func()) {
				if n == i {
					stop()
				}
				n++
			}
			o := outcome(t, env)
			require.Equal(t, probes.Inconclusive, o.Verdict, o.Reason)
		})
	}
}

func TestTokensAreFresh(t *testing.T) {
	used := map[string]bool{}
	spy := func(ex canarytest.Executor) canarytest.Executor {
		return func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
			p := inv.Params.(attack.EgressParams)
			require.False(t, used[p.Nonce])
			used[p.Nonce] = true
			for _, target := range p.Targets {
				if target.Via == attack.ViaVsock {
					continue
				}
				require.Len(t, target.Token, 32)
				require.False(t, used[target.Token], "token used twice")
				used[target.Token] = true
			}
			return ex(ctx, inv)
		}
	}
	for range 2 {
		outcome(t, canarytest.Env(t, spy(canarytest.Missing()), spy(canarytest.Missing())))
	}
	require.Greater(t, len(used), 40)
}

func TestVisitWithoutTokenIsInconclusive(t *testing.T) {
	canarytest.Namespaces(t)
	var port int
	learn := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		port = inv.Params.(attack.EgressParams).Targets[0].Port
		return open(ctx, inv)
	})
	stranger := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		c, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		require.NoError(t, err)
		defer c.Close()
		return closed(ctx, inv)
	})
	o := outcome(t, canarytest.Env(t, stranger, learn))
	require.Equal(t, probes.Inconclusive, o.Verdict, o.Reason)
	require.Contains(t, find(t, o, "tcp4").Doubt, "without a token")
}

func TestPolicyDecidesWhatIsAFinding(t *testing.T) {
	env := canarytest.Env(t, open, open)
	env.Policy.Egress.Promise = "operator"
	o := outcome(t, env)
	require.Equal(t, probes.Escaped, o.Verdict)
	require.Equal(t, "operator", o.Evidence["finding_owner"])

	env = canarytest.Env(t, open, open)
	env.Policy.Egress.Allow = []string{"127.0.0.1"}
	o = outcome(t, env)
	require.Equal(t, probes.Skipped, find(t, o, "tcp4").Verdict)
	require.True(t, find(t, o, "abstract").Crossed, "an allowed address does not excuse an abstract socket")
}

func TestMetadataIsFitToPublish(t *testing.T) {
	p := New()
	for _, text := range []string{p.Description, p.Why, p.Limits} {
		require.Greater(t, len(text), 80)
		require.True(t, strings.HasSuffix(text, "."))
	}
	require.NotEmpty(t, p.Techniques)
	require.NotEmpty(t, p.ATTACK)
	require.NotEmpty(t, p.References)
}
