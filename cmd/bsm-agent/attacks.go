//go:build linux

package main

import (
	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	egress "github.com/brainst0rm/sandbox-redteam/probes/egress/payload"
	framepoison "github.com/brainst0rm/sandbox-redteam/probes/framepoison/payload"
	stdoutforge "github.com/brainst0rm/sandbox-redteam/probes/stdoutforge/payload"
)

// attackTools lists the guest half of every probe, one line each, sorted.
func attackTools() agent.Table {
	return agent.Table{
		attack.ChannelPoison: {Run: framepoison.Run, Channel: true},
		attack.NetEgress:     {Run: egress.Run},
		attack.StdoutForge:   {Run: stdoutforge.Run},
	}
}
