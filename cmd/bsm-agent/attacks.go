//go:build linux

package main

import (
	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	egress "github.com/brainst0rm/sandbox-redteam/probes/egress/payload"
	exhaust "github.com/brainst0rm/sandbox-redteam/probes/exhaust/payload"
	framepoison "github.com/brainst0rm/sandbox-redteam/probes/framepoison/payload"
	fsescape "github.com/brainst0rm/sandbox-redteam/probes/fsescape/payload"
	procescape "github.com/brainst0rm/sandbox-redteam/probes/procescape/payload"
	stdoutforge "github.com/brainst0rm/sandbox-redteam/probes/stdoutforge/payload"
	substrate "github.com/brainst0rm/sandbox-redteam/probes/substrate/payload"
	timebomb "github.com/brainst0rm/sandbox-redteam/probes/timebomb/payload"
)

// attackTools lists the guest half of every probe, one line each, sorted.
func attackTools() agent.Table {
	return agent.Table{
		attack.ChannelPoison:   {Run: framepoison.Run, Channel: true},
		attack.FSEscape:        {Run: fsescape.Run},
		attack.NetEgress:       {Run: egress.Run},
		attack.ProcEscape:      {Run: procescape.Run},
		attack.ResourceExhaust: {Run: exhaust.Run},
		attack.StdoutForge:     {Run: stdoutforge.Run},
		attack.SubstrateAnchor: {Run: substrate.Run},
		attack.TimeBomb:        {Run: timebomb.Run},
	}
}
