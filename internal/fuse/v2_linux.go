package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// v2 is one cgroup of the unified hierarchy.
type v2 struct{ dir string }

func newV2(parent, name string) kernel { return &v2{dir: filepath.Join(parent, name)} }

func (g *v2) dirs() []string { return []string{g.dir} }

func (g *v2) file(name string) string { return filepath.Join(g.dir, name) }

func (g *v2) limit(l Limits) error {
	if l.MemoryBytes > 0 {
		if err := writeFile(g.file("memory.max"), strconv.FormatInt(l.MemoryBytes, 10)); err != nil {
			return fmt.Errorf("limit memory: %w", err)
		}
		if err := writeFile(g.file("memory.swap.max"), "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("limit swap: %w", err)
		}
	}
	if l.Pids > 0 {
		if err := writeFile(g.file("pids.max"), strconv.Itoa(l.Pids)); err != nil {
			return fmt.Errorf("limit tasks: %w", err)
		}
	}
	return nil
}

func (g *v2) add(pid int) error { return writeFile(g.file("cgroup.procs"), strconv.Itoa(pid)) }

func (g *v2) pids() ([]int, error) { return readPIDs(g.file("cgroup.procs")) }

func (g *v2) usage() (backends.Usage, error) {
	u := backends.Usage{Method: "cgroup v2 memory.current"}
	var err [5]error
	var tasks, usec int64
	u.MemoryBytes, err[0] = readInt(g.file("memory.current"))
	u.Kills, err[1] = readKey(g.file("memory.events"), "oom_kill")
	tasks, err[2] = readInt(g.file("pids.current"))
	u.Refusals, err[3] = readKey(g.file("pids.events"), "max")
	usec, err[4] = readKey(g.file("cpu.stat"), "usage_usec")
	u.Tasks, u.CPUTime = int(tasks), time.Duration(usec)*time.Microsecond
	if peak, e := readInt(g.file("memory.peak")); e == nil { // since Linux 5.19
		u.PeakBytes = peak
	}
	return u, errors.Join(err[:]...)
}

// killAll uses cgroup.kill (since Linux 5.14), which no fork can outrun, and
// waits for the group to report that it is empty. Without it, forks are
// forbidden first.
func (g *v2) killAll(ctx context.Context) error {
	err := writeFile(g.file("cgroup.kill"), "1")
	if errors.Is(err, os.ErrNotExist) {
		if _, statErr := os.Stat(g.dir); errors.Is(statErr, os.ErrNotExist) {
			return nil
		}
		if err := writeFile(g.file("pids.max"), "0"); err != nil {
			return err
		}
		return killMembers(ctx, g.pids)
	}
	if err != nil {
		return err
	}
	events, err := os.Open(g.file("cgroup.events"))
	if err != nil {
		return err
	}
	defer events.Close()
	buf := make([]byte, 256)
	for {
		// Reading through the polled handle is what arms it for the next change.
		n, err := events.ReadAt(buf, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if strings.Contains(string(buf[:n]), "populated 0") {
			return nil
		}
		if err := pollUntil(ctx, int(events.Fd()), unix.POLLPRI); err != nil {
			return err
		}
	}
}

func (g *v2) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	release, err := g.sysProcAttr(cmd.SysProcAttr)
	if err != nil {
		return err
	}
	defer release()
	return cmd.Start()
}

func (g *v2) launch(cmd *exec.Cmd) (Enclose, error) {
	return func(func() ([]int, error)) error { return nil }, g.start(cmd)
}

func (g *v2) sysProcAttr(a *syscall.SysProcAttr) (func(), error) {
	f, err := os.Open(g.dir)
	if err != nil {
		return nil, err
	}
	a.UseCgroupFD, a.CgroupFD = true, int(f.Fd())
	return func() {
		a.UseCgroupFD = false
		_ = f.Close() // only a directory handle
	}, nil
}
