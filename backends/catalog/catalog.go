// Package catalog lists the backends of this program: explicitly, in one place,
// in the order in which people are shown them.
package catalog

import (
	"fmt"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/nearest"
)

// All returns every backend that a user may name, also those that this version
// does not have yet.
func All() []backends.Entry {
	return append(present(),
		later("chv", "Cloud Hypervisor microVM", "qemu"),
		later("vf", "Apple Virtualization.framework VM", "qemu"),
		later("gvisor", "gVisor (runsc) sandbox", "bwrap"),
		later("docker", "Docker container", "bwrap"),
		later("oci", "runc or crun container", "bwrap"),
		later("command", "any command line that starts the agent", "bwrap"),
	)
}

// UnknownError names a backend that does not exist, and the nearest that does.
type UnknownError struct {
	Name, Nearest string
	Valid         []string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("unknown sandbox %q; did you mean %q? valid: %s", e.Name, e.Nearest, strings.Join(e.Valid, ", "))
}

// Lookup finds a backend by name in list.
func Lookup(list []backends.Entry, name string) (backends.Entry, error) {
	valid := make([]string, len(list))
	for i, e := range list {
		if e.Name == name {
			return e, nil
		}
		valid[i] = e.Name
	}
	return backends.Entry{}, &UnknownError{Name: name, Nearest: nearest.To(name, valid), Valid: valid}
}
