package exhaust

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// world is a sandbox whose kernel, meter and honesty a test chooses.
type world struct {
	backends.Sandbox
	memLimit, pidLimit int64 // enforced; 0 enforces none
	machine            bool
	taskGrowth         int                                       // what a machine's VMM grows by
	lie                func(p attack.ExhaustParams, f *facts)    // what the payload says instead
	do                 func(p attack.ExhaustParams) (skip bool)  // skip: nothing is really taken
	dead               func(p attack.ExhaustParams) (never bool) // the sandbox does not recover from p
	exec               func(e backends.Execution) (_ backends.Execution, err error)
	countKills         bool
	// cap stops the payload at this much memory without a kill being counted.
	cap      int64
	meterErr error

	mu     sync.Mutex
	usage  backends.Usage
	broken bool
	resets int
}

type facts struct {
	reached int64
	end     string
	proof   bool
	tried   bool
}

func newWorld() *world {
	return &world{memLimit: 128 << 20, pidLimit: 64, countKills: true,
		usage: backends.Usage{MemoryBytes: 8 << 20, Tasks: 12, Method: "fake"}}
}

func (w *world) IsMachine() bool { return w.machine }

func (w *world) Close() error { return nil }

func (w *world) Usage(context.Context) (backends.Usage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.usage, w.meterErr
}

func (w *world) Reset(context.Context) (backends.ResetState, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resets++
	w.broken = false
	return backends.ResetState{}, nil
}

func (w *world) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	w.mu.Lock()
	broken := w.broken
	w.mu.Unlock()
	if broken {
		return backends.Execution{}, backends.ErrClosed
	}
	if inv.Tool == "noop" {
		return backends.Execution{}, nil
	}
	p := inv.Params.(attack.ExhaustParams)
	f := facts{proof: true, tried: true}
	f.reached, f.end = w.take(ctx, p)
	if w.lie != nil {
		w.lie(p, &f)
	}
	if w.dead != nil && w.dead(p) {
		w.mu.Lock()
		w.broken = true
		w.mu.Unlock()
	}
	e := backends.Execution{Stdout: backends.NewText(report(p, f))}
	if w.exec != nil {
		return w.exec(e)
	}
	return e, nil
}

func report(p attack.ExhaustParams, f facts) []byte {
	r := wire.NewRecorder(attack.ResourceExhaust, p.Nonce)
	if f.proof {
		r.Prove(wire.Attempt{Case: p.Case, Result: wire.ResultOK})
	}
	if f.tried {
		r.Try(wire.Attempt{Case: p.Case, Result: wire.ResultLimited})
	}
	r.Fact(attack.FactReached, strconv.FormatInt(f.reached, 10))
	r.Fact(attack.FactEnd, f.end)
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// take moves the meter as the payload would, and keeps it there until it was
// sampled.
func (w *world) take(ctx context.Context, p attack.ExhaustParams) (int64, string) {
	if w.do != nil && w.do(p) {
		return 0, attack.EndRefused
	}
	w.mu.Lock()
	before := w.usage
	got, end := p.StopBytes, attack.EndStopped
	switch p.Case {
	case attack.ExhaustMemory:
		if w.memLimit > 0 && w.usage.MemoryBytes+got > w.memLimit {
			got, end = w.memLimit-w.usage.MemoryBytes, attack.EndKilled
			if w.countKills {
				before.Kills++
			}
		}
		if w.cap > 0 && w.usage.MemoryBytes+got > w.cap {
			got, end = w.cap-w.usage.MemoryBytes, attack.EndKilled
		}
		w.usage.MemoryBytes += got
	case attack.ExhaustPids:
		got = int64(p.StopCount)
		if w.pidLimit > 0 && int64(w.usage.Tasks)+got > w.pidLimit {
			got, end = w.pidLimit-int64(w.usage.Tasks), attack.EndRefused
			before.Refusals++
		}
		if w.machine {
			w.usage.Tasks += w.taskGrowth
		} else {
			w.usage.Tasks += int(got)
		}
	default:
		got, end = int64(p.StopCount), attack.EndStopped
	}
	if !w.countKills {
		before.Kills = -1
	}
	w.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(8 * sampleEvery):
	}
	w.mu.Lock()
	w.usage = before
	w.mu.Unlock()
	return got, end
}

func open() *world {
	w := newWorld()
	w.memLimit, w.pidLimit = 0, 0
	return w
}

type change func(sb, open *world, env *probes.Env)

func try(t *testing.T, changes ...change) probes.Outcome {
	t.Helper()
	sb, ctl := newWorld(), open()
	env := &probes.Env{Sandbox: sb, Log: slog.New(slog.DiscardHandler),
		Policy: policy.Policy{Limits: backends.Limits{MemoryBytes: 128 << 20, Pids: 64}}}
	env.Open = func(_ context.Context, o probes.OpenOptions) (probes.Target, error) {
		require.Positive(t, o.Pids, "the control has a fuse")
		return ctl, nil
	}
	for _, f := range changes {
		f(sb, ctl, env)
	}
	out, err := run(t.Context(), env, host{func() (int64, error) { return 8 << 30, nil }, 100 * time.Millisecond})
	require.NoError(t, err)
	return out
}

func byName(t *testing.T, out probes.Outcome, name string) probes.Case {
	t.Helper()
	for _, c := range out.Cases {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no sub-case %s", name)
	return probes.Case{}
}
