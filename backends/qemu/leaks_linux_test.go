package qemu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/testimage"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// testAgent is the agent that the test image holds.
func testAgent(t *testing.T) string {
	t.Helper()
	testreq.Need(t, "go")
	path, _, err := agentbin.Find(t.Context(), "")
	require.NoError(t, err)
	return path
}

func TestLeaksAreReal(t *testing.T) {
	for _, l := range Leaks() {
		t.Run(l.Name, func(t *testing.T) {
			sb, err := New(backends.Options{Image: testimage.Dir(t), Agent: testAgent(t), Leaks: []string{l.Name}})
			require.NoError(t, err)
			require.NoError(t, sb.Boot(t.Context()))
			defer func() { require.NoError(t, sb.Shutdown(t.Context())) }()
			require.NoError(t, l.Prove(t.Context(), sb))
		})
	}
}
