package qemu

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestArgs(t *testing.T) {
	boot := vmSpec{Accel: accelTCG, MemMiB: 256, Machine: "q35", RAM: 3, QMP: 4, Agent: 5, Rootfs: 6, Kernel: 7, Initrd: 8, Shared: true, Cmdline: "console=ttyS0 rdinit=/init"}
	restore := vmSpec{Accel: accelTCG, MemMiB: 256, Machine: "q35", RAM: 3, QMP: 4, Agent: 5, Rootfs: 6, Incoming: true}
	kvm, leaky := restore, boot
	kvm.Accel = accelKVM
	leaky.UserNet, leaky.Writable, leaky.Signal, leaky.ShareDir, leaky.MemMiB = true, true, 9, 10, 1024
	for name, spec := range map[string]vmSpec{"boot": boot, "restore": restore, "kvm": kvm, "leaky": leaky} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(spec.args(), "\n") + "\n"
			path := filepath.Join("testdata", name+".args")
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
}

// TestArgsAreTight says what the golden files must never lose.
func TestArgsAreTight(t *testing.T) {
	args := vmSpec{Machine: "q35", MemMiB: 1, Incoming: true}.args()
	all := strings.Join(args, " ")
	for _, flag := range []string{"-nodefaults", "-no-user-config", "-no-reboot"} {
		require.Contains(t, args, flag)
	}
	i := slices.Index(args, "-sandbox")
	require.Positive(t, i)
	require.Equal(t, "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny", args[i+1])
	require.Contains(t, all, ",readonly=on")
	require.Contains(t, all, ",share=off")
	for _, none := range []string{"-netdev", "virtio-net", "-fsdev", "9p", signalPort, "vsock", "-kernel"} {
		require.NotContains(t, all, none)
	}
}

func TestGuestCmdline(t *testing.T) {
	require.Equal(t, "a b=c", guestCmdline("a b=c", 0, nil))
	require.Equal(t, "a bsm.pids=64", guestCmdline("a", 64, leaks{leakMemory4x: true}))
	require.Equal(t, "a bsm.pids=64 bsm.net=10.0.2.15/24 bsm.share=bsmshare,/mnt/share bsm.keep-tree",
		guestCmdline("a", 64, leaks{leakUserNet: true, leakSharedDir: true, leakKeepTree: true}))
}

func TestMapStatus(t *testing.T) {
	for raw, want := range map[string]string{
		"running": "running", "paused": "paused", "prelaunch": "paused", "inmigrate": "stopped", "postmigrate": "stopped",
		"shutdown": "stopped", "guest-panicked": "error", "internal-error": "error", "io-error": "error", "": "error", "new in 2030": "error",
	} {
		require.Equal(t, want, mapStatus(raw), raw)
	}
}

func TestRing(t *testing.T) {
	r := newRing(10)
	for _, s := range []string{"one\n", "two\nthree", "\nfour \x1b[2J"} {
		n, err := r.Write([]byte(s))
		require.NoError(t, err)
		require.Len(t, s, n)
	}
	require.Equal(t, "four .[2J", r.tail(5))
	_, _ = r.Write([]byte(strings.Repeat("x", 100) + "\nab\ncd"))
	require.Equal(t, "ab | cd", r.tail(2))
	require.Empty(t, newRing(4).tail(3))
}

func TestLeakNames(t *testing.T) {
	_, err := parseLeaks([]string{"user-net", "nonsense"})
	require.ErrorContains(t, err, `"nonsense"`)
	require.ErrorContains(t, err, "user-net")
	l, err := parseLeaks([]string{leakSkipFDCount, leakSkipFSHash})
	require.NoError(t, err)
	require.Len(t, l.ignored(), 2)
}
