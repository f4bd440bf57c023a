package proc

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// A World is the agent's real surroundings. It implements agent.World.
type World struct {
	Runner *Runner
	// Renew sets the clock and credits entropy after a restore and says what
	// it did. It is nil outside VM mode: there, the host's clock would move.
	Renew func(wire.ResetSignal) (applied []string, err error)
}

// OpenFDCount counts this process's descriptors without sockets, without those
// of calls in flight and without the one that reads the list.
func (w *World) OpenFDCount() (int, error) {
	// No fork and no scan may be half way, or its descriptors would count.
	w.Runner.steady.Lock()
	defer w.Runner.steady.Unlock()
	w.Runner.mu.Lock()
	defer w.Runner.mu.Unlock()
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd == int(d.Fd()) || w.Runner.fds[fd] {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + name); err == nil && !strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n, nil
}

// MemUsage reads /proc/meminfo.
func (w *World) MemUsage() (wire.MemUsage, error) {
	w.Runner.steady.RLock()
	defer w.Runner.steady.RUnlock()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return wire.MemUsage{}, err
	}
	return parseMeminfo(b)
}

func parseMeminfo(b []byte) (m wire.MemUsage, err error) {
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "MemTotal:":
			m.TotalBytes = kb << 10
		case "MemAvailable:":
			m.AvailableBytes = kb << 10
		}
	}
	if m.TotalBytes == 0 {
		return m, errors.New("/proc/meminfo names no MemTotal")
	}
	return m, nil
}

// maxArgs bounds the arguments shown per process, in bytes.
const maxArgs = 256

// Processes lists what /proc shows, by pid.
func (w *World) Processes(limit int) (wire.ProcessList, error) {
	w.Runner.steady.RLock()
	defer w.Runner.steady.RUnlock()
	l := wire.ProcessList{Processes: []wire.Process{}}
	all, err := pids()
	if err != nil {
		return l, err
	}
	slices.Sort(all)
	for _, pid := range all {
		if len(l.Processes) == limit {
			l.Truncated = true
			break
		}
		dir := "/proc/" + strconv.Itoa(pid)
		comm, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue
		}
		args, _ := os.ReadFile(dir + "/cmdline")
		l.Processes = append(l.Processes, wire.Process{PID: pid, Comm: clean(comm), Args: clean(args)})
	}
	return l, nil
}

// clean makes one bounded line of valid UTF-8 from a process's own choice.
func clean(b []byte) string {
	b = bytes.TrimRight(b, "\x00\n")
	b = bytes.ReplaceAll(b[:min(len(b), maxArgs)], []byte{0}, []byte{' '})
	return strings.ToValidUTF8(string(b), "?")
}

// Reset has Renew apply the signal in VM mode.
func (w *World) Reset(s wire.ResetSignal) ([]string, error) {
	if w.Renew == nil {
		return nil, nil
	}
	w.Runner.steady.RLock()
	defer w.Runner.steady.RUnlock()
	return w.Renew(s)
}

// BootID is the kernel's boot id, empty when it cannot be read.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
