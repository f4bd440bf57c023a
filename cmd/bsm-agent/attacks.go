//go:build linux

package main

import (
	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	egress "github.com/brainst0rm/sandbox-redteam/probes/egress/payload"
)

// attackTools lists the guest half of every probe, one line each, sorted.
func attackTools() agent.Table {
	return agent.Table{
		attack.NetEgress: {Run: egress.Run},
	}
}
