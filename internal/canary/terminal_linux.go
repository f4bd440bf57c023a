package canary

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Terminal is a terminal of the host whose input queue the host reads: a line
// that turns up there was pushed back by somebody.
type Terminal struct {
	// Path is the terminal's device.
	Path string

	mu     sync.Mutex
	master *os.File // nil for a terminal that is not ours
	fd     int
	read   strings.Builder
	closed bool
}

// maxTyped bounds what is kept of a terminal's input.
const maxTyped = 64 << 10

// NewTerminal makes a pseudo-terminal and gives it to owner.
func NewTerminal(owner backends.Credential) (*Terminal, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a terminal: %w", err)
	}
	master := os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	path := "/dev/pts/" + strconv.Itoa(n)
	if err == nil {
		err = Own(path, owner)
	}
	var t *Terminal
	if err == nil {
		t, err = WatchTerminal(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a terminal: %w", err), master.Close())
	}
	t.master = master
	return t, nil
}

// WatchTerminal watches a terminal that exists already.
func WatchTerminal(path string) (*Terminal, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &Terminal{Path: path, fd: fd}, nil
}

// Typed reports whether text was typed into the terminal.
func (t *Terminal) Typed(text string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, errors.New("the terminal is closed")
	}
	buf := make([]byte, 4096)
	for t.read.Len() < maxTyped {
		n, err := unix.Read(t.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return false, err
		}
		if n <= 0 {
			break
		}
		t.read.Write(buf[:n])
	}
	return strings.Contains(t.read.String(), text), nil
}

// SelfCheck types a token on the other end of the terminal and requires that it
// is read. Only a terminal of our own has that end.
func (t *Terminal) SelfCheck(ctx context.Context) error {
	t.mu.Lock()
	master, closed := t.master, t.closed
	t.mu.Unlock()
	if closed {
		return errors.New("the terminal is closed")
	}
	if master == nil {
		_, err := t.Typed("")
		return err
	}
	token := NewToken()
	if _, err := master.WriteString(token + "\n"); err != nil {
		return err
	}
	for deadline := time.Now().Add(checkTimeout); ; {
		ok, err := t.Typed(token)
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.New("what the host typed was not read")
		}
		time.Sleep(time.Millisecond)
	}
}

// Stop closes the terminal.
func (t *Terminal) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	_ = unix.Close(t.fd)
	if t.master != nil {
		_ = t.master.Close()
	}
}
