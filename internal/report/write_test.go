package report

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := []string{}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestARegularFileIsReplacedAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.json")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	d, err := Open(path, nil)
	require.NoError(t, err)
	old, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(old), "the old report stays until the new one is whole")
	if runtime.GOOS == "linux" {
		require.Equal(t, []string{"r.json"}, entries(t, dir), "a killed run leaves nothing")
	}
	require.NoError(t, d.Write([]byte("new")))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(b))
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm(), "the mode is kept")
	require.Equal(t, []string{"r.json"}, entries(t, dir))
}

func TestALinkStaysALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(target, nil, 0o644))
	require.NoError(t, os.Symlink(target, link))
	d, err := Open(link, nil)
	require.NoError(t, err)
	require.NoError(t, d.Write([]byte("x")))
	fi, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, fi.Mode()&os.ModeSymlink)
	b, err := os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, "x", string(b))
}

func TestDiscardLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(filepath.Join(dir, "r.json"), nil)
	require.NoError(t, err)
	d.Discard()
	d.Discard()
	require.Empty(t, entries(t, dir))
}

func TestOpenRefusesBeforeTheRun(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		"":                                 "empty",
		dir:                                "is a directory",
		filepath.Join(dir, "no", "r.json"): "no such file",
		filepath.Join(dir, "x") + "\x00":   "invalid argument",
	} {
		_, err := Open(path, nil)
		require.ErrorContains(t, err, want, path)
	}
	require.Empty(t, entries(t, dir))
}

func TestDevicesArewrittenInPlace(t *testing.T) {
	testreq.Need(t, "linux")
	d, err := Open("/dev/full", nil)
	require.NoError(t, err)
	require.ErrorContains(t, d.Write([]byte("x")), "no space left")
	d, err = Open("/dev/null", nil)
	require.NoError(t, err)
	require.NoError(t, d.Write([]byte("x")))
	fi, err := os.Stat("/dev/null")
	require.NoError(t, err)
	require.False(t, fi.Mode().IsRegular(), "the device was not replaced by a file")
	var out bytes.Buffer
	d, err = Open("-", &out)
	require.NoError(t, err)
	require.NoError(t, d.Write([]byte("x")))
	require.Equal(t, "x", out.String())
}

func TestTableFitsItsWidth(t *testing.T) {
	for _, width := range []int{80, 120} {
		var b bytes.Buffer
		require.NoError(t, Table(&b, sample(), width))
		lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		require.Len(t, lines, 6)
		for _, l := range lines {
			require.Equal(t, width, utf8.RuneCountInString(l), l)
		}
		require.Contains(t, lines[1], "no token arrived")
		require.Contains(t, lines[2], "ESCAPED")
		require.Contains(t, lines[2], "shadow: the secret left")
		require.Contains(t, lines[3], "inconclusive")
		require.Contains(t, lines[4], "n=3 p50=500us p95=1.20s")
		require.Contains(t, lines[5], "skipped")
	}
	require.Equal(t, []string{"P-A2-fs-escape: escaped: shadow: the secret left", "P-A3-process-escape: inconclusive: kill: the control did not succeed"}, Findings(sample()))
}

func TestTableOfANarrowTerminalStillHasLines(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Table(&b, sample(), 1))
	require.Equal(t, 6, strings.Count(b.String(), "\n"))
}

func TestAFileSystemWithoutUnnamedFiles(t *testing.T) {
	dir := t.TempDir()
	f, err := namedTemp(filepath.Join(dir, ".x"), 0o640)
	require.NoError(t, err)
	f.discard()
	require.Empty(t, entries(t, dir))
	f, err = namedTemp(filepath.Join(dir, ".x"), 0o640)
	require.NoError(t, err)
	require.NoError(t, f.finish([]byte("whole"), filepath.Join(dir, "r.json")))
	f.discard()
	require.Equal(t, []string{"r.json"}, entries(t, dir))
	b, err := os.ReadFile(filepath.Join(dir, "r.json"))
	require.NoError(t, err)
	require.Equal(t, "whole", string(b))
}

func TestAFileThatCannotBeGivenItsNameIsWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	f, err := openTemp(dir, ".x", 0o644)
	require.NoError(t, err)
	f.give = func(*os.File) error { return os.ErrPermission }
	require.NoError(t, f.finish([]byte("whole"), filepath.Join(dir, "r.json")))
	require.Equal(t, []string{"r.json"}, entries(t, dir))
	b, err := os.ReadFile(filepath.Join(dir, "r.json"))
	require.NoError(t, err)
	require.Equal(t, "whole", string(b))
}

// A latency under emulation says in the table that it is not representative.
func TestEmulatedLatencyIsMarked(t *testing.T) {
	p := probes.Result{Name: "P-LAT-boot", Passed: true, Verdict: probes.Contained, Evidence: map[string]any{"representative": false}}
	latency := map[string]probes.Distribution{p.Name: {Samples: 3, P50: 2}}
	require.Contains(t, Says(p, latency), "emulated: not representative")
	p.Evidence = nil
	require.NotContains(t, Says(p, latency), "emulated")
}

// A merged report says whose result each line is.
func TestTableOfSeveralBackends(t *testing.T) {
	r := sample()
	for i := range r.Probes {
		r.Probes[i].Backend = "qemu"
	}
	r.SkippedProbes[0].Backend = "bwrap"
	r.Latency = map[string]probes.Distribution{"qemu/P-LAT-boot": {Samples: 3, P50: 0.5}, "P-LAT-boot": {Samples: 9}}
	for _, width := range []int{80, 120} {
		var b bytes.Buffer
		require.NoError(t, Table(&b, r, width))
		lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		require.Regexp(t, `^BACKEND  PROBE +VERDICT`, lines[0])
		require.Regexp(t, `^qemu +P-LAT-boot +contained +n=3 p50=500us`, lines[4])
		require.Regexp(t, `^bwrap +P-A8-vsock-poison +skipped`, lines[5])
		for _, l := range lines {
			require.Equal(t, width, utf8.RuneCountInString(l), l)
		}
	}
	require.Equal(t, "qemu/P-A2-fs-escape: escaped: shadow: the secret left", Findings(r)[0])
}
