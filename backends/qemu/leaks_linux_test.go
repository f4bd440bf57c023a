package qemu

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestLeaksAreReal(t *testing.T) {
	for _, l := range Leaks() {
		t.Run(l.Name, func(t *testing.T) {
			sb, err := New(backends.Options{Image: os.Getenv("SCRATCH_IMG"), Leaks: []string{l.Name}})
			require.NoError(t, err)
			require.NoError(t, sb.Boot(t.Context()))
			defer func() { require.NoError(t, sb.Shutdown(t.Context())) }()
			require.NoError(t, l.Prove(t.Context(), sb))
		})
	}
}
