package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/testimage"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// childEnv makes this test binary a harness of its own: the image and the work
// directory, separated by a colon.
const childEnv = "BSM_QEMU_TEST_HARNESS"

// harness boots, resets, says what runs, and shuts down when stdin ends.
func harness(spec string) error {
	img, dir, _ := strings.Cut(spec, ":")
	l, err := ledger.Open(filepath.Join(dir, "ledger"))
	if err != nil {
		return err
	}
	s, err := newSandbox(backends.Options{Image: img, WorkDir: dir, Ledger: l})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := s.Boot(ctx); err != nil {
		return err
	}
	if _, err := s.Reset(ctx); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(s.Provenance()); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return s.Shutdown(ctx)
}

// startHarness runs harness in a child, as uid, and waits until it is ready.
func startHarness(t *testing.T, img, dir string, uid uint32) (*exec.Cmd, io.Closer, backends.Provenance) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+img+":"+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	cmd.Stderr = os.Stderr
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err, "the harness did not boot")
	var p backends.Provenance
	require.NoError(t, json.Unmarshal(line, &p))
	require.Positive(t, p.VMMPID)
	return cmd, stdin, p
}

// shortDir is a directory for socket paths that belongs to uid.
func shortDir(t *testing.T, uid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bsmq-")
	require.NoError(t, err)
	require.NoError(t, os.Chown(dir, uid, uid))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

// TestKilledHarness shows that nothing outlives a SIGKILL but what the ledger
// knows, and that reaping removes that.
func TestKilledHarness(t *testing.T) {
	testreq.Need(t, program, "root")
	dir := shortDir(t, 0)
	cmd, _, p := startHarness(t, testimage.Dir(t), dir, 0)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool { return gone(p.VMMPID) }, 10*time.Second, 10*time.Millisecond, "QEMU outlives its harness")

	l, err := ledger.Open(filepath.Join(dir, "ledger"))
	require.NoError(t, err)
	reaped, err := l.Reap(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, reaped)
	for _, r := range reaped {
		require.NoError(t, r.Err, r.Target)
	}
	require.Empty(t, leftovers(t, dir))
}

// TestUnprivilegedHarness runs the whole of it as a user without rights.
func TestUnprivilegedHarness(t *testing.T) {
	testreq.Need(t, program, "root")
	dir := shortDir(t, nobody)
	m := testimage.Manifest(t)
	for _, name := range []string{image.KernelFile, image.InitramfsFile, image.RootfsFile, image.ManifestFile} {
		b, err := os.ReadFile(filepath.Join(m.Dir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	cmd, stdin, p := startHarness(t, dir, dir, nobody)
	require.Contains(t, p.Hardening, fmt.Sprintf("uid %d", nobody))
	require.Contains(t, p.Hardening, "seccomp filter")
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
	require.True(t, gone(p.VMMPID))
	require.Empty(t, leftovers(t, dir))
}
