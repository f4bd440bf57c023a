package qemu

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	program = "qemu-system-x86_64"
	// minMemMiB is what the distribution's kernel and the agent need.
	minMemMiB = 96
	imageFix  = "bsm-redteam image build"
	qemuFix   = "sudo apt-get install qemu-system-x86"
)

func unavailable(doing string, err error, fix string) error {
	if f := backends.FixOf(err); f != "" {
		fix = f
	}
	return &backends.Error{Code: backends.ErrNotAvailable, Doing: doing, Err: err, Fix: fix}
}

// preflight finds everything that a boot needs, before anything is spawned or
// created.
func (s *Sandbox) preflight(ctx context.Context) (*run, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, unavailable("check the platform", fmt.Errorf("this version boots amd64 guests on linux/amd64, this is %s/%s", runtime.GOOS, runtime.GOARCH), "use --sandbox mock")
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, unavailable("find "+program, err, qemuFix)
	}
	if s.o.Image == "" {
		return nil, unavailable("find the guest image", errors.New("none is named"), imageFix)
	}
	m, err := image.Verify(s.o.Image)
	if err != nil {
		return nil, unavailable("check the guest image", err, imageFix)
	}
	if s.leaks[leakSharedDir] && !slices.Contains(m.Groups["share"], "9p.ko") {
		if m, err = s.generalImage(ctx); err != nil {
			return nil, unavailable("build a guest image that knows 9p", err, "apt-get must be able to fetch the general kernel package")
		}
	}
	if m.Arch != "amd64" {
		return nil, unavailable("check the guest image", fmt.Errorf("it is for %s, this host is amd64", m.Arch), imageFix+" --arch amd64")
	}
	if s.o.Agent != "" {
		sum, err := integrity.HashFile(ctx, s.o.Agent)
		if err != nil {
			return nil, unavailable("hash the agent", err, imageFix)
		}
		if sum != "sha256:"+m.AgentSHA256 {
			return nil, unavailable("compare the agent with the guest image", fmt.Errorf("%s is %s, the image holds sha256:%s", s.o.Agent, sum, m.AgentSHA256), imageFix)
		}
	}
	r := &run{qemu: path, manifest: m, agentSHA256: m.AgentSHA256, memMiB: s.o.Limits.MemoryBytes >> 20}
	if r.memMiB < minMemMiB {
		return nil, unavailable("size the guest", fmt.Errorf("%d MiB declared, the guest needs %d", r.memMiB, minMemMiB), "declare memory_bytes of at least 100663296 in the policy")
	}
	if s.leaks[leakMemory4x] {
		r.memMiB *= 4
	}
	switch {
	case s.o.Baseline != "":
		if _, err := baseline.Load(s.o.Baseline); err != nil {
			return nil, unavailable("load the baseline", err, baseline.Fix)
		}
	case s.o.RequireBaseline:
		return nil, unavailable("load the baseline", errors.New("one is required and none is named"), baseline.Fix)
	}
	return r, nil
}

// generalImage makes the image of the distribution's general kernel, since the
// one for virtual machines cannot mount a host's directory.
func (s *Sandbox) generalImage(ctx context.Context) (image.Manifest, error) {
	if s.o.Agent == "" {
		return image.Manifest{}, errors.New("no agent is named to build it with")
	}
	cache, err := image.DefaultCacheDir()
	if err != nil {
		return image.Manifest{}, err
	}
	return image.Ensure(ctx, image.Options{CacheDir: cache, Arch: runtime.GOARCH, Kernel: image.DistroGeneric, Agent: s.o.Agent, Log: s.log})
}

// step runs one named part of a boot or reset and names it in the error.
func (s *Sandbox) step(name string, err *error, do func() error) {
	if *err != nil {
		return
	}
	began := time.Now()
	if e := do(); e != nil {
		*err = fmt.Errorf("%s: %w", name, e)
	}
	s.log.Debug("step", "name", name, "took", time.Since(began))
}

// boot runs under op with s.r set. The caller tears down after an error.
func (s *Sandbox) boot(ctx context.Context) (err error) {
	if s.fails(leakFlakyBoot) {
		return fmt.Errorf("it fails once in %d", flakyEvery)
	}
	r := s.r
	s.step("make the run directory", &err, s.makeDir)
	s.step("load the guest image", &err, func() error { return s.loadImage(ctx) })
	s.step("make the cgroup", &err, func() error { return s.makeGroup(ctx) })
	s.step("choose the accelerator", &err, func() error { return s.chooseAccel(ctx) })
	var first *vm
	var ram, dev *os.File
	defer func() {
		if first != nil {
			err = errors.Join(err, first.kill())
		}
	}()
	s.step("make the guest's memory", &err, func() (err error) {
		if ram, err = newMemfd("bsm-ram"); err != nil {
			return err
		}
		r.ram = &golden{f: ram}
		if dev, err = newMemfd("bsm-state"); err != nil {
			return err
		}
		r.dev = &golden{f: dev}
		return ram.Truncate(r.memMiB << 20)
	})
	s.step("start qemu", &err, func() (err error) {
		first, err = s.launchVM(ctx, vmSpec{Shared: true, Cmdline: guestCmdline(r.manifest.Cmdline, s.o.Limits.Pids, s.leaks)}, ram)
		return err
	})
	s.step("check the baseline", &err, func() error {
		r.version = first.qmp.Version().String()
		return s.checkBaseline()
	})
	var base integrity.Baseline
	s.step("wait for the guest's agent", &err, func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, s.t.boot, fmt.Errorf("the guest did not answer within %s", s.t.boot))
		defer cancel()
		if err := s.connect(ctx, first); err != nil {
			return s.withConsole(ctx, first, err)
		}
		h := first.client.Hello()
		r.epoch, r.bootID = h.Epoch, h.BootID
		if !h.VM {
			return errors.New("the agent is not in VM mode: its digest is not on the kernel command line")
		}
		return nil
	})
	s.step("count the guest's open files", &err, func() error {
		ctx, cancel := context.WithTimeout(ctx, s.t.restore)
		defer cancel()
		var n wire.OpenFDCount
		err := first.client.Query(ctx, wire.QueryOpenFDCount, &n)
		base = integrity.Baseline{FSHash: r.digests["rootfs"], OpenFDCount: n.Count, VMMState: integrity.StateRunning}
		return err
	})
	s.step("snapshot the guest", &err, func() error {
		ctx, cancel := context.WithTimeout(ctx, s.t.restore)
		defer cancel()
		// Half a frame of this session must not become part of the golden state.
		if err := ignoreClosed(first.client.Close()); err != nil {
			return err
		}
		if err := first.save(ctx, dev); err != nil {
			return err
		}
		v := first
		first = nil // a memfd cannot be sealed while a VMM has it mapped
		return v.kill()
	})
	s.step("seal the snapshot", &err, func() (err error) {
		if r.ram, err = seal(ram); err != nil {
			r.ram = &golden{f: ram}
			return err
		}
		if r.dev, err = seal(dev); err != nil {
			r.dev = &golden{f: dev}
		}
		return err
	})
	s.step("restore the snapshot", &err, func() error {
		// What is sealed cannot change: its digest may be taken while QEMU
		// reads it.
		hashed := make(chan error, 1)
		go func() { hashed <- r.hashSnapshot(ctx) }()
		v, err := s.restore(ctx, func(context.Context) error { return nil })
		err = errors.Join(err, <-hashed)
		s.mu.Lock()
		s.cur = v
		s.mu.Unlock()
		return err
	})
	s.step("verify the first instance", &err, func() error {
		// A persisted baseline is checked from the first instance on; one
		// recorded in this run is written only now.
		if err := s.keepBaseline(base); err != nil {
			return err
		}
		_, err := s.verify(ctx, s.cur)
		return err
	})
	return err
}

// The roles of the golden files, which every run makes anew.
const (
	snapshotRAM   = backends.MadeByRun + "ram"
	snapshotState = backends.MadeByRun + "state"
)

// hashSnapshot takes the digests of the sealed golden files.
func (r *run) hashSnapshot(ctx context.Context) (err error) {
	if r.ram.sum, err = hashSparse(ctx, r.ram.f, r.ram.size); err != nil {
		return err
	}
	if r.dev.sum, err = hashSparse(ctx, r.dev.f, r.dev.size); err != nil {
		return err
	}
	r.digests[snapshotRAM], r.digests[snapshotState] = r.ram.sum, r.dev.sum
	r.goldHash = combine(r.digests["rootfs"], r.ram.sum, r.dev.sum)
	return nil
}

func combine(sums ...string) string {
	h := sha256.Sum256([]byte(strings.Join(sums, "\n")))
	return "sha256:" + hex.EncodeToString(h[:])
}

func (s *Sandbox) withConsole(ctx context.Context, v *vm, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if tail := v.console.tail(6); tail != "" {
		return fmt.Errorf("%w; the guest's console ends: %s", err, tail)
	}
	return fmt.Errorf("%w; the guest's console is empty", err)
}

func (s *Sandbox) makeDir() error {
	parent := s.o.WorkDir
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return err
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	dir, rec, err := socketDir(s.o.Ledger, parent, "bsm-"+hex.EncodeToString(b[:]))
	if err != nil {
		return err
	}
	s.r.dir, s.r.dirRec = dir, rec
	return nil
}

// loadImage copies the image to where nobody can change it, and digests what
// it copied: these are the bytes that run.
func (s *Sandbox) loadImage(ctx context.Context) error {
	r := s.r
	r.digests = map[string]string{"agent": "sha256:" + r.manifest.AgentSHA256}
	for _, f := range []struct {
		role, name string
		to         **os.File
	}{{"kernel", image.KernelFile, &r.kernel}, {"initramfs", image.InitramfsFile, &r.initramfs}} {
		m, err := newMemfd("bsm-" + f.role)
		if err != nil {
			return err
		}
		*f.to = m
		if r.digests[f.role], err = s.copyIn(ctx, f.name, m); err != nil {
			return err
		}
		if err := sealFile(m); err != nil {
			return err
		}
	}
	// The disk is a file and no memfd: what is written to its place, by a
	// tamper or by a leak, has to be seen by the next reset.
	r.rootfsPath = filepath.Join(r.dir, "rootfs.img")
	f, err := os.OpenFile(r.rootfsPath, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if r.digests["rootfs"], err = s.copyIn(ctx, image.RootfsFile, f); err != nil {
		return err
	}
	mode, access := os.FileMode(0o444), os.O_RDONLY
	if s.leaks[leakWritableDisk] {
		mode, access = 0o666, os.O_RDWR
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	// QEMU inherits this descriptor, so it must not be able to do more.
	if r.rootfs, err = os.OpenFile(r.rootfsPath, access, 0); err != nil {
		return err
	}
	if s.leaks[leakSharedDir] {
		r.shareDir, err = os.Open(s.sharedPath())
	}
	return err
}

func (s *Sandbox) copyIn(ctx context.Context, name string, to io.Writer) (string, error) {
	want, ok := s.r.manifest.Output(name)
	if !ok {
		return "", fmt.Errorf("the manifest lists no %s", name)
	}
	f, err := os.Open(filepath.Join(s.r.manifest.Dir, name))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum, err := integrity.HashReader(ctx, io.TeeReader(f, to))
	if err != nil {
		return "", fmt.Errorf("copy %s: %w", name, err)
	}
	if sum != "sha256:"+want.SHA256 {
		return "", fmt.Errorf("%s changed while it was loaded; fix: %s", name, imageFix)
	}
	return sum, nil
}

func (s *Sandbox) makeGroup(ctx context.Context) error {
	r := s.r
	// Two instances overlap during a reset, beside the golden memory.
	g, err := fuse.New(ctx, "qemu", fuse.Limits{MemoryBytes: 3*r.memMiB<<20 + 1<<30, Pids: 256}, s.o.Ledger)
	if errors.Is(err, fuse.ErrNoFuse) {
		s.log.Debug("qemu runs without a cgroup of its own", "reason", err)
		return nil
	}
	r.group = g
	return err
}

// identity of the baseline: what the golden state is made of.
func (r *run) identity() baseline.Identity {
	d := map[string]string{}
	for _, role := range []string{"kernel", "initramfs", "rootfs", "agent"} {
		d[role] = r.digests[role]
	}
	return baseline.Identity{Backend: Name, VMMVersion: r.version, Digests: d}
}

func (r *run) baselinePath() string { return filepath.Join(r.dir, "baseline.json") }

func (s *Sandbox) checkBaseline() error {
	if s.o.Baseline == "" {
		return nil
	}
	f, err := baseline.Load(s.o.Baseline)
	if err != nil {
		return err
	}
	if err := f.Check(s.r.identity()); err != nil {
		return err
	}
	s.r.baselineKind = "persisted"
	return baseline.Record(s.r.baselinePath(), f)
}

// keepBaseline records what the golden guest said, unless a persisted baseline
// was given.
func (s *Sandbox) keepBaseline(b integrity.Baseline) error {
	if s.r.baselineKind == "persisted" {
		return nil
	}
	s.r.baselineKind = "recorded-in-run"
	return baseline.Record(s.r.baselinePath(), baseline.File{Version: baseline.Version, RecordedAt: time.Now().UTC(), Identity: s.r.identity(), Baseline: b})
}
