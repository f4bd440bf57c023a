package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freezeRounds bounds how often a tree is stopped before it is killed. A
	// fork bomb is still after a few; a tree whose members wake each other
	// never is.
	freezeRounds = 8
	// emptyLooks is how many looks in a row must find nothing. One does not
	// suffice: a process may fork and end while /proc is being read, and its
	// child be missed. That the agent has no child at all is proof at once,
	// but with other calls in flight it has.
	emptyLooks = 4
	// killPause is the time between two looks at a tree that is dying.
	killPause = 500 * time.Microsecond
	// killLimit ends a hopeless attempt, such as on a process of another user.
	killLimit = 30 * time.Second
)

// errSurvivor is returned when a tree could not be killed.
var errSurvivor = errors.New("processes of the tool could not be killed")

// kill kills the tree and returns when it is known to be dead.
func (t *tree) kill(ctx context.Context) error {
	select {
	case <-t.child.exited:
		if t.child.alone {
			return nil
		}
	default:
	}
	if t.group != nil {
		t.group.kill()
	}
	if err := t.r.killUntilGone(ctx, t.members, t.child.pid); err != nil {
		return err
	}
	// It is dead; its status follows as soon as the reaper has run.
	t.r.reap()
	<-t.child.exited
	return nil
}

// killAll kills every descendant of this process.
func (r *Runner) killAll(ctx context.Context) error {
	self := os.Getpid()
	return r.killUntilGone(ctx, func() (map[int]process, error) {
		ps, err := snapshot()
		if err != nil {
			return nil, err
		}
		m := under(ps, map[int]bool{self: true})
		delete(m, self)
		return m, nil
	}, 0)
}

// members are the processes of the call: what descends from its first process,
// orphans, and what carries its tag.
//
// A child of the agent that is no call's first process is an orphan of a tree
// whose first process is dead: a living one would have inherited it.
func (t *tree) members() (map[int]process, error) {
	ps, err := snapshot()
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	roots := map[int]bool{}
	t.r.mu.Lock()
	if _, alive := t.r.mains[t.child.pid]; alive {
		roots[t.child.pid] = true
	}
	for pid, p := range ps {
		if p.ppid == self && t.r.mains[pid] == nil {
			roots[pid] = true
		}
	}
	t.r.mu.Unlock()
	m := under(ps, roots)
	for pid, p := range ps {
		if _, in := m[pid]; !in && pid != self && p.start >= t.since && p.ppid != 0 && tagged(pid, t.tag) {
			m[pid] = p
		}
	}
	return m, nil
}

// killUntilGone stops what members names until a look finds nothing running,
// then kills it, and does so again until nothing is left. Stopping first is
// what ends a fork bomb: the stopped keep the places that new ones would need.
// The process last is killed after the others, because it inherits orphans.
func (r *Runner) killUntilGone(ctx context.Context, members func() (map[int]process, error), last int) error {
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	for empty := 0; ; {
		left, err := r.killRound(members, last)
		if err != nil {
			return err
		}
		if r.strike(last) || left > 0 {
			empty = 0
		} else if empty++; r.reap() || empty == emptyLooks {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %d left after %s", errSurvivor, left, killLimit)
		case <-time.After(killPause):
		}
		r.reap()
	}
}

// killRound returns how many living members it found.
func (r *Runner) killRound(members func() (map[int]process, error), last int) (int, error) {
	r.steady.RLock()
	defer r.steady.RUnlock()
	var m map[int]process
	for range freezeRounds {
		var err error
		if m, err = members(); err != nil {
			return 0, err
		}
		running := 0
		for _, p := range m {
			if !p.stopped() {
				running++
				signalProcess(p, unix.SIGSTOP)
			}
		}
		if running == 0 {
			break
		}
	}
	living := 0
	for _, p := range m {
		if !p.dead() {
			living++
		}
	}
	for _, p := range m {
		if !p.dead() && (p.pid != last || living == 1) {
			signalProcess(p, unix.SIGKILL)
		}
	}
	return living, nil
}

// strikes bounds how often one strike looks.
const strikes = 500

// strike kills the children of the two processes that orphans fall to, as fast
// as they can be listed, until a look finds nothing new. It reports whether it
// found anything. It is for a chain of processes each of which forks the next
// and ends: a walk over all of /proc never meets a living one, but each is for
// a moment a child of a subreaper.
func (r *Runner) strike(subreaper int) (found bool) {
	r.steady.RLock()
	defer r.steady.RUnlock()
	self := os.Getpid()
	buried := map[process]bool{}
	for range strikes {
		fresh := false
		for _, parent := range []int{subreaper, self} {
			if parent != self && !r.isMain(parent) {
				continue // reaped: the pid may be somebody else's by now
			}
			for _, pid := range children(parent) {
				if parent == self && r.isMain(pid) {
					continue
				}
				p, ok := readProcess(pid)
				switch {
				case !ok: // ended since, and may have forked before
					fresh = true
				case p.dead():
					fresh = fresh || !buried[p]
					buried[p] = true
				case p.ppid == parent:
					signalProcess(p, unix.SIGKILL)
					fresh = true
				}
			}
		}
		if !fresh {
			return found
		}
		found = true
		r.reap()
	}
	return found
}

// isMain reports whether pid is the first process of a call.
func (r *Runner) isMain(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mains[pid] != nil
}

// signalProcess signals exactly the process that was seen, not one that has got
// its pid since. Failures show in the next look.
func signalProcess(p process, sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if errors.Is(err, unix.ENOSYS) && startTime(p.pid) == p.start {
			_ = unix.Kill(p.pid, sig)
		}
		return
	}
	defer unix.Close(fd)
	if startTime(p.pid) == p.start {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}
