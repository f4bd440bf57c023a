package canary

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// liar sends a secret in a result that the host has to refuse.
type liar struct {
	raw []byte
	fn  func([]byte)
}

func (l *liar) Execute(context.Context, backends.Invocation) (backends.Execution, error) {
	for i := range l.raw {
		l.fn(l.raw[i : i+1])
	}
	return backends.Execution{}, backends.ErrProtocol
}

func (l *liar) Tap(fn func([]byte)) (stop func()) { l.fn = fn; return func() {} }

func (l *liar) Inject(context.Context, []byte) error { return nil }

func (l *liar) Resync(context.Context) error { return nil }

func TestASecretInARefusedResultIsFound(t *testing.T) {
	secret := NewToken()
	run := func(raw string) Trial {
		return Run(t.Context(), &liar{raw: []byte(raw)}, "tool", time.Second, func(string) any { return nil })
	}
	got := run(`{"type":"ToolResult","evidence_hash":"wrong","stdout":"` + secret + `"}`)
	require.Nil(t, got.Report)
	require.Error(t, got.Err)
	require.NotEmpty(t, Leaked(secret, got.Out...))
	require.Empty(t, Leaked(secret, run("nothing of it").Out...))
	require.LessOrEqual(t, len(run(string(make([]byte, maxRaw+10))).Out[2]), maxRaw)
}
