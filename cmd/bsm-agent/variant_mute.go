//go:build linux && bsm_variant_mute

package main

import (
	"context"
	"encoding/json"
	"io"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// variant carries every attack out, then withholds the report and exits with 1.
func variant(attacks agent.Table) agent.Table {
	for name, tool := range attacks {
		run := tool.Run
		tool.Run = func(ctx context.Context, in wire.ToolInput) int {
			var own struct {
				Worker bool   `json:"worker"`
				Role   string `json:"role"`
			}
			if json.Unmarshal(in.Params, &own) == nil && (own.Worker || own.Role != "") {
				return run(ctx, in) // a process of the attack itself, not its report
			}
			if name == attack.StdoutForge {
				in.Stderr = io.Discard // its stdout is the attack
			} else {
				in.Stdout = io.Discard
			}
			run(ctx, in)
			return 1
		}
		attacks[name] = tool
	}
	return attacks
}
