// Package ledger records every host resource before it is created, so that a
// run that was killed can be cleaned up after by `bsm-redteam reap`, and so
// that cleaning up never touches anything that is not ours.
//
// Each live resource is one JSON file. It names the resource, and the process
// that owns it by pid, start time, pid namespace and boot id, because a pid
// alone soon belongs to somebody else.
//
// A nil *Ledger and a nil *Entry are valid and do nothing.
package ledger

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Kind is what an entry stands for.
type Kind string

// The kinds of resource.
const (
	KindDir     Kind = "dir"
	KindProcess Kind = "process"
	KindCgroup  Kind = "cgroup"
	KindMount   Kind = "mount"
)

// EnvVar is set in the environment of every process that the ledger knows, to
// the entry's id, so that a process whose pid was not recorded yet is found.
const EnvVar = "BSM_LEDGER_ID"

// Marker is the file that a directory of ours holds; it contains the entry's
// id. A recorded directory that has content but not this file is never removed.
const Marker = ".bsm-ledger"

// Ledger is a directory with one file per live resource.
type Ledger struct {
	dir   string
	owner identity
}

// Entry is the record of one resource.
type Entry struct {
	ID string

	l *Ledger
	r record
}

// Open opens or creates the ledger in dir (0700, owned by the caller).
func Open(dir string) (*Ledger, error) {
	if dir == "" {
		dir = DefaultDir()
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := private(dir); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	owner, err := identify(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return &Ledger{dir: dir, owner: owner}, nil
}

// DefaultDir returns the ledger directory of this user: below $XDG_STATE_HOME,
// else ~/.local/state, else a per-user directory in the temporary directory.
func DefaultDir() string {
	const sub = "bsm-redteam/ledger"
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, sub)
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		if fi, err := os.Stat(home); err == nil && fi.IsDir() && writable(home) {
			return filepath.Join(home, ".local/state", sub)
		}
	}
	return filepath.Join(os.TempDir(), "bsm-redteam-"+strconv.Itoa(os.Getuid()), "ledger")
}

// private refuses a directory into which somebody else could put records, or
// whose name somebody else could give to another directory.
func private(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if uid := ownerOf(fi); uid != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, not to uid %d", dir, uid, os.Geteuid())
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is open to others (%04o); fix: chmod 0700 %s", dir, fi.Mode().Perm(), dir)
	}
	parent := filepath.Dir(dir)
	fi, err = os.Stat(parent)
	if err != nil {
		return err
	}
	uid := ownerOf(fi)
	loose := fi.Mode().Perm()&0o022 != 0 && fi.Mode()&fs.ModeSticky == 0
	if (uid != os.Geteuid() && uid != 0) || loose {
		return fmt.Errorf("%s can be renamed by others: its parent belongs to uid %d with mode %04o", dir, uid, fi.Mode().Perm())
	}
	return nil
}

// Intend writes a record before target is created, and syncs it where the
// resource outlives a power cut. For a process target is the executable. A directory that exists already is refused: only
// what was made under a record may be removed by it.
func (l *Ledger) Intend(kind Kind, target string) (*Entry, error) {
	if l == nil {
		return nil, nil
	}
	switch kind {
	case KindDir, KindCgroup:
		if !filepath.IsAbs(target) {
			return nil, fmt.Errorf("record %s: %q is not an absolute path", kind, target)
		}
		if _, err := os.Lstat(target); err == nil {
			return nil, fmt.Errorf("record %s: %s: %w", kind, target, fs.ErrExist)
		}
	case KindMount:
		if !filepath.IsAbs(target) {
			return nil, fmt.Errorf("record %s: %q is not an absolute path", kind, target)
		}
	case KindProcess:
	default:
		return nil, fmt.Errorf("record: unknown kind %q", kind)
	}
	var id [12]byte
	_, _ = rand.Read(id[:]) // never fails since Go 1.24
	e := &Entry{ID: hex.EncodeToString(id[:]), l: l}
	e.r = record{ID: e.ID, Kind: kind, Target: target, Owner: l.owner, Recorded: time.Now().UTC().Format(time.RFC3339)}
	if err := e.r.write(l.dir); err != nil {
		return nil, fmt.Errorf("record %s %s: %w", kind, target, err)
	}
	return e, nil
}

// MakeDir records, creates (0700) and marks a directory. With a nil ledger it
// only creates it.
func (l *Ledger) MakeDir(path string) (*Entry, error) {
	e, err := l.Intend(KindDir, path)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, errors.Join(err, e.Done())
	}
	if err := e.Mark(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(path), e.Done())
	}
	return e, nil
}

// Mark puts the marker into a directory that was created under e.
func (e *Entry) Mark() error {
	if e == nil {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(e.r.Target, Marker), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("mark directory: %w", err)
	}
	_, err = f.WriteString(e.ID)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("mark directory: %w", err)
	}
	return nil
}

// Env returns "BSM_LEDGER_ID=<id>" for the child's environment.
func (e *Entry) Env() string {
	if e == nil {
		return EnvVar + "="
	}
	return EnvVar + "=" + e.ID
}

// Started completes a process entry with its pid, start time and boot id.
func (e *Entry) Started(pid int) error {
	if e == nil {
		return nil
	}
	who, err := identify(pid)
	if err != nil {
		return fmt.Errorf("record pid %d: %w", pid, err)
	}
	e.r.Process = &who
	if err := e.r.write(e.l.dir); err != nil {
		return fmt.Errorf("record pid %d: %w", pid, err)
	}
	return nil
}

// Done removes the record: the resource is gone.
func (e *Entry) Done() error {
	if e == nil {
		return nil
	}
	if err := os.Remove(filepath.Join(e.l.dir, e.ID+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("close ledger entry: %w", err)
	}
	return nil
}
