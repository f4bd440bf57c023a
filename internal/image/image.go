// Package image builds the guest that microVM backends boot: a kernel, an
// initramfs whose /init is the agent, and a small read-only root disk.
//
// A build is a pure function of its inputs. Two builds of the same kernel
// package, agent and options are equal bit for bit, wherever they run: no
// clock, no user id, no path and no map order reaches an output. The manifest
// holds the SHA-256 of every input and every output, and freshness is decided by
// comparing those digests with the present files, never by existence or time.
//
// Layout of the initramfs:
//
//	/init                       the agent, byte for byte
//	/dev/console                so that the kernel can give it a stdout
//	/lib/modules/bsm/*.ko       uncompressed kernel modules
//	/lib/modules/bsm/order      modules to load at boot, in load order, one file name a line
//	/lib/modules/bsm/order.NAME the same for the optional group NAME (net, share, vsock, rng)
//	/{proc,sys,tmp,run,mnt,root,...} empty directories
//
// Nothing here needs root, a loop device or an external tool other than apt,
// and apt only for the distribution's kernel.
package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// Format is the version of the image layout and of the manifest. Any change to
// what a build writes for the same inputs must raise it.
const Format = 2

// Names of the files in an image directory.
const (
	KernelFile    = "kernel"
	InitramfsFile = "initramfs.cpio"
	RootfsFile    = "rootfs.img"
	ManifestFile  = "manifest.json"
)

// Kernels of the host's distribution, downloaded as packages.
const (
	// Distro is the newest one made for virtual machines.
	Distro = "distro"
	// DistroGeneric is the newest general one: bigger and slower to boot, but
	// with drivers that the former lacks, such as 9p.
	DistroGeneric = "distro-generic"
)

// Options says what to build. OutDir, CacheDir, Arch, Kernel and Agent are
// required.
type Options struct {
	// OutDir receives the image; it is made if needed.
	OutDir string
	// CacheDir keeps downloaded and unpacked kernel packages between builds.
	CacheDir string
	// Arch is amd64 or arm64.
	Arch string
	// Kernel is Distro, DistroGeneric, or the path of a bzImage, vmlinux or arm64 Image.
	Kernel string
	// ModulesDir holds the modules (lib/modules/RELEASE) of a Kernel given by
	// path. Empty says that everything needed is built into it.
	ModulesDir string
	// Agent is the path of the static bsm-agent for Arch.
	Agent string
	// AgentSHA256 is the hex digest that the agent file must have; empty
	// accepts the file as it is.
	AgentSHA256 string
	// Modules names further modules to load at boot.
	Modules []string
	// Log receives progress; nil is silent.
	Log *slog.Logger
}

// File is one input or output of a build.
type File struct {
	// Role is kernel-package, kernel, module or agent for an input; for an
	// output it is the file's name.
	Role string `json:"role"`
	// Name is the file's base name, for a module its name in the guest.
	Name string `json:"name"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// SHA256 is lower-case hex.
	SHA256 string `json:"sha256"`
}

// Manifest describes a built image. It names no path and no time, so that it is
// reproducible itself.
type Manifest struct {
	Format        int    `json:"format"`
	Arch          string `json:"arch"`
	KernelSource  string `json:"kernel_source"` // distro, distro-generic or path
	KernelRelease string `json:"kernel_release"`
	AgentSHA256   string `json:"agent_sha256"`
	// Cmdline is what the guest must be booted with; backends may add to it.
	Cmdline string `json:"cmdline"`
	// BootModules are loaded by the agent at boot, in this order.
	BootModules []string `json:"boot_modules"`
	// Groups are further modules by purpose, each in load order after
	// BootModules. A group that the kernel lacks altogether is absent.
	Groups map[string][]string `json:"groups"`
	// Missing lists modules wanted by a group that this kernel does not have.
	Missing []string `json:"missing_modules,omitempty"`
	// ExtraModules is Options.Modules, as given.
	ExtraModules []string `json:"extra_modules,omitempty"`
	Inputs       []File   `json:"inputs"`
	Outputs      []File   `json:"outputs"`

	// Dir is where the image lies; it is not stored.
	Dir string `json:"-"`
}

// Kernel returns the path of the kernel.
func (m Manifest) Kernel() string { return filepath.Join(m.Dir, KernelFile) }

// Initramfs returns the path of the initramfs.
func (m Manifest) Initramfs() string { return filepath.Join(m.Dir, InitramfsFile) }

// Rootfs returns the path of the root disk.
func (m Manifest) Rootfs() string { return filepath.Join(m.Dir, RootfsFile) }

// Output returns the output file with that name.
func (m Manifest) Output(name string) (File, bool) {
	for _, f := range m.Outputs {
		if f.Name == name {
			return f, true
		}
	}
	return File{}, false
}

// Build makes the image in o.OutDir. Every file is written whole or not at all,
// the manifest last, so that an interrupted build never verifies.
func Build(ctx context.Context, o Options) (Manifest, error) {
	if err := o.check(); err != nil {
		return Manifest{}, err
	}
	in, err := gather(ctx, o)
	if err != nil {
		return Manifest{}, err
	}
	src, err := in.open(ctx, o)
	if err != nil {
		return Manifest{}, err
	}
	plan, err := src.plan(o)
	if err != nil {
		return Manifest{}, err
	}
	agent, err := os.ReadFile(o.Agent)
	if err != nil {
		return Manifest{}, ioError("read agent", err)
	}
	if digest(agent) != in.agent.SHA256 {
		return Manifest{}, fail("read agent "+o.Agent, "build again", fmt.Errorf("%w: it changed while the image was being built", ErrAgent))
	}
	initramfs, err := packInitramfs(agent, plan)
	if err != nil {
		return Manifest{}, err
	}
	disk, err := rootDisk()
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{
		Format: Format, Arch: o.Arch, KernelSource: in.source, KernelRelease: src.release,
		AgentSHA256: in.agent.SHA256, Cmdline: cmdline(o.Arch, in.agent.SHA256),
		BootModules: plan.order[""], Groups: plan.groups(), Missing: plan.missing, ExtraModules: o.Modules,
		Inputs: append(in.files(), plan.inputs()...), Dir: o.OutDir,
	}
	return m, m.write(ctx, []output{{KernelFile, src.kernel}, {InitramfsFile, initramfs}, {RootfsFile, disk}})
}

type output struct {
	name string
	data []byte
}

func (m *Manifest) write(ctx context.Context, outs []output) error {
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return ioError("make image directory", err)
	}
	// An old manifest must not vouch for a mixture of old and new files.
	if err := os.Remove(filepath.Join(m.Dir, ManifestFile)); err != nil && !os.IsNotExist(err) {
		return ioError("replace image", err)
	}
	for _, out := range outs {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("build image: %w", err)
		}
		m.Outputs = append(m.Outputs, File{Role: out.name, Name: out.name, Size: int64(len(out.data)), SHA256: digest(out.data)})
		if err := writeFile(filepath.Join(m.Dir, out.name), out.data); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	return writeFile(filepath.Join(m.Dir, ManifestFile), append(text, '\n'))
}

// writeFile writes through a temporary file, so that a full disk or a kill
// leaves no half file under the real name.
func writeFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return ioError("write "+path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return ioError("write "+path, err)
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (o Options) log() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}

func (o Options) check() error {
	for name, v := range map[string]string{"OutDir": o.OutDir, "CacheDir": o.CacheDir, "Kernel": o.Kernel, "Agent": o.Agent} {
		if v == "" {
			return fmt.Errorf("image options: %s is not set", name)
		}
	}
	if _, ok := arches[o.Arch]; !ok {
		return fail("build image", "use --arch amd64 or --arch arm64", fmt.Errorf("%w: %q is not supported", ErrArch, o.Arch))
	}
	return nil
}

// cmdline holds what every boot needs: the agent as init, a panic that ends the
// VM at once, and the digest that admits the agent to VM mode.
func cmdline(arch, agentSHA256 string) string {
	return arches[arch].cmdline + " rdinit=/init reboot=t panic=-1 quiet bsm.agent=" + agentSHA256
}
