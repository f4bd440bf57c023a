package qemu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestLeaksAreReal(t *testing.T) {
	for _, l := range Leaks() {
		t.Run(l.Name, func(t *testing.T) {
			sb := newTest(t, l.Name)
			require.NoError(t, sb.Boot(t.Context()))
			require.NoError(t, l.Prove(t.Context(), sb))
		})
	}
}

// TestProofsFailWithoutTheLeak keeps the ground truth from being a formality.
func TestProofsFailWithoutTheLeak(t *testing.T) {
	sb := newTest(t)
	for _, l := range Leaks() {
		t.Run(l.Name, func(t *testing.T) {
			require.NoError(t, sb.Boot(t.Context()))
			require.Error(t, l.Prove(t.Context(), sb))
		})
	}
	other, err := New(backends.Options{Leaks: []string{"user-net"}})
	require.NoError(t, err)
	require.Error(t, Leaks()[0].Prove(t.Context(), other), "not booted")
}
