// Package procwatch finds host processes by a random token in their arguments.
// Nothing else on the host carries such a token, so whatever is found belongs
// to the probe that drew it, wherever it moved itself.
package procwatch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
)

// minToken keeps a token from matching by accident.
const minToken = 32

// A Watch looks for processes. The zero value is ready.
type Watch struct{ stopped atomic.Bool }

// ErrStopped is returned by a watch that was stopped.
var ErrStopped = errors.New("the process watch was stopped")

// Stop silences the watch; a test does it to show that its silence is noticed.
func (w *Watch) Stop() { w.stopped.Store(true) }

// Find returns the living processes whose arguments contain each token, by
// token, in the host's pid numbers. A zombie has no arguments and is not found.
func (w *Watch) Find(tokens ...string) (map[string][]int, error) {
	for _, t := range tokens {
		if len(t) < minToken {
			return nil, fmt.Errorf("token of %d bytes is too short to be unique", len(t))
		}
	}
	return w.scan(tokens)
}

// Alive tests the watch on a process that certainly is there: this one.
func (w *Watch) Alive() bool {
	found, err := w.scan([]string{os.Args[0]})
	if err != nil {
		return false
	}
	for _, pid := range found[os.Args[0]] {
		if pid == os.Getpid() {
			return true
		}
	}
	return false
}

func (w *Watch) scan(tokens []string) (map[string][]int, error) {
	if w.stopped.Load() {
		return nil, ErrStopped
	}
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[string][]int{}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := arguments(pid)
		if err != nil {
			continue // gone meanwhile, or hidden: Alive shows which
		}
		for _, t := range tokens {
			if bytes.Contains(b, []byte(t)) {
				found[t] = append(found[t], pid)
			}
		}
	}
	return found, nil
}

func arguments(pid int) ([]byte, error) {
	return os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
}

// Kill ends the processes that carry token, and no other: each is held by a
// descriptor while its arguments are read again.
func (w *Watch) Kill(token string) error {
	found, err := w.Find(token)
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range found[token] {
		errs = append(errs, killIf(pid, token))
	}
	return errors.Join(errs...)
}

func killIf(pid int, token string) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if b, err := arguments(pid); err != nil || !bytes.Contains(b, []byte(token)) {
		return nil // it is gone, and its number is another's
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kill pid %d: %w", pid, err)
	}
	return nil
}
