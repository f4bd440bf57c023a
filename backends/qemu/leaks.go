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

// leaks is a set of leak names.
type leaks map[string]bool

func parseLeaks(names []string) (leaks, error) {
	known := make([]string, 0, len(leakList()))
	for _, l := range leakList() {
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
	for name, src := range map[string]backends.Source{
		leakSkipFSHash: backends.SourceFSHash, leakSkipFDCount: backends.SourceOpenFDCount, leakSkipVMMState: backends.SourceVMMState,
	} {
		if l[name] {
			off = append(off, src)
		}
	}
	return off
}

func leakList() []backends.Leak { return []backends.Leak{} }
