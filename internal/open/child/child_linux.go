// Package child starts a process that speaks over its standard streams, and
// ends it together with everything that it left behind.
package child

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
)

// TagEnv is set to a random tag in the environment of the child. What carries
// the tag belongs to the child, whoever its parent is by now.
const TagEnv = "BSM_CHILD"

// stderrLimit is how much of the child's stderr is kept.
const stderrLimit = 16 << 10

// Spec says what to start. Nothing but the three standard streams and
// ExtraFiles reaches the child.
type Spec struct {
	// Exe is the executable. It is executed by its descriptor, so the child's
	// identity needs no way to its path, and what was hashed is what runs.
	Exe  *os.File
	Argv []string
	Env  []string
	// Dir is the working directory; nil means "/".
	Dir *os.File
	// Credential is the identity to take on; nil keeps ours.
	Credential *backends.Credential
	// ExtraFiles become descriptors 3 and up.
	ExtraFiles []*os.File
	// Terminal is the descriptor, as the child has it, of the terminal that
	// becomes its session's controlling one; 0 means that there is none.
	Terminal int
	// Group is the fuse to start in; it may be nil.
	Group *fuse.Group
	// Trusted says that the child may enter Group while it runs already; see
	// Child.Enclose.
	Trusted bool
	Ledger  *ledger.Ledger
	// Tag is the value of TagEnv; empty means a random one. A caller that
	// clears the environment further down passes it on itself.
	Tag string
}

// NewTag draws a tag.
func NewTag() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// Child is a started process.
type Child struct {
	cmd    *exec.Cmd
	tag    string
	group  *fuse.Group
	entry  *ledger.Entry
	stream *guest.Pipes
	start  uint64

	stderr struct {
		r    *os.File
		done chan struct{}
		mu   sync.Mutex
		kept []byte
		all  int64
	}
	exited chan struct{}
	status error // valid after exited

	enclose fuse.Enclose

	recorded  chan struct{}
	recordErr error // valid after recorded

	kill    sync.Mutex
	settled bool
}

// Start starts a child in a session of its own that dies with us. Its pid is
// recorded meanwhile; see Recorded.
func Start(s Spec) (_ *Child, err error) {
	c := &Child{tag: s.Tag, group: s.Group, exited: make(chan struct{}), recorded: make(chan struct{})}
	if c.tag == "" {
		c.tag = NewTag()
	}
	if err := hideDescriptors(); err != nil {
		return nil, fmt.Errorf("keep our descriptors from the child: %w", err)
	}
	if c.entry, err = s.Ledger.Intend(ledger.KindProcess, s.Exe.Name()); err != nil {
		return nil, err
	}
	var ends []*os.File
	defer func() {
		for _, f := range ends {
			_ = f.Close() // the child has its own
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	inR, inW := pipe()
	outR, outW := pipe()
	errR, errW := pipe()
	ends = append(ends, inR, outW, errW)
	if err != nil {
		return nil, errors.Join(err, closeAll(inW, outR, errR), c.entry.Done())
	}
	c.cmd = &exec.Cmd{
		Path: "/proc/self/fd/" + strconv.Itoa(int(s.Exe.Fd())), Args: s.Argv, Dir: "/",
		Env:   append(append([]string(nil), s.Env...), TagEnv+"="+c.tag, c.entry.Env()),
		Stdin: inR, Stdout: outW, Stderr: errW, ExtraFiles: s.ExtraFiles,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: credential(s.Credential)},
	}
	if s.Terminal > 0 {
		c.cmd.SysProcAttr.Setctty, c.cmd.SysProcAttr.Ctty = true, s.Terminal
	}
	if s.Dir != nil {
		c.cmd.Dir = "/proc/self/fd/" + strconv.Itoa(int(s.Dir.Fd()))
	}
	if s.Trusted {
		c.enclose, err = s.Group.Launch(c.cmd)
	} else {
		err = s.Group.Start(c.cmd)
	}
	if err != nil {
		return nil, errors.Join(err, closeAll(inW, outR, errR), c.entry.Done())
	}
	c.start, _ = startTime(c.PID()) // it cannot be reaped before Wait
	c.stream = guest.Stdio(outR, inW)
	c.stderr.r, c.stderr.done = errR, make(chan struct{})
	go c.readStderr()
	go func() {
		c.status = c.cmd.Wait()
		close(c.exited)
	}()
	go func() {
		defer close(c.recorded)
		c.recordErr = c.entry.Started(c.PID())
	}()
	return c, nil
}

// Enclose returns once the child and all that it has started are in its group.
// A child that is not Trusted has been there from the beginning.
func (c *Child) Enclose() error {
	if c.enclose == nil {
		return nil
	}
	return c.enclose(func() ([]int, error) { return family(c.PID()) })
}

// Recorded waits until the ledger has the child's pid. Before that the ledger
// finds the child by its environment.
func (c *Child) Recorded() error {
	<-c.recorded
	return c.recordErr
}

func closeAll(files ...*os.File) (err error) {
	for _, f := range files {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// credential is nil where there is nothing to change.
func credential(c *backends.Credential) *syscall.Credential {
	if c == nil || (c.UID == os.Geteuid() && c.GID == os.Getegid() && c.UID != 0) {
		return nil
	}
	return &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID), Groups: []uint32{}}
}

// hideDescriptors marks all but the standard streams close-on-exec. Go opens
// its own that way, but a harness may itself have inherited some.
func hideDescriptors() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil || (!errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL)) {
		return err
	}
	fds, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return err
	}
	for _, e := range fds {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// PID is the child's pid.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Dial returns the child's standard streams; it is a guest.Dialer.
func (c *Child) Dial(context.Context) (io.ReadWriteCloser, error) { return c.stream, nil }

// Exited is closed when the child itself is gone.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Alive reports whether the child itself still runs.
func (c *Child) Alive() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// Status says how the child ended; nil while it runs or after a clean exit.
func (c *Child) Status() error {
	if c.Alive() {
		return nil
	}
	return c.status
}

// Stderr is the beginning of what the child and its heirs wrote to stderr.
func (c *Child) Stderr() backends.Text {
	c.stderr.mu.Lock()
	defer c.stderr.mu.Unlock()
	return backends.NewText(append([]byte(nil), c.stderr.kept...))
}

func (c *Child) readStderr() {
	defer close(c.stderr.done)
	buf := make([]byte, 4096)
	for {
		n, err := c.stderr.r.Read(buf)
		c.stderr.mu.Lock()
		c.stderr.all += int64(n)
		c.stderr.kept = append(c.stderr.kept, buf[:min(n, stderrLimit-len(c.stderr.kept))]...)
		c.stderr.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Tree lists the child and everything that descends from it or carries its tag.
func (c *Child) Tree() ([]int, error) {
	if c.group != nil {
		return c.group.PIDs()
	}
	t, err := c.members()
	if err != nil {
		return nil, err
	}
	return t.living(), nil
}

// Kill ends the child and its tree and returns once nothing of it is left. It
// is idempotent.
func (c *Child) Kill(ctx context.Context) error {
	c.kill.Lock()
	defer c.kill.Unlock()
	if c.settled {
		return nil
	}
	var err error
	if c.group != nil {
		err = c.group.Kill(ctx)
	}
	err = errors.Join(err, c.killTree(ctx))
	select {
	case <-c.exited:
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("pid %d: %w", c.PID(), ctx.Err()))
	}
	_ = c.stream.Close() // the other ends are gone
	_ = c.stderr.r.Close()
	<-c.stderr.done
	if err != nil {
		return err // the ledger keeps its entry for reap
	}
	c.settled = true
	<-c.recorded
	return c.entry.Done()
}

// Usage measures the tree of c from its processes, for want of a cgroup.
func Usage(c *Child) (backends.Usage, error) {
	pids, err := c.Tree()
	if err != nil {
		return backends.Usage{}, err
	}
	u := backends.Usage{Kills: -1, Method: "sum of process RSS"}
	u.MemoryBytes, u.Tasks, u.CPUTime = RSS(pids)
	return u, nil
}
