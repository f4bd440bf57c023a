//go:build linux && bsm_variant_boast

package main

import (
	"context"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// variant tries nothing and reports that everything succeeded, properly bound.
func variant(attacks agent.Table) agent.Table {
	for name, tool := range attacks {
		tool.Run = func(_ context.Context, in wire.ToolInput) int {
			nonce, cases := asked(in.Params)
			rec := wire.NewRecorder(in.Name, nonce)
			for _, c := range cases {
				rec.Prove(wire.Outcome(c, "claim", "inside", nil))
				rec.Try(wire.Outcome(c, "claim", "outside", nil))
			}
			out := in.Stdout
			if in.Name == attack.StdoutForge {
				out = in.Stderr
			}
			_ = rec.Write(out)
			return 0
		}
		attacks[name] = tool
	}
	return attacks
}
