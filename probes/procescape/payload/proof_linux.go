package payload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	insideEnv    = "BSM_INSIDE"
	insideSecret = "bsm-inside-nothing-secret-------"
)

// child is the tool as its own target.
func child(ctx context.Context, p attack.ProcEscapeParams) int {
	if p.Child == attack.ChildPush {
		var errno syscall.Errno
		if err := push("/dev/tty", p.TTYToken); errors.As(err, &errno) {
			return int(errno)
		} else if err != nil {
			return int(unix.EIO)
		}
		return 0
	}
	if _, err := os.Stdout.WriteString("ready\n"); err != nil {
		return 1
	}
	<-ctx.Done()
	select {}
}

// self builds a command that starts this tool again under the name id.
func self(ctx context.Context, id string, p attack.ProcEscapeParams) (*exec.Cmd, error) {
	params, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{id}, os.Args[1:]...)
	cmd.Stdin = bytes.NewReader(params)
	return cmd, nil
}

func asExit(err error, target **exec.ExitError) bool { return errors.As(err, target) }

// prove does to a child of our own what is then tried on the canaries.
func prove(ctx context.Context, p attack.ProcEscapeParams, record func(wire.Attempt)) error {
	id := "bsm-inside-" + p.Nonce
	cmd, err := self(ctx, id, attack.ProcEscapeParams{Child: attack.ChildWait})
	if err != nil {
		return err
	}
	held, err := heldFile()
	if err != nil {
		return err
	}
	defer held.Close()
	cmd.ExtraFiles = []*os.File{held}
	cmd.Env = append(os.Environ(), insideEnv+"="+insideSecret)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return err
	}
	c := attack.ProcCanary{PID: cmd.Process.Pid, ID: id, SecretLen: len(insideSecret), FD: 3}
	if c.SecretAddr, err = environAt(c.PID, insideEnv); err != nil {
		record(wire.Outcome(attack.ProcVMRead, "locate", "child", err))
	}
	own := attack.ProcEscapeParams{Canaries: map[string]attack.ProcCanary{}, SecretMarker: "bsm-inside-marker"}
	for _, cas := range attack.ProcOnCanary() {
		own.Canaries[cas] = c
	}
	// The child is gone after the signals, so they come last.
	j := job{p: own, record: record}
	j.proveSetns()
	j.proveShm(p.Nonce)
	j.provePort()
	j.proveTTY(ctx)
	record(wire.Outcome(attack.ProcInit, "kill 0", "child", kill0(c.PID)))
	j.processes()
	return nil
}

// heldFile is an open file without a name.
func heldFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("inside", 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "inside")
	if _, err := f.WriteString(insideSecret); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// writableDir makes a directory wherever the sandbox lets us write.
func writableDir() (string, error) {
	var last error
	for _, base := range []string{os.TempDir(), "/tmp", "/dev/shm", "/run", "/var/tmp", "."} {
		dir, err := os.MkdirTemp(base, "bsm-")
		if err == nil {
			return dir, nil
		}
		last = err
	}
	return "", last
}

func (j job) proveSetns() {
	dir, err := writableDir()
	if err != nil {
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "inside")
	if err := os.WriteFile(path, []byte(j.p.SecretMarker), 0o600); err != nil {
		return
	}
	data, err := enterAndRead(os.Getpid(), path, []byte(j.p.SecretMarker))
	j.try(attack.ProcSetns, "setns", "self", data, err)
}

func (j job) proveShm(nonce string) {
	key := wordOf(nonce)
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o600)
	if err == nil {
		defer func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }()
		_, err = readSegment(key)
	}
	j.try(attack.ProcShm, "shmat", "own segment", nil, err)
}

// provePort sends the request to a FIFO of our own and reads it back.
func (j job) provePort() {
	dir, err := writableDir()
	if err != nil {
		return
	}
	defer os.RemoveAll(dir)
	port := filepath.Join(dir, "port")
	err = unix.Mkfifo(port, 0o600)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(port, os.O_RDWR|unix.O_NONBLOCK, 0)
	}
	if err == nil {
		defer f.Close()
		err = ask(port, 1)
	}
	buf, n := make([]byte, 64), 0
	if err == nil {
		_ = f.SetReadDeadline(time.Now().Add(time.Second))
		n, err = f.Read(buf)
	}
	if err == nil && !strings.HasPrefix(string(buf[:n]), "signal 1") {
		err = io.ErrUnexpectedEOF
	}
	j.try(attack.ProcHostPort, "write", "own fifo", nil, err)
}

// proveTTY pushes a line into a terminal of our own and reads it there.
func (j job) proveTTY(ctx context.Context) {
	master, slave, err := openPTY()
	if err != nil {
		j.try(attack.ProcTTY, "open", "own terminal", nil, err)
		return
	}
	defer master.Close()
	fd, err := unix.Open(slave, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		j.try(attack.ProcTTY, "open", "own terminal", nil, err)
		return
	}
	defer unix.Close(fd)
	err = pushAsChild(ctx, slave, "inside\n")
	buf, n := make([]byte, 64), 0
	if err == nil {
		n, err = unix.Read(fd, buf)
	}
	if err == nil && string(buf[:n]) != "inside\n" {
		err = io.ErrUnexpectedEOF
	}
	j.try(attack.ProcTTY, "TIOCSTI", "own terminal", nil, err)
}
