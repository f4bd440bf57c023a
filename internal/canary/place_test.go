package canary

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

func TestReachableIsOpenToTheUserOfTheSandbox(t *testing.T) {
	other := backends.Credential{UID: os.Geteuid() + 1, GID: os.Getegid() + 1}
	closed, err := os.MkdirTemp("/tmp", "bsm-t-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(closed)) })
	t.Run("its own user needs nothing open", func(t *testing.T) {
		path, remove, err := Reachable(closed, backends.Credential{UID: os.Geteuid(), GID: os.Getegid()})
		require.NoError(t, err)
		require.Equal(t, closed, filepath.Dir(path))
		require.NoError(t, remove())
	})
	t.Run("another user where all is closed", func(t *testing.T) {
		t.Setenv("TMPDIR", closed)
		_, _, err := Reachable(filepath.Join(closed, "run"), other)
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorContains(t, err, "fix: TMPDIR=/tmp")
	})
	t.Run("another user, below a directory that lets nobody pass", func(t *testing.T) {
		testreq.Need(t, "root")
		t.Setenv("TMPDIR", "/tmp")
		path, remove, err := Reachable(closed, other)
		require.NoError(t, err)
		require.Equal(t, "/tmp", filepath.Dir(path))
		require.NoError(t, remove())
	})
}
