package mock

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// beatEvery is a survivor's period, and spinShare what it uses of a core between
// its beats.
const (
	beatEvery = time.Millisecond
	spinShare = 4 // a quarter
)

// bombs are the survivors of a world. What they do follows from the clock alone,
// so that a busy host does not make them look dead.
type bombs struct {
	mu sync.Mutex
	m  map[string]*bomb
	// spent is the processor time of those that were forgotten.
	spent time.Duration
}

type bomb struct {
	began time.Time
	mu    sync.Mutex
	end   time.Time
}

// light starts a survivor that lives as long as ctx, at most for life.
func (b *bombs) light(ctx context.Context, token string, life time.Duration) *bomb {
	now := time.Now()
	s := &bomb{began: now, end: now.Add(life)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.m == nil {
		b.m = map[string]*bomb{}
	}
	b.m[token] = s
	context.AfterFunc(ctx, s.kill)
	return s
}

// kill ends a survivor now, if it is alive.
func (s *bomb) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Before(s.end) {
		s.end = now
	}
}

// lived is how long it has lived so far, and whether it is alive.
func (s *bomb) lived() (d time.Duration, alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Before(s.end) {
		return now.Sub(s.began), true
	}
	return s.end.Sub(s.began), false
}

// beats begin with the first, at once.
func (s *bomb) beats() int {
	d, _ := s.lived()
	return 1 + int(d/beatEvery)
}

func (b *bombs) find(token string) *bomb {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.m[token]
}

// look returns how many survivors are alive, and the simulated processor time of
// all that ever were.
func (b *bombs) look() (alive int, spent time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	spent = b.spent
	for _, s := range b.m {
		d, lives := s.lived()
		spent += d / spinShare
		if lives {
			alive++
		}
	}
	return alive, spent
}

// stop ends and forgets all survivors.
func (b *bombs) stop() {
	b.mu.Lock()
	for _, s := range b.m {
		s.kill()
	}
	b.mu.Unlock()
	_, spent := b.look()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.m, b.spent = nil, spent
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
			sleep(ctx, 2*beatEvery)
			s.kill()
			a := wire.Attempt{Case: b.Mode, Op: "beat", Target: "survivor", Result: wire.ResultOK}
			if s.beats() < 2 {
				a.Result = wire.ResultError
			}
			rec.Prove(a)
		}
	case attack.BombExplode:
		if len(p.Bombs) == 0 {
			return exitUsage
		}
		s := w.bombs.light(ctx, p.Bombs[0].Token, p.Life)
		if !sleep(ctx, p.Run) {
			s.kill() // dead before the agent says so
		}
		return 0
	case attack.BombRead:
		for _, b := range p.Bombs {
			rec.Prove(wire.Attempt{Case: b.Mode, Op: "beat", Target: "a counter inside", Result: wire.ResultOK})
			a := wire.Attempt{Case: b.Mode, Op: "beat", Result: wire.ResultAbsent}
			if s := w.bombs.find(b.Token); s != nil {
				a.Result, a.Detail = wire.ResultOK, strconv.Itoa(s.beats())
			}
			rec.Try(a)
		}
	default:
		return exitUsage
	}
	return report(in, rec)
}
