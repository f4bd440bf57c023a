package framepoison

import (
	"bytes"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// maxGrowth is how much the harness's memory may grow while it is fed poison.
const maxGrowth = 64 << 20

// meter samples the harness's own heap. It counts garbage too: what a decoder
// allocated and dropped was still allocated because a guest said so.
type meter struct {
	stopped atomic.Bool
	peak    atomic.Int64
	base    int64
	quit    chan struct{}
	done    sync.WaitGroup
}

const heapObjects = "/memory/classes/heap/objects:bytes"

func heap() int64 {
	s := []metrics.Sample{{Name: heapObjects}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

func startMeter() *meter {
	runtime.GC()
	m := &meter{base: heap(), quit: make(chan struct{})}
	m.done.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-m.quit:
				return
			case <-tick.C:
				m.sample()
			}
		}
	})
	return m
}

func (m *meter) sample() {
	if m.stopped.Load() {
		return
	}
	if now := heap() - m.base; now > m.peak.Load() {
		m.peak.Store(now)
	}
}

// stop silences the meter; a test does it to show that its silence is noticed.
func (m *meter) stop() { m.stopped.Store(true) }

// end stops sampling and returns the peak growth in bytes, and whether the meter
// still notices an allocation of the host's own.
func (m *meter) end() (growth int64, alive bool) {
	m.sample()
	close(m.quit)
	m.done.Wait()
	growth = m.peak.Load()
	const test = 8 << 20
	before := heap() - m.base
	m.peak.Store(0)
	b := make([]byte, test)
	m.sample()
	alive = m.peak.Load() >= before+test/2
	runtime.KeepAlive(b)
	return growth, alive
}

// tap keeps the first bytes that came from the guest.
type tap struct {
	mu      sync.Mutex
	b       []byte
	stopped bool
	changed chan struct{}
}

const tapBytes = 4 << 20

func newTap() *tap { return &tap{changed: make(chan struct{}, 1)} }

func (t *tap) add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	t.b = append(t.b, b[:min(len(b), tapBytes-len(t.b))]...)
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

func (t *tap) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
}

func (t *tap) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.b)
}

// saw waits until want has gone through the tap in one piece, the call that was
// to bring it is over, or d has passed.
func (t *tap) saw(want []byte, over <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		if bytes.Contains(t.bytes(), want) {
			return true
		}
		select {
		case <-t.changed:
		case <-timer.C:
			return false
		case <-over:
			return bytes.Contains(t.bytes(), want)
		}
	}
}

// channel is what the probe needs of either end.
type channel interface {
	backends.Executor
	backends.ChannelTapper
}
