package report

import (
	"errors"
	"os"
)

// temp is a report in the making, beside its destination.
type temp struct {
	*os.File
	path string
	// give gives the finished file its name; nil when it has one from the start.
	give  func(f *os.File) error
	named bool
}

func namedTemp(path string, mode os.FileMode) (*temp, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	return &temp{File: f, path: path, named: true}, nil
}

// finish writes b whole and puts the file in the place of target.
func (t *temp) finish(b []byte, target string) error {
	_, err := t.Write(b)
	if err = errors.Join(err, t.Sync()); err != nil {
		return err
	}
	if !t.named && t.give(t.File) != nil { // no /proc, say
		again, err := namedTemp(t.path, 0o666)
		if err != nil {
			return err
		}
		_ = t.Close()
		t.File = again.File
		t.named = true
		return t.finish(b, target)
	}
	t.named = true
	if err := t.Close(); err != nil {
		return err
	}
	if err := os.Rename(t.path, target); err != nil {
		return err
	}
	t.named = false
	return nil
}

// discard removes what is left of it.
func (t *temp) discard() {
	_ = t.Close()
	if t.named {
		_ = os.Remove(t.path)
	}
}
