package agentbin

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

func TestUnpack(t *testing.T) {
	testreq.Need(t, "go")
	agent := filepath.Join(t.TempDir(), Name)
	require.NoError(t, Build(t.Context(), runtime.GOARCH, agent))
	content, err := os.ReadFile(agent)
	require.NoError(t, err)
	want, err := fileDigest(agent)
	require.NoError(t, err)
	carried := fstest.MapFS{embeddedName(runtime.GOARCH): {Data: content}}

	t.Run("carries none", func(t *testing.T) {
		path, err := unpack(embedded, t.TempDir(), runtime.GOARCH)
		require.NoError(t, err)
		require.Empty(t, path)
	})
	t.Run("kept while intact, replaced when damaged", func(t *testing.T) {
		cache := t.TempDir()
		path, err := unpack(carried, cache, runtime.GOARCH)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(cache, want, Name), path)
		first, err := os.Stat(path)
		require.NoError(t, err)
		_, err = unpack(carried, cache, runtime.GOARCH)
		require.NoError(t, err)
		again, err := os.Stat(path)
		require.NoError(t, err)
		require.True(t, os.SameFile(first, again), "an intact agent was unpacked again")

		for name, damage := range map[string]func() error{
			"changed":        func() error { return os.Truncate(path, 1000) },
			"not executable": func() error { return os.Chmod(path, 0o644) },
		} {
			require.NoError(t, damage(), name)
			path, err = unpack(carried, cache, runtime.GOARCH)
			require.NoError(t, err, name)
			got, err := fileDigest(path)
			require.NoError(t, err, name)
			require.Equal(t, want, got, name)
			require.NoError(t, Check(path, runtime.GOARCH), name)
		}
	})
	t.Run("what is carried is no agent", func(t *testing.T) {
		_, err := unpack(fstest.MapFS{embeddedName(runtime.GOARCH): {Data: []byte("text")}}, t.TempDir(), runtime.GOARCH)
		require.ErrorContains(t, err, "not an ELF executable")
	})
	t.Run("no place for it", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, err := unpack(carried, file, runtime.GOARCH)
		require.ErrorIs(t, err, backends.ErrNotAvailable)
		require.NotEmpty(t, backends.FixOf(err))
	})
}
