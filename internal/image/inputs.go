package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// inputs are the files that a build starts from, hashed.
type inputs struct {
	source   string // Distro, DistroGeneric or sourcePath
	packages []inputFile
	kernel   inputFile
	agent    inputFile
}

// sourcePath is the source of a kernel that the user gave.
const sourcePath = "path"

func (o Options) source() string {
	if o.Kernel == Distro || o.Kernel == DistroGeneric {
		return o.Kernel
	}
	return sourcePath
}

type inputFile struct {
	File
	path string
}

func (in inputs) files() []File {
	var out []File
	for _, p := range in.packages {
		out = append(out, p.File)
	}
	if in.source == sourcePath {
		out = append(out, in.kernel.File)
	}
	return append(out, in.agent.File)
}

func input(role, path string) (inputFile, error) {
	f, err := hashFile(path)
	f.Role = role
	return inputFile{f, path}, err
}

// gather finds and hashes the inputs, downloading kernel packages if need be.
func gather(ctx context.Context, o Options) (inputs, error) {
	in := inputs{source: o.source()}
	var err error
	if in.agent, err = agentInput(o); err != nil {
		return in, err
	}
	if in.source == sourcePath {
		in.kernel, err = kernelInput(o.Kernel)
		return in, err
	}
	paths, err := distroPackages(ctx, o)
	if err != nil {
		return in, err
	}
	for _, p := range paths {
		f, err := input("kernel-package", p)
		if err != nil {
			return in, ioError("read kernel package", err)
		}
		in.packages = append(in.packages, f)
	}
	return in, nil
}

func kernelInput(path string) (inputFile, error) {
	f, err := input("kernel", path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, fail("read kernel "+path, "give --kernel an existing bzImage, vmlinux or arm64 Image, or --kernel distro", fmt.Errorf("%w: %w", ErrKernelMissing, err))
	}
	if err != nil {
		return f, fail("read kernel "+path, "make it readable for this user", fmt.Errorf("%w: %w", ErrKernelMissing, err))
	}
	return f, nil
}

func agentInput(o Options) (inputFile, error) {
	const fix = "build it with `CGO_ENABLED=0 go build ./cmd/bsm-agent` for the image's architecture"
	f, err := input("agent", o.Agent)
	if err != nil {
		return f, fail("read agent "+o.Agent, fix, fmt.Errorf("%w: %w", ErrAgent, err))
	}
	// The name under which a user keeps it must not reach the manifest.
	f.Name = "bsm-agent"
	if o.AgentSHA256 != "" && o.AgentSHA256 != f.SHA256 {
		return f, fail("read agent "+o.Agent, fix, fmt.Errorf("%w: its digest is %s, expected %s", ErrAgent, f.SHA256, o.AgentSHA256))
	}
	if err := checkAgent(o.Agent, o.Arch); err != nil {
		return f, fail("read agent "+o.Agent, fix, err)
	}
	return f, nil
}

func hashFile(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	if !st.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is not a regular file", path)
	}
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return File{}, err
	}
	return File{Name: filepath.Base(path), Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// source is an opened kernel with its modules.
type source struct {
	kernel  []byte
	release string
	tree    *moduleTree // nil when the kernel has no modules
}

func (in inputs) open(ctx context.Context, o Options) (*source, error) {
	kernelPath, modules := in.kernel.path, o.ModulesDir
	if in.source != sourcePath {
		var err error
		if kernelPath, modules, err = unpack(ctx, o, in.packages); err != nil {
			return nil, err
		}
	}
	s := &source{}
	var err error
	if s.kernel, err = os.ReadFile(kernelPath); err != nil {
		return nil, ioError("read kernel", err)
	}
	if in.source == sourcePath && digest(s.kernel) != in.kernel.SHA256 {
		return nil, fail("read kernel "+kernelPath, "build again", fmt.Errorf("%w: it changed while the image was being built", ErrKernelFormat))
	}
	if s.release, err = kernelRelease(s.kernel, o.Arch); err != nil {
		return nil, fail("read kernel "+kernelPath, "give --kernel a whole kernel for "+o.Arch+", or --kernel distro", err)
	}
	if modules != "" {
		s.tree, err = readModuleTree(modules)
	}
	return s, err
}

func (s *source) plan(o Options) (*modulePlan, error) {
	return planModules(s.tree, o.Modules, o.Arch, s.release)
}
