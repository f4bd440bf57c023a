package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func writable(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

// bootID differs from boot to boot. It cannot change while we run.
var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

// identify reads who pid is right now.
func identify(pid int) (identity, error) {
	boot, err := bootID()
	if err != nil {
		return identity{}, fmt.Errorf("read the boot id: %w", err)
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return identity{}, err
	}
	_, start, err := stat(pid)
	if err != nil {
		return identity{}, err
	}
	return identity{PID: pid, Start: start, Boot: boot, PIDNS: ns}, nil
}

// stat reads the state and start time of pid. The command name may itself
// contain spaces and parentheses, so fields are counted from the last ')'.
func stat(pid int) (state byte, start uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return 0, 0, fmt.Errorf("pid %d: unexpected stat line", pid)
	}
	start, err = strconv.ParseUint(string(f[19]), 10, 64) // field 22, the state being field 3
	return f[0][0], start, err
}

// alive reports whether exactly this process still runs. A zombie does not.
func (p identity) alive() (bool, error) {
	state, start, err := stat(p.PID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return start == p.Start && state != 'Z' && state != 'X', nil
}

// kill ends exactly this process and waits until it is dead. The pidfd is
// opened before the identity is checked, so the signal cannot hit a successor.
func (p identity) kill(ctx context.Context, wait time.Duration) (killed bool, err error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pid %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if alive, err := p.alive(); err != nil || !alive {
		return false, err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill pid %d: %w", p.PID, err)
	}
	deadline := time.Now().Add(wait)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false, fmt.Errorf("pid %d is still there %s after SIGKILL", p.PID, wait)
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(min(left, 100*time.Millisecond).Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
		if n > 0 {
			return true, nil
		}
	}
}

// carrying finds the processes with setting in their environment, in any pid
// namespace below ours.
func carrying(setting string) ([]identity, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []identity
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid <= 1 {
			continue
		}
		who, err := identify(pid) // before the environment: what it says is this process's
		if err != nil {
			continue // gone meanwhile
		}
		env, err := os.ReadFile(filepath.Join("/proc", d.Name(), "environ"))
		if err != nil {
			continue // gone, or of another user and so not ours
		}
		if slices.Contains(strings.Split(string(env), "\x00"), setting) {
			out = append(out, who)
		}
	}
	return out, nil
}

// reapCgroup kills what is in a cgroup of ours and removes it, with the groups
// below it.
func reapCgroup(ctx context.Context, path string) (gone bool, err error) {
	if _, err := os.Stat(filepath.Join(path, "cgroup.procs")); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return false, fmt.Errorf("%s is not a cgroup; left alone", path)
		}
		return true, nil
	}
	deadline := time.Now().Add(killWait)
	for {
		if err := emptyCgroup(path); err != nil {
			return false, err
		}
		err := removeCgroup(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if time.Now().After(deadline) || !errors.Is(err, unix.EBUSY) {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func emptyCgroup(path string) error {
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
				_ = unix.Kill(pid, unix.SIGKILL) // gone is as good
			}
		}
		return nil
	})
}

func removeCgroup(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(path)
}

func reapMount(path string) (gone bool, err error) {
	points, err := mountPoints()
	if err != nil {
		return false, err
	}
	if !slices.Contains(points, path) {
		return true, nil
	}
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return false, fmt.Errorf("unmount %s: %w", path, err)
	}
	return false, nil
}

// mountPoints lists what is mounted in our mount namespace.
func mountPoints() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, unescape.Replace(f[4]))
		}
	}
	return out, nil
}
