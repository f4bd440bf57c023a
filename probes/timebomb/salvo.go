package timebomb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/procwatch"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	// maxWidth is how many bombs tick at once in a sandbox.
	maxWidth = 3
	// bombTasks is how many tasks one bomb may be made of (three processes, each
	// with the threads that the agent keeps in reserve), agentTasks how many there
	// are before the first.
	bombTasks  = 40
	agentTasks = 24
	// watchEvery is the period of the process watch.
	watchEvery = 10 * time.Millisecond
	// spinning is how much more of a core than idle shows a survivor. Each
	// uses about a quarter.
	spinning = 0.10
	// windows is how often the processor time is looked at before it counts as
	// not back at idle. A survivor lives much longer.
	windows = 4
	// corroborated is how much more of a core than idle confirms a survivor
	// that the guest itself shows beating.
	corroborated = 0.03
	// readTries is how often the beats are asked for.
	readTries = 3
)

// pace is how fast the bombs tick.
type pace struct {
	deadline time.Duration
	late     time.Duration // how long after its deadline a call may end
	window   time.Duration // of the processor meter and between two beats
	windows  int           // how many of them the processor time may take to come back
}

// paceFor leaves a bomb eight times as long as its proof took: time enough to
// start a survivor on a slow machine, and no second wasted on a fast one.
func paceFor(one time.Duration) pace {
	p := pace{deadline: min(max(8*one, 15*time.Millisecond), 1500*time.Millisecond).Round(time.Millisecond), window: 250 * time.Millisecond, windows: windows}
	if p.deadline < 40*time.Millisecond {
		p.window = 10 * time.Millisecond // a simulated world: no process starts that fast
	}
	return p
}

// widthFor keeps the bombs that tick at once below the sandbox's process limit:
// what that does is for P-A4 to test.
func widthFor(pids int) int {
	if pids == 0 {
		return maxWidth
	}
	return min(max((pids-agentTasks)/bombTasks, 1), maxWidth)
}

// scene is one end under watch: the sandbox or the open target.
type scene struct {
	env   *probes.Env
	t     backends.Executor
	watch *procwatch.Watch
	cpu   *cpuMeter
	// inside: what runs inside is a process of this host.
	inside bool
	// width is how many bombs tick at once.
	width int
}

func newScene(env *probes.Env, t backends.Executor) *scene {
	s := &scene{env: env, t: t, watch: &procwatch.Watch{}, width: widthFor(env.Policy.Limits.Pids)}
	if h, ok := t.(backends.HostProcesses); ok {
		s.inside = h.InsideIsHost()
	}
	if m, ok := t.(backends.Metered); ok {
		s.cpu = &cpuMeter{t: m}
	}
	return s
}

// shot is one bomb and what the host saw of it.
type shot struct {
	attack.Bomb
	err     error
	code    int
	elapsed time.Duration
	seen    bool // by the process watch, while the call ran
	alive   []int
	beats   [2]int64 // read twice after the call; 0 where there is none
}

func (s *shot) beating() bool { return s.beats[0] > 0 && s.beats[1] > s.beats[0] }

// salvo is one shot of every mode.
type salvo struct {
	pace
	inside bool
	shots  []shot
	// watchAlive: the process watch found this very process afterwards.
	watchAlive bool
	// Shares of a core: before, during, after. cpuErr says why there are none.
	idle, busy, after float64
	cpuErr            error
	// readErr says why the beats could not be read.
	readErr error
	// stalled is how late this host's own timers were meanwhile.
	stalled time.Duration
	// interrupted: the run was ended while the bombs ticked.
	interrupted bool
}

func (v *salvo) tokens() []string {
	var out []string
	for _, s := range v.shots {
		out = append(out, s.Token)
	}
	return out
}

func (s *scene) salvo(ctx context.Context, p pace) *salvo {
	v := &salvo{pace: p, inside: s.inside}
	for _, b := range fresh() {
		v.shots = append(v.shots, shot{Bomb: b})
	}
	if s.inside {
		s.env.Sabotage("process watch", s.watch.Stop)
	} else if s.cpu != nil {
		s.env.Sabotage("processor meter", s.cpu.stop)
		v.idle, v.cpuErr = s.cpu.share(ctx, p.window)
	} else {
		v.cpuErr = errors.New("the host has no meter for it")
	}
	from, err := s.clock(ctx, v)
	began := time.Now()
	late := stalls()
	s.fire(ctx, v)
	v.interrupted = ctx.Err() != nil
	v.stalled = late()
	to, err2 := s.clock(ctx, v)
	v.busy = float64(to-from) / float64(time.Since(began))
	v.cpuErr = errors.Join(v.cpuErr, err, err2)

	v.readErr = s.read(ctx, v, 0)
	s.settle(ctx, v)
	v.readErr = errors.Join(v.readErr, s.read(ctx, v, 1))
	if s.inside {
		found, err := s.watch.Find(v.tokens()...)
		for i := range v.shots {
			v.shots[i].alive = found[v.shots[i].Token]
		}
		v.watchAlive = err == nil && s.watch.Alive()
	}
	return v
}

func (s *scene) clock(ctx context.Context, v *salvo) (time.Duration, error) {
	if v.cpuErr != nil || s.inside {
		return 0, nil
	}
	return s.cpu.read(ctx)
}

// settle waits for one window, or for as many as the processor time takes to
// come back.
func (s *scene) settle(ctx context.Context, v *salvo) {
	if s.inside || v.cpuErr != nil {
		sleep(ctx, v.window)
		return
	}
	for range v.windows {
		if v.after, v.cpuErr = s.cpu.share(ctx, v.window); v.cpuErr != nil || v.after <= v.idle+spinning {
			return
		}
	}
}

// fire lets the bombs tick, a few at once, under the process watch.
func (s *scene) fire(ctx context.Context, v *salvo) {
	watching, stop := context.WithCancel(ctx)
	var watch, calls sync.WaitGroup
	seen := map[string]bool{}
	tokens := v.tokens() // before the calls write to their shots
	if s.inside {
		watch.Go(func() { s.look(watching, tokens, seen) })
	}
	slots := make(chan struct{}, s.width)
	for i := range v.shots {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			b := &v.shots[i]
			began := time.Now()
			e, err := s.t.Execute(ctx, backends.Invocation{Tool: attack.TimeBomb, Deadline: v.deadline,
				Params: attack.TimeBombParams{Nonce: wire.NewNonceString(), Do: attack.BombExplode, Bombs: []attack.Bomb{b.Bomb}, Run: life, Life: life}})
			b.elapsed, b.err, b.code = time.Since(began), err, e.ExitCode
		})
	}
	calls.Wait()
	stop()
	watch.Wait()
	for i := range v.shots {
		v.shots[i].seen = seen[v.shots[i].Token]
	}
}

func (s *scene) look(ctx context.Context, tokens []string, seen map[string]bool) {
	for ctx.Err() == nil {
		found, err := s.watch.Find(tokens...)
		if err != nil {
			return
		}
		for token := range found {
			seen[token] = true
		}
		sleep(ctx, watchEvery)
	}
}

// read fetches the survivors' counters, again if need be: an agent that
// survivors starve, or that does not wait for its tools, may lose an answer.
func (s *scene) read(ctx context.Context, v *salvo, which int) (err error) {
	for range readTries {
		if err = s.readOnce(ctx, v, which); err == nil || !errors.Is(err, wire.ErrNotAPayloadReport) {
			return err
		}
	}
	return err
}

// readOnce fetches the survivors' counters through another call.
func (s *scene) readOnce(ctx context.Context, v *salvo, which int) error {
	nonce := wire.NewNonceString()
	var bombs []attack.Bomb
	for _, b := range v.shots {
		bombs = append(bombs, b.Bomb)
	}
	e, err := s.t.Execute(ctx, backends.Invocation{Tool: attack.TimeBomb, Deadline: callDeadline,
		Params: attack.TimeBombParams{Nonce: nonce, Do: attack.BombRead, Bombs: bombs}})
	if err != nil {
		return fmt.Errorf("read the beats: %w", err)
	}
	r, err := wire.ParsePayloadReport(e.Stdout.Bytes(), attack.TimeBomb, nonce)
	if err != nil {
		s.env.Log.Debug("the beats could not be read", "exit_code", e.ExitCode, "stdout", e.Stdout, "stderr", e.Stderr)
		return fmt.Errorf("read the beats: exit code %d: %w", e.ExitCode, err)
	}
	for i := range v.shots {
		b := &v.shots[i]
		if !r.Proved(b.Mode) {
			return fmt.Errorf("read the beats: %w", wire.ErrNothingProved)
		}
		for _, a := range r.Tried(b.Mode) {
			if n, err := strconv.ParseInt(a.Detail, 10, 64); err == nil && a.Result == wire.ResultOK {
				b.beats[which] = n
			}
		}
	}
	return nil
}

// sweep ends what is alive of a salvo on this host, once it has been judged.
func (s *scene) sweep(v *salvo) {
	for _, b := range v.shots {
		if len(b.alive) > 0 {
			_ = s.watch.Kill(b.Token) // it ends by itself a little later
		}
	}
}

// cpuMeter reads a sandbox's processor time from outside.
type cpuMeter struct {
	t       backends.Metered
	stopped atomic.Bool
}

// stop silences the meter; a test does it to show that its silence is noticed.
func (m *cpuMeter) stop() { m.stopped.Store(true) }

func (m *cpuMeter) read(ctx context.Context) (time.Duration, error) {
	if m.stopped.Load() {
		return 0, errors.New("the processor meter was stopped")
	}
	u, err := m.t.Usage(ctx)
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return u.CPUTime, nil
}

// share measures the share of one core over a window.
func (m *cpuMeter) share(ctx context.Context, window time.Duration) (float64, error) {
	from, err := m.read(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	sleep(ctx, window)
	to, err := m.read(ctx)
	if err != nil {
		return 0, err
	}
	return float64(to-from) / float64(time.Since(began)), ctx.Err()
}

// stalls measures, until the function that it returns is called, how late a
// timer of this process fires at most: what a busy or suspended host adds to any
// call.
func stalls() (worst func() time.Duration) {
	const period = 10 * time.Millisecond
	quit, out := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		most := time.Duration(0)
		for last := time.Now(); ; {
			select {
			case <-quit:
				out <- max(most, time.Since(last)-period)
				return
			case <-time.After(period):
				most = max(most, time.Since(last)-period)
				last = time.Now()
			}
		}
	}()
	return func() time.Duration {
		close(quit)
		return <-out
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
