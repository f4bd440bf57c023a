package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one line of the host's process table.
type process struct {
	pid, ppid int
	state     byte
	start     uint64
}

func (p process) dead() bool    { return p.state == 'Z' || p.state == 'X' }
func (p process) stopped() bool { return p.state == 'T' || p.state == 't' || p.dead() }

type tree map[int]process

func (t tree) living() []int {
	var out []int
	for pid, p := range t {
		if !p.dead() {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// parse reads a /proc/PID/stat line. The command name may contain anything, so
// fields are counted from the last ')'.
func parse(pid int, b []byte) (process, error) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return process{}, fmt.Errorf("pid %d: unexpected stat line", pid)
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	start, err2 := strconv.ParseUint(string(f[19]), 10, 64)
	return process{pid: pid, ppid: ppid, state: f[0][0], start: start}, errors.Join(err1, err2)
}

func read(pid int) (process, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	return parse(pid, b)
}

func startTime(pid int) (uint64, error) {
	p, err := read(pid)
	return p.start, err
}

// snapshot reads the whole process table.
func snapshot() (tree, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	t := tree{}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, err := read(pid); err == nil { // else gone meanwhile
				t[pid] = p
			}
		}
	}
	return t, nil
}

// under returns root and what descends from it.
func (t tree) under(root int) tree {
	children := map[int][]int{}
	for pid, p := range t {
		children[p.ppid] = append(children[p.ppid], pid)
	}
	out := tree{}
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		pid := queue[0]
		if p, ok := t[pid]; ok {
			if _, seen := out[pid]; !seen {
				out[pid] = p
				queue = append(queue, children[pid]...)
			}
		}
	}
	return out
}

// Descendants lists root and the living processes that descend from it.
func Descendants(root int) ([]int, error) {
	t, err := snapshot()
	if err != nil {
		return nil, err
	}
	return t.under(root).living(), nil
}

// family lists root and the living that descend from it by the kernel's lists of children,
// without a walk over all of /proc, where it keeps them. They are complete while
// nobody in the tree ends.
func family(root int) ([]int, error) {
	out := []int{root}
	for i := 0; i < len(out); i++ {
		lists, err := filepath.Glob("/proc/" + strconv.Itoa(out[i]) + "/task/*/children")
		if err != nil {
			return nil, err
		}
		if i == 0 && len(lists) == 0 { // gone, or no such lists
			return Descendants(root)
		}
		for _, list := range lists {
			b, err := os.ReadFile(list)
			if err != nil {
				continue // the thread ended; its children are another's now
			}
			for f := range strings.FieldsSeq(string(b)) {
				pid, err := strconv.Atoi(f)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", list, err)
				}
				out = append(out, pid)
			}
		}
	}
	return slices.DeleteFunc(out, func(pid int) bool {
		p, err := read(pid)
		return err != nil || p.dead()
	}), nil
}

// members are what descends from the child, while it is there, and what
// carries its tag and is not older than it.
func (c *Child) members() (tree, error) {
	all, err := snapshot()
	if err != nil {
		return nil, err
	}
	out := tree{}
	if p, ok := all[c.PID()]; ok && p.start == c.start {
		out = all.under(c.PID())
	}
	tag := []byte("\x00" + TagEnv + "=" + c.tag + "\x00")
	for pid, p := range all {
		if _, in := out[pid]; in || p.start < c.start || pid == os.Getpid() || p.dead() {
			continue
		}
		env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err == nil && bytes.Contains(append([]byte{0}, env...), tag) {
			out[pid] = p
		}
	}
	return out, nil
}

const (
	// freezeRounds bounds how often a tree is stopped before it is killed; a
	// fork bomb stands still after a few.
	freezeRounds = 8
	// killLimit ends a hopeless attempt.
	killLimit = 10 * time.Second
)

// killTree stops the members until none runs, kills them, and looks again. It
// goes on when ctx has ended: a cancelled boot has to be cleaned up after too.
func (c *Child) killTree(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer cancel()
	known := tree{}
	for {
		calm := 0
		for range freezeRounds {
			m, err := c.members()
			if err != nil {
				return err
			}
			for pid, p := range m {
				known[pid] = p
			}
			if stopAll(m) {
				calm = 0
			} else if calm++; calm == 2 {
				// Twice: a look lists what there is before it reads who runs, so
				// a fork in between is missed by one look, not by the next.
				break
			}
		}
		left := 0
		for pid, p := range known {
			now, err := read(pid)
			if err != nil || now.start != p.start || now.dead() {
				delete(known, pid)
				continue
			}
			left++
			signal(p, unix.SIGKILL)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes of pid %d could not be killed: %w", left, c.PID(), ctx.Err())
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// stopAll reports whether anything still ran.
func stopAll(m tree) bool {
	ran := false
	for _, p := range m {
		if !p.stopped() {
			ran = true
			signal(p, unix.SIGSTOP)
		}
	}
	return ran
}

// signal signals exactly the process that was seen. Whether it worked shows in
// the next look.
func signal(p process, sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if start, err := startTime(p.pid); err == nil && start == p.start {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// RSS sums the resident memory of pids in bytes, counts their threads and adds
// up their processor time. Shared pages count once for each process.
func RSS(pids []int) (bytes int64, tasks int, cpu time.Duration) {
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue // gone meanwhile
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) < 22 {
			continue
		}
		n := func(i int) int64 { v, _ := strconv.ParseInt(f[i], 10, 64); return v }
		bytes += n(21) * int64(os.Getpagesize())
		tasks += int(n(17))
		cpu += time.Duration(n(11)+n(12)+n(13)+n(14)) * 10 * time.Millisecond // USER_HZ is 100
	}
	return bytes, tasks, cpu
}
