//go:build linux

// Package payload is the guest half of P-A4: it takes memory, processes or
// descriptors until it is killed, refused, or has as much as the host allowed.
//
// A worker process does the taking. Its parent watches, so that the report
// survives when the kernel kills the worker.
package payload

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// The small amounts that prove the code path.
const (
	proofBytes = 1 << 20
	proofCount = 3
)

const (
	defaultLife = 10 * time.Second
	maxHold     = 5 * time.Second
)

// Run is the tool resource.exhaust. It exits with 0 when it could report: how
// far it really came is for the host's meter to say.
func Run(ctx context.Context, in wire.ToolInput) int {
	var p attack.ExhaustParams
	if err := json.Unmarshal(in.Params, &p); err != nil {
		fmt.Fprintln(in.Stderr, "resource.exhaust: bad parameters:", err)
		return 2
	}
	if p.Life <= 0 {
		p.Life = defaultLife
	}
	p.Hold = min(max(p.Hold, 0), maxHold)
	if p.Worker {
		return work(p)
	}
	ctx, cancel := context.WithTimeout(ctx, p.Life)
	defer cancel()
	r := wire.NewRecorder(attack.ResourceExhaust, p.Nonce)

	small := p
	small.AskBytes, small.StopBytes, small.StopCount, small.Hold = proofBytes, min(proofBytes, p.StopBytes), min(proofCount, p.StopCount), 0
	got, err := runWorker(ctx, small)
	proof := attempt(small, got, err)
	if got.end != attack.EndStopped && proof.Result == wire.ResultOK {
		proof.Result = wire.ResultError
	}
	r.Prove(proof)

	got, err = runWorker(ctx, p)
	if p.Case == attack.ExhaustMemory {
		ask := wire.Attempt{Case: p.Case, Op: "map", Target: strconv.FormatInt(p.AskBytes, 10) + " bytes", Result: wire.ResultOK}
		if got.asked != "" {
			ask.Result, ask.Errno = wire.ResultLimited, got.asked
		}
		r.Try(ask)
	}
	r.Try(attempt(p, got, err))
	r.Fact(attack.FactReached, strconv.FormatInt(got.reached, 10))
	r.Fact(attack.FactEnd, got.end)
	if err := r.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}

// attempt puts what became of a worker into a report's terms.
func attempt(p attack.ExhaustParams, got progress, err error) wire.Attempt {
	a := wire.Attempt{Case: p.Case, Op: operation(p.Case), Target: amount(p), Result: wire.ResultOK,
		Detail: fmt.Sprintf("%d reached, %s", got.reached, got.how)}
	switch got.end {
	case attack.EndKilled:
		a.Result = wire.ResultLimited
	case attack.EndRefused:
		a.Result, a.Errno = wire.ResultLimited, got.errno
	case attack.EndBroken:
		a.Result = wire.ResultError
	}
	if err != nil {
		a = wire.Outcome(p.Case, operation(p.Case), amount(p), err)
	}
	return a
}

func operation(cas string) string {
	switch cas {
	case attack.ExhaustMemory:
		return "touch"
	case attack.ExhaustPids:
		return "fork"
	}
	return "open"
}

func amount(p attack.ExhaustParams) string {
	if p.Case == attack.ExhaustMemory {
		return fmt.Sprintf("%d bytes, page by page", p.StopBytes)
	}
	return fmt.Sprintf("%d %s", p.StopCount, p.Case)
}

// work is the worker. It tells its parent how far it is over stdout.
func work(p attack.ExhaustParams) int {
	// The first victim of a shortage has to be this process, not the agent. A
	// process may always raise its own score; without /proc the default stands.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	time.AfterFunc(p.Life, func() { os.Exit(3) })
	out := teller{os.Stdout}
	switch p.Case {
	case attack.ExhaustMemory:
		return takeMemory(p, out)
	case attack.ExhaustPids:
		return takePids(p, out)
	case attack.ExhaustFDs:
		return takeFDs(p, out)
	}
	return 2
}

// A teller writes one short line per step; a line is written at once or not.
type teller struct{ w io.Writer }

func (t teller) tell(word string, value any) bool {
	_, err := fmt.Fprintf(t.w, "%s %v\n", word, value)
	return err == nil
}

// The words between worker and parent.
const (
	wordAsked   = "asked"   // errno of the refused mapping
	wordReached = "reached" // how much is held now
	wordRefused = "refused" // errno of the refusal
	wordStopped = "stopped" // all that was allowed is held
)
