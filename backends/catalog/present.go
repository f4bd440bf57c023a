package catalog

import (
	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/backends/bwrap"
	"github.com/brainst0rm/sandbox-redteam/backends/mock"
	"github.com/brainst0rm/sandbox-redteam/backends/qemu"
)

// present lists the backends that this version has, the mock first.
func present() []backends.Entry {
	return []backends.Entry{
		mock.Entry(),
		withImage(qemu.Entry()),
		bwrap.Entry(),
	}
}

// withImage marks a backend that boots a guest image.
func withImage(e backends.Entry) backends.Entry {
	e.NeedsImage = true
	return e
}
