//go:build linux && bsm_variant_hostile

package main

import (
	"context"
	"errors"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/hostiletest"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// variant reports hostile texts wherever a report has room for one, properly
// bound, and prints 16 MiB of NUL beside it. Where a tool has the message channel,
// it sends the greatest frames that there are.
func variant(attacks agent.Table) agent.Table {
	for name, tool := range attacks {
		tool.Run = func(_ context.Context, in wire.ToolInput) int {
			nonce, cases := asked(in.Params)
			rec := wire.NewRecorder(in.Name, nonce)
			corpus := hostiletest.Corpus()
			for i, s := range corpus {
				text := strings.ToValidUTF8(string(s.Bytes), "\ufffd") // as JSON has it, which the binding hashes
				a := wire.Attempt{Case: text, Op: text, Target: text, Result: wire.Result(text), Errno: text, Detail: text, Data: s.Bytes}
				rec.Try(a)
				rec.Try(wire.Outcome(text, text, text, errors.New(text)))
				if len(cases) > 0 {
					a.Case = cases[i%len(cases)]
					rec.Prove(wire.Outcome(a.Case, text, text, nil))
					rec.Try(a)
				}
				rec.Fact(s.Name+text, text)
			}
			report, noise := in.Stdout, in.Stderr
			if in.Name == attack.StdoutForge {
				report, noise = noise, report
			}
			if in.Channel != nil {
				nul := make([]byte, wire.MaxFrame)
				_ = wire.WriteFrame(in.Channel, nul)
				head, tail := `{"type":"ToolResult","command_id":"x","exit_code":0,"stderr":"","evidence_hash":"","stdout":"`, `"}`
				_ = wire.WriteFrame(in.Channel, []byte(head+strings.Repeat(" ", wire.MaxFrame-len(head)-len(tail))+tail))
			}
			_ = rec.Write(report)
			chunk := make([]byte, 1<<20)
			for range 16 {
				_, _ = noise.Write(chunk)
			}
			return 0
		}
		attacks[name] = tool
	}
	return attacks
}
