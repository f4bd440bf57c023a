// Package hostcheck reads the facts about this host that a verdict depends on,
// for the report. It changes nothing and starts nothing.
package hostcheck

import (
	"runtime"
	"slices"
	"strings"
)

// Facts describe the host of a run. A field is empty where the host does not
// say; nothing is guessed.
type Facts struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel,omitempty"`
	// CPU is the model name.
	CPU  string `json:"cpu,omitempty"`
	CPUs int    `json:"cpus"`
	// LSM lists the security modules in force; LSMMode is the mode of the major
	// one, such as "apparmor: enabled" or "selinux: enforcing".
	LSM     []string `json:"lsm,omitempty"`
	LSMMode string   `json:"lsm_mode,omitempty"`
	// Cgroup is "v1", "v2" or "hybrid"; CgroupDelegated lists the controllers of
	// v2 that this process could hand to a child group.
	Cgroup          string   `json:"cgroup,omitempty"`
	CgroupDelegated []string `json:"cgroup_delegated,omitempty"`
	// Yama is kernel.yama.ptrace_scope, empty without Yama.
	Yama string `json:"yama_ptrace_scope,omitempty"`
	// Userns says whether an unprivileged user namespace can be made, as far
	// as the sysctls say: "allowed", "denied by ...".
	Userns string `json:"unprivileged_userns,omitempty"`
	// Rootless: this process has no root.
	Rootless bool `json:"rootless"`
	// Virtualised names what this host itself runs on, "none" for bare metal as
	// far as the CPU says, such as "kvm" or "hypervisor".
	Virtualised string `json:"virtualised,omitempty"`
	// Microcode is the CPU's, Governor that of CPU 0, Turbo "on" or "off", SMT
	// "on", "off" or what else the kernel calls it: what latencies depend on.
	Microcode string `json:"microcode,omitempty"`
	Governor  string `json:"governor,omitempty"`
	Turbo     string `json:"turbo,omitempty"`
	SMT       string `json:"smt,omitempty"`
}

// reader returns the trimmed contents of a small file, "" when it has none.
type reader func(path string) string

func collect(read reader) Facts {
	f := Facts{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU()}
	f.Kernel = read("/proc/sys/kernel/osrelease")
	info := read("/proc/cpuinfo")
	f.CPU, f.Virtualised = cpu(info)
	f.Microcode = field(info, "microcode")
	f.Governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	f.Turbo = turbo(read)
	f.SMT = read("/sys/devices/system/cpu/smt/control")
	if product := read("/sys/class/dmi/id/product_name"); f.Virtualised == "hypervisor" && product != "" {
		f.Virtualised = "hypervisor (" + product + ")"
	}
	if lsm := read("/sys/kernel/security/lsm"); lsm != "" {
		f.LSM = strings.Split(lsm, ",")
	}
	f.LSMMode = lsmMode(read)
	f.Cgroup, f.CgroupDelegated = cgroups(read)
	f.Yama = read("/proc/sys/kernel/yama/ptrace_scope")
	f.Userns = userns(read)
	return f
}

// cpu reads the model name, and whether the CPU says that it is a virtual one.
func cpu(info string) (model, virtualised string) {
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "model name":
			if model == "" {
				model = value
			}
		case "flags":
			virtualised = "none"
			if slices.Contains(strings.Fields(value), "hypervisor") {
				virtualised = "hypervisor"
			}
		}
	}
	if model == "" {
		model = armModel(info)
	}
	return model, virtualised
}

// armModel puts together what an Arm kernel says instead of a model's name.
func armModel(info string) string {
	var parts []string
	for _, name := range []string{"implementer", "part", "variant", "revision"} {
		if v := field(info, "CPU "+name); v != "" {
			parts = append(parts, name+" "+v)
		}
	}
	return strings.Join(parts, " ")
}

// field returns the first value of a key of cpuinfo.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// turbo asks the two drivers that have a switch; they mean opposite things by 1.
func turbo(read reader) string {
	switch {
	case read("/sys/devices/system/cpu/intel_pstate/no_turbo") == "0", read("/sys/devices/system/cpu/cpufreq/boost") == "1":
		return "on"
	case read("/sys/devices/system/cpu/intel_pstate/no_turbo") == "1", read("/sys/devices/system/cpu/cpufreq/boost") == "0":
		return "off"
	}
	return ""
}

func lsmMode(read reader) string {
	switch read("/sys/fs/selinux/enforce") {
	case "1":
		return "selinux: enforcing"
	case "0":
		return "selinux: permissive"
	}
	switch read("/sys/module/apparmor/parameters/enabled") {
	case "Y":
		return "apparmor: enabled, this process " + first(read("/proc/self/attr/current"), "unconfined")
	case "N":
		return "apparmor: disabled"
	}
	return ""
}

// cgroups tells the version from the mounts, and what v2 would delegate to us.
func cgroups(read reader) (version string, delegated []string) {
	v1, v2 := false, ""
	for line := range strings.Lines(read("/proc/self/mounts")) {
		f := strings.Fields(line)
		switch {
		case len(f) < 3:
		case f[2] == "cgroup":
			v1 = true
		case f[2] == "cgroup2":
			v2 = f[1]
		}
	}
	switch {
	case v1 && v2 != "":
		version = "hybrid"
	case v1:
		return "v1", nil
	case v2 != "":
		version = "v2"
	default:
		return "", nil
	}
	for line := range strings.Lines(read("/proc/self/cgroup")) {
		if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			delegated = strings.Fields(read(v2 + own + "/cgroup.controllers"))
		}
	}
	return version, delegated
}

func userns(read reader) string {
	if read("/proc/sys/user/max_user_namespaces") == "" {
		return ""
	}
	for _, s := range []struct{ path, denied string }{
		{"/proc/sys/user/max_user_namespaces", "0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"},
	} {
		if v := read(s.path); v == s.denied {
			return "denied by " + s.path + "=" + v
		}
	}
	return "allowed"
}

func first(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
