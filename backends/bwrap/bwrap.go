// Package bwrap runs the agent in a bubblewrap sandbox: fresh namespaces, a
// root file system of our own that is bound read-only, no capabilities, no
// environment, a seccomp filter, and memory and pids limits from a cgroup.
//
// The root file system is built once for each agent and never written to. A
// reset is therefore a new sandbox on the same tree, and the old one is taken
// down while the new one already works.
//
// Started by root, bubblewrap itself runs as nobody: what is tested is what an
// unprivileged user gets.
package bwrap

import "github.com/brainst0rm/sandbox-redteam/backends"

// Name is the backend's stable name.
const Name = "bwrap"

// Entry describes the backend.
func Entry() backends.Entry {
	return backends.Entry{
		Name: Name, Title: "bubblewrap sandbox", Real: true,
		Doctor: Doctor, New: New, Leaks: leakList(), DefaultLimits: defaultLimits(),
	}
}

// defaultLimits leave room for the batteries. A task is a thread here, and a
// tool is a Go program: 20 processes of a few calls at once have over 128.
func defaultLimits() backends.Limits { return backends.Limits{MemoryBytes: 256 << 20, Pids: 512} }
