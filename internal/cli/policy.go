package cli

import (
	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
)

// loadPolicy reads the declared boundary, or takes the backend's own.
func loadPolicy(path string, entry backends.Entry) (policy.Policy, error) {
	if path == "" {
		return policy.Default(entry.Name, entry.DefaultLimits)
	}
	return policy.Load(path, entry.Name, entry.DefaultLimits)
}
