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

// meter counts what the harness allocates. It counts what became garbage too:
// what a decoder allocated and dropped was still allocated because a guest said
// so. The count only grows, so nothing escapes between two looks at it, and no
// collection has to be forced to make it comparable; the heap cannot have grown
// by more.
type meter struct {
	stopped atomic.Bool
	base    int64
	last    int64
}

const heapAllocated = "/gc/heap/allocs:bytes"

func startMeter() *meter {
	m := &meter{}
	m.base = m.read()
	return m
}

// read returns the bytes allocated since the program began; a stopped meter
// returns what it read last.
func (m *meter) read() int64 {
	if !m.stopped.Load() {
		s := []metrics.Sample{{Name: heapAllocated}}
		metrics.Read(s)
		m.last = int64(s[0].Value.Uint64())
	}
	return m.last
}

// stop silences the meter; a test does it to show that its silence is noticed.
func (m *meter) stop() { m.stopped.Store(true) }

// end returns the growth in bytes, and whether the meter still notices an
// allocation of the host's own.
func (m *meter) end() (growth int64, alive bool) {
	growth = m.read() - m.base
	const test = 128 << 10 // too big for the stack, and over 32 KiB counted at once
	before := m.read()
	b := make([]byte, test)
	alive = m.read() >= before+test
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

// has reports whether want has gone through the tap in one piece.
func (t *tap) has(want []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Contains(t.b, want)
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
		if t.has(want) {
			return true
		}
		select {
		case <-t.changed:
		case <-timer.C:
			return false
		case <-over:
			return t.has(want)
		}
	}
}

// channel is what the probe needs of either end.
type channel interface {
	backends.Executor
	backends.ChannelTapper
}
