package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const rebuild = "run `bsm-redteam image build`"

// Verify reads the manifest of dir and hashes every output against it.
func Verify(dir string) (Manifest, error) {
	doing := "verify guest image " + dir
	text, err := os.ReadFile(filepath.Join(dir, ManifestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, fail(doing, rebuild, fmt.Errorf("%w: no manifest: %w", ErrStale, err))
	}
	if err != nil {
		return Manifest{}, ioError(doing, err)
	}
	m, err := parseManifest(text)
	if err != nil {
		return Manifest{}, fail(doing, rebuild, err)
	}
	m.Dir = dir
	for _, want := range m.Outputs {
		got, err := hashFile(filepath.Join(dir, want.Name))
		if err != nil {
			return Manifest{}, fail(doing, rebuild, fmt.Errorf("%w: %w", ErrStale, err))
		}
		if got.SHA256 != want.SHA256 || got.Size != want.Size {
			return Manifest{}, fail(doing, rebuild, fmt.Errorf("%w: %s has digest %s, the manifest says %s", ErrStale, want.Name, got.SHA256, want.SHA256))
		}
	}
	return m, nil
}

// parseManifest accepts a whole manifest of this format and nothing else.
func parseManifest(text []byte) (Manifest, error) {
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, fmt.Errorf("%w: malformed manifest: %w", ErrStale, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return m, fmt.Errorf("%w: malformed manifest: text after its end", ErrStale)
	}
	if m.Format != Format {
		return m, fmt.Errorf("%w: manifest format %d, this version writes %d", ErrStale, m.Format, Format)
	}
	var names []string
	for _, f := range m.Outputs {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{InitramfsFile, KernelFile, RootfsFile}) {
		return m, fmt.Errorf("%w: manifest lists outputs %q", ErrStale, names)
	}
	return m, nil
}

// Fresh reports whether the image in dir is what Build(o) would make of the
// present inputs: every input and every output is hashed again. For the
// distribution's kernel the input is the package in the cache; that a newer one
// has been published does not make an image stale.
func Fresh(dir string, o Options) bool {
	_, ok := fresh(dir, o)
	return ok
}

// fresh is Fresh and returns the verified manifest, whatever the answer.
func fresh(dir string, o Options) (Manifest, bool) {
	m, err := Verify(dir)
	return m, err == nil && matches(m, o)
}

// matches compares a verified image with the present inputs.
func matches(m Manifest, o Options) bool {
	if o.check() != nil || m.Arch != o.Arch || !slices.Equal(m.ExtraModules, o.Modules) {
		return false
	}
	disk, err := rootDisk()
	if out, _ := m.Output(RootfsFile); err != nil || out.SHA256 != digest(disk) {
		return false
	}
	agent, err := agentInput(o)
	if err != nil || !has(m, agent.File) {
		return false
	}
	if m.KernelSource != o.source() {
		return false
	}
	if m.KernelSource == sourcePath {
		return freshKernel(m, o)
	}
	return freshPackages(m, o)
}

func has(m Manifest, f File) bool { return slices.Contains(m.Inputs, f) }

func freshPackages(m Manifest, o Options) bool {
	found := false
	for _, want := range m.Inputs {
		if want.Role != "kernel-package" {
			continue
		}
		got, err := input(want.Role, filepath.Join(o.CacheDir, "packages", want.Name))
		if err != nil || got.File != want {
			return false
		}
		found = true
	}
	return found
}

func freshKernel(m Manifest, o Options) bool {
	kernel, err := kernelInput(o.Kernel)
	if err != nil || !has(m, kernel.File) {
		return false
	}
	var tree *moduleTree
	if o.ModulesDir != "" {
		if tree, err = readModuleTree(o.ModulesDir); err != nil {
			return false
		}
	}
	plan, err := planModules(tree, o.Modules, o.Arch, m.KernelRelease)
	if err != nil {
		return false
	}
	var modules []File
	for _, f := range m.Inputs {
		if f.Role == "module" {
			modules = append(modules, f)
		}
	}
	return slices.Equal(modules, plan.inputs())
}
