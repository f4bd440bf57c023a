//go:build linux

package main

import (
	"maps"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/agent/tools"
)

// table is every tool of this agent.
func table() agent.Table {
	t := tools.Table()
	maps.Copy(t, variant(attackTools()))
	return t
}
