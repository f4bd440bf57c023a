//go:build linux && bsm_variant_boast

package main

import (
	"context"
	"encoding/json"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// variant tries nothing and reports that everything succeeded, properly bound.
func variant(attacks agent.Table) agent.Table {
	for name, tool := range attacks {
		tool.Run = func(_ context.Context, in wire.ToolInput) int {
			var params any
			if err := json.Unmarshal(in.Params, &params); err != nil {
				return 2
			}
			claims := map[string]string{}
			collect(params, claims)
			rec := wire.NewRecorder(in.Name, claims["nonce"])
			for text, key := range claims {
				if key == "case" || key == "mode" {
					rec.Prove(wire.Outcome(text, "claim", "inside", nil))
					rec.Try(wire.Outcome(text, "claim", "outside", nil))
				}
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

// collect gathers the texts under the keys that matter: each case or mode by its
// text, the nonce by its key.
func collect(v any, into map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if s, ok := x.(string); ok && (k == "case" || k == "mode") {
				into[s] = k
			} else if ok && k == "nonce" {
				into["nonce"] = s
			}
			collect(x, into)
		}
	case []any:
		for _, x := range v {
			collect(x, into)
		}
	}
}
