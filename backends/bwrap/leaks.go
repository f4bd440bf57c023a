package bwrap

import (
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// The leaks that New accepts.
const (
	leakShareNet        = "share-net"
	leakSharePID        = "share-pid"
	leakShareIPC        = "share-ipc"
	leakHostRoot        = "host-root"
	leakHostRootRW      = "host-root-rw"
	leakHostEnv         = "host-env"
	leakNoSeccomp       = "no-seccomp"
	leakTIOCSTI         = "tiocsti"
	leakNoLimits        = "no-limits"
	leakKeepTree        = "keep-tree"
	leakSkipFSHash      = "skip-fs-hash"
	leakSkipFDCount     = "skip-fd-count"
	leakSkipVMMState    = "skip-vmm-state"
	leakNoRestore       = "no-restore"
	leakStdoutFrames    = "stdout-frames"
	leakNoLimitsDecoder = "no-limits-decoder"
	leakFlakyBoot       = "flaky-boot"
	leakFlakyReset      = "flaky-reset"
	leakFlakyNoop       = "flaky-noop"
)

// The probes that have to catch them.
const (
	probeEgress    = "P-A1-net-egress"
	probeFS        = "P-A2-fs-escape"
	probeProcess   = "P-A3-process-escape"
	probeExhaust   = "P-A4-resource-exhaust"
	probeTimeBomb  = "P-A5-time-bomb"
	probeSubstrate = "P-A6-substrate-lie"
	probeStdout    = "P-A7-stdout-injection"
	probePoison    = "P-A8-vsock-poison"
	probeBoot      = "P-LAT-boot"
	probeReset     = "P-LAT-reset"
	probeRoundtrip = "P-LAT-roundtrip"
)

// leaks is a set of leak names.
type leaks map[string]bool

func parseLeaks(names []string) (leaks, error) {
	var known []string
	for _, l := range leakList() {
		known = append(known, l.Name)
	}
	set := leaks{}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("bwrap has no leak %q; it has %s", n, strings.Join(known, ", "))
		}
		set[n] = true
	}
	return set, nil
}

// ignored are the sources whose comparison the leaks switch off.
func (l leaks) ignored() []backends.Source {
	var off []backends.Source
	for _, v := range []struct {
		leak string
		src  backends.Source
	}{{leakSkipFSHash, backends.SourceFSHash}, {leakSkipFDCount, backends.SourceOpenFDCount}, {leakSkipVMMState, backends.SourceVMMState}} {
		if l[v.leak] {
			off = append(off, v.src)
		}
	}
	return off
}

// leakList describes every leak.
func leakList() []backends.Leak {
	return []backends.Leak{
		{Name: leakShareNet, Class: "A1", Expect: []string{probeEgress}, Prove: proveShared("net"),
			About: "the sandbox is in the host's network namespace"},
		{Name: leakHostRoot, Class: "A2", Expect: []string{probeFS}, Prove: proveHostRoot(false),
			About: "the host's root file system is bound read-only on /, with the host identity of the sandbox"},
		{Name: leakHostRootRW, Class: "A2", Expect: []string{probeFS}, Prove: proveHostRoot(true),
			About: "the host's root file system is bound writable on /"},
		{Name: leakHostEnv, Class: "A2", Expect: []string{probeFS}, Prove: proveHostEnv,
			About: "the harness's environment is passed on, so every process inside can read it"},
		{Name: leakSharePID, Class: "A3", Expect: []string{probeProcess}, Prove: proveShared("pid"),
			About: "the sandbox is in the host's pid namespace and sees the host's /proc"},
		{Name: leakShareIPC, Class: "A3", Expect: []string{probeProcess}, Prove: proveShared("ipc"),
			About: "the sandbox is in the host's IPC namespace: System V shared memory of the host is attached by its key"},
		{Name: leakNoSeccomp, Class: "A3", Expect: []string{probeProcess}, Prove: proveNoSeccomp,
			About: "no seccomp filter: ptrace, bpf and new namespaces are a system call away"},
		{Name: leakTIOCSTI, Class: "A3", Expect: []string{probeProcess}, Prove: proveTIOCSTI,
			About: "a terminal of the host stays the sandbox's controlling one, and the filter lets TIOCSTI pass: what is pushed back inside is read as typed"},
		{Name: leakNoLimits, Class: "A4", Expect: []string{probeExhaust}, Prove: proveNoLimits,
			About: "the declared memory and pids limits are not kept; a fuse three times as wide guards the host"},
		{Name: leakKeepTree, Class: "A5", Expect: []string{probeTimeBomb}, Prove: proveKeepTree,
			About: "what a tool started stays alive past the tool's deadline"},
		{Name: leakNoRestore, Class: "A6", Expect: []string{probeSubstrate}, Prove: proveNoRestore,
			About: "a reset keeps the old instance"},
		{Name: leakSkipFSHash, Class: "A6", Expect: []string{probeSubstrate}, Prove: proveSkips(backends.SourceFSHash),
			About: "a reset does not compare the digest of the root file system"},
		{Name: leakSkipFDCount, Class: "A6", Expect: []string{probeSubstrate}, Prove: proveSkips(backends.SourceOpenFDCount),
			About: "a reset does not compare the fd count"},
		{Name: leakSkipVMMState, Class: "A6", Expect: []string{probeSubstrate}, Prove: proveSkips(backends.SourceVMMState),
			About: "a reset does not compare the runtime's state"},
		{Name: leakStdoutFrames, Class: "A7", Expect: []string{probeStdout}, Prove: proveStdoutFrames,
			About: "a result that a tool prints is taken for the tool's result"},
		{Name: leakNoLimitsDecoder, Class: "A8", Expect: []string{probePoison}, Prove: proveNoLimitsDecoder,
			About: "the host's decoder has no cap, no deadline and endless patience"},
		{Name: leakFlakyBoot, Class: "LAT", Expect: []string{probeBoot}, Prove: proveFlaky(leakFlakyBoot), About: "every third boot fails"},
		{Name: leakFlakyReset, Class: "LAT", Expect: []string{probeReset}, Prove: proveFlaky(leakFlakyReset), About: "every third reset fails"},
		{Name: leakFlakyNoop, Class: "LAT", Expect: []string{probeRoundtrip}, Prove: proveFlaky(leakFlakyNoop), About: "every third noop fails"},
	}
}
