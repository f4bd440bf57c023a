package agentbin

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// closure lists the agent's packages outside the standard library.
func closure(t *testing.T, root, goarch string) []listed {
	t.Helper()
	out, err := goTool(t.Context(), root, goarch, "list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,SFiles,HFiles,EmbedFiles", command)
	require.NoError(t, err)
	var ps []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		require.NoError(t, d.Decode(&p))
		if !p.Standard {
			ps = append(ps, p)
		}
	}
	return ps
}

// copySources copies what the agent is built from to a new module root.
func copySources(t *testing.T) string {
	t.Helper()
	root, err := sourceRoot()
	require.NoError(t, err)
	to := t.TempDir()
	files := []string{"go.mod", "go.sum"}
	for _, goarch := range []string{"amd64", "arm64"} {
		for _, p := range closure(t, root, goarch) {
			if rel, ok := strings.CutPrefix(p.ImportPath, module+"/"); ok {
				for _, f := range append(append([]string{}, p.GoFiles...), p.SFiles...) {
					files = append(files, filepath.Join(rel, f))
				}
			}
		}
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(root, f))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, f)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(to, f), b, 0o644))
	}
	return to
}

func TestImportClosure(t *testing.T) {
	testreq.Need(t, "go")
	root, err := sourceRoot()
	require.NoError(t, err)
	allowed := func(path string) bool {
		for _, exact := range []string{command, module + "/internal/wire", module + "/internal/attack", module + "/internal/agent"} {
			if path == exact {
				return true
			}
		}
		rel := strings.TrimPrefix(path, module+"/")
		probe := strings.Split(rel, "/")
		return strings.HasPrefix(path, "golang.org/x/sys/") || strings.HasPrefix(rel, "internal/agent/") ||
			len(probe) == 3 && probe[0] == "probes" && probe[2] == "payload"
	}
	for _, goarch := range []string{"amd64", "arm64"} {
		ps := closure(t, root, goarch)
		require.NotEmpty(t, ps)
		for _, p := range ps {
			require.True(t, allowed(p.ImportPath), "%s is linked into the agent", p.ImportPath)
		}
	}
}

func TestBuildIsReproducibleStaticAndSmall(t *testing.T) {
	testreq.Need(t, "go")
	root, err := sourceRoot()
	require.NoError(t, err)
	elsewhere := copySources(t)
	for _, goarch := range []string{"amd64", "arm64"} {
		t.Run(goarch, func(t *testing.T) {
			here, there := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
			require.NoError(t, buildFrom(t.Context(), root, goarch, here))
			require.NoError(t, buildFrom(t.Context(), elsewhere, goarch, there))
			a, err := fileDigest(here)
			require.NoError(t, err)
			b, err := fileDigest(there)
			require.NoError(t, err)
			require.Equal(t, a, b, "the build depends on its directory")
			require.NoError(t, Check(here, goarch))
			info, err := os.Stat(here)
			require.NoError(t, err)
			require.Less(t, info.Size(), int64(5_000_000))
			content, err := os.ReadFile(here)
			require.NoError(t, err)
			require.False(t, bytes.Contains(content, []byte(root+"/")), "the source directory is in the binary")
		})
	}
}

func TestCacheKeyIsContent(t *testing.T) {
	testreq.Need(t, "go")
	root := copySources(t)
	key := func() string {
		k, err := sourceKey(t.Context(), root, "amd64")
		require.NoError(t, err)
		return k
	}
	first := key()
	file := filepath.Join(root, "internal", "wire", "frame.go")
	require.NoError(t, os.Chtimes(file, time.Now(), time.Now().Add(-time.Hour)))
	require.Equal(t, first, key(), "an mtime changed the key")
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	info, err := os.Stat(file)
	require.NoError(t, err)
	changed := bytes.Replace(before, []byte("frame"), []byte("FRAME"), 1)
	require.Len(t, changed, len(before))
	require.NoError(t, os.WriteFile(file, changed, 0o644))
	require.NoError(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
	require.NotEqual(t, first, key(), "a change of the same size and mtime kept the key")
	arm, err := sourceKey(t.Context(), root, "arm64")
	require.NoError(t, err)
	require.NotEqual(t, key(), arm)
}

func TestCachedRebuildsWhatIsDamaged(t *testing.T) {
	testreq.Need(t, "go")
	root, err := sourceRoot()
	require.NoError(t, err)
	cache := t.TempDir()
	path, err := cachedIn(t.Context(), cache, root, runtime.GOARCH)
	require.NoError(t, err)
	want, err := fileDigest(path)
	require.NoError(t, err)

	before, err := os.Stat(path)
	require.NoError(t, err)
	_, err = cachedIn(t.Context(), cache, root, runtime.GOARCH)
	require.NoError(t, err)
	after, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "a good agent was built again")

	require.NoError(t, os.Truncate(path, 1000))
	again, err := cachedIn(t.Context(), cache, root, runtime.GOARCH)
	require.NoError(t, err)
	got, err := fileDigest(again)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, b []byte) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, b, mode))
		return p
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for name, c := range map[string]struct{ path, arch, want string }{
		"missing":      {filepath.Join(dir, "none"), "amd64", "no such file"},
		"directory":    {dir, "amd64", "not an executable file"},
		"plain file":   {write("plain", 0o644, []byte("x")), "amd64", "not an executable file"},
		"script":       {write("script", 0o755, []byte("#!/bin/sh\n")), "amd64", "not an ELF executable"},
		"truncated":    {write("cut", 0o755, []byte("\x7fELF\x02\x01")), "amd64", "not an ELF executable"},
		"architecture": {self, map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH], "is built for"},
		"unknown arch": {self, "vax", "is built for"},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorContains(t, Check(c.path, c.arch), c.want) })
	}
	t.Run("dynamic", func(t *testing.T) {
		testreq.Need(t, "sh")
		sh, err := filepath.EvalSymlinks("/bin/sh")
		require.NoError(t, err)
		require.ErrorContains(t, Check(sh, runtime.GOARCH), "not static")
	})
}

func TestFindOrder(t *testing.T) {
	testreq.Need(t, "go")
	agent := filepath.Join(t.TempDir(), Name)
	require.NoError(t, Build(t.Context(), runtime.GOARCH, agent))
	want, err := fileDigest(agent)
	require.NoError(t, err)

	t.Run("explicit wins", func(t *testing.T) {
		t.Setenv(EnvVar, "/nonexistent")
		path, digest, err := Find(t.Context(), agent)
		require.NoError(t, err)
		require.Equal(t, agent, path)
		require.Equal(t, want, digest)
	})
	t.Run("environment", func(t *testing.T) {
		t.Setenv(EnvVar, agent)
		path, _, err := Find(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, agent, path)
	})
	t.Run("a bad one is no reason to look further", func(t *testing.T) {
		for _, explicit := range []bool{true, false} {
			bad, arg := filepath.Join(t.TempDir(), "none"), ""
			if explicit {
				arg = bad
				t.Setenv(EnvVar, agent)
			} else {
				t.Setenv(EnvVar, bad)
			}
			_, _, err := Find(t.Context(), arg)
			require.ErrorIs(t, err, backends.ErrNotAvailable)
			require.NotEmpty(t, backends.FixOf(err))
		}
	})
	t.Run("source", func(t *testing.T) {
		t.Setenv(EnvVar, "")
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		path, digest, err := Find(t.Context(), "")
		require.NoError(t, err)
		require.NotEqual(t, agent, path)
		require.Equal(t, want, digest)
	})
}

func TestBuildErrorsNameTheFix(t *testing.T) {
	testreq.Need(t, "go")
	root := copySources(t)
	main := filepath.Join(root, "cmd", Name, "main.go")
	require.NoError(t, os.WriteFile(main, []byte("package main\nfunc main() { broken }\n"), 0o644))
	err := buildFrom(t.Context(), root, "amd64", filepath.Join(t.TempDir(), "out"))
	require.ErrorIs(t, err, backends.ErrNotAvailable)
	require.NotEmpty(t, backends.FixOf(err))
	require.Error(t, buildFrom(t.Context(), root, "vax", filepath.Join(t.TempDir(), "out")))
	var e *backends.Error
	require.True(t, errors.As(err, &e))
}
