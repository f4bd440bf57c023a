package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// bootModules are what the agent's own channel and the root disk need. The VMMs
// offer them over PCI; virtio_console carries the agent's port.
var bootModules = []string{"virtio_pci", "virtio_console", "virtio_blk"}

// groups are loaded on request only: none of them has a device in a hardened
// guest, and each costs boot time.
var groups = map[string][]string{
	"net":   {"virtio_net", "e1000", "e1000e"},
	"share": {"virtiofs", "9pnet_virtio", "9p", "vfat", "nls_cp437", "nls_ascii", "nls_iso8859_1"},
	"vsock": {"vmw_vsock_virtio_transport"},
	"rng":   {"virtio_rng"},
}

// moduleTree is a directory lib/modules/RELEASE: names to files, and the names
// that the kernel has built in.
type moduleTree struct {
	dir     string
	files   map[string]string // module name → path relative to dir
	builtin map[string]bool
}

// canonical is the kernel's own spelling: modules are named with underscores
// whatever their file is called.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// moduleName returns the module in a file name such as virtio-rng.ko.xz, and
// its compression extension.
func moduleName(file string) (name, ext string, ok bool) {
	base := filepath.Base(file)
	stem, ext, ok := strings.Cut(base, ".ko")
	if !ok || !slices.Contains([]string{"", ".gz", ".xz", ".zst"}, ext) {
		return "", "", false
	}
	return canonical(stem), ext, true
}

// readModuleTree indexes dir. It uses file names and modules.builtin only:
// modules.dep is made by depmod on the machine that installs a kernel and is in
// no package, while every module carries its own dependencies.
func readModuleTree(dir string) (*moduleTree, error) {
	t := &moduleTree{dir: dir, files: map[string]string{}, builtin: map[string]bool{}}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, _, ok := moduleName(path)
		if !ok {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		t.files[name] = rel
		return err
	})
	if err != nil {
		return nil, fail("read kernel modules in "+dir, "give --modules-dir the directory lib/modules/RELEASE of that kernel", fmt.Errorf("%w: %w", ErrModuleMissing, err))
	}
	b, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, ioError("read modules.builtin", err)
	}
	for line := range strings.Lines(string(b)) {
		if name, _, ok := moduleName(strings.TrimSpace(line)); ok {
			t.builtin[name] = true
		}
	}
	return t, nil
}

// module is one decompressed module.
type module struct {
	name    string
	data    []byte
	depends []string
	source  File
}

// load reads a module and its modinfo.
func (t *moduleTree) load(name, arch, release string) (*module, error) {
	rel := t.files[name]
	raw, err := os.ReadFile(filepath.Join(t.dir, rel))
	if err != nil {
		return nil, ioError("read module "+rel, err)
	}
	_, ext, _ := moduleName(rel)
	data, err := inflate(ext, raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModuleFormat, rel, err)
	}
	info, err := modinfo(data, arch)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rel, err)
	}
	if got, _, _ := strings.Cut(info["vermagic"], " "); got != release {
		return nil, fmt.Errorf("%w: %s is built for kernel %q, not %q", ErrModuleFormat, rel, got, release)
	}
	m := &module{name: name, data: data, source: File{Role: "module", Name: filepath.Base(rel), Size: int64(len(raw)), SHA256: digest(raw)}}
	for _, d := range strings.Split(info["depends"], ",") {
		if d != "" {
			m.depends = append(m.depends, canonical(d))
		}
	}
	return m, nil
}

func inflate(ext string, raw []byte) ([]byte, error) {
	r, err := decompress(ext, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, 64<<20))
}

// modinfo returns the key=value pairs of a module's .modinfo section.
func modinfo(data []byte, arch string) (map[string]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModuleFormat, err)
	}
	if want := arches[arch].machine; f.Machine != want {
		return nil, fmt.Errorf("%w: the module is for %s, the image for %s", ErrArch, f.Machine, want)
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("%w: no .modinfo section", ErrModuleFormat)
	}
	text, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModuleFormat, err)
	}
	info := map[string]string{}
	for _, kv := range bytes.Split(text, []byte{0}) {
		if k, v, ok := strings.Cut(string(kv), "="); ok {
			info[k] = v
		}
	}
	return info, nil
}

// modulePlan is what goes into the initramfs. Group "" is the boot set.
type modulePlan struct {
	modules map[string]*module
	order   map[string][]string // group → file names in load order
	missing []string
}

// planModules resolves the boot set, extra and every group. A module absent
// from the boot set or extra is an error, from a group a remark.
func planModules(t *moduleTree, extra []string, arch, release string) (*modulePlan, error) {
	p := &modulePlan{modules: map[string]*module{}, order: map[string][]string{"": {}}}
	if t == nil {
		return p, nil
	}
	for _, name := range slices.Concat(bootModules, extra) {
		if err := p.add(t, "", canonical(name), arch, release, nil); err != nil {
			return nil, err
		}
	}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		for _, name := range groups[g] {
			err := p.add(t, g, name, arch, release, nil)
			if errors.Is(err, ErrModuleMissing) {
				p.missing = append(p.missing, name)
				continue
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// add appends name after its dependencies, unless the boot set or the group has
// it already. path guards against a dependency cycle.
func (p *modulePlan) add(t *moduleTree, group, name, arch, release string, path []string) error {
	file := name + ".ko"
	if t.builtin[name] || slices.Contains(p.order[""], file) || slices.Contains(p.order[group], file) {
		return nil
	}
	if slices.Contains(path, name) {
		return fmt.Errorf("%w: dependency cycle %s", ErrModuleFormat, strings.Join(append(path, name), " → "))
	}
	if _, ok := t.files[name]; !ok {
		return fail("resolve kernel modules", "use a kernel that has it built in or as a module, or --kernel distro", fmt.Errorf("%w: %s (needed by %s)", ErrModuleMissing, name, neededBy(path)))
	}
	m := p.modules[name]
	if m == nil {
		var err error
		if m, err = t.load(name, arch, release); err != nil {
			return err
		}
		p.modules[name] = m
	}
	for _, d := range m.depends {
		if err := p.add(t, group, d, arch, release, append(path, name)); err != nil {
			return err
		}
	}
	p.order[group] = append(p.order[group], file)
	return nil
}

func neededBy(path []string) string {
	if len(path) == 0 {
		return "the guest"
	}
	return path[len(path)-1]
}

func (p *modulePlan) groups() map[string][]string {
	g := maps.Clone(p.order)
	delete(g, "")
	return g
}

// inputs lists the modules used, sorted by name.
func (p *modulePlan) inputs() []File {
	var out []File
	for _, name := range slices.Sorted(maps.Keys(p.modules)) {
		out = append(out, p.modules[name].source)
	}
	return out
}
