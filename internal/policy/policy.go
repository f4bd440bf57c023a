// Package policy reads the declared boundary: what a sandbox is meant to allow.
// Targets and findings are relative to it: what it allows is not a finding.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Policy is a declared boundary.
type Policy struct {
	// Name identifies the policy in reports.
	Name string `yaml:"name" json:"name"`
	// Limits are the declared resource bounds.
	Limits backends.Limits `yaml:"limits" json:"limits"`
	// Egress is what the sandbox may reach.
	Egress Egress `yaml:"egress" json:"egress"`
	// Mounts are the host paths that are meant to be visible inside.
	Mounts []Mount `yaml:"mounts,omitempty" json:"mounts,omitempty"`
	// Output is the directory inside from which results are copied out.
	Output string `yaml:"output,omitempty" json:"output,omitempty"`
	// User is the identity inside that tools are meant to have.
	User string `yaml:"user,omitempty" json:"user,omitempty"`
	// Capabilities are the Linux capabilities that tools may keep.
	Capabilities []string `yaml:"capabilities,omitempty" json:"capabilities,omitempty"`
	// Runtime is the runtime that is expected, such as "gvisor".
	Runtime string `yaml:"runtime,omitempty" json:"runtime,omitempty"`
	// AllowTargets opts in to named targets other than our canaries.
	AllowTargets []string `yaml:"allow_targets,omitempty" json:"allow_targets,omitempty"`
	// Leaks are deliberate weaknesses to build in, for self-tests.
	Leaks []string `yaml:"leaks,omitempty" json:"leaks,omitempty"`
}

// Egress declares the network boundary.
type Egress struct {
	// Promise says whose duty an egress filter is: "none" (the sandbox has no
	// network), "filtered", or "operator" (the runtime promises none).
	Promise string   `yaml:"promise,omitempty" json:"promise,omitempty" about:"Whose duty an egress filter is: none (no network), filtered, operator (the runtime promises none)."`
	Allow   []string `yaml:"allow,omitempty" json:"allow,omitempty"`
	Proxy   string   `yaml:"proxy,omitempty" json:"proxy,omitempty"`
}

// Mount declares a host path inside.
type Mount struct {
	Inside   string `yaml:"inside" json:"inside"`
	ReadOnly bool   `yaml:"read_only" json:"read_only"`
}

// Digest is the SHA-256 of what the policy declares, in hex. Its name is not part
// of it.
func (p Policy) Digest() string {
	p.Name = ""
	b, err := json.Marshal(p)
	if err != nil {
		return "" // no value that Validate accepts fails to marshal
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
