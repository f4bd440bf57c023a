package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// world is what /proc says about cgroups here.
type world struct {
	own    []membership
	mounts []mount
	euid   int
}

// membership is a line of /proc/self/cgroup. Controllers is empty for v2.
type membership struct {
	controllers []string
	path        string
}

// mount is a cgroup file system in our mount namespace. root is the part of
// the hierarchy that is mounted at point.
type mount struct {
	root, point string
	v2          bool
	controllers []string
}

// candidate is a place where a group could be made.
type candidate struct {
	k       kernel
	prepare func() error
}

func readWorld() (world, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return world{}, err
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return world{}, err
	}
	return world{own: parseOwn(string(own)), mounts: parseMounts(string(info)), euid: os.Geteuid()}, nil
}

// parseOwn reads lines such as "4:memory:/user.slice" and "0::/user.slice".
func parseOwn(s string) []membership {
	var out []membership
	for line := range strings.Lines(s) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		m := membership{path: f[2]}
		if f[1] != "" {
			m.controllers = strings.Split(f[1], ",")
		}
		out = append(out, m)
	}
	return out
}

// parseMounts reads the cgroup lines of mountinfo; see proc(5).
func parseMounts(s string) []mount {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []mount
	for line := range strings.Lines(s) {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 6 || len(g) < 3 || !strings.HasPrefix(g[0], "cgroup") {
			continue
		}
		m := mount{root: unescape.Replace(f[3]), point: unescape.Replace(f[4]), v2: g[0] == "cgroup2"}
		if !m.v2 {
			m.controllers = strings.Split(g[2], ",")
		}
		out = append(out, m)
	}
	return out
}

// dir returns where path of the hierarchy lies in this mount.
func (m mount) dir(path string) (string, bool) {
	if m.root == "/" || m.root == path {
		return filepath.Join(m.point, strings.TrimPrefix(path, m.root)), true
	}
	if rest, ok := strings.CutPrefix(path, m.root+"/"); ok {
		return filepath.Join(m.point, rest), true
	}
	// Inside a cgroup namespace paths are relative to the namespace's root,
	// which is what is mounted.
	return filepath.Join(m.point, path), strings.HasPrefix(m.root, "/..") || path == "/"
}

// candidates lists the places for a group of that name, best first: v2, where
// membership is race-free by itself, before v1.
func (w world) candidates(name string) []candidate {
	var out []candidate
	if dir, ok := w.ownV2(); ok {
		out = append(out, v2Candidates(dir, name, w.euid)...)
	}
	mem, okMem := w.ownV1("memory")
	pids, okPids := w.ownV1("pids")
	if okMem && okPids {
		out = append(out, candidate{k: newV1(mem, pids, name)})
	}
	return out
}

func (w world) ownV1(controller string) (string, bool) {
	for _, own := range w.own {
		if !slices.Contains(own.controllers, controller) {
			continue
		}
		for _, m := range w.mounts {
			if !m.v2 && slices.Contains(m.controllers, controller) {
				if dir, ok := m.dir(own.path); ok && isCgroup(dir) {
					return dir, true
				}
			}
		}
	}
	return "", false
}

func (w world) ownV2() (string, bool) {
	for _, own := range w.own {
		if len(own.controllers) != 0 {
			continue
		}
		for _, m := range w.mounts {
			if m.v2 {
				if dir, ok := m.dir(own.path); ok && isCgroup(dir) {
					return dir, true
				}
			}
		}
	}
	return "", false
}

func isCgroup(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.procs"))
	return err == nil
}

// leafName is the cgroup that the processes of a delegated subtree move into; who
// is in it finds the subtree one level up.
const leafName = "bsm-harness"

// v2Candidates finds where a child of own, or of an ancestor, gets both
// controllers. Controllers are enabled in a parent for its children, and only
// in a parent without processes of its own.
func v2Candidates(own, name string, euid int) []candidate {
	var out []candidate
	for dir := own; isCgroup(dir); dir = filepath.Dir(dir) {
		if hasBoth(filepath.Join(dir, "cgroup.subtree_control")) {
			out = append(out, candidate{k: newV2(dir, name)})
			break
		}
		if euid != 0 && filepath.Base(dir) != leafName { // the ancestors of what was delegated are not ours
			break
		}
	}
	if len(out) == 0 && euid != 0 && hasBoth(filepath.Join(own, "cgroup.controllers")) {
		out = append(out, candidate{k: newV2(own, name), prepare: func() error { return delegate(own) }})
	}
	return out
}

func hasBoth(file string) bool {
	b, err := os.ReadFile(file)
	f := strings.Fields(string(b))
	return err == nil && slices.Contains(f, "memory") && slices.Contains(f, "pids")
}

// delegate enables both controllers below own, a subtree that was delegated to
// us. Its processes, which are ours, move into a leaf first.
func delegate(own string) error {
	leaf := filepath.Join(own, leafName)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("use the delegated cgroup: %w", err)
	}
	pids, err := readPIDs(filepath.Join(own, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := writeFile(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(pid)); err != nil && !gone(err) {
			return fmt.Errorf("move pid %d into a leaf cgroup: %w", pid, err)
		}
	}
	if err := writeFile(filepath.Join(own, "cgroup.subtree_control"), "+memory +pids"); err != nil {
		return fmt.Errorf("enable the memory and pids controllers: %w", err)
	}
	return nil
}
