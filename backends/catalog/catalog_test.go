package catalog

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestEveryEntryIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range All() {
		t.Run(e.Name, func(t *testing.T) {
			require.Regexp(t, regexp.MustCompile(`^[a-z]+$`), e.Name)
			require.False(t, seen[e.Name], "listed twice")
			seen[e.Name] = true
			require.NotEmpty(t, e.Title)
			require.NotNil(t, e.Doctor)
			require.NotNil(t, e.New)
			require.Equal(t, e.Name != "mock", e.Real, "only the mock is no boundary")
			leaks := map[string]bool{}
			for _, l := range e.Leaks {
				require.False(t, leaks[l.Name], "leak %s is listed twice", l.Name)
				leaks[l.Name] = true
				require.NotEmpty(t, l.About, l.Name)
				require.NotEmpty(t, l.Class, l.Name)
				require.NotEmpty(t, l.Expect, l.Name)
				require.NotNil(t, l.Prove, l.Name)
			}
			for _, x := range e.NeverHosts {
				require.NotEmpty(t, x.Probe)
				require.NotEmpty(t, x.Reason)
			}
		})
	}
}

func TestABackendOfALaterVersionSaysSo(t *testing.T) {
	e, err := Lookup(All(), "chv")
	require.NoError(t, err)
	d := e.Doctor(t.Context(), backends.Options{})
	require.False(t, d.Available)
	require.Contains(t, d.Findings[0].What, "does not have the chv backend yet")
	require.NotEmpty(t, d.Findings[0].Fix)
	_, err = e.New(backends.Options{})
	require.ErrorIs(t, err, backends.ErrNotAvailable)
	require.NotEmpty(t, backends.FixOf(err))
}

func TestLookupNamesTheNearest(t *testing.T) {
	_, err := Lookup(All(), "dockr")
	var unknown *UnknownError
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, "docker", unknown.Nearest)
	require.Contains(t, err.Error(), "chv, vf")
}
