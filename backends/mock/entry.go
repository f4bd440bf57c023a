package mock

import (
	"context"
	"runtime"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

var defaultLimits = backends.Limits{MemoryBytes: 64 << 20, Pids: 160}

// Entry describes the mock for the catalogue.
func Entry() backends.Entry {
	return backends.Entry{
		Name: Name, Title: "in-process mock (no boundary)", Real: false, InProcess: true,
		Doctor: func(context.Context, backends.Options) backends.Diagnosis {
			d := backends.Diagnosis{Available: true, Findings: []backends.Finding{
				{OK: true, What: "the mock needs nothing; it is no boundary and proves none"},
			}}
			if runtime.GOOS != "linux" {
				d.Findings = append(d.Findings, backends.Finding{Optional: true, Fix: "run on Linux",
					What: "simulated leaks of class A3 touch real canary processes on Linux only"})
			}
			return d
		},
		New:           func(o backends.Options) (backends.Sandbox, error) { return newSandbox(o) },
		DefaultLimits: defaultLimits,
		Leaks: []backends.Leak{
			{Name: leakEgress, Class: "A1", About: "net.egress really visits the canaries on loopback", Expect: []string{"P-A1-net-egress"}, Prove: proveEgress},
			{Name: leakFiles, Class: "A2", About: "fs.escape really reads and changes the canary file", Expect: []string{"P-A2-fs-escape"}, Prove: proveFiles},
			{Name: leakProcesses, Class: "A3", About: "proc.escape really signals the canary processes", Expect: []string{"P-A3-process-escape"}, Prove: proveProcesses},
			{Name: leakLimits, Class: "A4", About: "the simulated meter rises past every limit", Expect: []string{"P-A4-resource-exhaust"}, Prove: proveLimits},
			{Name: leakTree, Class: "A5", About: "the agent answers at the deadline and kills nothing", Expect: []string{"P-A5-time-bomb"}, Prove: proveTree},
			{Name: leakSubstrate, Class: "A6", About: "a reset compares none of its sources", Expect: []string{"P-A6-substrate-lie"}, Prove: proveSubstrate},
			{Name: leakRenderer, Class: "A7", About: "output is rendered raw", Expect: []string{"P-A7-stdout-injection"}, Prove: proveRenderer},
			{Name: leakDecoder, Class: "A8", About: "the host's decoder has no cap, no deadline and endless patience", Expect: []string{"P-A8-vsock-poison"}, Prove: proveDecoder},
			{Name: leakLatency, Class: "LAT", About: "every fourth boot, reset and noop fails",
				Expect: []string{"P-LAT-boot", "P-LAT-reset", "P-LAT-roundtrip"}, Prove: proveLatency},
		},
	}
}
