package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	suffix    = ".json"
	tmpSuffix = ".tmp"
	// maxRecord bounds what is read back; a record is under 1 KiB.
	maxRecord = 64 << 10
)

// errEmpty is what a power cut leaves of a record that was not synced; its
// resource is gone.
var errEmpty = errors.New("record is empty")

// identity names one process for good. A pid is reused; a pid with its start
// time within one boot is not. PIDNS keeps two containers that share a ledger
// from taking each other's pids for dead.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since boot, /proc/PID/stat field 22
	Boot  string `json:"boot"`
	PIDNS string `json:"pid_ns,omitempty"`
}

// record is one file of the ledger.
type record struct {
	ID       string    `json:"id"`
	Kind     Kind      `json:"kind"`
	Target   string    `json:"target"`
	Process  *identity `json:"process,omitempty"`
	Owner    identity  `json:"owner"`
	Recorded string    `json:"recorded"`
}

// write replaces the record on disk in one step, so that a killed harness leaves
// no half of one. File and directory are synced where the resource outlives a
// power cut. A process, a cgroup or a mount does not, and the sync would cost
// more than starting a sandbox.
func (r *record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, r.ID+"."+r.Owner.mark()+tmpSuffix)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	durable := r.Kind == KindDir
	if durable {
		err = errors.Join(err, f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, filepath.Join(dir, r.ID+suffix)); err != nil {
		return err
	}
	if !durable {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// mark names a writer in the name of its temporary file, which may be empty yet.
func (i identity) mark() string {
	digits := strings.Map(func(c rune) rune {
		if c < '0' || c > '9' {
			return -1
		}
		return c
	}, i.PIDNS)
	return fmt.Sprintf("%d-%d-%s", i.PID, i.Start, digits)
}

// abandoned reports whether the temporary file e was left by a writer that is
// dead. A writer that cannot be judged from here gets an hour.
func (l *Ledger) abandoned(e os.DirEntry) bool {
	var pid int
	var start uint64
	var ns string
	_, mark, _ := strings.Cut(strings.TrimSuffix(e.Name(), tmpSuffix), ".")
	if n, _ := fmt.Sscanf(mark, "%d-%d-%s", &pid, &start, &ns); n >= 2 {
		writer := identity{PID: pid, Start: start, Boot: l.owner.Boot, PIDNS: l.owner.PIDNS}
		if alive, err := writer.alive(); err == nil && !alive && writer.mark() == mark {
			return true
		}
	}
	fi, err := e.Info()
	return err == nil && time.Since(fi.ModTime()) > time.Hour
}

// parse reads a record strictly: what is acted on later must be understood.
func parse(b []byte) (record, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return record{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return record{}, errors.New("bytes after the record")
	}
	switch {
	case r.ID == "" || strings.ContainsAny(r.ID, "/.\x00"):
		return record{}, errors.New("record has no valid id")
	case r.Owner.PID <= 0 || r.Owner.Boot == "":
		return record{}, errors.New("record has no owner")
	case r.Process != nil && (r.Process.PID <= 1 || r.Process.Boot == ""):
		return record{}, errors.New("record names no process that could be ours")
	case r.Kind != KindProcess && !filepath.IsAbs(r.Target):
		return record{}, errors.New("record has no absolute target")
	}
	return r, nil
}

// records reads all records, skipping half-written temporary files and removing
// those of them that nobody will finish.
func (l *Ledger) records() ([]record, error) {
	if err := private(l.dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	var out []record
	var errs []error
	for _, e := range entries {
		path := filepath.Join(l.dir, e.Name())
		if strings.HasSuffix(e.Name(), tmpSuffix) {
			if l.abandoned(e) {
				errs = append(errs, os.Remove(path))
			}
			continue
		}
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		r, err := read(path)
		if errors.Is(err, os.ErrNotExist) { // its owner closed it meanwhile
			continue
		}
		if errors.Is(err, errEmpty) {
			errs = append(errs, os.Remove(path))
			continue
		}
		if err == nil && r.ID+suffix != e.Name() {
			err = errors.New("id and file name differ")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(errs...)
}

func read(path string) (record, error) {
	f, err := os.Open(path)
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return record{}, err
	}
	if len(b) == 0 {
		return record{}, errEmpty
	}
	return parse(b)
}
