//go:build linux

package main

import "github.com/brainst0rm/sandbox-redteam/internal/agent"

// attackTools lists the guest half of every probe, one line each, sorted.
func attackTools() agent.Table {
	return agent.Table{}
}
