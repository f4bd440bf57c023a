package timebomb

import (
	"bytes"
	"context"
	"log/slog"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// world is a sandbox whose deadline, survivors, meter and honesty a test
// chooses. Its survivors are real host processes when inside is set, and
// simulated guest processes otherwise.
type world struct {
	backends.Sandbox
	inside bool
	keep   bool // the deadline kills nothing
	accel  string
	// hooks; nil does the honest thing
	ends  func(mode string, deadline time.Duration) (time.Duration, error) // when and how a bomb's call ends
	beats func(honest int64) int64
	exec  func(p attack.TimeBombParams, e backends.Execution) (backends.Execution, error)
	cpu   func(honest time.Duration) time.Duration
	dud   bool // the bomb never starts
	stays bool // Close leaves the survivors

	start time.Time
	mu    sync.Mutex
	lives map[string]*survivor
}

type survivor struct {
	born, died time.Time
	cmd        *exec.Cmd
}

func newWorld(t *testing.T, inside bool) *world {
	w := &world{inside: inside, start: time.Now(), lives: map[string]*survivor{}}
	t.Cleanup(func() { w.killAll() })
	return w
}

func (w *world) InsideIsHost() bool { return w.inside }

func (w *world) HostPIDs(context.Context) ([]int, error) { return nil, nil }

func (w *world) Provenance() backends.Provenance { return backends.Provenance{Accelerator: w.accel} }

func (w *world) Close() error {
	if !w.stays {
		w.killAll()
	}
	return nil
}

func (w *world) killAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.lives {
		s.kill()
	}
}

func (s *survivor) kill() {
	if !s.died.IsZero() {
		return
	}
	s.died = time.Now()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

func (s *survivor) age() time.Duration {
	if s.died.IsZero() {
		return time.Since(s.born)
	}
	return s.died.Sub(s.born)
}

func (w *world) Usage(context.Context) (backends.Usage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	used := time.Since(w.start) / 100
	for _, s := range w.lives {
		used += s.age() / 4
	}
	if w.cpu != nil {
		used = w.cpu(used)
	}
	return backends.Usage{CPUTime: used}, nil
}

func (w *world) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	p := inv.Params.(attack.TimeBombParams)
	r := wire.NewRecorder(attack.TimeBomb, p.Nonce)
	switch p.Do {
	case attack.BombExplode:
		err := w.explode(ctx, p.Bombs[0], inv.Deadline)
		if w.exec != nil {
			return w.exec(p, backends.Execution{})
		}
		return backends.Execution{}, err
	case attack.BombProve:
		if w.inside {
			time.Sleep(50 * time.Millisecond) // as long as a few processes take: it sets the pace
		}
		for _, b := range p.Bombs {
			r.Prove(wire.Outcome(b.Mode, "survive", "", nil))
		}
	case attack.BombRead:
		for _, b := range p.Bombs {
			r.Prove(wire.Outcome(b.Mode, "beat", "", nil))
			n := w.count(b.Token)
			if w.beats != nil {
				n = w.beats(n)
			}
			if n > 0 {
				r.Try(wire.Attempt{Case: b.Mode, Op: "beat", Result: wire.ResultOK, Detail: strconv.FormatInt(n, 10)})
			}
		}
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		return backends.Execution{}, err
	}
	e := backends.Execution{Stdout: backends.NewText(b.Bytes())}
	if w.exec != nil {
		return w.exec(p, e)
	}
	return e, nil
}

func (w *world) count(token string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.lives[token]; s != nil {
		return 1 + int64(s.age()/time.Millisecond)
	}
	return 0
}

func (w *world) explode(ctx context.Context, b attack.Bomb, deadline time.Duration) error {
	if !w.dud {
		s := &survivor{born: time.Now()}
		if w.inside {
			s.cmd = exec.Command("sleep", "30")
			s.cmd.Args[0] = attack.BombArg(b.Token)
			if err := s.cmd.Start(); err != nil {
				return err
			}
		}
		w.mu.Lock()
		w.lives[b.Token] = s
		w.mu.Unlock()
	}
	d, err := deadline, error(&backends.ToolTimeoutError{Tool: attack.TimeBomb, Deadline: deadline})
	if w.ends != nil {
		d, err = w.ends(b.Mode, deadline)
	}
	sleep(ctx, d)
	if !w.keep && !w.dud {
		w.mu.Lock()
		w.lives[b.Token].kill()
		w.mu.Unlock()
	}
	return err
}

type change func(sb, open *world, env *probes.Env)

func try(t *testing.T, inside bool, changes ...change) probes.Outcome {
	t.Helper()
	sb, ctl := newWorld(t, inside), newWorld(t, inside)
	ctl.keep = true
	env := &probes.Env{Sandbox: sb, Log: slog.New(slog.DiscardHandler)}
	env.Open = func(_ context.Context, o probes.OpenOptions) (probes.Target, error) {
		require.True(t, o.KeepTree)
		require.Positive(t, o.Pids, "the control has a fuse")
		return ctl, nil
	}
	for _, f := range changes {
		f(sb, ctl, env)
	}
	out, err := run(t.Context(), env)
	require.NoError(t, err)
	return out
}
