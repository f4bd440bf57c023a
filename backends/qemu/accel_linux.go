package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
)

const (
	kvmDevice = "/dev/kvm"
	// kvmDeadline is what a tiny guest may take on real KVM; it needs a tenth.
	kvmDeadline = 5 * time.Second
	// accelTTL is how long an answer about KVM is believed within one boot of
	// the host.
	accelTTL = 10 * time.Minute
)

// accelAnswer is what a trial of KVM showed.
type accelAnswer struct {
	BootID string    `json:"boot_id"`
	Kernel string    `json:"kernel"`
	QEMU   string    `json:"qemu"`
	UID    int       `json:"uid"`
	Usable bool      `json:"usable"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// chooseAccel takes KVM if our own guest really boots on it, else emulation.
// That /dev/kvm exists and opens proves nothing: a nested or paravirtual one
// may run no stock kernel at all.
func (s *Sandbox) chooseAccel(ctx context.Context) error {
	a, err := s.kvm(ctx)
	if err != nil {
		return err
	}
	s.r.accel = accelTCG
	if a.Usable {
		s.r.accel = accelKVM
	}
	s.log.Debug("chose the accelerator", "accelerator", s.r.accel, "kvm", a.Reason)
	return nil
}

func (s *Sandbox) kvm(ctx context.Context) (accelAnswer, error) {
	if err := hostcheck.KVM(); err != nil {
		return accelAnswer{Reason: err.Error()}, nil
	}
	id := accelAnswer{BootID: hostBootID(), Kernel: s.r.digests["kernel"], QEMU: s.r.qemu, UID: os.Geteuid()}
	path := accelCache()
	if a, ok := cachedAccel(path, id, time.Now()); ok {
		return a, nil
	}
	err := s.tryKVM(ctx)
	if ctx.Err() != nil {
		return accelAnswer{}, ctx.Err()
	}
	id.At, id.Usable, id.Reason = time.Now().UTC(), err == nil, "a guest booted on it"
	if err != nil {
		id.Reason = "no guest boots on it: " + firstLine(err.Error())
	}
	saveAccel(path, id)
	return id, nil
}

// tryKVM boots our own kernel and agent with KVM and awaits the agent's hello.
func (s *Sandbox) tryKVM(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, kvmDeadline, fmt.Errorf("silent for %s", kvmDeadline))
	defer cancel()
	ram, err := newMemfd("bsm-kvm-trial")
	if err != nil {
		return err
	}
	defer func() { _ = ram.Close() }()
	if err := ram.Truncate(s.r.memMiB << 20); err != nil {
		return err
	}
	s.r.accel = accelKVM
	v, err := s.launchVM(ctx, vmSpec{Shared: true, Cmdline: s.r.manifest.Cmdline}, ram)
	if err != nil {
		return err
	}
	err = s.connect(ctx, v)
	if kerr := v.kill(); err == nil {
		err = kerr
	}
	return err
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

func hostBootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// accelCache is where the answer is kept; "" keeps none.
func accelCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "bsm-redteam", "accel.json")
}

// cachedAccel returns a fresh answer to the very question that id asks.
func cachedAccel(path string, id accelAnswer, now time.Time) (accelAnswer, bool) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) > 4096 {
		return accelAnswer{}, false
	}
	var a accelAnswer
	if json.Unmarshal(b, &a) != nil || id.BootID == "" {
		return accelAnswer{}, false
	}
	same := a.BootID == id.BootID && a.Kernel == id.Kernel && a.QEMU == id.QEMU && a.UID == id.UID
	age := now.Sub(a.At)
	return a, same && age >= 0 && age < accelTTL
}

// saveAccel keeps an answer. Without a cache the question is asked again.
func saveAccel(path string, a accelAnswer) {
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	b, err := json.Marshal(a)
	if err != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".accel-*")
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err != nil || cerr != nil || os.Rename(f.Name(), path) != nil {
		_ = os.Remove(f.Name())
	}
}
