// Package baseline keeps what the three sources of a reset verification said of
// a golden sandbox, so that later runs are checked against something that was
// recorded before them.
//
// A baseline is tied to the kernel, image, agent and VMM that it was recorded
// with. One of anything else is refused, never adapted.
package baseline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

// Version is the version of the file format.
const Version = 1

// maxSize bounds the file: a real one is about 1 KiB.
const maxSize = 64 << 10

// Fix is what the user can do about any refused baseline.
const Fix = "record a new baseline: bsm-redteam baseline record"

var (
	// ErrMalformed is wrapped for a file that is not a baseline.
	ErrMalformed = errors.New("malformed baseline")
	// ErrStale is wrapped for one of another kernel, image, agent or VMM.
	ErrStale = errors.New("stale baseline")
	// ErrForeign is wrapped for one of another backend, or a file that
	// somebody else could have written.
	ErrForeign = errors.New("foreign baseline")
)

// Identity is what a baseline is a baseline of.
type Identity struct {
	// Backend is its stable name, such as "qemu".
	Backend string `json:"backend"`
	// VMMVersion is the version that the VMM or runtime reports.
	VMMVersion string `json:"vmm_version"`
	// Digests are "sha256:<hex>" of everything that makes the golden state, by
	// role: kernel, initramfs, rootfs, agent.
	Digests map[string]string `json:"digests"`
}

// File is a recorded baseline.
type File struct {
	Version    int                `json:"version"`
	RecordedAt time.Time          `json:"recorded_at"`
	Identity   Identity           `json:"identity"`
	Baseline   integrity.Baseline `json:"baseline"`
}

// Validate refuses a file that no recording could have produced.
func (f File) Validate() error {
	switch {
	case f.Version != Version:
		return fmt.Errorf("%w: version %d, this program reads %d", ErrMalformed, f.Version, Version)
	case f.RecordedAt.IsZero():
		return fmt.Errorf("%w: no recorded_at", ErrMalformed)
	case f.Identity.Backend == "", f.Identity.VMMVersion == "":
		return fmt.Errorf("%w: no backend or no VMM version", ErrMalformed)
	case len(f.Identity.Digests) == 0:
		return fmt.Errorf("%w: no digests", ErrMalformed)
	}
	for _, role := range slices.Sorted(maps.Keys(f.Identity.Digests)) {
		if err := integrity.ValidHash(f.Identity.Digests[role]); err != nil {
			return fmt.Errorf("%w: digest of %q: %w", ErrMalformed, role, err)
		}
	}
	if err := f.Baseline.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// Check refuses a baseline of anything but id. Every difference is named.
func (f File) Check(id Identity) error {
	if f.Identity.Backend != id.Backend {
		return fmt.Errorf("%w: recorded for backend %q, this is %q; fix: %s", ErrForeign, f.Identity.Backend, id.Backend, Fix)
	}
	var diff []error
	if f.Identity.VMMVersion != id.VMMVersion {
		diff = append(diff, fmt.Errorf("VMM version is %q, was %q", id.VMMVersion, f.Identity.VMMVersion))
	}
	roles := maps.Clone(f.Identity.Digests)
	if roles == nil {
		roles = map[string]string{}
	}
	maps.Copy(roles, id.Digests)
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		if was, is := f.Identity.Digests[role], id.Digests[role]; was != is {
			diff = append(diff, fmt.Errorf("%s is %q, was %q", role, is, was))
		}
	}
	if len(diff) > 0 {
		return fmt.Errorf("%w: %w; fix: %s", ErrStale, errors.Join(diff...), Fix)
	}
	return nil
}

// Record writes f to path with mode 0600, atomically: a reader sees the old
// file or all of the new one.
func Record(path string, f File) (err error) {
	if err := f.Validate(); err != nil {
		return fmt.Errorf("record baseline %s: %w", path, err)
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("record baseline %s: %w", path, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".baseline-*") // 0600
	if err != nil {
		return fmt.Errorf("record baseline: %w", err)
	}
	defer func() {
		if err != nil {
			_ = tmp.Close()
			_ = os.Remove(tmp.Name())
		}
	}()
	if _, err := tmp.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("record baseline: %w", err)
	}
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("record baseline: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("record baseline: %w", err)
	}
	return nil
}

// Load reads and validates a baseline. It refuses a file that anybody but the
// caller could have written: a baseline that an attacker can edit vouches for
// whatever the attacker likes.
func Load(path string) (File, error) {
	f, err := load(path)
	if err != nil {
		return File{}, fmt.Errorf("load baseline %s: %w", path, err)
	}
	return f, nil
}

func load(path string) (File, error) {
	// O_NONBLOCK: a FIFO in its place must not block the open.
	h, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return File{}, fmt.Errorf("%w; fix: %s", err, Fix)
		}
		return File{}, err
	}
	defer func() { _ = h.Close() }()
	info, err := h.Stat()
	if err != nil {
		return File{}, err
	}
	if !info.Mode().IsRegular() {
		return File{}, fmt.Errorf("%w: not a regular file", ErrMalformed)
	}
	if p := info.Mode().Perm(); p&0o022 != 0 {
		return File{}, fmt.Errorf("%w: mode %04o lets others write it; fix: %s", ErrForeign, p, Fix)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return File{}, fmt.Errorf("%w: owned by uid %d; fix: %s", ErrForeign, st.Uid, Fix)
	}
	b, err := io.ReadAll(io.LimitReader(h, maxSize+1))
	if err != nil {
		return File{}, err
	}
	if len(b) > maxSize {
		return File{}, fmt.Errorf("%w: over %d bytes", ErrMalformed, maxSize)
	}
	return Parse(b)
}

// Parse decodes and validates the content of a baseline file.
func Parse(b []byte) (File, error) {
	var f File
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return File{}, fmt.Errorf("%w: %w; fix: %s", ErrMalformed, err, Fix)
	}
	if _, err := d.Token(); err != io.EOF {
		return File{}, fmt.Errorf("%w: data after the object; fix: %s", ErrMalformed, Fix)
	}
	if err := f.Validate(); err != nil {
		return File{}, fmt.Errorf("%w; fix: %s", err, Fix)
	}
	return f, nil
}
