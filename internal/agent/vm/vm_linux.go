// Package vm is the agent's life as the init of a virtual machine that we
// booted: mounts, modules, the virtio port, clock and entropy.
//
// It is entered by the agent's digest on the kernel command line and never by
// being PID 1, because the agent is PID 1 in many a container as well, where
// all of this would act on somebody's host.
package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// DigestKey names the agent's SHA-256 on the kernel command line.
	DigestKey = "bsm.agent"
	// PidsKey names the pids limit of all tools together.
	PidsKey = "bsm.pids"
	// PortName is the virtio-serial port that the agent serves.
	PortName = "bsm.agent.0"
	// ModuleDir holds the kernel modules, uncompressed, and in the file "order"
	// their paths below it, one a line, in the order of loading.
	ModuleDir = "/lib/modules/bsm"
	// RootDisk and RootDir are the read-only disk and where it is mounted.
	RootDisk = "/dev/vda"
	RootDir  = "/rootfs"
	// cgroupDir is where cgroup v2 is mounted.
	cgroupDir = "/sys/fs/cgroup"
)

// Params are the parameters on a kernel command line; a flag has the value "".
func Params(cmdline []byte) map[string]string {
	p := map[string]string{}
	for _, f := range strings.Fields(string(cmdline)) {
		k, v, _ := strings.Cut(f, "=")
		p[k] = v
	}
	return p
}

// initPIDNamespace is the inode of the machine's first pid namespace
// (PROC_PID_INIT_INO in the kernel).
const initPIDNamespace = "pid:[4026531836]"

// Ours reports whether this process is the init of a machine that was booted
// for it: PID 1 of the machine's own pid namespace, with digest(), its own
// SHA-256, on the kernel command line. It returns that command line's
// parameters and leaves no mount behind, whatever the answer.
func Ours(digest func(exe string) (string, error)) (map[string]string, bool, error) {
	if os.Getpid() != 1 {
		return nil, false, nil
	}
	if _, err := os.Lstat("/proc/self"); err == nil {
		return ours("/proc", digest)
	}
	// An initramfs has no /proc yet. Only there, on the kernel's own ramfs or
	// tmpfs, is one mounted to look at, on a fresh directory of our own.
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil || (st.Type != unix.RAMFS_MAGIC && st.Type != unix.TMPFS_MAGIC) {
		return nil, false, nil
	}
	dir, err := os.MkdirTemp("/", ".bsm-proc-")
	if err != nil {
		return nil, false, nil
	}
	defer os.Remove(dir)
	if err := unix.Mount("proc", dir, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, false, nil
	}
	defer func() { _ = unix.Unmount(dir, 0) }()
	return ours(dir, digest)
}

func ours(proc string, digest func(string) (string, error)) (map[string]string, bool, error) {
	// Without pid namespaces in the kernel there is no link, and one init.
	if ns, err := os.Readlink(proc + "/self/ns/pid"); err == nil && ns != initPIDNamespace {
		return nil, false, nil
	}
	cmdline, err := os.ReadFile(proc + "/cmdline")
	if err != nil {
		return nil, false, nil
	}
	p := Params(cmdline)
	want, ok := p[DigestKey]
	if !ok {
		return nil, false, nil
	}
	got, err := digest(proc + "/self/exe")
	if err != nil {
		return nil, false, fmt.Errorf("hash the agent: %w", err)
	}
	if got != want {
		return nil, false, fmt.Errorf("the kernel command line names agent %.64q, this one is %s; fix: build the guest image again", want, got)
	}
	return p, true, nil
}

type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

var mounts = []mount{
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, ""},
	{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	{"cgroup2", cgroupDir, "cgroup2", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
}

// Setup makes the machine usable and returns the cgroup below which tools run,
// empty when there is none. Call it only after Ours has said yes. What is
// missing is noted in the returned warnings; only without /proc, /sys or /dev
// is there no going on.
func Setup(p map[string]string) (cgroup string, warnings []error, err error) {
	for _, m := range mounts {
		_ = os.MkdirAll(m.target, 0o755)
		e := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data)
		switch {
		case e == nil, errors.Is(e, unix.EBUSY): // EBUSY: the kernel has mounted devtmpfs itself
		case m.target == "/proc" || m.target == "/sys" || m.target == "/dev":
			return "", warnings, fmt.Errorf("mount %s: %w", m.target, e)
		default:
			warnings = append(warnings, fmt.Errorf("mount %s: %w", m.target, e))
		}
	}
	warnings = append(warnings, loadModules(ModuleDir, "order")...)
	if err := loopbackUp(); err != nil {
		warnings = append(warnings, fmt.Errorf("bring lo up: %w", err))
	}
	if err := mountRoot(); err != nil {
		warnings = append(warnings, err)
	}
	warnings = append(warnings, applyLeaks(p)...)
	cgroup, err = toolCgroup(cgroupDir, p[PidsKey])
	if err != nil {
		warnings = append(warnings, err)
	}
	return cgroup, warnings, nil
}

// loadModules loads what an order file names. A missing file means a kernel
// with everything built in.
func loadModules(dir, list string) (errs []error) {
	order, err := os.ReadFile(filepath.Join(dir, list))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(order)) {
		name := strings.TrimSpace(line)
		if name == "" {
			continue
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if err := loadModule(name); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("load module %s: %w", filepath.Base(name), err))
		}
	}
	return errs
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return linkUp(fd, "lo")
}

func linkUp(fd int, dev string) error {
	ifr, err := unix.NewIfreq(dev)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// mountRoot mounts the root disk when there is one.
func mountRoot() error {
	if _, err := os.Stat(RootDisk); err != nil {
		return nil
	}
	_ = os.MkdirAll(RootDir, 0o755)
	var errs []error
	for _, fs := range []string{"squashfs", "ext4", "erofs"} {
		err := unix.Mount(RootDisk, RootDir, fs, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("as %s: %w", fs, err))
	}
	return fmt.Errorf("mount %s: %w", RootDisk, errors.Join(errs...))
}

// toolCgroup makes the cgroup of all tools, limited to limit pids if one is
// given.
func toolCgroup(root, limit string) (string, error) {
	dir := filepath.Join(root, "bsm")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("make the tools' cgroup: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
		return "", fmt.Errorf("the tools' cgroup is none: %w", err)
	}
	if limit == "" {
		return dir, nil
	}
	if n, err := strconv.Atoi(limit); err != nil || n < 1 {
		return dir, fmt.Errorf("%s=%.32q is no number of processes", PidsKey, limit)
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+pids"), 0); err != nil {
		return dir, fmt.Errorf("limit pids: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(limit), 0); err != nil {
		return dir, fmt.Errorf("limit pids: %w", err)
	}
	return dir, nil
}

// SilenceConsole stops the kernel and the runtime from writing to the console;
// each line there costs an emulated serial port's time.
func SilenceConsole() {
	const consoleOff = 6 // SYSLOG_ACTION_CONSOLE_OFF
	_, _ = unix.Klogctl(consoleOff, nil)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(null)
	for fd := range 3 {
		_ = unix.Dup3(null, fd, 0)
	}
}
