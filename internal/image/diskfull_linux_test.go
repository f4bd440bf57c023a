package image

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

func TestDiskFull(t *testing.T) {
	testreq.Need(t, "linux", "root")
	o := fakeInputs(t)
	require.NoError(t, os.MkdirAll(o.OutDir, 0o755))
	require.NoError(t, syscall.Mount("tmpfs", o.OutDir, "tmpfs", 0, "size=128k"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(o.OutDir, 0)) })
	_, err := Build(t.Context(), o)
	require.ErrorIs(t, err, ErrNoSpace)
	require.NotEmpty(t, backends.FixOf(err))
	left, err := filepath.Glob(filepath.Join(o.OutDir, ".tmp-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoFileExists(t, filepath.Join(o.OutDir, ManifestFile))
}
