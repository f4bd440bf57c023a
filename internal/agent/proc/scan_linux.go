package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// A process is what /proc/PID/stat says about one.
type process struct {
	pid   int
	ppid  int
	state byte
	start uint64 // ticks since boot; with the pid it names a process for good
}

func (p process) dead() bool    { return p.state == 'Z' || p.state == 'X' }
func (p process) stopped() bool { return p.state == 'T' || p.state == 't' || p.dead() }

// readProcess returns false when pid is gone or unreadable.
func readProcess(pid int) (process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, b)
}

// parseStat takes the fields after the last parenthesis: the name before it is
// the process's own choice and may hold anything.
func parseStat(pid int, b []byte) (process, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return process{}, false
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return process{}, false
	}
	ppid, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	return process{pid: pid, ppid: ppid, state: f[0][0], start: start}, err1 == nil && err2 == nil
}

func startTime(pid int) uint64 {
	p, _ := readProcess(pid)
	return p.start
}

// pids lists /proc without sorting it.
func pids() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	out := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out, nil
}

// snapshot reads all processes once.
func snapshot() (map[int]process, error) {
	all, err := pids()
	if err != nil {
		return nil, err
	}
	ps := make(map[int]process, len(all))
	for _, pid := range all {
		if p, ok := readProcess(pid); ok {
			ps[pid] = p
		}
	}
	return ps, nil
}

// children lists the children of pid's first thread, which is the one that
// orphans are given to. Where the kernel keeps no such list it is empty.
func children(pid int) (out []int) {
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/task/" + strconv.Itoa(pid) + "/children")
	if err != nil {
		return nil
	}
	for _, f := range strings.Fields(string(b)) {
		if child, err := strconv.Atoi(f); err == nil {
			out = append(out, child)
		}
	}
	return out
}

// under returns the processes whose line of parents meets one of roots, the
// roots included.
func under(ps map[int]process, roots map[int]bool) map[int]process {
	in := map[int]bool{} // decided
	var decide func(pid, depth int) bool
	decide = func(pid, depth int) bool {
		if roots[pid] {
			return true
		}
		if known, ok := in[pid]; ok {
			return known
		}
		p, ok := ps[pid]
		// A snapshot is not one instant, so parents may seem to form a ring.
		if !ok || depth > len(ps) {
			return false
		}
		in[pid] = decide(p.ppid, depth+1)
		return in[pid]
	}
	out := map[int]process{}
	for pid, p := range ps {
		if decide(pid, 0) {
			out[pid] = p
		}
	}
	return out
}

// tagged reports whether pid was started with the call's tag.
func tagged(pid int, tag string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(b, []byte(TagEnv+"="+tag+"\x00"))
}
