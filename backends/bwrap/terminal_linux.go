package bwrap

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// terminal is a pseudo-terminal of the host, for the leak that shares one.
type terminal struct {
	master, slave *os.File
	path          string
}

func newTerminal() (_ *terminal, err error) {
	t := &terminal{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make a terminal: %w", err), t.Close())
		}
	}()
	if t.master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, err
	}
	raw, err := t.master.SyscallConn()
	if err != nil {
		return nil, err
	}
	var n int
	var err1, err2 error
	err = raw.Control(func(fd uintptr) {
		n, err1 = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		err2 = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
	})
	if err = errors.Join(err, err1, err2); err != nil {
		return nil, err
	}
	t.path = "/dev/pts/" + strconv.Itoa(n)
	t.slave, err = os.OpenFile(t.path, os.O_RDWR|unix.O_NOCTTY, 0)
	return t, err
}

// Close closes both ends; nil has none.
func (t *terminal) Close() error {
	if t == nil {
		return nil
	}
	var err error
	for _, f := range []*os.File{t.slave, t.master} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// legacyTIOCSTI says whether everybody may push input back. Before Linux 6.2
// there is no such file, and everybody may.
const legacyTIOCSTI = "/proc/sys/dev/tty/legacy_tiocsti"

// pushbackOff reports a kernel that lets nobody but its administrator push
// input back.
func pushbackOff(file string) error {
	b, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(b)) != "0" {
		return nil
	}
	return &backends.Error{Code: backends.ErrNotAvailable, Doing: "build the leak " + leakTIOCSTI,
		Err: fmt.Errorf("%w: the kernel refuses TIOCSTI (%s is 0)", backends.ErrLeakNotBuilt, file),
		Fix: "sudo sysctl -w dev.tty.legacy_tiocsti=1"}
}
