//go:build unix

package ledger

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the owner of a file, -1 when the system does not say.
func ownerOf(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
