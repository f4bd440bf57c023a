package integrity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), mode))
	require.NoError(t, os.Chmod(path, mode))
}

func TestHashFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "content", 0o600)
	got, err := HashFile(t.Context(), path)
	require.NoError(t, err)
	want := sha256.Sum256([]byte("content"))
	require.Equal(t, hashPrefix+hex.EncodeToString(want[:]), got)

	write(t, path, "", 0o600)
	_, err = HashFile(t.Context(), path)
	require.ErrorIs(t, err, ErrNothingHashed)
	_, err = HashFile(t.Context(), path+"x")
	require.ErrorIs(t, err, os.ErrNotExist)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = HashFile(ctx, path)
	require.ErrorIs(t, err, context.Canceled)
}

func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "one", 0o644)
	write(t, filepath.Join(dir, "sub", "b"), "two", 0o755)
	require.NoError(t, os.Symlink("a", filepath.Join(dir, "link")))
	return dir
}

func TestHashTreeSeesEveryChange(t *testing.T) {
	want, err := HashTree(t.Context(), tree(t))
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		same   bool
	}{
		"nothing": {func(*testing.T, string) {}, true},
		"times": {func(t *testing.T, dir string) {
			require.NoError(t, os.Chtimes(filepath.Join(dir, "a"), time.Unix(1, 0), time.Unix(1, 0)))
		}, true},
		"byte": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "a"), "onf", 0o644) }, false},
		"mode": {func(t *testing.T, dir string) { require.NoError(t, os.Chmod(filepath.Join(dir, "a"), 0o600)) }, false},
		"setuid": {func(t *testing.T, dir string) {
			require.NoError(t, os.Chmod(filepath.Join(dir, "a"), 0o644|os.ModeSetuid))
		}, false},
		"name": {func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")))
		}, false},
		"new empty file": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "n"), "", 0o644) }, false},
		"new empty dir":  {func(t *testing.T, dir string) { require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o755)) }, false},
		"symlink target": {func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "link")))
			require.NoError(t, os.Symlink("b", filepath.Join(dir, "link")))
		}, false},
		"symlink becomes its target": {func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "link")))
			write(t, filepath.Join(dir, "link"), "one", 0o644)
		}, false},
		"content moved between files": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "a"), "onet", 0o644)
			write(t, filepath.Join(dir, "sub", "b"), "wo", 0o755)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t)
			tc.change(t, dir)
			got, err := HashTree(t.Context(), dir)
			require.NoError(t, err)
			require.Equal(t, tc.same, got == want)
		})
	}
}

func TestHashTreeRefusesNothing(t *testing.T) {
	_, err := HashTree(t.Context(), t.TempDir())
	require.ErrorIs(t, err, ErrNothingHashed)
	_, err = HashTree(t.Context(), filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	file := filepath.Join(t.TempDir(), "f")
	write(t, file, "x", 0o600)
	_, err = HashTree(t.Context(), file)
	require.Error(t, err)
}
