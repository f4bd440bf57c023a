package bwrap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// What a reset must not have kept is found: the process, a file, the epoch.
func TestMarkersThatSurviveAreFound(t *testing.T) {
	s := boot(t, options(t))
	old, err := s.present("look")
	require.NoError(t, err)
	m, err := s.plant(t.Context(), old, s.r)
	require.NoError(t, err)
	require.NotEmpty(t, m.paths)
	require.ErrorContains(t, m.gone(t.Context(), old, old, false), "is the old one")

	_, err = s.Reset(t.Context())
	require.NoError(t, err)
	v, err := s.present("look")
	require.NoError(t, err)
	require.NoError(t, m.gone(t.Context(), old, v, false))

	for _, path := range m.paths {
		require.Zero(t, call(t, s, "fs.write", map[string]string{"path": path, "content": m.epoch}).ExitCode)
		require.ErrorContains(t, m.gone(t.Context(), old, v, false), "survived the reset", path)
		require.NoError(t, s.renew(t.Context()))
		v, err = s.present("look")
		require.NoError(t, err)
	}
	_, err = v.client.Reset(t.Context(), wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "keep", Epoch: m.epoch})
	require.NoError(t, err)
	require.ErrorContains(t, m.gone(t.Context(), old, v, false), "the planted epoch survived")
}
