// Package report writes and reads reports: JSON in schema v1.0, and the table
// for a terminal.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Encode returns the report as JSON with an indent of two blanks and a newline
// at the end.
func Encode(r probes.Report) ([]byte, error) {
	if r.Probes == nil {
		r.Probes = []probes.Result{}
	}
	if r.Latency == nil {
		r.Latency = map[string]probes.Distribution{}
	}
	if r.Notes == nil {
		r.Notes = []string{}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	// HTML is not escaped: the seed's readers compare texts. A report may end
	// up in a job's log, and a merged one has the strings of anybody's.
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return untrusted.JSON(b.Bytes()), nil
}

// Destination is where a report goes. It is opened before the run, so that a
// report is never lost for want of a place.
type Destination struct {
	path string // of a regular file: replaced atomically
	temp *temp  // beside path
	out  io.Writer
	file *os.File // written in place: a device, a pipe
}

// Stdout is "-" as a path.
const Stdout = "-"

// Open prepares path. A regular file, or one that does not exist, is written
// beside itself and then renamed, through links to what they point at; anything
// else is opened for writing in place. stdout is used for "-".
func Open(path string, stdout io.Writer) (*Destination, error) {
	if path == Stdout {
		return &Destination{out: stdout}, nil
	}
	if path == "" {
		return nil, errors.New("the output path is empty; fix: name a file, or - for stdout")
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		target = path // does not exist yet
	}
	fi, err := os.Stat(target)
	switch {
	case err == nil && fi.IsDir():
		return nil, fmt.Errorf("output %s is a directory; fix: name a file in it", path)
	case err == nil && !fi.Mode().IsRegular():
		f, err := os.OpenFile(target, os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("open output: %w", err)
		}
		return &Destination{out: f, file: f}, nil
	case err == nil && !writable(target):
		return nil, fmt.Errorf("output %s is not writable; fix: name another file, or change its mode", path)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("open output: %w", err)
	}
	mode := os.FileMode(0o666) // less the umask
	if fi != nil {
		mode = fi.Mode().Perm()
	}
	temp, err := openTemp(filepath.Dir(target), "."+filepath.Base(target)+"."+wire.NewNonceString()+".tmp", mode)
	if err != nil {
		return nil, fmt.Errorf("open output %s: %w", path, err)
	}
	return &Destination{path: target, temp: temp}, nil
}

func writable(path string) bool {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// Write writes b whole, or returns why it did not. It ends the destination.
func (d *Destination) Write(b []byte) error {
	if d.temp == nil {
		_, err := d.out.Write(b)
		if d.file != nil {
			err = errors.Join(err, d.file.Close())
			d.file = nil
		}
		if err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		return nil
	}
	defer d.Discard()
	if err := d.temp.finish(b, d.path); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// Discard gives the destination up and leaves what was there before. It may be
// called at any time.
func (d *Destination) Discard() {
	if d.temp != nil {
		d.temp.discard()
		d.temp = nil
	}
	if d.file != nil {
		_ = d.file.Close()
		d.file = nil
	}
}
