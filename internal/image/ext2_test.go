package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

func TestRootDiskIsCleanAndReadable(t *testing.T) {
	testreq.Need(t, "e2fsck", "debugfs")
	disk, err := rootDisk()
	require.NoError(t, err)
	require.LessOrEqual(t, len(disk), 8<<20)
	path := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(path, disk, 0o644))
	out, err := exec.CommandContext(t.Context(), "e2fsck", "-f", "-n", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, f := range guestFiles() {
		out, err := exec.CommandContext(t.Context(), "debugfs", "-R", "cat /"+f.path, path).Output()
		require.NoError(t, err)
		require.Equal(t, f.data, string(out))
	}
}

// Files and directories of every size that fits pass fsck, too.
func TestExt2Sizes(t *testing.T) {
	testreq.Need(t, "e2fsck")
	fs := newExt2(64)
	for i, size := range []int{0, 1, ext2Block - 1, ext2Block, ext2Block + 1, ext2Direct * ext2Block} {
		require.NoError(t, fs.write(fmt.Sprintf("file%d", i), 0o644, make([]byte, size)))
	}
	require.NoError(t, fs.mkdir("a", 0o755))
	require.NoError(t, fs.mkdir("a/b", 0o700))
	require.NoError(t, fs.write("a/b/c", 0o600, []byte("deep")))
	disk, err := fs.bytes()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(path, disk, 0o644))
	out, err := exec.CommandContext(t.Context(), "e2fsck", "-f", "-n", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestExt2Limits(t *testing.T) {
	fs := newExt2(16)
	require.ErrorContains(t, fs.write("absent/file", 0o644, nil), "no parent directory")
	require.ErrorContains(t, fs.write("big", 0o644, make([]byte, ext2Direct*ext2Block+1)), "do not fit")
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, ext2Inodes)
		err = fs.write(fmt.Sprintf("f%d", i), 0o644, nil)
	}
	require.ErrorContains(t, err, "no inode left")
}
