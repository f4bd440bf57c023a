package hostcheck

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func fake(files map[string]string) reader { return func(path string) string { return files[path] } }

func TestCollectFromFiles(t *testing.T) {
	f := collect(fake(map[string]string{
		"/proc/sys/kernel/osrelease":                             "6.8.0-49-generic",
		"/proc/cpuinfo":                                          "model name\t: Example CPU\nmicrocode\t: 0x2b\nflags\t\t: fpu vme hypervisor\n\nmodel name\t: Example CPU\n",
		"/sys/class/dmi/id/product_name":                         "Standard PC",
		"/sys/kernel/security/lsm":                               "lockdown,capability,yama,apparmor",
		"/proc/self/mounts":                                      "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
		"/proc/self/cgroup":                                      "0::/user.slice\n",
		"/sys/fs/cgroup/user.slice/cgroup.controllers":           "cpu memory pids",
		"/proc/sys/kernel/yama/ptrace_scope":                     "1",
		"/proc/sys/user/max_user_namespaces":                     "95000",
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
		"/sys/module/apparmor/parameters/enabled":                "Y",
		"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":  "performance",
		"/sys/devices/system/cpu/intel_pstate/no_turbo":          "1",
		"/sys/devices/system/cpu/smt/control":                    "off",
	}))
	require.Equal(t, "6.8.0-49-generic", f.Kernel)
	require.Equal(t, "Example CPU", f.CPU)
	require.Equal(t, "hypervisor (Standard PC)", f.Virtualised)
	require.Equal(t, []string{"0x2b", "performance", "off", "off"}, []string{f.Microcode, f.Governor, f.Turbo, f.SMT})
	require.Equal(t, []string{"lockdown", "capability", "yama", "apparmor"}, f.LSM)
	require.Equal(t, "apparmor: enabled, this process unconfined", f.LSMMode)
	require.Equal(t, "v2", f.Cgroup)
	require.Equal(t, []string{"cpu", "memory", "pids"}, f.CgroupDelegated)
	require.Equal(t, "1", f.Yama)
	require.Equal(t, "denied by /proc/sys/kernel/apparmor_restrict_unprivileged_userns=1", f.Userns)
}

func TestCgroupVersions(t *testing.T) {
	for name, c := range map[string]struct{ mounts, want string }{
		"none":   {"proc /proc proc rw 0 0\n", ""},
		"v1":     {"cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n", "v1"},
		"hybrid": {"cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", "hybrid"},
		"v2":     {"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "v2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := cgroups(fake(map[string]string{"/proc/self/mounts": c.mounts}))
			require.Equal(t, c.want, got)
		})
	}
}

func TestLSMModesAndBareMetal(t *testing.T) {
	require.Equal(t, "selinux: enforcing", lsmMode(fake(map[string]string{"/sys/fs/selinux/enforce": "1"})))
	require.Equal(t, "selinux: permissive", lsmMode(fake(map[string]string{"/sys/fs/selinux/enforce": "0"})))
	require.Equal(t, "apparmor: disabled", lsmMode(fake(map[string]string{"/sys/module/apparmor/parameters/enabled": "N"})))
	require.Empty(t, lsmMode(fake(nil)))
	_, virtualised := cpu("flags\t: fpu vme\n")
	require.Equal(t, "none", virtualised)
	require.Empty(t, userns(fake(nil)))
	require.Equal(t, "allowed", userns(fake(map[string]string{"/proc/sys/user/max_user_namespaces": "9"})))
}

func TestArmHasNoModelName(t *testing.T) {
	model, virtualised := cpu("processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n")
	require.Equal(t, "implementer 0x41 part 0xd0c variant 0x3 revision 1", model)
	require.Empty(t, virtualised, "the flag is one of x86")
}

func TestTurboByEitherDriver(t *testing.T) {
	const intel, boost = "/sys/devices/system/cpu/intel_pstate/no_turbo", "/sys/devices/system/cpu/cpufreq/boost"
	for path, on := range map[string]string{intel: "0", boost: "1"} {
		off := map[string]string{"0": "1", "1": "0"}[on]
		require.Equal(t, "on", turbo(fake(map[string]string{path: on})), path)
		require.Equal(t, "off", turbo(fake(map[string]string{path: off})), path)
	}
	require.Empty(t, turbo(fake(nil)))
}

func TestStolenTime(t *testing.T) {
	a, ok := cpuTime("cpu  10 20 30 40 50 60 70 80 5 5\ncpu0 1 2 3\n")
	require.True(t, ok)
	require.Equal(t, CPUTime{Steal: 80, Total: 360}, a)
	b, ok := cpuTime("cpu 110 20 30 40 50 60 70 180 5 5")
	require.True(t, ok)
	require.InDelta(t, 0.5, b.Stolen(a), 1e-9)
	require.Zero(t, a.Stolen(a))
	require.Zero(t, a.Stolen(b), "counters that ran backwards say nothing")
	for _, bad := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 x"} {
		_, ok := cpuTime(bad)
		require.False(t, ok, bad)
	}
}

func TestCollectThisHost(t *testing.T) {
	f := Collect()
	require.Equal(t, runtime.GOOS, f.OS)
	require.Positive(t, f.CPUs)
	require.Equal(t, os.Geteuid() != 0, f.Rootless)
	if want, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		require.Equal(t, strings.TrimSpace(string(want)), f.Kernel)
	}
}
