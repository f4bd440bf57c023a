package integrity

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrNothingHashed is returned where a digest would be that of no bytes.
var ErrNothingHashed = errors.New("the SHA-256 of nothing is no baseline")

// HashFile returns the digest of the whole content of a regular file as
// "sha256:<hex>". An empty file is refused.
func HashFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	s, err := HashReader(ctx, f)
	if err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return s, nil
}

// HashReader returns the digest of everything that r has. An empty stream is refused.
func HashReader(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	n, err := copyCtx(ctx, h, r, make([]byte, hashBuffer))
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", ErrNothingHashed
	}
	return digest(h), nil
}

// HashTree returns the digest of a directory tree as "sha256:<hex>": for every
// entry its path relative to dir, its type and mode bits, and its content or
// symlink target or device number. Times and owners are not part of it, and
// symlinks are not followed. An empty directory is refused.
func HashTree(ctx context.Context, dir string) (string, error) {
	h, buf := sha256.New(), make([]byte, hashBuffer)
	entries := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if rel == "." && !d.IsDir() {
			return fmt.Errorf("%s is not a directory", path)
		}
		if rel != "." {
			entries++
		}
		return hashEntry(ctx, h, buf, path, rel, d)
	})
	if err != nil {
		return "", fmt.Errorf("hash tree %s: %w", dir, err)
	}
	if entries == 0 {
		return "", fmt.Errorf("hash tree %s: %w", dir, ErrNothingHashed)
	}
	return digest(h), nil
}

func hashEntry(ctx context.Context, h hash.Hash, buf []byte, path, rel string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	field(h, []byte(rel))
	number(h, uint64(info.Mode()))
	switch {
	case info.Mode().IsRegular():
		// The length comes first, so that no content can pass for an entry.
		number(h, uint64(info.Size()))
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		n, err := copyCtx(ctx, h, f, buf)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if n != info.Size() {
			return fmt.Errorf("%s changed while it was hashed", rel)
		}
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		field(h, []byte(target))
	case info.Mode()&fs.ModeDevice != 0:
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("%s: no device number", rel)
		}
		number(h, uint64(st.Rdev))
	}
	return nil
}

func field(h hash.Hash, b []byte) {
	number(h, uint64(len(b)))
	h.Write(b)
}

func number(h hash.Hash, n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	h.Write(b[:])
}

func digest(h hash.Hash) string { return hashPrefix + hex.EncodeToString(h.Sum(nil)) }

// hashBuffer is what is read at a time. More is no faster, and zeroing it shows
// in a tree of small files.
const hashBuffer = 128 << 10

// copyCtx is io.CopyBuffer that ends with its context, which a hash over a large
// image has to.
func copyCtx(ctx context.Context, w io.Writer, r io.Reader, buf []byte) (int64, error) {
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
