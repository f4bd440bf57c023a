package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/backends/backendtest"
	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/testimage"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(childEnv); ok {
		if err := harness(spec); err != nil {
			fmt.Fprintln(os.Stderr, "harness:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// options are those of a sandbox of the test image, in a directory of its own.
func options(t testing.TB) backends.Options {
	t.Helper()
	testreq.Need(t, program)
	img := testimage.Dir(t)
	dir, err := os.MkdirTemp("", "bsmq-") // short enough for socket paths
	require.NoError(t, err)
	l, err := ledger.Open(filepath.Join(dir, "ledger"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return backends.Options{Image: img, WorkDir: dir, Ledger: l}
}

// newTest returns a sandbox that is shut down, with nothing left, at the end.
func newTest(t testing.TB, leaks ...string) *Sandbox {
	t.Helper()
	o := options(t)
	o.Leaks = leaks
	if slices.Contains(leaks, leakSharedDir) { // builds an image of its own
		agent, _, err := agentbin.Find(t.Context(), "")
		require.NoError(t, err)
		o.Agent = agent
	}
	s, err := newSandbox(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Shutdown(context.Background()))
		require.Empty(t, leftovers(t, o.WorkDir))
	})
	return s
}

// leftovers lists what this test process has on the host: QEMUs, files in the
// work directory, ledger entries (cgroups among them) and memfds.
func leftovers(t testing.TB, dir string) []string {
	t.Helper()
	var left []string
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, p := range stats {
		b, err := os.ReadFile(p)
		if err != nil || !strings.Contains(string(b), "(qemu-system") {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == fmt.Sprint(os.Getpid()) {
			left = append(left, "process "+p)
		}
	}
	for _, pattern := range []string{dir + "/bsm-*", dir + "/ledger/*"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		left = append(left, files...)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "/memfd:bsm-") {
			left = append(left, "fd "+fd.Name()+" of "+to)
		}
	}
	return left
}

func TestConformance(t *testing.T) {
	o := options(t)
	backendtest.Run(t, backendtest.Harness{
		New: func(t testing.TB, leaks ...string) backends.Sandbox {
			with := o
			with.Leaks = leaks
			sb, err := New(with)
			require.NoError(t, err)
			return sb
		},
		Leftovers: func(t testing.TB) []string { return leftovers(t, o.WorkDir) },
		Kill: func(t testing.TB, sb backends.Sandbox) {
			require.NoError(t, syscall.Kill(sb.(*Sandbox).Provenance().VMMPID, syscall.SIGKILL))
		},
		Deadline: time.Second,
	})
}

func TestEntry(t *testing.T) {
	backendtest.RunEntry(t, Entry(), options(t))
}

func TestBootedSandbox(t *testing.T) {
	s := newTest(t)
	ctx := t.Context()
	require.NoError(t, s.Boot(ctx))

	t.Run("provenance is measured", func(t *testing.T) {
		p := s.Provenance()
		require.Contains(t, []string{accelKVM, accelTCG}, p.Accelerator)
		require.Regexp(t, `^\d+\.\d+\.\d+$`, p.VMMVersion)
		require.Equal(t, "recorded-in-run", p.Baseline)
		for _, role := range []string{"kernel", "initramfs", "rootfs", "agent", "snapshot-ram", "snapshot-state"} {
			require.Regexp(t, `^sha256:[0-9a-f]{64}$`, p.Digests[role], role)
		}
		require.Contains(t, p.Hardening, "seccomp filter")
		require.Contains(t, p.Hardening, "no-new-privileges")
		if os.Geteuid() == 0 {
			require.Contains(t, p.Hardening, "uid 65534")
			require.Contains(t, p.Hardening, "no capabilities")
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.VMMPID))
		require.NoError(t, err)
		require.Contains(t, exe, "qemu-system-x86_64")
	})
	t.Run("the golden memory is sealed", func(t *testing.T) {
		require.True(t, s.r.ram.vouched())
		require.True(t, s.r.dev.vouched())
		_, err := s.r.ram.f.WriteAt([]byte{1}, 0)
		require.ErrorIs(t, err, syscall.EPERM)
	})
	t.Run("usage grows with what the guest touches", func(t *testing.T) {
		u, err := s.Usage(ctx)
		require.NoError(t, err)
		require.Greater(t, u.MemoryBytes, int64(1<<20))
		require.LessOrEqual(t, u.MemoryBytes, s.o.Limits.MemoryBytes)
		require.Positive(t, u.Tasks)
		require.Positive(t, u.CPUTime)
		require.EqualValues(t, -1, u.Kills)
	})
	t.Run("a restored guest has the time and new random numbers", func(t *testing.T) {
		random := func() string {
			ex, err := s.Execute(ctx, backends.Invocation{Tool: "cat", Params: map[string]string{"path": "/proc/sys/kernel/random/uuid"}})
			require.NoError(t, err)
			return string(ex.Stdout.Bytes())
		}
		before, pid := random(), s.Provenance().VMMPID
		_, err := s.Reset(ctx)
		require.NoError(t, err)
		require.NotEqual(t, before, random())
		require.NotEqual(t, pid, s.Provenance().VMMPID)
		stat, err := s.read(ctx, "/proc/stat")
		require.NoError(t, err)
		uptime, err := s.read(ctx, "/proc/uptime")
		require.NoError(t, err)
		_, rest, ok := strings.Cut(stat, "btime ")
		require.True(t, ok)
		var booted int64
		var up float64
		_, err = fmt.Sscan(rest, &booted)
		require.NoError(t, err)
		_, err = fmt.Sscan(uptime, &up)
		require.NoError(t, err)
		require.InDelta(t, float64(time.Now().UnixNano())/1e9, float64(booted)+up, 1.5, "the guest's clock")
	})
	t.Run("what survived a reset fails it", func(t *testing.T) {
		v, err := s.ready()
		require.NoError(t, err)
		st, err := s.check(ctx, v, markers{epoch: "another", paths: []string{"/tmp/absent"}}, nil)
		require.NoError(t, err)
		require.True(t, st.VerificationPassed)
		for name, m := range map[string]markers{
			"epoch": {epoch: s.r.epoch},
			"file":  {epoch: "another", paths: []string{"/init"}},
		} {
			st, err := s.check(ctx, v, m, nil)
			require.ErrorIs(t, err, backends.ErrResetFailed, name)
			require.ErrorContains(t, err, "survived the reset", name)
			require.False(t, st.VerificationPassed)
			require.Equal(t, backends.ActionHalt, st.VerificationDetails.DivergenceAction)
			require.NotEmpty(t, st.GoldenHash)
		}
	})
	t.Run("a frame of nonsense costs a session, not the sandbox", func(t *testing.T) {
		require.NoError(t, s.Inject(ctx, []byte{0xff, 0xff, 0xff, 0xff}))
		require.NoError(t, s.Resync(ctx))
		_, err := s.Execute(ctx, backends.Invocation{Tool: "noop"})
		require.NoError(t, err)
	})
	t.Run("every tamper is seen, is unseen without its comparison, and can be undone", func(t *testing.T) {
		for _, tm := range s.Tampers() {
			if tm.NotCovered != "" {
				require.Nil(t, tm.Apply)
				continue
			}
			require.NoError(t, s.Boot(ctx))
			undo, err := tm.Apply(ctx)
			require.NoError(t, err, tm.Name)
			st, err := s.ResetIgnoring(ctx, tm.Source)
			require.NoError(t, err, "%s: a reset without the comparison", tm.Name)
			require.True(t, st.VerificationPassed)
			require.NoError(t, undo(), tm.Name)
			_, err = s.Reset(ctx)
			require.NoError(t, err, "%s: a reset after the undo", tm.Name)

			undo, err = tm.Apply(ctx)
			require.NoError(t, err, tm.Name)
			_, err = s.Reset(ctx)
			var d *backends.DivergenceError
			require.ErrorAs(t, err, &d, tm.Name)
			require.Equal(t, []backends.Source{tm.Source}, d.Sources, tm.Name)
			require.Equal(t, backends.StateFailed, s.State())
			require.NoError(t, undo(), tm.Name)
		}
	})
}

// TestDiskTamperKeepsSizeAndTime shows that only the content gives it away.
func TestDiskTamperKeepsSizeAndTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o444)) // as the sandbox keeps its disk
	old := time.Unix(1e9, 42)
	require.NoError(t, os.Chtimes(path, old, old))
	require.NoError(t, flipByte(path, -1))
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, fi.ModTime().Equal(old))
	require.Equal(t, os.FileMode(0o444), fi.Mode().Perm())
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "contenu", string(b))
}

// TestGuestDiesMidCall kills QEMU under a call.
func TestGuestDiesMidCall(t *testing.T) {
	s := newTest(t)
	require.NoError(t, s.Boot(t.Context()))
	done := make(chan error, 1)
	go func() {
		_, err := s.Execute(t.Context(), backends.Invocation{Tool: "time.sleep", Params: map[string]int{"ms": 60_000}, Deadline: time.Minute})
		done <- err
	}()
	v, err := s.ready()
	require.NoError(t, err)
	var list wire.ProcessList
	require.Eventually(t, func() bool {
		return v.client.Query(t.Context(), wire.QueryProcessList, &list) == nil && strings.Contains(fmt.Sprint(list), "time.sleep")
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, syscall.Kill(v.pid, syscall.SIGKILL))
	err = <-done
	require.ErrorIs(t, err, backends.ErrClosed)
	require.ErrorContains(t, err, "qemu ended")
	require.Equal(t, backends.StateFailed, s.State())
	require.NoError(t, s.Boot(t.Context()), "a failed sandbox can be booted again")
}
