package mock

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const hashPrefix = "sha256:"

// baseFDs is how many descriptors the simulated agent has open.
const baseFDs = 6

// world is the simulated inside: a read-only disk, a writable overlay, a few
// processes, a meter.
type world struct {
	limits backends.Limits
	leaks  leaks

	mu       sync.Mutex
	disk     []byte
	snapshot []byte
	overlay  map[string][]byte
	fds      int
	vmm      string
	noops    int

	meter meter
	bombs bombs
}

// files are on the read-only disk.
var files = map[string]string{
	"/etc/hostname": "mock\n",
	"/etc/passwd":   "root:x:0:0:root:/root:/sbin/nologin\n",
	"/etc/shadow":   "root:!:20000::::::\n",
}

var fileNames = slices.Sorted(maps.Keys(files))

func newWorld(l backends.Limits, k leaks) *world {
	w := &world{limits: l, leaks: k, disk: newDisk(), snapshot: []byte("mock snapshot"),
		overlay: map[string][]byte{}, fds: baseFDs, vmm: integrity.StateRunning}
	w.meter.init()
	return w
}

func newDisk() []byte {
	d := append(make([]byte, 0, 256), "mock disk"...)
	for _, name := range fileNames {
		d = append(append(d, name...), files[name]...)
	}
	return d
}

// close ends whatever a leak left running.
func (w *world) close() { w.bombs.stop() }

// restore brings back the overlay and the processes of the golden state. The
// disk, the snapshot and the VMM are what a reset restores from.
func (w *world) restore() {
	w.bombs.stop()
	w.meter.reset()
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.overlay)
}

func (w *world) write(path string, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.overlay[path] = b
}

func (w *world) read(path string) ([]byte, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b, ok := w.overlay[path]; ok {
		return b, true
	}
	s, ok := files[path]
	return []byte(s), ok
}

func (w *world) remove(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.overlay, path)
}

func (w *world) exists(path string) bool {
	_, ok := w.read(path)
	return ok
}

func (w *world) list(dir string) []string {
	prefix := strings.TrimSuffix(dir, "/") + "/"
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, m := range []func(func(string) bool){maps.Keys(w.overlay), maps.Keys(files)} {
		for path := range m {
			if name, ok := strings.CutPrefix(path, prefix); ok && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// fsHash covers the disk, the snapshot and the overlay.
func (w *world) fsHash() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := sha256.New()
	field := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	field(w.disk)
	field(w.snapshot)
	paths := make([]string, 0, 8) // most often there are few, or none
	for path := range w.overlay {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		field([]byte(path))
		field(w.overlay[path])
	}
	var text [len(hashPrefix) + 2*sha256.Size]byte
	copy(text[:], hashPrefix)
	var sum [sha256.Size]byte
	hex.Encode(text[len(hashPrefix):], h.Sum(sum[:0]))
	return string(text[:])
}

func (w *world) vmmState() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.vmm
}

// OpenFDCount answers the agent's query.
func (w *world) OpenFDCount() (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fds, nil
}

// MemUsage answers the agent's query.
func (w *world) MemUsage() (wire.MemUsage, error) {
	u := w.meter.read(false)
	return wire.MemUsage{TotalBytes: w.limits.MemoryBytes, AvailableBytes: max(0, w.limits.MemoryBytes-u.MemoryBytes)}, nil
}

// Processes answers the agent's query: nothing of the host is in the list.
func (w *world) Processes(int) (wire.ProcessList, error) {
	list := wire.ProcessList{Processes: []wire.Process{{PID: 1, Comm: "mock-agent"}}}
	alive, _ := w.bombs.look()
	for n := range alive {
		list.Processes = append(list.Processes, wire.Process{PID: 2 + n, Comm: "mock-bomb"})
	}
	return list, nil
}

// Reset answers a reset signal: the mock has neither clock nor entropy pool.
func (w *world) Reset(wire.ResetSignal) ([]string, error) { return nil, nil }

// meter is the simulated consumption as the host would see it.
type meter struct {
	mu      sync.Mutex
	usage   backends.Usage
	reads   int
	changed chan struct{}
}

const (
	baseMemory = 8 << 20
	baseTasks  = 4
)

func (m *meter) init() {
	m.changed = make(chan struct{})
	m.usage = backends.Usage{MemoryBytes: baseMemory, PeakBytes: baseMemory, Tasks: baseTasks, Method: "simulated"}
}

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usage.MemoryBytes, m.usage.Tasks = baseMemory, baseTasks
}

// read returns the usage; host says that it is the host who looks.
func (m *meter) read(host bool) backends.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	if host {
		m.reads++
		close(m.changed)
		m.changed = make(chan struct{})
	}
	return m.usage
}

func (m *meter) change(f func(u *backends.Usage)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.usage)
	m.usage.PeakBytes = max(m.usage.PeakBytes, m.usage.MemoryBytes)
}

// awaitReads waits until the host has looked n more times, at most for d.
func (m *meter) awaitReads(done <-chan struct{}, n int, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	m.mu.Lock()
	want := m.reads + n
	m.mu.Unlock()
	for {
		m.mu.Lock()
		reads, changed := m.reads, m.changed
		m.mu.Unlock()
		if reads >= want {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-done:
			return
		}
	}
}
