package framepoison

import (
	"context"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// injected are the modes that are also sent the other way. A crash of the agent
// hurts only the sandbox itself, so a crossing here is of medium severity.
var injected = []string{attack.PoisonUTF8, attack.PoisonNested, attack.PoisonZero, attack.PoisonOversized, attack.PoisonTruncated}

// inject writes malformed bytes to the agent. The proof is a well-formed call
// that is written by the same raw path and whose answer the tap sees.
func inject(ctx context.Context, env *probes.Env, ch channel) []probes.Case {
	proved := rawCall(ctx, env, ch)
	var cases []probes.Case
	for _, mode := range injected {
		c := probes.Case{Name: "to-agent-" + mode, Required: true, Proved: proved, WitnessAlive: proved, Severity: probes.SeverityMedium}
		id := "inject-" + wire.NewNonceString()
		content := attack.PoisonBytes(mode, wire.NewNonceString(), id)
		c.Controlled = naiveBreaks(mode, content, id)
		if err := ch.Inject(ctx, content); err != nil {
			c.Doubt = "could not write to the agent: " + oneLine(err)
		} else {
			c.Attempted = true
			// The agent may wait for the rest of a frame; a new session has to
			// get through to it all the same.
			switch ok := recovers(ctx, ch, true); {
			case ok:
				c.Witness = "the agent refused them and answered the next call"
			case ctx.Err() != nil:
				c.Doubt = "the probe was ended before the agent could answer"
			default:
				c.Crossed, c.Witness = true, "the agent no longer answers"
			}
		}
		cases = append(cases, c)
		if c.Crossed || ctx.Err() != nil {
			break
		}
	}
	return cases
}

// rawCall dispatches a noop by raw bytes and waits for its id in what comes back.
func rawCall(ctx context.Context, env *probes.Env, ch channel) bool {
	t := newTap()
	stop := ch.Tap(t.add)
	defer stop()
	env.Sabotage("channel tap", t.stop)
	id := "raw-" + wire.NewNonceString()
	body, err := wire.Encode(wire.ToolDispatch{Type: wire.TypeToolDispatch, CommandID: id, Tool: "noop", Params: []byte("{}"),
		DeadlineMS: callDeadline.Milliseconds()})
	if err != nil {
		return false
	}
	var w frameBytes
	if err := wire.WriteFrame(&w, body); err != nil || ch.Inject(ctx, w) != nil {
		return false
	}
	return t.saw([]byte(id), ctx.Done(), 2*time.Second)
}

type frameBytes []byte

func (f *frameBytes) Write(b []byte) (int, error) { *f = append(*f, b...); return len(b), nil }
