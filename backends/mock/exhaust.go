package mock

import (
	"context"
	"strconv"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// looks is how often the host's meter has to have seen a peak before the tool
// lets go of it.
const looks = 2

func (w *world) usage() backends.Usage {
	u := w.meter.read(true)
	alive, spent := w.bombs.look()
	u.Tasks += alive
	u.CPUTime += spent
	return u
}

// exhaust moves the simulated meter: up to the limit and no further, or with
// the leak as far as it was told to go.
func (w *world) exhaust(ctx context.Context, in wire.ToolInput) int {
	var p attack.ExhaustParams
	if !params(in, &p) {
		return exitUsage
	}
	var want, limit int64
	var apply func(u *backends.Usage, n int64)
	refused := attack.EndRefused
	switch p.Case {
	case attack.ExhaustMemory:
		want, limit, refused = min(p.AskBytes, p.StopBytes), w.limits.MemoryBytes-baseMemory, attack.EndKilled
		apply = func(u *backends.Usage, n int64) { u.MemoryBytes += n }
	case attack.ExhaustPids:
		want, limit = int64(p.StopCount), int64(w.limits.Pids-baseTasks)
		apply = func(u *backends.Usage, n int64) { u.Tasks += int(n) }
	case attack.ExhaustFDs:
		want, limit = int64(p.StopCount), int64(w.limits.OpenFiles-baseFDs)
		apply = func(*backends.Usage, int64) {}
		if w.limits.OpenFiles == 0 {
			limit = want
		}
	default:
		return complain(in, "no such case")
	}
	rec := wire.NewRecorder(attack.ResourceExhaust, p.Nonce)
	rec.Prove(wire.Attempt{Case: p.Case, Op: "take", Target: "one", Result: wire.ResultOK})
	end := attack.EndStopped
	if want > limit && !w.leaks.crosses(leakLimits) {
		want, end = limit, refused
	}
	w.meter.change(func(u *backends.Usage) {
		apply(u, want)
		switch end {
		case attack.EndKilled:
			u.Kills++
		case attack.EndRefused:
			u.Refusals++
		}
	})
	w.meter.awaitReads(ctx.Done(), looks, p.Hold)
	w.meter.change(func(u *backends.Usage) { apply(u, -want) })
	a := wire.Attempt{Case: p.Case, Op: "take", Target: "simulated", Result: wire.ResultOK, Detail: strconv.FormatInt(want, 10)}
	if end != attack.EndStopped {
		a.Result = wire.ResultLimited
	}
	rec.Try(a)
	rec.Fact(attack.FactReached, strconv.FormatInt(want, 10))
	rec.Fact(attack.FactEnd, end)
	return report(in, rec)
}
