package main

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

const tested = "v0.0.1-rc.7"

// checkout is where this test's sources are.
var checkout = filepath.Join("..", "..", "..")

// copyTree copies sources to another directory.
func copyTree(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(from, path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // the tree is worked on
			return nil
		case err != nil:
			return err
		case d.IsDir() && (rel == ".git" || rel == "bin"):
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, info.Mode().Perm())
	}))
	return to
}

func releaseBuild(t *testing.T, tree string, env []string, args ...string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(tree, "scripts", "internal", "release-build"),
		append([]string{"--version", tested, "--out", out}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, string(text))
	return out
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// members reads an archive: content by name.
func members(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	gz, err := gzip.NewReader(f)
	require.NoError(t, err)
	require.True(t, gz.ModTime.IsZero())
	got := map[string][]byte{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		require.Equal(t, int64(0), h.ModTime.Unix())
		require.Zero(t, h.Uid+h.Gid)
		require.Empty(t, h.Uname+h.Gname)
		got[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

func TestRelease(t *testing.T) {
	testreq.Need(t, "go", "linux")
	if testing.Short() {
		t.Skip("builds for minutes; fix: run without -short")
	}
	tree := copyTree(t, checkout)
	all := releaseBuild(t, tree, nil)
	var want []string
	for _, p := range []string{"darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64"} {
		want = append(want, "bsm-redteam_"+p+".cdx.json", "bsm-redteam_"+p+".tar.gz")
	}
	require.Equal(t, append([]string{"SHA256SUMS"}, want...), names(t, all))

	t.Run("the same bytes from another directory and an empty build cache", func(t *testing.T) {
		cache, err := os.MkdirTemp(t.TempDir(), "gocache")
		require.NoError(t, err)
		again := releaseBuild(t, copyTree(t, tree), []string{"GOCACHE=" + cache, "HOME=" + t.TempDir(), "GOPATH=" + goPath(t)}, "--platforms", "linux/amd64")
		require.Equal(t, []string{"SHA256SUMS", "bsm-redteam_linux_amd64.cdx.json", "bsm-redteam_linux_amd64.tar.gz"}, names(t, again))
		for _, name := range names(t, again)[1:] {
			a, err := fileDigest(filepath.Join(all, name))
			require.NoError(t, err)
			b, err := fileDigest(filepath.Join(again, name))
			require.NoError(t, err)
			require.Equal(t, a, b, name)
		}
	})
	t.Run("every archive holds what install.sh unpacks", func(t *testing.T) {
		for _, p := range platforms {
			goos, goarch, _ := strings.Cut(p, "/")
			got := members(t, filepath.Join(all, fmt.Sprintf("bsm-redteam_%s_%s.tar.gz", goos, goarch)))
			require.Len(t, got, 3)
			require.Contains(t, got, "LICENSE")
			dir := t.TempDir()
			for _, name := range []string{"bsm-redteam", "bsm-agent"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), got[name], 0o755))
			}
			require.NoError(t, agentbin.Check(filepath.Join(dir, "bsm-agent"), goarch))
			require.Contains(t, string(got["bsm-redteam"]), string(got["bsm-agent"]), "%s does not carry its agent", p)
			info, err := buildinfo.ReadFile(filepath.Join(dir, "bsm-redteam"))
			require.NoError(t, err)
			settings := map[string]string{}
			for _, s := range info.Settings {
				settings[s.Key] = s.Value
			}
			require.Equal(t, goos, settings["GOOS"])
			require.Equal(t, goarch, settings["GOARCH"])
			require.Equal(t, "0", settings["CGO_ENABLED"])
		}
	})
	t.Run("alone, it knows its version and finds its agent", func(t *testing.T) {
		dir := t.TempDir()
		bin := filepath.Join(dir, "bsm-redteam")
		require.NoError(t, os.WriteFile(bin, members(t, filepath.Join(all, "bsm-redteam_linux_"+runtime.GOARCH+".tar.gz"))["bsm-redteam"], 0o755))
		require.True(t, strings.HasPrefix(runAlone(t, dir, bin, "version"), "bsm-redteam "+tested+" ("))
		testreq.Need(t, "bwrap")
		require.Contains(t, runAlone(t, dir, bin, "--sandbox", "bwrap", "--probes", "P-A7-stdout-injection", "--output", "r.json"), "passed=1")
	})
	t.Run("the bill of materials lists what is linked", func(t *testing.T) {
		for _, p := range platforms {
			name := "bsm-redteam_" + strings.ReplaceAll(p, "/", "_")
			bin := filepath.Join(t.TempDir(), "bsm-redteam")
			require.NoError(t, os.WriteFile(bin, members(t, filepath.Join(all, name+".tar.gz"))["bsm-redteam"], 0o755))
			info, err := buildinfo.ReadFile(bin)
			require.NoError(t, err)
			want := []string{"std@" + strings.TrimPrefix(info.GoVersion, "go")}
			for _, d := range info.Deps {
				want = append(want, d.Path+"@"+d.Version)
			}
			require.Greater(t, len(want), 3)
			text, err := os.ReadFile(filepath.Join(all, name+".cdx.json"))
			require.NoError(t, err)
			var got bill
			require.NoError(t, json.Unmarshal(text, &got))
			var listed []string
			for _, c := range got.Components {
				listed = append(listed, c.Name+"@"+c.Version)
			}
			require.ElementsMatch(t, want, listed)
			digest, err := fileDigest(bin)
			require.NoError(t, err)
			require.Equal(t, []hash{{"SHA-256", digest}}, got.Metadata.Component.Hashes)
			require.Equal(t, tested, got.Metadata.Component.Version)
		}
	})
	t.Run("SHA256SUMS is what sha256sum checks", func(t *testing.T) {
		testreq.Need(t, "sha256sum")
		cmd := exec.Command("sha256sum", "--check", "--strict", "--quiet", sumsFile)
		cmd.Dir = all
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, string(text))
	})
	t.Run("the lock names it, and nothing that was changed", func(t *testing.T) {
		lock := filepath.Join(t.TempDir(), "release.lock")
		require.NoError(t, os.WriteFile(lock, []byte("# Rows."+noRelease+"\n# More.\nversion v0.0.0\nold row x\n"), 0o644))
		require.NoError(t, run(t.Context(), []string{"lock", "--version", tested, "--dist", all, "--lock", lock}))
		text, err := os.ReadFile(lock)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		require.Equal(t, []string{"# Rows.", "# More.", "version " + tested}, lines[:3])
		require.Len(t, lines, 3+len(platforms))
		for i, name := range assets() {
			info, err := os.Stat(filepath.Join(all, name))
			require.NoError(t, err)
			digest, err := fileDigest(filepath.Join(all, name))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%s %d %s", digest, info.Size(), name), lines[3+i])
		}
		victim := filepath.Join(all, assets()[0])
		require.NoError(t, os.Truncate(victim, 100))
		require.ErrorContains(t, run(t.Context(), []string{"lock", "--version", tested, "--dist", all, "--lock", lock}), assets()[0]+" has digest")
	})
}

func goPath(t *testing.T) string {
	out, err := exec.Command("go", "env", "GOPATH").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// runAlone runs the program where there is neither an agent, nor Go, nor a cache.
func runAlone(t *testing.T, dir, bin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + dir, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, string(text))
	return string(text)
}

func TestBadInput(t *testing.T) {
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	for want, args := range map[string][]string{
		"needs a verb":               nil,
		`unknown verb "publish"`:     {"publish"},
		`"1.2.3" is not of the form`: {"build", "--version", "1.2.3"},
		`"v1.2" is not`:              {"build", "--version", "v1.2"},
		`"v01.2.3" is not`:           {"build", "--version", "v01.2.3"},
		`"v1.2.3\n" is not`:          {"build", "--version", "v1.2.3\n"},
		`"linux/386" is not one of`:  {"build", "--version", "v1.2.3", "--platforms", "linux/386"},
		"takes no argument":          {"build", "--version", "v1.2.3", "more"},
		"--lock and --dist":          {"lock", "--version", "v1.2.3"},
		"fix: run this at the root":  {"build", "--version", "v1.2.3", "--out", full},
	} {
		t.Run(want, func(t *testing.T) { require.ErrorContains(t, run(t.Context(), args), want) })
	}
	require.ErrorContains(t, emptyDir(full), "not empty")
	require.ErrorContains(t, emptyDir(""), "--out")
}

func TestWrongGoIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("go.mod", []byte("module x\n\ngo 1.2.3\n"), 0o600))
	require.ErrorContains(t, rightGo(), "fix: GOTOOLCHAIN=go1.2.3")
	require.NoError(t, os.WriteFile("go.mod", []byte("module x\n\ngo "+strings.TrimPrefix(runtime.Version(), "go")+"\n"), 0o600))
	require.NoError(t, rightGo())
}

func TestReadSums(t *testing.T) {
	path := filepath.Join(t.TempDir(), sumsFile)
	digest := strings.Repeat("a", 64)
	for text, bad := range map[string]bool{
		digest + "  x\n":                       false,
		digest + " x\n":                        true,
		"a  x\n":                               true,
		digest + "  x\n" + digest + "  x\n":    true,
		digest + "  x\n" + digest + "  x.sb\n": false,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := readSums(path)
		require.Equal(t, bad, err != nil, text)
	}
}
