package image

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

const moduleDir = "lib/modules/bsm"

// guestDirs exist in the initramfs; some are the agent's mount points.
var guestDirs = []string{"bin", "dev", "etc", "lib", "lib/modules", moduleDir, "mnt", "proc", "root", "rootfs", "run", "sys", "usr", "usr/bin", "usr/share", "var", "var/lib"}

// packInitramfs writes a newc archive with sequential inodes and zero times.
// It is not compressed: under TCG with the distribution's kernel, gzip changes
// the boot by 0.05 s of 2.3 s, which is within the noise, and costs the host.
func packInitramfs(agent []byte, plan *modulePlan) ([]byte, error) {
	records := []cpio.Record{cpio.Directory("tmp", 0o1777)}
	for _, d := range guestDirs {
		records = append(records, cpio.Directory(d, 0o755))
	}
	records = append(records, cpio.CharDev("dev/console", 0o600, 5, 1), cpio.CharDev("dev/null", 0o666, 1, 3),
		cpio.StaticFile("init", string(agent), 0o755))
	for _, f := range guestFiles() {
		records = append(records, cpio.StaticFile(f.path, f.data, f.mode))
	}
	for _, name := range slices.Sorted(maps.Keys(plan.modules)) {
		records = append(records, cpio.StaticFile(moduleDir+"/"+name+".ko", string(plan.modules[name].data), 0o644))
	}
	for _, g := range slices.Sorted(maps.Keys(plan.order)) {
		name := "order"
		if g != "" {
			name += "." + g
		}
		text := strings.Join(plan.order[g], "\n")
		if text != "" {
			text += "\n"
		}
		records = append(records, cpio.StaticFile(moduleDir+"/"+name, text, 0o644))
	}
	slices.SortStableFunc(records, func(a, b cpio.Record) int { return strings.Compare(a.Name, b.Name) })
	var buf bytes.Buffer
	w := cpio.Newc.Writer(&buf)
	for i, r := range records {
		r.Ino, r.MTime, r.UID, r.GID, r.NLink = uint64(i+1), 0, 0, 0, 1
		if err := w.WriteRecord(r); err != nil {
			return nil, fmt.Errorf("write initramfs record %s: %w", r.Name, err)
		}
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return nil, fmt.Errorf("write initramfs: %w", err)
	}
	return buf.Bytes(), nil
}
