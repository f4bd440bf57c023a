package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

// Tampers lists what P-A6 may change behind this sandbox's back. All of it is
// our own: a private copy of the disk, memfds, a file in the run directory.
func (s *Sandbox) Tampers() []backends.Tamper {
	return []backends.Tamper{
		{Name: "disk-byte", About: "one byte of the disk image; size and modification time stay", Source: backends.SourceFSHash, Apply: s.tamperDisk},
		{Name: "snapshot-ram-byte", About: "one bit of the golden memory, in a page that the guest has never used", Source: backends.SourceFSHash,
			Apply: func(ctx context.Context) (func() error, error) {
				return s.tamperGolden(ctx, func(r *run) **golden { return &r.ram }, unusedPage)
			}},
		{Name: "snapshot-state-byte", About: "one bit of the golden device state; QEMU loads it without complaint", Source: backends.SourceFSHash,
			Apply: func(ctx context.Context) (func() error, error) {
				return s.tamperGolden(ctx, func(r *run) **golden { return &r.dev }, idleByte)
			}},
		{Name: "baseline", About: "one digit of the recorded baseline", Source: backends.SourceFSHash, Apply: s.tamperBaseline},
		{Name: "lying-vmm", About: "QEMU's API answers query-status with another state", Source: backends.SourceVMMState,
			Apply: s.hook(func(h *hooks) { h.status = func(string) string { return integrity.StatePaused } })},
		{Name: "lying-guest", About: "the guest counts one open file too many", Source: backends.SourceOpenFDCount,
			Apply: s.hook(func(h *hooks) { h.fds = func(n int) int { return n + 1 } })},
		{Name: "guest-lie-equal-to-truth", About: "a guest that always answers the golden count", Source: backends.SourceOpenFDCount,
			NotCovered: "an answer that equals the truth cannot be told from it; the other two sources do not ask the guest"},
	}
}

func (s *Sandbox) hook(change func(*hooks)) func(context.Context) (func() error, error) {
	return func(context.Context) (func() error, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		old := s.hooks
		change(&s.hooks)
		return func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.hooks = old
			return nil
		}, nil
	}
}

// undo makes what puts a change to r right, which does nothing once r is gone
// with all that was changed.
func (s *Sandbox) undo(r *run, do func() error) func() error {
	return func() error {
		unlock, err := s.lock(context.Background())
		if err != nil {
			return err
		}
		defer unlock()
		s.mu.Lock()
		present := s.r == r
		s.mu.Unlock()
		if !present {
			return nil
		}
		return do()
	}
}

// tampering takes the sandbox's operations to itself and requires a golden
// state to tamper with.
func (s *Sandbox) tampering(ctx context.Context) (r *run, unlock func(), err error) {
	unlock, err = s.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	r = s.r
	s.mu.Unlock()
	if r == nil || r.goldHash == "" {
		unlock()
		return nil, nil, errors.New("the sandbox is not booted")
	}
	return r, unlock, nil
}

func (s *Sandbox) tamperDisk(ctx context.Context) (func() error, error) {
	r, unlock, err := s.tampering(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := r.rootfsPath
	// The last byte of an ext4 image this small belongs to no file.
	flip := func() error { return flipByte(path, -1) }
	if err := flip(); err != nil {
		return nil, err
	}
	return s.undo(r, flip), nil
}

// flipByte changes one bit and keeps the file's mode and times. A negative
// offset counts from the end.
func flipByte(path string, offset int64) (err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if offset < 0 {
		offset += st.Size
	}
	mode := os.FileMode(st.Mode & 0o777)
	if err := os.Chmod(path, mode|0o200); err != nil { // not even its owner may write to it
		return err
	}
	defer func() { err = errors.Join(err, os.Chmod(path, mode)) }()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], offset)
	if err == nil {
		b[0] ^= 1
		_, err = f.WriteAt(b[:], offset)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Chtimes(path, time.Unix(st.Atim.Unix()), time.Unix(st.Mtim.Unix()))
}

// tamperGolden puts a changed copy in the place of a golden file. The file
// itself is sealed: nobody can change it.
func (s *Sandbox) tamperGolden(ctx context.Context, which func(*run) **golden, where func(*golden) (int64, error)) (func() error, error) {
	r, unlock, err := s.tampering(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	place := which(r)
	real := *place
	at, err := where(real)
	if err != nil {
		return nil, err
	}
	fake, err := real.flipped(ctx, at)
	if err != nil {
		return nil, err
	}
	*place = fake
	r.displaced = append(r.displaced, real) // for a shutdown that comes before the undo
	return s.undo(r, func() error {
		*place = real
		r.displaced = slices.DeleteFunc(r.displaced, func(g *golden) bool { return g == real })
		return fake.close()
	}), nil
}

// unusedPage finds memory that the guest never touched: a change there harms
// no restore and only a digest can see it.
func unusedPage(g *golden) (int64, error) {
	at, err := unix.Seek(int(g.f.Fd()), g.size/2, unix.SEEK_HOLE)
	if err != nil {
		return 0, err
	}
	if at >= g.size {
		return 0, errors.New("the guest has used all of its memory")
	}
	return at, nil
}

// idleByte finds the description that ends a saved state, which QEMU writes for
// people and does not read.
func idleByte(g *golden) (int64, error) {
	const tail = 1 << 20
	from := max(0, g.size-tail)
	b := make([]byte, g.size-from)
	if _, err := g.f.ReadAt(b, from); err != nil {
		return 0, err
	}
	key := []byte(`"page_size"`)
	i := bytes.LastIndex(b, key)
	if i < 0 {
		return 0, errors.New("the saved state has no description")
	}
	return from + int64(i+1), nil
}

func (s *Sandbox) tamperBaseline(ctx context.Context) (func() error, error) {
	r, unlock, err := s.tampering(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := r.baselinePath()
	good, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := baseline.Parse(good)
	if err != nil {
		return nil, err
	}
	digit := "0"
	if strings.HasSuffix(f.Baseline.FSHash, digit) {
		digit = "1"
	}
	f.Baseline.FSHash = f.Baseline.FSHash[:len(f.Baseline.FSHash)-1] + digit
	if err := baseline.Record(path, f); err != nil {
		return nil, fmt.Errorf("tamper with the baseline: %w", err)
	}
	return s.undo(r, func() error { return os.WriteFile(path, good, 0o600) }), nil
}
