package mock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// errNotCanary refuses a process whose command line lacks the canary's id.
var errNotCanary = errors.New("not the canary")

// crossProcesses takes each way to a canary of its own.
func crossProcesses(p attack.ProcEscapeParams, record func(wire.Attempt)) {
	for _, way := range []struct {
		name  string
		cross func(attack.ProcCanary) ([]byte, error)
	}{
		{attack.ProcVisible, cmdline},
		{attack.ProcSignal, func(c attack.ProcCanary) ([]byte, error) { return nil, syscall.Kill(c.PID, syscall.SIGTERM) }},
		{attack.ProcPidfd, func(c attack.ProcCanary) ([]byte, error) { return nil, pidfdSignal(c.PID) }},
		{attack.ProcGetfd, stealFD},
		{attack.ProcPtrace, func(c attack.ProcCanary) ([]byte, error) { return nil, poke(c) }},
		{attack.ProcVMRead, readMemory},
		{attack.ProcHostPort, func(c attack.ProcCanary) ([]byte, error) { return nil, askPorts(p.Ports, c.PID) }},
	} {
		c, ok := p.Canaries[way.name]
		if !ok {
			record(wire.Outcome(way.name, "touch", "", syscall.ESRCH))
			continue
		}
		line, err := cmdline(c)
		if err == nil && !bytes.Contains(line, []byte(c.ID)) {
			err = errNotCanary
		}
		var data []byte
		if err == nil {
			data, err = way.cross(c)
		}
		a := wire.Outcome(way.name, "touch", fmt.Sprint("pid ", c.PID), err)
		a.Data = data
		record(a)
	}
	// The simulated namespace is left by doing without it.
	data, err := readMarked(p.SecretPath, p.SecretMarker, wire.MaxAttemptData)
	a := wire.Outcome(attack.ProcSetns, "read", p.SecretPath, err)
	a.Data = data
	record(a)
	data, err = readShm(p.ShmKey)
	a = wire.Outcome(attack.ProcShm, "attach", "", err)
	a.Data = data
	record(a)
	record(wire.Outcome(attack.ProcTTY, "push", p.TTY, push(p.TTY, p.TTYToken)))
	record(wire.Outcome(attack.ProcInit, "signal 0", "pid 1", syscall.Kill(1, 0)))
}

func cmdline(c attack.ProcCanary) ([]byte, error) {
	return readAll(fmt.Sprintf("/proc/%d/cmdline", c.PID))
}

// readAll reads the beginning of a file that the host named.
func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, wire.MaxAttemptData))
}

func pidfdSignal(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0), unix.Close(fd))
}

func stealFD(c attack.ProcCanary) ([]byte, error) {
	pidfd, err := unix.PidfdOpen(c.PID, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, c.FD, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "stolen")
	defer f.Close()
	b := make([]byte, 256)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = nil
	}
	return b[:n], err
}

// poke changes the canary's memory as its tracer, from one thread throughout.
func poke(c attack.ProcCanary) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(c.PID); err != nil {
		return err
	}
	var st unix.WaitStatus
	_, err := unix.Wait4(c.PID, &st, unix.WALL, nil)
	if err == nil {
		_, err = unix.PtracePokeData(c.PID, uintptr(c.TouchAddr), []byte("touched!"))
	}
	return errors.Join(err, unix.PtraceDetach(c.PID))
}

func readMemory(c attack.ProcCanary) ([]byte, error) {
	if c.SecretLen <= 0 || c.SecretLen > wire.MaxAttemptData {
		return nil, syscall.EINVAL
	}
	b := make([]byte, c.SecretLen)
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(c.PID, local, []unix.RemoteIovec{{Base: uintptr(c.SecretAddr), Len: len(b)}}, 0)
	if err != nil {
		return nil, err
	}
	return b[:n], nil
}

func readShm(key int) ([]byte, error) {
	if key == 0 {
		return nil, syscall.ENOENT
	}
	id, err := unix.SysvShmGet(key, 0, 0)
	if err != nil {
		return nil, err
	}
	b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		return nil, err
	}
	out := bytes.Clone(b[:min(len(b), 256)])
	return out, unix.SysvShmDetach(b)
}

// askPorts asks each host port that was handed in to signal the canary.
func askPorts(ports []string, pid int) error {
	err := error(syscall.ENOENT)
	for _, path := range ports {
		f, openErr := os.OpenFile(path, os.O_RDWR, 0)
		if openErr != nil {
			err = openErr
			continue
		}
		_, werr := fmt.Fprintf(f, attack.SignalLine, pid)
		err = errors.Join(werr, f.Close())
	}
	return err
}

// push types a token into the terminal that was handed in, never another.
func push(tty, token string) error {
	if tty == "" {
		return syscall.ENOTTY
	}
	f, err := os.OpenFile(tty, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, b := range []byte(token) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&b))); errno != 0 {
			return errno
		}
	}
	return nil
}
