package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEnsureBuildsOnce(t *testing.T) {
	o := fakeInputs(t)
	o.OutDir = ""
	var wg sync.WaitGroup
	got := make([]Manifest, 4)
	for i := range got {
		wg.Go(func() {
			m, err := Ensure(t.Context(), o)
			if err != nil {
				t.Error(err)
			}
			got[i] = m
		})
	}
	wg.Wait()
	for _, m := range got {
		require.Equal(t, got[0], m)
	}
	first, err := os.Stat(got[0].Kernel())
	require.NoError(t, err)
	_, err = Ensure(t.Context(), o)
	require.NoError(t, err)
	again, err := os.Stat(got[0].Kernel())
	require.NoError(t, err)
	require.True(t, os.SameFile(first, again), "a fresh image was built again")

	require.NoError(t, os.WriteFile(got[0].Rootfs(), []byte("damaged"), 0o644))
	repaired, err := Ensure(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, got[0].Outputs, repaired.Outputs)
}

func TestEnsureKeepsImagesOfOtherAgentsApart(t *testing.T) {
	o := fakeInputs(t)
	o.OutDir = ""
	first, err := Ensure(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(o.Agent, fakeELF(62, 2, ".text", []byte("a newer agent")), 0o755)) // EM_X86_64, ET_EXEC
	second, err := Ensure(t.Context(), o)
	require.NoError(t, err)
	require.NotEqual(t, first.Dir, second.Dir)
	_, err = Verify(first.Dir)
	require.NoError(t, err)
}

func TestEnsureWaitsForTheLockNoLongerThanAsked(t *testing.T) {
	o := fakeInputs(t)
	unlock, err := lock(t.Context(), o)
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = Ensure(ctx, o)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestPruneKeepsTheNewestAndTheRecent(t *testing.T) {
	dir := t.TempDir()
	for i := range keepImages + 5 {
		path := filepath.Join(dir, string(rune('a'+i)))
		require.NoError(t, os.Mkdir(path, 0o755))
		used := time.Now().Add(-time.Duration(i+2) * keepFor)
		require.NoError(t, os.Chtimes(path, used, used))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "recent"), 0o755))
	oldest := filepath.Join(dir, string(rune('a'+keepImages+4)))
	prune(dir, oldest)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, keepImages+2)
	require.DirExists(t, oldest, "the image that was asked for")
	require.DirExists(t, filepath.Join(dir, "a"))
	_, err = os.Stat(filepath.Join(dir, string(rune('a'+keepImages+3))))
	require.True(t, errors.Is(err, os.ErrNotExist))
}
