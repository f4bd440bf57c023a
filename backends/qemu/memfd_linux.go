package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// allSeals make a memfd immutable for everybody, this process included.
const allSeals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// newMemfd makes an anonymous file that can be sealed.
func newMemfd(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// A golden is a sealed memfd with the digest that was taken of it after it was
// sealed. Nobody can change it any more, so the digest stays true for as long
// as it is the same file.
type golden struct {
	f    *os.File
	size int64
	sum  string // "sha256:<hex>"
	ino  uint64
}

// seal makes f immutable. No shared writable mapping may exist: a VMM that has
// f mapped has to be gone.
func seal(f *os.File) (*golden, error) {
	if err := sealFile(f); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("seal %s: %w", f.Name(), err)
	}
	return &golden{f: f, size: st.Size, ino: st.Ino}, nil
}

// vouched says that the file is still the one that was hashed, and sealed. If
// so its digest cannot have changed; if not it has to be taken again.
func (g *golden) vouched() bool {
	seals, err := unix.FcntlInt(g.f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&allSeals != allSeals {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(g.f.Fd()), &st) == nil && st.Ino == g.ino && st.Size == g.size
}

// digest returns the digest of what a restore would read now.
func (g *golden) digest(ctx context.Context) (string, error) {
	if g.vouched() {
		return g.sum, nil
	}
	size, err := g.f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	return hashSparse(ctx, g.f, size)
}

// reopen returns a read-only descriptor with an offset of its own.
func (g *golden) reopen() (*os.File, error) {
	return os.Open("/proc/self/fd/" + strconv.Itoa(int(g.f.Fd())))
}

func (g *golden) close() error {
	if g == nil {
		return nil
	}
	return g.f.Close()
}

// flipped returns an unsealed, never hashed copy with one bit changed at offset. Its
// recorded digest is the original's: what a thief of the snapshot would leave.
func (g *golden) flipped(ctx context.Context, offset int64) (*golden, error) {
	f, err := newMemfd(g.f.Name())
	if err != nil {
		return nil, err
	}
	err = func() error {
		if err := f.Truncate(g.size); err != nil {
			return err
		}
		if err := extents(ctx, g.f, g.size, func(off int64, b []byte) error {
			_, err := f.WriteAt(b, off)
			return err
		}); err != nil {
			return err
		}
		var b [1]byte
		if _, err := f.ReadAt(b[:], offset); err != nil {
			return err
		}
		b[0] ^= 1
		_, err := f.WriteAt(b[:], offset)
		return err
	}()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy %s: %w", g.f.Name(), err), f.Close())
	}
	return &golden{f: f, size: g.size, sum: g.sum, ino: g.ino}, nil
}

// extents calls visit with the allocated content of f in order. Holes are
// skipped: most of a guest's memory was never touched.
func extents(ctx context.Context, f *os.File, size int64, visit func(off int64, b []byte) error) error {
	buf := make([]byte, 1<<20)
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for start < end {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := f.ReadAt(buf[:min(int64(len(buf)), end-start)], start)
			if err != nil && err != io.EOF {
				return err
			}
			if n == 0 {
				return io.ErrUnexpectedEOF
			}
			if err := visit(start, buf[:n]); err != nil {
				return err
			}
			start += int64(n)
		}
		at = end
	}
	return nil
}

// hashSparse digests the size, and the offset, length and content of every
// allocated piece. It identifies the content without reading the holes.
func hashSparse(ctx context.Context, f *os.File, size int64) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "bsm sparse v1 %d\n", size)
	empty := true
	err := extents(ctx, f, size, func(off int64, b []byte) error {
		empty = false
		_, _ = fmt.Fprintf(h, "%d %d\n", off, len(b))
		_, _ = h.Write(b)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("hash %s: %w", f.Name(), err)
	}
	if empty {
		return "", fmt.Errorf("hash %s: it is empty", f.Name())
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// sealFile makes f immutable.
func sealFile(f *os.File) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, allSeals); err != nil {
		return fmt.Errorf("seal %s: %w", f.Name(), err)
	}
	return nil
}
