package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
)

// Entry describes this backend for the catalogue.
func Entry() backends.Entry {
	return backends.Entry{
		Name: Name, Title: "QEMU microVM (q35, KVM or emulation)", Real: true,
		Doctor: Doctor, New: New, Leaks: Leaks(), DefaultLimits: defaultLimits(),
	}
}

// hostMemory is what a boot and the overlap of a reset need beside the guest's.
const hostMemory = 512 << 20

// Doctor checks what a boot needs, by itself and in a moment. With an image it
// also tries KVM, which may take some seconds.
func Doctor(ctx context.Context, o backends.Options) backends.Diagnosis {
	d := backends.Diagnosis{Available: true}
	add := func(f backends.Finding) {
		d.Findings = append(d.Findings, f)
		if !f.OK && !f.Optional {
			d.Available = false
		}
	}
	add(findQEMU(ctx))
	s, err := newSandbox(o)
	if err != nil {
		add(backends.Finding{What: err.Error(), Fix: "correct the options"})
		return d
	}
	var r *run
	switch {
	case o.Image != "":
		if r, err = s.preflight(ctx); err != nil {
			add(backends.Finding{What: "boot: " + err.Error(), Fix: backends.FixOf(err)})
		} else {
			add(backends.Finding{OK: true, What: fmt.Sprintf("guest image with kernel %s, every digest as in its manifest", r.manifest.KernelRelease)})
		}
	default:
		_, err := exec.LookPath("apt-get")
		f := backends.Finding{OK: err == nil, What: "the guest image can be built from the distribution's kernel package", Optional: true}
		if err != nil {
			f.What = "no apt-get here, so the distribution's kernel cannot be fetched"
			f.Fix = imageFix + " --kernel FILE"
		}
		add(f)
	}
	add(findMemory(o))
	add(s.findKVM(ctx, r))
	return d
}

func findQEMU(ctx context.Context) backends.Finding {
	path, err := exec.LookPath(program)
	if err != nil {
		return backends.Finding{What: program + " is not in PATH", Fix: qemuFix}
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return backends.Finding{What: fmt.Sprintf("%s --version: %v", path, err), Fix: qemuFix}
	}
	version := firstLine(string(out))
	var major int
	if _, err := fmt.Sscanf(version, "QEMU emulator version %d", &major); err != nil || major < 7 {
		return backends.Finding{What: fmt.Sprintf("%.80q is too old, 7.0 is needed", version), Fix: qemuFix + " from a newer release"}
	}
	return backends.Finding{OK: true, What: version}
}

func findMemory(o backends.Options) backends.Finding {
	need := o.Limits.MemoryBytes
	if need == 0 {
		need = defaultLimits().MemoryBytes
	}
	need += hostMemory
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return backends.Finding{What: err.Error(), Optional: true, Fix: "mount /proc"}
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				break
			}
			f := backends.Finding{OK: kb<<10 >= need, What: fmt.Sprintf("%d MiB of memory available, %d needed", kb>>10, need>>20)}
			if !f.OK {
				f.Fix = "free memory, or declare a smaller memory_bytes in the policy"
			}
			return f
		}
	}
	return backends.Finding{What: "/proc/meminfo does not say what is available", Optional: true, Fix: "use a kernel of at least 3.14"}
}

// findKVM says which accelerator a boot would use and what that means.
func (s *Sandbox) findKVM(ctx context.Context, r *run) backends.Finding {
	const means = "QEMU emulates the processor (TCG): the boundary is tested, latencies are not representative"
	f := backends.Finding{Optional: true}
	err := hostcheck.KVM()
	switch {
	case errors.Is(err, os.ErrPermission):
		f.What, f.Fix = kvmDevice+" is closed to this user; "+means, `sudo usermod -aG kvm "$USER", then log in again`
		return f
	case err != nil:
		f.What, f.Fix = err.Error()+"; "+means, "run on a host, or in a VM, with hardware virtualisation"
		return f
	}
	if r == nil {
		f.OK, f.What = true, kvmDevice+" answers; the first boot finds out whether a guest runs on it"
		return f
	}
	a, err := s.trial(ctx, r)
	switch {
	case err != nil:
		f.What, f.Fix = "KVM could not be tried: "+firstLine(err.Error()), "see the error"
	case a.Usable:
		f.OK, f.What = true, "KVM: "+a.Reason
	default:
		f.What, f.Fix = kvmDevice+" answers, but "+a.Reason+"; "+means, "run on a host whose KVM runs stock kernels"
	}
	return f
}

// trial makes what a boot would make, tries KVM and removes all of it.
func (s *Sandbox) trial(ctx context.Context, r *run) (a accelAnswer, err error) {
	s.mu.Lock()
	s.r = r
	s.mu.Unlock()
	defer func() { err = errors.Join(err, s.teardown()) }()
	if err := s.makeDir(); err != nil {
		return a, err
	}
	if err := s.loadImage(ctx); err != nil {
		return a, err
	}
	return s.kvm(ctx)
}
