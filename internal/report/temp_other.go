//go:build !linux

package report

import (
	"os"
	"path/filepath"
)

// openTemp opens a file in dir under name.
func openTemp(dir, name string, mode os.FileMode) (*temp, error) {
	return namedTemp(filepath.Join(dir, name), mode)
}
