package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
	"github.com/brainst0rm/sandbox-redteam/internal/testimage"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// imageWith copies the test image, changes one file, and writes a manifest that
// vouches for the change when sign is set.
func imageWith(t *testing.T, name string, change func([]byte) []byte, sign bool) string {
	t.Helper()
	m, dir := testimage.Manifest(t), t.TempDir()
	m.Outputs = slices.Clone(m.Outputs)
	for i, f := range m.Outputs {
		b, err := os.ReadFile(filepath.Join(m.Dir, f.Name))
		require.NoError(t, err)
		if f.Name == name {
			b = change(b)
			if sign {
				sum := sha256.Sum256(b)
				m.Outputs[i].SHA256, m.Outputs[i].Size = hex.EncodeToString(sum[:]), int64(len(b))
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), b, 0o644))
	}
	b, err := json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, image.ManifestFile), b, 0o644))
	return dir
}

func half(b []byte) []byte { return b[:len(b)/2] }

func TestPreflightRefuses(t *testing.T) {
	good := options(t)
	stale := filepath.Join(t.TempDir(), "baseline.json")
	require.NoError(t, os.WriteFile(stale, []byte("{}"), 0o600))
	for name, tc := range map[string]struct {
		change func(*backends.Options)
		says   string
	}{
		"no image":           {func(o *backends.Options) { o.Image = "" }, "guest image"},
		"missing image":      {func(o *backends.Options) { o.Image = "/nonexistent" }, "guest image"},
		"truncated kernel":   {func(o *backends.Options) { o.Image = imageWith(t, image.KernelFile, half, false) }, "kernel"},
		"other agent":        {func(o *backends.Options) { o.Agent = "/bin/true" }, "agent"},
		"missing agent":      {func(o *backends.Options) { o.Agent = "/nonexistent" }, "agent"},
		"too little memory":  {func(o *backends.Options) { o.Limits.MemoryBytes = 1 << 20 }, "MiB"},
		"malformed baseline": {func(o *backends.Options) { o.Baseline = stale }, "baseline"},
		"baseline required":  {func(o *backends.Options) { o.RequireBaseline = true }, "baseline"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			tc.change(&o)
			sb, err := New(o)
			require.NoError(t, err)
			err = sb.Boot(t.Context())
			require.ErrorIs(t, err, backends.ErrNotAvailable)
			require.ErrorContains(t, err, tc.says)
			require.NotEmpty(t, backends.FixOf(err))
			require.Equal(t, backends.StateNotBooted, sb.State())
			require.Empty(t, leftovers(t, o.WorkDir))
		})
	}
	t.Run("no qemu", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		sb, err := New(good)
		require.NoError(t, err)
		err = sb.Boot(t.Context())
		require.ErrorIs(t, err, backends.ErrNotAvailable)
		require.Equal(t, qemuFix, backends.FixOf(err))
		d := Doctor(t.Context(), good)
		require.False(t, d.Available)
		require.Equal(t, qemuFix, d.Findings[0].Fix)
	})
}

// bootFails boots o and returns why that failed, having checked that nothing is
// left.
func bootFails(t *testing.T, o backends.Options, tune func(*Sandbox)) error {
	t.Helper()
	s, err := newSandbox(o)
	require.NoError(t, err)
	if tune != nil {
		tune(s)
	}
	err = s.Boot(t.Context())
	require.ErrorIs(t, err, backends.ErrBootFailed)
	require.Equal(t, backends.StateFailed, s.State())
	require.Empty(t, leftovers(t, o.WorkDir))
	return err
}

func TestBootFailures(t *testing.T) {
	good := options(t)
	t.Run("not a kernel", func(t *testing.T) {
		o := good
		o.Image = imageWith(t, image.KernelFile, func([]byte) []byte { return []byte(strings.Repeat("no kernel ", 1000)) }, true)
		err := bootFails(t, o, nil)
		require.ErrorContains(t, err, "qemu ended")
	})
	t.Run("no init", func(t *testing.T) {
		o := good
		o.Image = imageWith(t, image.InitramfsFile, func([]byte) []byte { return []byte("no archive") }, true)
		err := bootFails(t, o, nil)
		require.ErrorContains(t, err, "wait for the guest's agent")
		require.ErrorContains(t, err, "console")
	})
	t.Run("guest never answers", func(t *testing.T) {
		begin := time.Now()
		err := bootFails(t, good, func(s *Sandbox) { s.t.boot = 300 * time.Millisecond })
		require.ErrorContains(t, err, "wait for the guest's agent")
		require.ErrorContains(t, err, "did not answer within 300ms")
		require.Less(t, time.Since(begin), 10*time.Second)
	})
	t.Run("socket path too long", func(t *testing.T) {
		o := good
		o.WorkDir = filepath.Join(t.TempDir(), strings.Repeat("long", 25))
		require.NoError(t, os.Mkdir(o.WorkDir, 0o700))
		err := bootFails(t, o, nil)
		require.ErrorContains(t, err, "a Unix socket allows 107")
		require.ErrorContains(t, err, "fix: set TMPDIR")
	})
	t.Run("no work directory", func(t *testing.T) {
		o := good
		o.WorkDir = "/nonexistent"
		require.ErrorContains(t, bootFails(t, o, nil), "/nonexistent")
	})
	t.Run("disk full", func(t *testing.T) {
		testreq.Need(t, "root")
		o := good
		var err error
		o.WorkDir, err = os.MkdirTemp("", "bsmq-")
		require.NoError(t, err)
		require.NoError(t, unix.Mount("tmpfs", o.WorkDir, "tmpfs", 0, "size=128k"))
		defer func() {
			require.NoError(t, unix.Unmount(o.WorkDir, 0))
			require.NoError(t, os.Remove(o.WorkDir))
		}()
		err = bootFails(t, o, nil)
		require.ErrorIs(t, err, unix.ENOSPC)
		require.ErrorContains(t, err, "rootfs.img")
	})
	t.Run("stale baseline", func(t *testing.T) {
		s := newTest(t)
		require.NoError(t, s.Boot(t.Context()))
		o, path := good, filepath.Join(t.TempDir(), "b.json")
		f, err := baseline.Load(s.r.baselinePath())
		require.NoError(t, err)
		require.NoError(t, baseline.Record(path, f))
		require.NoError(t, s.Shutdown(t.Context()))
		o.Baseline = path
		again, err := newSandbox(o)
		require.NoError(t, err)
		require.NoError(t, again.Boot(t.Context()), "a baseline of the same image holds in another run")
		require.Equal(t, "persisted", again.Provenance().Baseline)
		require.NoError(t, again.Shutdown(t.Context()))

		f.Identity.VMMVersion = "1.2.3"
		require.NoError(t, baseline.Record(path, f))
		require.ErrorIs(t, bootFails(t, o, nil), baseline.ErrStale)
	})
}

// TestBrokenSnapshots shows that QEMU's two ways of failing, an exit and an
// endless wait, both end in an error.
func TestBrokenSnapshots(t *testing.T) {
	s := newTest(t)
	for name, content := range map[string]func(g *golden) []byte{
		"empty":     func(*golden) []byte { return nil },
		"truncated": func(g *golden) []byte { b := make([]byte, g.size/2); _, _ = g.f.ReadAt(b, 0); return b },
		"garbage":   func(*golden) []byte { return []byte(strings.Repeat("garbage", 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, s.Boot(t.Context()))
			s.t.restore = 2 * time.Second
			f, err := newMemfd("bsm-broken")
			require.NoError(t, err)
			_, err = f.Write(content(s.r.dev))
			require.NoError(t, err)
			s.r.displaced = append(s.r.displaced, s.r.dev)
			s.r.dev = &golden{f: f}
			_, err = s.Reset(t.Context())
			require.ErrorIs(t, err, backends.ErrResetFailed)
			require.ErrorContains(t, err, "restore the snapshot")
			require.Equal(t, backends.StateFailed, s.State())
			s.t = defaultTimeouts()
		})
	}
}

func TestListenRefusesAStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	f, err := listen(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = listen(path)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.ErrorContains(t, err, path)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = dialUnix(ctx, path)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
}

func TestAcceleratorCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "accel.json")
	now := time.Now()
	a := accelAnswer{BootID: "b", Kernel: "k", QEMU: "q", UID: 1, Usable: true, Reason: "r", At: now.UTC()}
	_, ok := cachedAccel(path, a, now)
	require.False(t, ok)
	saveAccel(path, a)
	got, ok := cachedAccel(path, a, now.Add(time.Minute))
	require.True(t, ok)
	require.True(t, got.Usable)
	for name, change := range map[string]func(*accelAnswer, *time.Time){
		"another boot of the host": func(a *accelAnswer, _ *time.Time) { a.BootID = "c" },
		"no boot id":               func(a *accelAnswer, _ *time.Time) { a.BootID = "" },
		"another kernel":           func(a *accelAnswer, _ *time.Time) { a.Kernel = "l" },
		"another user":             func(a *accelAnswer, _ *time.Time) { a.UID = 2 },
		"too old":                  func(_ *accelAnswer, now *time.Time) { *now = now.Add(accelTTL) },
		"of the future":            func(_ *accelAnswer, now *time.Time) { *now = now.Add(-time.Hour) },
	} {
		id, at := a, now
		change(&id, &at)
		_, ok := cachedAccel(path, id, at)
		require.False(t, ok, name)
	}
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, ok = cachedAccel(path, a, now)
	require.False(t, ok)
	saveAccel("", a)
}
