package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

func writable(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

// identify reads who pid is right now; Start is in microseconds here.
func identify(pid int) (identity, error) {
	boot, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return identity{}, fmt.Errorf("read the boot session id: %w", err)
	}
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return identity{}, err
	}
	start := k.Proc.P_starttime
	return identity{PID: pid, Start: uint64(start.Sec)*1_000_000 + uint64(start.Usec), Boot: boot}, nil
}

func (p identity) alive() (bool, error) {
	now, err := identify(p.PID)
	if err != nil { // an exited process has no kinfo
		return false, nil
	}
	return now.Start == p.Start, nil
}

// kill ends exactly this process. macOS has no pidfd, so the check and the
// signal are two steps.
func (p identity) kill(ctx context.Context, wait time.Duration) (killed bool, err error) {
	if alive, err := p.alive(); err != nil || !alive {
		return false, err
	}
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill pid %d: %w", p.PID, err)
	}
	deadline := time.Now().Add(wait)
	for {
		if alive, err := p.alive(); err != nil || !alive {
			return true, err
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("pid %d is still there %s after SIGKILL", p.PID, wait)
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// carrying finds nothing: macOS hides the environment of other processes.
func carrying(string) ([]identity, error) { return nil, nil }

func reapCgroup(context.Context, string) (bool, error) { return true, nil }

// reapMount reports any mount as left: nothing of ours mounts on macOS.
func reapMount(path string) (bool, error) {
	return false, fmt.Errorf("%s: mounts are not reaped on macOS; fix: umount %s", path, path)
}

func mountPoints() ([]string, error) { return nil, nil }
