package canary

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

const shmSize = 4096

// Shm is a System V shared memory segment of the host's IPC namespace that
// holds a secret.
type Shm struct {
	Key   int
	Token string

	id   int
	mu   sync.Mutex
	gone bool
}

// NewShm makes a segment under a random key and gives it to owner.
func NewShm(owner backends.Credential) (*Shm, error) {
	var raw [4]byte
	_, _ = rand.Read(raw[:]) // never fails since Go 1.24
	s := &Shm{Key: int(binary.NativeEndian.Uint32(raw[:])&0x7fffffff | 1), Token: NewToken()}
	var err error
	if s.id, err = unix.SysvShmGet(s.Key, shmSize, unix.IPC_CREAT|unix.IPC_EXCL|0o600); err != nil {
		return nil, fmt.Errorf("make a shared memory segment: %w", err)
	}
	b, err := unix.SysvShmAttach(s.id, 0, 0)
	if err == nil {
		copy(b, s.Token)
		err = unix.SysvShmDetach(b)
	}
	if err == nil && (owner.UID != os.Geteuid() || owner.GID != os.Getegid()) {
		desc := unix.SysvShmDesc{}
		if _, err = unix.SysvShmCtl(s.id, unix.IPC_STAT, &desc); err == nil {
			desc.Perm.Uid, desc.Perm.Gid = uint32(owner.UID), uint32(owner.GID)
			_, err = unix.SysvShmCtl(s.id, unix.IPC_SET, &desc)
		}
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("make a shared memory segment: %w", err)
	}
	return s, nil
}

// SelfCheck finds the segment by its key and reads the secret.
func (s *Shm) SelfCheck(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return errors.New("the shared memory segment is gone")
	}
	id, err := unix.SysvShmGet(s.Key, shmSize, 0)
	if err != nil {
		return err
	}
	b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		return err
	}
	got := string(b[:len(s.Token)])
	if err := unix.SysvShmDetach(b); err != nil {
		return err
	}
	if got != s.Token {
		return errors.New("the shared memory segment was changed")
	}
	return nil
}

// Stop removes the segment.
func (s *Shm) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.gone = true
		_, _ = unix.SysvShmCtl(s.id, unix.IPC_RMID, nil)
	}
}
