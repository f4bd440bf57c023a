package bwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Tampers are the changes that P-A6 makes behind the sandbox's back.
func (s *Sandbox) Tampers() []backends.Tamper {
	return []backends.Tamper{
		{Name: "rootfs-byte", Source: backends.SourceFSHash, Apply: s.tamperByte,
			About: "one bit of a file of the root file system is flipped; its size and times stay"},
		{Name: "baseline", Source: backends.SourceFSHash, Apply: s.tamperBaseline,
			About: "one hex digit of the recorded digest is changed"},
		{Name: "guest-fd-lie", Source: backends.SourceOpenFDCount, Apply: s.tamperCount,
			About: "the agent reports one open file more than it had in the golden state"},
		{Name: "stopped-runtime", Source: backends.SourceVMMState, Apply: s.tamperState,
			About: "the fresh instance's bubblewrap process is stopped, so the host's process table no longer says that it runs"},
		{Name: "guest-lie", Source: backends.SourceOpenFDCount,
			About:      "the agent reports the golden count, whatever is true",
			NotCovered: "a lie that equals the truth cannot be told from it; the other two sources do not rest on the guest's word",
			Apply: func(context.Context) (func() error, error) {
				return nil, errors.New("not applied: it could not be noticed")
			}},
	}
}

// change swaps something in the run and returns what swaps it back.
func (s *Sandbox) change(swap func(*run) (back func(*run))) (func() error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.r
	if r == nil {
		return nil, backends.Errorf(backends.ErrToolError, "tamper", "the bwrap sandbox is %s", s.state)
	}
	back := swap(r)
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		back(r)
		return nil
	}, nil
}

func (s *Sandbox) tamperCount(context.Context) (func() error, error) {
	return s.change(func(r *run) func(*run) {
		r.hooks.fds = func(n int) int { return n + 1 }
		return func(r *run) { r.hooks.fds = nil }
	})
}

// tamperState stops the real process, in every instance until it is undone.
func (s *Sandbox) tamperState(ctx context.Context) (func() error, error) {
	var stopped []*instance
	undo, err := s.change(func(r *run) func(*run) {
		r.hooks.state = func(v *instance) {
			// Whether it worked is for the reading to say.
			if pid := v.child.PID(); unix.Kill(pid, unix.SIGSTOP) == nil {
				awaitStop(ctx, pid)
				stopped = append(stopped, v)
			}
		}
		return func(r *run) { r.hooks.state = nil }
	})
	if err != nil {
		return nil, err
	}
	return func() error {
		err := undo()
		for _, v := range stopped {
			if v.child.Alive() {
				err = errors.Join(err, unix.Kill(v.child.PID(), unix.SIGCONT))
			}
		}
		return err
	}, nil
}

// awaitStop waits until the kernel reports a child of ours as stopped, without
// reaping it.
func awaitStop(ctx context.Context, pid int) {
	for ctx.Err() == nil {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (s *Sandbox) tamperBaseline(context.Context) (func() error, error) {
	return s.change(func(r *run) func(*run) {
		old := r.base.FSHash
		last := "0"
		if strings.HasSuffix(old, "0") {
			last = "1"
		}
		r.base.FSHash = old[:len(old)-1] + last
		return func(r *run) { r.base.FSHash = old }
	})
}

// tamperByte makes the sandbox start from a copy of its tree and flips one bit
// there: the tree itself is shared by every sandbox of this agent. The copy stays
// until no instance can run on it any more; removing it would take the mounts
// of one that does along.
func (s *Sandbox) tamperByte(ctx context.Context) (func() error, error) {
	s.mu.Lock()
	r := s.r
	s.mu.Unlock()
	if r == nil {
		return nil, backends.Errorf(backends.ErrToolError, "tamper", "the bwrap sandbox is not booted")
	}
	parent := r.root.dir + ".tampered-" + wire.NewNonceString()
	entry, err := s.o.Ledger.MakeDir(parent)
	if err != nil {
		return nil, err
	}
	clean := func() error { return errors.Join(os.RemoveAll(parent), entry.Done()) }
	dir := filepath.Join(parent, "rootfs")
	err = errors.Join(os.Chmod(parent, 0o755), copyTree(ctx, r.root.dir, dir))
	if err == nil {
		err = flip(filepath.Join(dir, "etc/group"))
	}
	if err != nil {
		return nil, errors.Join(err, clean())
	}
	undo, err := s.change(func(r *run) func(*run) {
		old := r.root
		r.root.dir = dir
		r.cleanups = append(r.cleanups, clean)
		return func(r *run) { r.root = old }
	})
	if err != nil {
		return nil, errors.Join(err, clean())
	}
	return undo, nil
}

func copyTree(ctx context.Context, from, to string) error {
	agent, err := os.Open(filepath.Join(from, agentInside))
	if err != nil {
		return err
	}
	defer agent.Close()
	return build(ctx, to, agent)
}

// flip changes the last bit of a file, and neither its size nor its times.
func flip(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, fi.Size()-2); err != nil {
		return fmt.Errorf("flip a bit of %s: %w", path, err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, fi.Size()-2); err != nil {
		return fmt.Errorf("flip a bit of %s: %w", path, err)
	}
	return os.Chtimes(path, fi.ModTime(), fi.ModTime())
}
