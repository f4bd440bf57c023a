package image

import (
	"fmt"
	"slices"
	"strings"
)

// Marker stands in the guest's own /etc/shadow and /usr/share/bsm/marker, so
// that a file read inside is told apart from the host's.
const Marker = "bsm-guest-own-file"

// diskBlocks makes the root disk 1 MiB: each reset hashes it whole.
const diskBlocks = 256

type guestFile struct {
	path string
	mode uint64
	data string
}

// guestFiles are the guest's own system files, in the initramfs and on the disk.
func guestFiles() []guestFile {
	return []guestFile{
		{"etc/group", 0o644, "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"},
		{"etc/hostname", 0o644, "bsm-guest\n"},
		{"etc/os-release", 0o644, fmt.Sprintf("ID=bsm-guest\nNAME=\"sandbox-redteam guest\"\nVERSION_ID=%d\n", Format)},
		{"etc/passwd", 0o644, "root:x:0:0:root:/root:/init\nnobody:x:65534:65534:nobody:/:/init\n"},
		{"etc/shadow", 0o600, "root:!" + Marker + ":0:0:99999:7:::\nnobody:!:0:0:99999:7:::\n"},
		{"usr/share/bsm/marker", 0o644, Marker + "\n"},
	}
}

// rootDisk returns the root disk's bytes, which depend on nothing but Format.
func rootDisk() ([]byte, error) {
	fs := newExt2(diskBlocks)
	for _, d := range []string{"dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "usr", "usr/share", "usr/share/bsm", "var", "var/lib"} {
		mode := uint16(0o755)
		if d == "tmp" {
			mode = 0o1777
		}
		if err := fs.mkdir(d, mode); err != nil {
			return nil, err
		}
	}
	files := guestFiles()
	slices.SortFunc(files, func(a, b guestFile) int { return strings.Compare(a.path, b.path) })
	for _, f := range files {
		if err := fs.write(f.path, uint16(f.mode), []byte(f.data)); err != nil {
			return nil, err
		}
	}
	return fs.bytes()
}
