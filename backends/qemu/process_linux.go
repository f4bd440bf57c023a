package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/qmp"
)

// nobody is the host identity that QEMU gets when the harness is root.
const nobody = 65534

// killWait is how long the kernel may take to end a killed QEMU.
const killWait = 10 * time.Second

// A process is one running QEMU.
type process struct {
	pid     int
	console *ring // the guest's serial console
	stderr  *ring
	dead    chan struct{} // closed when it is gone and its output is drained
	err     error         // how it ended; read after dead
	entry   *ledger.Entry
}

type launch struct {
	path  string
	args  []string
	files []*os.File // become descriptors 3, 4, ... in QEMU
	cred  *syscall.Credential
	ledg  *ledger.Ledger
	// group is the cgroup that it starts in; nil is none.
	group *fuse.Group
}

// identity is who QEMU runs as: an unprivileged user when the harness is root,
// else the harness's own user.
func identity() backends.Credential {
	if os.Geteuid() == 0 {
		return backends.Credential{UID: nobody, GID: nobody}
	}
	return backends.Credential{UID: os.Geteuid(), GID: os.Getegid()}
}

// start starts QEMU. It dies with the harness, whatever kills that.
func start(l launch) (*process, error) {
	p := &process{console: newRing(64 << 10), stderr: newRing(16 << 10), dead: make(chan struct{})}
	entry, err := l.ledg.Intend(ledger.KindProcess, l.path)
	if err != nil {
		return nil, err
	}
	p.entry = entry
	cmd := exec.Command(l.path, l.args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", entry.Env()}
	cmd.Stdout, cmd.Stderr = p.console, p.stderr
	cmd.ExtraFiles = l.files
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: l.cred, Setpgid: true}
	started := make(chan error)
	go func() {
		// The parent-death signal is tied to the thread that forked, so that
		// thread has to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := l.group.Start(cmd)
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.dead)
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, entry.Done())
	}
	p.pid = cmd.Process.Pid
	if err := entry.Started(p.pid); err != nil {
		if !p.exited() { // one that died at once explains itself better
			return nil, errors.Join(err, p.kill())
		}
	}
	return p, nil
}

func (p *process) exited() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// kill ends the process and everything around it and waits for that. It may be
// called more than once.
func (p *process) kill() error {
	if !p.exited() {
		// Not reaped yet, so the number is still ours.
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	t := time.NewTimer(killWait)
	defer t.Stop()
	select {
	case <-p.dead:
	case <-t.C:
		return fmt.Errorf("qemu pid %d did not die within %s of SIGKILL", p.pid, killWait)
	}
	return p.entry.Done()
}

// death says how the process ended, with what it said last.
func (p *process) death() error {
	<-p.dead
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	if s := p.stderr.tail(6); s != "" {
		how += "; it said: " + s
	}
	return fmt.Errorf("qemu ended: %s", how)
}

// during runs do with a context that ends when the process does, and then
// reports the death instead of its consequences.
func (p *process) during(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := do(ctx)
	cancel()
	<-watched
	if err == nil {
		return nil
	}
	if lost(err) { // a dying QEMU closes its sockets before it can be reaped
		t := time.NewTimer(100 * time.Millisecond)
		defer t.Stop()
		select {
		case <-p.dead:
		case <-t.C:
		}
	}
	if p.exited() {
		return errors.Join(p.death(), err)
	}
	return err
}

// lost reports whether err is what the end of a connection looks like.
func lost(err error) bool {
	for _, e := range []error{backends.ErrClosed, backends.ErrHandshakeFailed, qmp.ErrClosed, io.EOF, syscall.EPIPE, syscall.ECONNRESET, syscall.ECONNREFUSED} {
		if errors.Is(err, e) {
			return !errors.Is(err, context.DeadlineExceeded)
		}
	}
	return false
}
