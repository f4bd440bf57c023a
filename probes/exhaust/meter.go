package exhaust

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// sampleEvery is the meter's period.
const sampleEvery = 5 * time.Millisecond

// reading is what the host's meter saw of one resource during one run.
type reading struct {
	base, peak int64
	// stops counts kills and refusals by the host's kernel during the run;
	// stopsSeen says whether the host could see any.
	stops     int64
	stopsSeen bool
	samples   int
	// alive: the meter answered once more after the payload was over.
	alive  bool
	method string
}

// meter samples a sandbox from outside while the payload runs.
type meter struct {
	t       metered
	p       plan
	ctx     context.Context
	cancel  context.CancelFunc
	done    sync.WaitGroup
	stopped atomic.Bool

	mu      sync.Mutex
	first   backends.Usage
	base    int64
	peak    int64
	samples int
}

// startMeter takes the first sample and keeps sampling until end.
func startMeter(ctx context.Context, t metered, p plan) (*meter, error) {
	u, err := t.Usage(ctx)
	if err != nil {
		return nil, err
	}
	m := &meter{t: t, p: p, first: u}
	m.ctx, m.cancel = context.WithCancel(ctx)
	m.base = m.value(u)
	m.peak = m.base
	m.done.Go(func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-m.ctx.Done():
				return
			case <-tick.C:
				m.sample(m.ctx)
			}
		}
	})
	return m, nil
}

func (m *meter) value(u backends.Usage) int64 {
	switch m.p.name {
	case attack.ExhaustMemory:
		return u.MemoryBytes
	case attack.ExhaustPids:
		return int64(u.Tasks)
	}
	return descriptors(m.ctx, m.t)
}

func (m *meter) sample(ctx context.Context) (backends.Usage, bool) {
	if m.stopped.Load() {
		return backends.Usage{}, false
	}
	u, err := m.t.Usage(ctx)
	if err != nil {
		return u, false
	}
	v := m.value(u)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peak = max(m.peak, v)
	m.samples++
	return u, true
}

// stop silences the meter; a test does it to show that its silence is noticed.
func (m *meter) stop() { m.stopped.Store(true) }

// end stops sampling and tests, with a last sample of the host's own, that the
// meter still answers.
func (m *meter) end(ctx context.Context) reading {
	m.cancel()
	m.done.Wait()
	m.ctx = ctx
	sampled := m.samples
	last, ok := m.sample(ctx)
	r := reading{base: m.base, peak: m.peak, samples: m.samples, alive: ok && sampled > 0, method: m.first.Method}
	if !ok {
		return r
	}
	switch m.p.name {
	case attack.ExhaustMemory:
		// The kernel's own high-water mark misses nothing between samples, but
		// covers more than this run unless it rose in it.
		if last.PeakBytes > m.first.PeakBytes {
			r.peak = max(r.peak, last.PeakBytes)
		}
		r.stops, r.stopsSeen = last.Kills-m.first.Kills, last.Kills >= 0 && m.first.Kills >= 0
	case attack.ExhaustPids:
		// A backend that cannot count refusals leaves zero.
		r.stops = last.Refusals - m.first.Refusals
		r.stopsSeen = last.Refusals > 0
	}
	return r
}

// descriptors is the largest number of descriptors that one process of t holds.
func descriptors(ctx context.Context, t any) int64 {
	h, ok := t.(backends.HostProcesses)
	if !ok {
		return 0
	}
	pids, err := h.HostPIDs(ctx)
	if err != nil {
		return 0
	}
	most := 0
	for _, pid := range pids {
		dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
		if err != nil {
			continue // gone meanwhile
		}
		names, _ := dir.Readdirnames(-1)
		_ = dir.Close()
		most = max(most, len(names))
	}
	return int64(most)
}
