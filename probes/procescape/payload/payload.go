//go:build linux

// Package payload is the guest half of P-A3: it tries to find, read, trace and
// signal canary processes of the host, after it did the same to a child of its
// own.
package payload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

var (
	// errOther: there is a process with that number, but it is not the canary.
	// It is left alone.
	errOther = errors.New("that number is another process here")
	// errNotSeen: no process shows the canary's id.
	errNotSeen = errors.New("no process with the canary's id")
	errMarker  = errors.New("another file")
)

// job is one run: the same functions work on canaries and on the own child.
type job struct {
	p      attack.ProcEscapeParams
	record func(wire.Attempt)
}

// Run is the tool proc.escape.
func Run(ctx context.Context, in wire.ToolInput) int {
	var p attack.ProcEscapeParams
	if err := json.Unmarshal(in.Params, &p); err != nil {
		fmt.Fprintln(in.Stderr, "proc.escape: bad parameters:", err)
		return 2
	}
	if p.Child != "" {
		return child(ctx, p)
	}
	// A child belongs to the thread that made it, and is handed on when that
	// thread ends; whoever it is handed to would take its stops from the tracer.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := wire.NewRecorder(attack.ProcEscape, p.Nonce)
	if err := prove(ctx, p, r.Prove); err != nil {
		r.Fact("proof", err.Error())
	}
	j := job{p: p, record: r.Try}
	j.processes()
	j.setns()
	j.shm()
	j.ports(virtioPorts(p.OwnPort))
	j.tty(ctx)
	j.init()
	for _, ns := range []string{"pid", "user", "net", "ipc", "mnt"} {
		if link, err := os.Readlink("/proc/self/ns/" + ns); err == nil {
			r.Fact("namespace "+ns, link)
		}
	}
	if mode, err := seccompMode(); err == nil {
		r.Fact(attack.ProcFilter, mode)
	}
	if err := r.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}

func seccompMode() (string, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", os.ErrNotExist
}

// processes does to each canary what its sub-case says.
func (j job) processes() {
	for _, way := range []struct {
		cas string
		try func(cas string, c attack.ProcCanary)
	}{
		{attack.ProcVisible, j.visible}, {attack.ProcVMRead, j.vmRead}, {attack.ProcGetfd, j.getfd},
		{attack.ProcPtrace, j.ptrace}, {attack.ProcPidfd, j.pidfd}, {attack.ProcSignal, j.signal},
	} {
		if c, ok := j.p.Canaries[way.cas]; ok {
			way.try(way.cas, c)
		}
	}
}

// try records one attempt.
func (j job) try(cas, op, target string, data []byte, err error) {
	a := wire.Outcome(cas, op, target, err)
	a.Data = data
	switch {
	case errors.Is(err, errOther), errors.Is(err, errNotSeen):
		a.Result = wire.ResultAbsent
	}
	j.record(a)
}

// isCanary reports whether pid shows the canary's id in its command line.
func isCanary(pid int, id string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && id != "" && strings.Contains(string(b), id)
}

// find lists the processes with the canary's id: at the number that the host
// gave, and by name.
func find(c attack.ProcCanary) []int {
	var out []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && isCanary(pid, c.ID) {
			out = append(out, pid)
		}
	}
	return out
}

// onCanary calls act on every process that is the canary for certain. Where
// there is none it says so, having asked the kernel with signal 0 about the
// host's number.
func (j job) onCanary(cas, op string, c attack.ProcCanary, act func(pid int) ([]byte, error)) {
	pids := find(c)
	for _, pid := range pids {
		data, err := act(pid)
		j.try(cas, op, "canary", data, err)
	}
	if len(pids) > 0 {
		return
	}
	err := kill0(c.PID)
	if err == nil {
		err = errOther
	}
	j.try(cas, "kill 0", "the canary's number", nil, err)
	j.try(cas, op, "by name", nil, errNotSeen)
}
