package baseline

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

func digest(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func sample() File {
	return File{
		Version: Version, RecordedAt: time.Unix(1e9, 0).UTC(),
		Identity: Identity{Backend: "qemu", VMMVersion: "7.2.22", Digests: map[string]string{
			"kernel": digest("a"), "initramfs": digest("b"), "rootfs": digest("c"), "agent": digest("d")}},
		Baseline: integrity.Baseline{FSHash: digest("c"), OpenFDCount: 5, VMMState: "running"},
	}
}

func TestRecordAndLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "b.json")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	require.NoError(t, Record(path, sample()))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	got, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, sample(), got)
	require.NoError(t, got.Check(sample().Identity))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary file stays")
}

func TestRecordRefusesAndLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.json")
	require.NoError(t, Record(path, sample()))
	bad := sample()
	bad.Baseline.FSHash = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	require.ErrorIs(t, Record(path, bad), integrity.ErrNothingHashed)
	got, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, sample(), got)
	require.Error(t, Record(filepath.Join(t.TempDir(), "no", "dir"), sample()))
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Identity)
		want   error
		says   string
	}{
		"backend":        {func(i *Identity) { i.Backend = "bwrap" }, ErrForeign, "bwrap"},
		"vmm version":    {func(i *Identity) { i.VMMVersion = "8" }, ErrStale, "VMM version"},
		"kernel":         {func(i *Identity) { i.Digests["kernel"] = digest("e") }, ErrStale, "kernel"},
		"agent":          {func(i *Identity) { i.Digests["agent"] = digest("e") }, ErrStale, "agent"},
		"missing digest": {func(i *Identity) { delete(i.Digests, "rootfs") }, ErrStale, "rootfs"},
		"new digest":     {func(i *Identity) { i.Digests["firmware"] = digest("e") }, ErrStale, "firmware"},
	} {
		t.Run(name, func(t *testing.T) {
			id := sample().Identity
			tc.change(&id)
			err := sample().Check(id)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.says)
			require.ErrorContains(t, err, Fix)
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	good, err := json.Marshal(sample())
	require.NoError(t, err)
	edit := func(old, new string) string {
		require.Contains(t, string(good), old)
		return strings.Replace(string(good), old, new, 1)
	}
	for name, tc := range map[string]struct {
		content string
		mode    os.FileMode
		want    error
	}{
		"empty":             {"", 0o600, ErrMalformed},
		"truncated":         {string(good[:len(good)/2]), 0o600, ErrMalformed},
		"trailing data":     {string(good) + "{}", 0o600, ErrMalformed},
		"unknown key":       {edit(`"version":1`, `"version":1,"x":2`), 0o600, ErrMalformed},
		"other version":     {edit(`"version":1`, `"version":2`), 0o600, ErrMalformed},
		"sha256 of nothing": {edit(`"fs_hash":"`+digest("c"), `"fs_hash":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855`), 0o600, integrity.ErrNothingHashed},
		"bad digest":        {edit(digest("a"), "sha256:00"), 0o600, ErrMalformed},
		"negative count":    {edit(`"open_fd_count":5`, `"open_fd_count":-5`), 0o600, ErrMalformed},
		"unknown state":     {edit(`"vmm_state":"running"`, `"vmm_state":"fine"`), 0o600, ErrMalformed},
		"huge":              {strings.Repeat(" ", maxSize+1) + string(good), 0o600, ErrMalformed},
		"world-writable":    {string(good), 0o666, ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			require.NoError(t, os.WriteFile(path, []byte(tc.content), 0o600))
			require.NoError(t, os.Chmod(path, tc.mode))
			_, err := Load(path)
			require.ErrorIs(t, err, tc.want)
		})
	}
	_, err = Load(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, Fix)
	_, err = Load(dir)
	require.ErrorIs(t, err, ErrMalformed)
}

func FuzzLoad(f *testing.F) {
	good, _ := json.Marshal(sample())
	f.Add(good)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Parse(b)
		if err == nil {
			require.NoError(t, got.Validate())
			require.NoError(t, got.Check(got.Identity))
		}
	})
}
