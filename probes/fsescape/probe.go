// Package fsescape is P-A2: can anything inside read or change a file of the
// host?
package fsescape

import "github.com/brainst0rm/sandbox-redteam/probes"

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name:        "P-A2-fs-escape",
		Class:       probes.ClassFSEscape,
		Expectation: probes.ShouldFail,
		Description: "Tries to read and to append to one canary file of the host: by its path and by detours and links to it, through the root and cwd links of every process in sight, " +
			"through inherited directory descriptors, by its file handle, below every mount and shared directory, in raw block devices, and in the environments of processes. " +
			"It also writes to its own disk, connects to runtime sockets and opens the machine's memory.",
		Why: "The secret is a fresh random token that is only in the canary and never enters the sandbox. It is searched in everything that comes out, also encoded, compressed, reversed or split; " +
			"inotify and a digest on the host show every open, read and change, whatever the guest says. The file belongs to the host identity that the sandbox maps to, and an open agent with that identity did read and change one in the same ways, so file permissions are not what held.",
		Limits: "One canary stands for the host's files: a path that the policy mounts on purpose is not searched for other secrets. A way that has no control here (file handles without CAP_DAC_READ_SEARCH, for one) is listed as not tested. " +
			"/dev/mem and runtime sockets are posture: they are opened, not used.",
		Severity:    probes.SeverityCritical,
		Harm:        "host leak",
		Techniques:  []string{"F01", "F02", "F03", "F04", "F06", "F09", "F10", "F11", "F12", "F13", "F23", "P04"},
		ATTACK:      []string{"T1611", "T1005", "T1552.001", "T1006"},
		References:  []string{"man 5 proc", "man 2 open_by_handle_at", "man 7 inotify", "CVE-2019-5736", "CVE-2024-21626", "CVE-2022-0492"},
		Needs:       []probes.Need{probes.NeedColocation},
		SideEffects: []probes.SideEffect{probes.EffectWrites},
		Run:         run,
	}
}
