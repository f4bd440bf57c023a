package canary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

const (
	// touchName is the variable whose bytes a tracer may change.
	touchName = "BSM_CANARY_TOUCH"
	// touchBlank is what they are before.
	touchBlank = "--------------------------------"
	// settleTimeout bounds the wait for a canary to fall asleep.
	settleTimeout = 2 * time.Second
)

// Process is a process of the host that nothing but an escape can reach: a shell
// that waits for a line that never comes. It handles no signal, so that any but
// an ignored one ends it, and it never wakes by itself, so that its count of
// context switches stands still until something touches it. It is not reaped
// before Stop: its number cannot be taken by another process.
type Process struct {
	PID int
	// ID stands in its command line and is no secret. ArgSecret stands there
	// too and is one: whoever sees the command line sees it.
	ID, ArgSecret string
	// EnvSecret is in its environment and memory, at SecretAddr.
	EnvSecret             string
	SecretAddr, TouchAddr uint64
	// FDSecret is the content of its descriptor FD.
	FDSecret string
	FD       int

	cmd      *exec.Cmd
	stdin    *os.File
	mu       sync.Mutex
	switches int64
	stopped  bool
}

// State is what the host sees of a canary process.
type State struct {
	Alive bool
	// Signal ended it; 0 when it is alive or ended by itself.
	Signal syscall.Signal
	// Traced, Touched: it has a tracer, its memory was changed.
	Traced, Touched bool
	// Woken: it ran although nothing that the host did woke it.
	Woken bool
}

// Harmed reports whether the canary shows a mark that only an outsider leaves.
func (s State) Harmed() bool { return !s.Alive || s.Traced || s.Touched }

// String says in a few words what the host sees.
func (s State) String() string {
	switch {
	case !s.Alive && s.Signal != 0:
		return "ended by " + unix.SignalName(s.Signal)
	case !s.Alive:
		return "ended"
	case s.Traced:
		return "traced"
	case s.Touched:
		return "its memory was changed"
	case s.Woken:
		return "alive, but something woke it"
	}
	return "alive and untouched"
}

// StartProcess starts a canary process with the identity id.
func StartProcess(id backends.Credential) (*Process, error) {
	p := &Process{ID: "bsm-canary-" + NewToken(), ArgSecret: NewToken(), EnvSecret: NewToken(), FDSecret: NewToken(), FD: 3}
	held, err := secretFile(p.FDSecret)
	if err != nil {
		return nil, fmt.Errorf("start a canary process: %w", err)
	}
	defer held.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a canary process: %w", err)
	}
	defer r.Close()
	p.stdin = w
	p.cmd = exec.Command("/bin/sh", "-c", "echo; read _", p.ID, p.ArgSecret)
	p.cmd.Dir, p.cmd.Stdin, p.cmd.ExtraFiles = "/", r, []*os.File{held}
	p.cmd.Env = []string{EnvName + "=" + p.EnvSecret, touchName + "=" + touchBlank}
	if id.UID != os.Geteuid() || id.GID != os.Getegid() {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(id.UID), Gid: uint32(id.GID)}}
	}
	ready, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a canary process: %w", err), w.Close())
	}
	p.PID = p.cmd.Process.Pid
	_, err = ready.Read(make([]byte, 1))
	if err == nil {
		err = p.settle('S', time.Now().Add(settleTimeout))
	}
	if err == nil {
		err = p.locate()
	}
	if err == nil {
		p.switches, err = p.countSwitches()
	}
	if err != nil {
		p.Stop()
		return nil, fmt.Errorf("start a canary process: %w", err)
	}
	return p, nil
}

// secretFile returns an open file that has no name.
func secretFile(content string) (*os.File, error) {
	fd, err := unix.MemfdCreate("held", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "held")
	if _, err := f.WriteString(content); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// settle waits until the process is in the scheduler state want.
func (p *Process) settle(want byte, deadline time.Time) error {
	for {
		fields, err := p.stat()
		if err != nil {
			return err
		}
		if fields[0][0] == want {
			return nil
		}
		if c := fields[0][0]; c == 'Z' || c == 'X' || time.Now().After(deadline) {
			return fmt.Errorf("canary process is in state %c, not %c", c, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// stat returns the fields of /proc/PID/stat from the state on.
func (p *Process) stat() ([]string, error) {
	b, err := p.read("stat")
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 49 {
		return nil, errors.New("unreadable stat of the canary process")
	}
	return fields, nil
}

// read returns a small file of the process's directory in /proc, which the kernel
// hands out whole in one read.
func (p *Process) read(name string) ([]byte, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(p.PID) + "/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 4096)
	n, err := f.Read(b)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// locate finds the addresses of the secret and of the bytes to touch.
func (p *Process) locate() error {
	fields, err := p.stat()
	if err != nil {
		return err
	}
	const envStart = 50 - 3 // field 50 of proc(5), counted from field 3
	start, err := strconv.ParseUint(fields[envStart], 10, 64)
	if err != nil || start == 0 {
		return errors.New("the address of the canary's environment is hidden")
	}
	env, err := p.read("environ")
	if err != nil {
		return err
	}
	secret, touch := bytes.Index(env, []byte(p.EnvSecret)), bytes.Index(env, []byte(touchBlank))
	if secret < 0 || touch < 0 {
		return errors.New("the canary's environment is not in its place")
	}
	p.SecretAddr, p.TouchAddr = start+uint64(secret), start+uint64(touch)
	return nil
}

// counts are what a canary's status says of it.
type counts struct {
	tracer   int64
	switches int64 // of context, wanted and not
}

func (p *Process) status() (counts, error) {
	b, err := p.read("status")
	if err != nil {
		return counts{}, err
	}
	var c counts
	found := 0
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(line, []byte{':'})
		switch string(key) {
		case "TracerPid", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
		default:
			continue
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
		if err != nil {
			return counts{}, err
		}
		if found++; string(key) == "TracerPid" {
			c.tracer = n
		} else {
			c.switches += n
		}
	}
	if found != 3 {
		return counts{}, errors.New("the canary's status is not complete")
	}
	return c, nil
}

func (p *Process) countSwitches() (int64, error) {
	c, err := p.status()
	return c.switches, err
}

// Observe looks at the canary without touching it.
func (p *Process) Observe() (State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.observe()
}

func (p *Process) observe() (State, error) {
	if p.stopped {
		return State{}, errors.New("the canary process was stopped")
	}
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(time.Millisecond) {
		ended, err := p.ended()
		if err != nil {
			return State{}, err
		}
		if ended {
			return State{Signal: p.fatal()}, nil
		}
		s, err := p.inspect()
		if err == nil || time.Now().After(deadline) {
			return s, err
		}
		// It has lost its memory and cannot be waited for yet: it is ending.
	}
}

// ended reports whether the process could be reaped, and does not reap it.
func (p *Process) ended() (bool, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.PID, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return info.Signo != 0, err
		}
	}
}

func (p *Process) inspect() (State, error) {
	c, err := p.status()
	if err != nil {
		return State{}, err
	}
	env, err := p.read("environ")
	if err != nil {
		return State{}, err
	}
	if len(env) == 0 {
		return State{}, errors.New("the canary process has no memory")
	}
	whole := bytes.Contains(env, []byte(touchName+"="+touchBlank)) && bytes.Contains(env, []byte(EnvName+"="+p.EnvSecret))
	return State{Alive: true, Traced: c.tracer != 0, Touched: !whole, Woken: c.switches != p.switches}, nil
}

// fatal returns the signal that ended the unreaped process: the low bits of
// exit_code, field 52 of its stat.
func (p *Process) fatal() syscall.Signal {
	fields, err := p.stat()
	if err != nil {
		return 0
	}
	code, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return 0
	}
	return syscall.Signal(code & 0x7f)
}

// SelfCheck stops and continues the canary, and requires that the host sees
// both. A canary that somebody ended cannot be checked any more: that it ended
// is its answer.
func (p *Process) SelfCheck(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := p.observe()
	if err != nil {
		return err
	}
	if !s.Alive {
		return errors.New("the canary process has ended")
	}
	deadline := time.Now().Add(settleTimeout)
	before, err := p.countSwitches()
	if err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	stopped := p.settle('T', deadline)
	if err := errors.Join(stopped, p.cmd.Process.Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	if err := p.settle('S', deadline); err != nil {
		return err
	}
	after, err := p.countSwitches()
	if err != nil {
		return err
	}
	if after == before {
		return errors.New("the canary process does not show that it was stopped and continued")
	}
	p.switches += after - before
	return nil
}

// terminate carries out what a careless service was asked to do.
func (p *Process) terminate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
}

// Stop ends and reaps the canary.
func (p *Process) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.stopped = true
	_ = p.cmd.Process.Kill()
	_ = p.stdin.Close()
	_ = p.cmd.Wait()
}
