package bwrap

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// One argument a line: a review sees what changes.
func TestArgvGolden(t *testing.T) {
	base := spec{RootFS: "/cache/rootfs", TmpBytes: 64 << 20, InfoFD: 3, SeccompFD: 4, Env: [][2]string{{"PATH", "/bin"}, {"TMPDIR", "/tmp"}}}
	with := func(change func(*spec)) spec { s := base; change(&s); return s }
	for name, s := range map[string]spec{
		"hardened":     base,
		"no-seccomp":   with(func(s *spec) { s.SeccompFD = 0 }),
		"share-net":    with(func(s *spec) { s.ShareNet = true }),
		"share-pid":    with(func(s *spec) { s.SharePID = true }),
		"share-ipc":    with(func(s *spec) { s.ShareIPC = true }),
		"host-root":    with(func(s *spec) { s.HostRoot = true }),
		"host-root-rw": with(func(s *spec) { s.HostRootRW = true }),
		"host-env":     with(func(s *spec) { s.HostEnv = true }),
		"keep-tree":    with(func(s *spec) { s.KeepTree = true }),
		"tiocsti":      with(func(s *spec) { s.KeepSession, s.SyncFD = true, 5 }),
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(s.argv(), "\n") + "\n"
			golden := filepath.Join("testdata", "argv", name+".golden")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
			require.Equal(t, got, strings.Join(s.argv(), "\n")+"\n", "the order is stable")
		})
	}
}

// Each leak has to show in the command line, and only hardening may be lost.
func TestEveryLeakLoosens(t *testing.T) {
	hard := spec{RootFS: "/r", InfoFD: 3, SeccompFD: 4}
	for _, want := range []string{"--unshare-all", "--new-session", "--die-with-parent", "--clearenv", "--ro-bind /r /", "--cap-drop ALL", "--seccomp 4", "--remount-ro /dev"} {
		require.Contains(t, strings.Join(hard.argv(), " "), want)
	}
	for gone, s := range map[string]spec{
		"--new-session": {KeepSession: true},
		"--unshare-net": {ShareNet: true},
		"--unshare-pid": {SharePID: true},
		"--unshare-ipc": {ShareIPC: true},
		"--clearenv":    {HostEnv: true},
		"--seccomp":     {},
		"--ro-bind":     {HostRootRW: true},
		"--tmpfs /tmp":  {HostRoot: true},
	} {
		line := strings.Join(s.argv(), " ")
		require.NotContains(t, line, gone)
		require.NotContains(t, line, "--share-")
		require.Contains(t, line, "--cap-drop ALL")
		require.Contains(t, line, "--die-with-parent")
		require.Equal(t, s.KeepSession, !strings.Contains(line, "--new-session"))
	}
}
