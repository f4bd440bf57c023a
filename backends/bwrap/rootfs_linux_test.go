package bwrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestTamperedCacheIsRefused(t *testing.T) {
	o := options(t)
	o.WorkDir = publicDir(t)
	s := boot(t, o)
	shadow := filepath.Join(s.r.root.dir, "etc/shadow")
	require.True(t, strings.HasPrefix(shadow, o.WorkDir))
	require.NoError(t, s.Shutdown(t.Context()))
	require.NoError(t, flip(shadow))
	err := s.Boot(t.Context())
	require.ErrorIs(t, err, backends.ErrBootFailed)
	require.Contains(t, backends.FixOf(err), "rm -rf")
}

// publicDir is a temporary directory that any user can enter.
func publicDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bsm-bwrap-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestChangedAgentIsNotTakenForTheOld(t *testing.T) {
	o := options(t)
	b, err := os.ReadFile(o.Agent)
	require.NoError(t, err)
	o.WorkDir = publicDir(t)
	o.Agent = filepath.Join(o.WorkDir, "agent")
	require.NoError(t, os.WriteFile(o.Agent, b, 0o755))
	s := boot(t, o)
	first := s.r.agentSum
	require.NoError(t, s.renew(t.Context()))
	require.Equal(t, first, s.r.agentSum, "remembered")
	fi, err := os.Stat(o.Agent)
	require.NoError(t, err)
	require.NoError(t, s.Shutdown(t.Context()))
	require.NoError(t, os.WriteFile(o.Agent, append(b, 0), 0o755))
	require.NoError(t, os.Chtimes(o.Agent, fi.ModTime(), fi.ModTime()))
	require.NoError(t, s.Boot(t.Context()))
	require.NotEqual(t, first, s.r.agentSum)
}

func TestUnusedTreesExpire(t *testing.T) {
	dir := publicDir(t)
	for name, age := range map[string]time.Duration{"old": 2 * expiry, "new": 0} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Join(path, "bin"), 0o755))
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(path, at, at))
	}
	expire(dir)
	require.NoDirExists(t, filepath.Join(dir, "old"))
	require.DirExists(t, filepath.Join(dir, "new"))
}

func TestCacheDirOfOthersIsRefused(t *testing.T) {
	private := t.TempDir()
	require.NoError(t, os.Chmod(private, 0o700))
	other := backends.Credential{UID: os.Geteuid() + 1, GID: os.Getegid() + 1}
	require.ErrorContains(t, reachable(private, other), "cannot enter")
	require.NoError(t, os.Chmod(private, 0o777))
	require.ErrorContains(t, reachable(private, identity()), "changed by others")
}
