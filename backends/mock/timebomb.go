package mock

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// beatEvery is the survivor's period.
const beatEvery = time.Millisecond

// bombs are the survivors of a world: goroutines that beat.
type bombs struct {
	mu sync.Mutex
	m  map[string]*bomb
	// spent is the simulated processor time of survivors that ended.
	spent time.Duration
}

type bomb struct {
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	beats  int
	alive  bool
	second chan struct{} // closed at the second beat
}

// light starts a survivor that lives as long as ctx, at most for life.
func (b *bombs) light(ctx context.Context, token string, life time.Duration) *bomb {
	ctx, cancel := context.WithTimeout(ctx, life)
	s := &bomb{cancel: cancel, done: make(chan struct{}), alive: true, second: make(chan struct{})}
	b.mu.Lock()
	if b.m == nil {
		b.m = map[string]*bomb{}
	}
	b.m[token] = s
	b.mu.Unlock()
	go func() {
		defer close(s.done)
		defer cancel()
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			s.beat()
			select {
			case <-tick.C:
			case <-ctx.Done():
				s.mu.Lock()
				s.alive = false
				s.mu.Unlock()
				return
			}
		}
	}()
	return s
}

func (s *bomb) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beats++; s.beats == 2 {
		close(s.second)
	}
}

func (s *bomb) state() (beats int, alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beats, s.alive
}

func (b *bombs) all() []*bomb {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*bomb, 0, len(b.m))
	for _, s := range b.m {
		out = append(out, s)
	}
	return out
}

func (b *bombs) beats(token string) (int, bool) {
	b.mu.Lock()
	s := b.m[token]
	b.mu.Unlock()
	if s == nil {
		return 0, false
	}
	n, _ := s.state()
	return n, true
}

// count is how many survivors are alive.
func (b *bombs) count() int {
	n := 0
	for _, s := range b.all() {
		if _, alive := s.state(); alive {
			n++
		}
	}
	return n
}

// burnt is the simulated processor time of all survivors: they spin between
// their beats.
func (b *bombs) burnt() time.Duration {
	b.mu.Lock()
	spent := b.spent
	b.mu.Unlock()
	for _, s := range b.all() {
		n, _ := s.state()
		spent += time.Duration(n) * beatEvery
	}
	return spent
}

// stop ends and forgets all survivors.
func (b *bombs) stop() {
	burnt := b.burnt()
	b.mu.Lock()
	old := b.m
	b.m, b.spent = nil, burnt
	b.mu.Unlock()
	for _, s := range old {
		s.cancel()
		<-s.done
	}
}

// timeBomb outstays its deadline. Its survivors end with its context, which is
// the mock's kill of the tree; with the leak nobody ends it.
func (w *world) timeBomb(ctx context.Context, in wire.ToolInput) int {
	var p attack.TimeBombParams
	if !params(in, &p) {
		return exitUsage
	}
	rec := wire.NewRecorder(attack.TimeBomb, p.Nonce)
	switch p.Do {
	case attack.BombProve:
		for _, b := range p.Bombs {
			s := w.bombs.light(ctx, b.Token, p.Life)
			a := wire.Attempt{Case: b.Mode, Op: "beat", Target: "survivor", Result: wire.ResultOK}
			select {
			case <-s.second:
			case <-s.done:
				a.Result = wire.ResultError
			}
			s.cancel()
			<-s.done
			rec.Prove(a)
		}
	case attack.BombExplode:
		if len(p.Bombs) == 0 {
			return exitUsage
		}
		s := w.bombs.light(ctx, p.Bombs[0].Token, p.Life)
		if !sleep(ctx, p.Run) {
			<-s.done
		}
		return 0
	case attack.BombRead:
		for _, b := range p.Bombs {
			rec.Prove(wire.Attempt{Case: b.Mode, Op: "beat", Target: "a counter inside", Result: wire.ResultOK})
			a := wire.Attempt{Case: b.Mode, Op: "beat", Result: wire.ResultAbsent}
			if n, ok := w.bombs.beats(b.Token); ok {
				a.Result, a.Detail = wire.ResultOK, strconv.Itoa(n)
			}
			rec.Try(a)
		}
	default:
		return exitUsage
	}
	return report(in, rec)
}
