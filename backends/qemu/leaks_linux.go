package qemu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// The leaks that New accepts.
const (
	leakUserNet      = "user-net"
	leakSharedDir    = "shared-dir"
	leakWritableDisk = "writable-disk"
	leakSignalPort   = "signal-port"
	leakMemory4x     = "memory-4x"
	leakKeepTree     = "keep-tree"
	leakStdoutFrames = "stdout-frames"
	leakRawRenderer  = "raw-renderer"
	leakNoLimits     = "no-limits"
	leakNoRestore    = "no-restore"
	leakSkipFSHash   = "skip-fs-hash"
	leakSkipFDCount  = "skip-fd-count"
	leakSkipVMMState = "skip-vmm-state"
	leakLyingQMP     = "lying-qmp"
	leakFlakyBoot    = "flaky-boot"
	leakFlakyReset   = "flaky-reset"
	leakFlakyNoop    = "flaky-noop"
)

// Leaks are the deliberate weaknesses of this backend.
func Leaks() []backends.Leak {
	leak := func(name, class, probe, about string) backends.Leak {
		return backends.Leak{Name: name, Class: class, About: about, Expect: []string{probe}, Prove: prove(name)}
	}
	const (
		egress, fsescape, process, exhaust = "P-A1-net-egress", "P-A2-fs-escape", "P-A3-process-escape", "P-A4-resource-exhaust"
		bomb, substrate, stdout, poison    = "P-A5-time-bomb", "P-A6-substrate-lie", "P-A7-stdout-injection", "P-A8-vsock-poison"
	)
	return []backends.Leak{
		leak(leakUserNet, "A1", egress, "QEMU's user-mode network, whose gateway is the host's loopback address"),
		leak(leakSharedDir, "A2", fsescape, "the host's directory for temporary files is shared over 9p, writable"),
		leak(leakWritableDisk, "A2", fsescape, "the guest may write to the disk image"),
		leak(leakSignalPort, "A3", process, "a second virtio-serial port through which the host signals a process on request"),
		leak(leakMemory4x, "A4", exhaust, "the guest has four times the memory that is declared"),
		leak(leakKeepTree, "A5", bomb, "the agent answers at a deadline and kills nothing"),
		leak(leakNoRestore, "A6", substrate, "a reset verifies the running instance and restores nothing"),
		leak(leakSkipFSHash, "A6", substrate, "the digest of the substrate is not compared after a reset"),
		leak(leakSkipFDCount, "A6", substrate, "the guest's count of open files is not compared after a reset"),
		leak(leakSkipVMMState, "A6", substrate, "the VMM's state is not compared after a reset"),
		leak(leakLyingQMP, "A6", substrate, "QEMU's API answers running whatever the machine does"),
		leak(leakStdoutFrames, "A7", stdout, "the host decodes a tool's output as messages of the agent"),
		leak(leakRawRenderer, "A7", stdout, "the guest's bytes are rendered as they are"),
		leak(leakNoLimits, "A8", poison, "the host's decoder has neither cap nor deadline"),
		leak(leakFlakyBoot, "LAT", "P-LAT-boot", fmt.Sprintf("one boot in %d fails", flakyEvery)),
		leak(leakFlakyReset, "LAT", "P-LAT-reset", fmt.Sprintf("one reset in %d of a guest that was used fails", flakyEvery)),
		leak(leakFlakyNoop, "LAT", "P-LAT-roundtrip", fmt.Sprintf("one noop in %d fails", flakyEvery)),
	}
}

// leaks is a set of leak names.
type leaks map[string]bool

func parseLeaks(names []string) (leaks, error) {
	var known []string
	for _, l := range Leaks() {
		known = append(known, l.Name)
	}
	set := leaks{}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("qemu has no leak %q; it has %s", n, strings.Join(known, ", "))
		}
		set[n] = true
	}
	return set, nil
}

// ignored are the sources whose comparison the leaks switch off.
func (l leaks) ignored() []backends.Source {
	var off []backends.Source
	if l[leakSkipFSHash] {
		off = append(off, backends.SourceFSHash)
	}
	if l[leakSkipFDCount] {
		off = append(off, backends.SourceOpenFDCount)
	}
	if l[leakSkipVMMState] {
		off = append(off, backends.SourceVMMState)
	}
	return off
}
