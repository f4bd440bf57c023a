package catalog

import "github.com/brainst0rm/sandbox-redteam/backends"

// present lists the backends that this version has, the mock first.
func present() []backends.Entry {
	return []backends.Entry{}
}
