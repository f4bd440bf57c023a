//go:build !linux

// Package qemu boots a real virtual machine as a sandbox. It needs a Linux
// host; elsewhere it is an entry whose doctor says so.
package qemu

import (
	"context"
	"errors"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Name is the backend's stable name.
const Name = "qemu"

// Entry describes this backend for the catalogue.
func Entry() backends.Entry {
	const what, fix = "the qemu backend needs a Linux host", "run on Linux, or use --sandbox mock"
	return backends.Entry{
		Name: Name, Title: "QEMU microVM (q35, KVM or emulation)", Real: true,
		Doctor: func(context.Context, backends.Options) backends.Diagnosis {
			return backends.Diagnosis{Findings: []backends.Finding{{What: what, Fix: fix}}}
		},
		New: func(backends.Options) (backends.Sandbox, error) {
			return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: "make a qemu sandbox", Err: errors.New(what), Fix: fix}
		},
	}
}
