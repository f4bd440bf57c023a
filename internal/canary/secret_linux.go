package canary

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Secret is a file on the host whose content must not come out of a sandbox. It
// belongs to the identity that the sandbox's agent would have outside, so that
// its mode is never what protects it.
type Secret struct {
	// Path ends in a name that occurs nowhere else.
	Path string
	// Token is the secret. It stands in the file only.
	Token string
	// Marker stands right before it and is no secret.
	Marker string

	file   *os.File
	notify *os.File
	want   [sha256.Size]byte
	mu     sync.Mutex
	seen   Access
	closed bool
}

// Access says what inotify and the file's digest show of others' doings.
type Access struct {
	Opened, Read, Modified, Moved bool
	// Overflow: the kernel dropped events, so silence proves nothing.
	Overflow bool
}

// Any reports whether anything was seen.
func (a Access) Any() bool { return a.Opened || a.Read || a.Modified || a.Moved }

// String lists what was seen.
func (a Access) String() string {
	var b bytes.Buffer
	for _, e := range []struct {
		seen bool
		name string
	}{{a.Opened, "opened"}, {a.Read, "read"}, {a.Modified, "changed"}, {a.Moved, "moved or removed"}} {
		if e.seen {
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			b.WriteString(e.name)
		}
	}
	if b.Len() == 0 {
		return "untouched"
	}
	return b.String()
}

// NewSecret writes a secret file into dir, gives it to id and begins to watch
// it.
func NewSecret(dir string, id backends.Credential) (*Secret, error) {
	s := &Secret{Token: NewToken(), Marker: "bsm-marker-" + NewToken(), Path: filepath.Join(dir, "bsm-secret-"+NewToken())}
	content := s.Content()
	s.want = sha256.Sum256(content)
	var err error
	if s.file, err = os.OpenFile(s.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return nil, fmt.Errorf("make a secret: %w", err)
	}
	if _, err = s.file.Write(content); err == nil {
		err = Own(s.Path, id)
	}
	if err == nil {
		err = s.watch()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a secret: %w", err), s.file.Close(), os.Remove(s.Path))
	}
	return s, nil
}

// Content is what the file holds.
func (s *Secret) Content() []byte { return []byte(s.Marker + " " + s.Token + "\n") }

func (s *Secret) watch() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	_, err = unix.InotifyAddWatch(fd, s.Path, unix.IN_OPEN|unix.IN_ACCESS|unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_DELETE_SELF)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	s.notify = os.NewFile(uintptr(fd), "inotify")
	return nil
}

// drain reads all queued events. The kernel queues an event before the access
// returns, so none is under way once the accessing process is done.
func (s *Secret) drain() (Access, error) {
	var a Access
	if s.closed {
		return a, errors.New("the secret's watch is closed")
	}
	raw, err := s.notify.SyscallConn()
	if err != nil {
		return a, err
	}
	buf := make([]byte, 16<<10)
	var readErr error
	err = raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n <= 0 {
				if err != nil && !errors.Is(err, unix.EAGAIN) {
					readErr = err
				}
				return
			}
			a.merge(buf[:n])
		}
	})
	return a, errors.Join(err, readErr)
}

func (a *Access) merge(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(b[4:])
		a.Opened = a.Opened || mask&unix.IN_OPEN != 0
		a.Read = a.Read || mask&unix.IN_ACCESS != 0
		a.Modified = a.Modified || mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0
		a.Moved = a.Moved || mask&(unix.IN_MOVE_SELF|unix.IN_DELETE_SELF) != 0
		a.Overflow = a.Overflow || mask&unix.IN_Q_OVERFLOW != 0
		b = b[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):]
	}
}

// Observe returns all accesses by others so far. What the host itself reads in
// order to compare the content is taken out.
func (s *Secret) Observe() (Access, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.drain()
	if err != nil {
		return a, err
	}
	got, err := readAll(s.file)
	if err != nil {
		return a, err
	}
	a.Modified = a.Modified || sha256.Sum256(got) != s.want
	var st unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &st); err != nil {
		return a, err
	}
	a.Moved = a.Moved || st.Nlink != 1
	if _, err := s.drain(); err != nil {
		return a, err
	}
	s.seen = Access{Opened: s.seen.Opened || a.Opened, Read: s.seen.Read || a.Read, Modified: s.seen.Modified || a.Modified,
		Moved: s.seen.Moved || a.Moved, Overflow: s.seen.Overflow || a.Overflow}
	return s.seen, nil
}

func readAll(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(st.Size(), 64<<10))
	n, err := f.ReadAt(b, 0)
	if n == len(b) {
		err = nil
	}
	return b[:n], err
}

// SelfCheck reads the secret as anybody would and requires that the watch
// notices. It must be called after Observe; what it does itself is not kept.
func (s *Secret) SelfCheck(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("the secret's watch is closed")
	}
	if _, err := os.ReadFile(s.Path); err != nil && !s.seen.Moved {
		return fmt.Errorf("the secret cannot be read by the host: %w", err)
	}
	a, err := s.drain()
	if err != nil {
		return err
	}
	if !s.seen.Moved && (!a.Opened || !a.Read) {
		return errors.New("the watch did not notice the host's own read")
	}
	return nil
}

// Handle returns the file handle, for open_by_handle_at.
func (s *Secret) Handle() (kind int32, handle []byte, err error) {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, s.Path, 0)
	if err != nil {
		return 0, nil, err
	}
	return h.Type(), h.Bytes(), nil
}

// Stop ends the watch and removes the file.
func (s *Secret) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	_ = s.notify.Close()
	_ = s.file.Close()
	_ = os.Remove(s.Path)
}
