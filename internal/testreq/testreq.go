// Package testreq says what a test needs of the machine that it runs on. A
// missing need skips the test loudly, with the exact fix; where $BSM_REQUIRE
// names it, it fails the test instead, so that a CI job that is meant to have a
// need cannot lose it unseen.
package testreq

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// EnvVar lists, separated by commas, the needs whose absence is a failure.
const EnvVar = "BSM_REQUIRE"

// Need skips or fails t unless this machine has every named thing: "root",
// "linux", "kvm", "cgroup" (a memory and pids cgroup of our own can be made),
// "userns" (an unprivileged user namespace), "qemu" (the system emulator of this
// architecture), or else the name of a binary.
func Need(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := check(name); err != nil {
			Lacks(t, name, err)
		}
	}
}

// Lacks skips or fails t for want of something that only trying can tell, such
// as a download. It says what failed and how to have it.
func Lacks(t testing.TB, name string, err error) {
	t.Helper()
	if required(name) {
		t.Fatalf("this job requires %s (%s=%s): %v", name, EnvVar, os.Getenv(EnvVar), err)
	} else {
		t.Skipf("needs %s: %v", name, err)
	}
}

func required(name string) bool {
	return slices.ContainsFunc(strings.Split(os.Getenv(EnvVar), ","), func(s string) bool { return strings.TrimSpace(s) == name })
}

func check(name string) error {
	switch name {
	case "root":
		if os.Geteuid() != 0 {
			return fmt.Errorf("running as uid %d; fix: run the tests with sudo -E", os.Geteuid())
		}
		return nil
	case "linux":
		if _, err := os.Stat("/proc/self/stat"); err != nil {
			return errors.New("no Linux /proc here; fix: run the test on Linux")
		}
		return nil
	case "kvm":
		f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("%w; fix: sudo usermod -aG kvm \"$USER\", then log in again", err)
		}
		return f.Close()
	case "cgroup":
		return cgroup()
	case "userns":
		out, err := exec.Command("unshare", "--user", "--map-root-user", "true").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s; fix: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 user.max_user_namespaces=15000", err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	if name == "qemu" {
		name = emulators[runtime.GOARCH]
	}
	if _, err := exec.LookPath(name); err != nil {
		if name == "act" {
			return errors.New("nektos/act is not in PATH; fix: go install github.com/nektos/act@v0.2.87")
		}
		return fmt.Errorf("%s is not in PATH; fix: sudo apt-get install %s", name, debian(name))
	}
	return nil
}

// emulators are what "qemu" stands for.
var emulators = map[string]string{"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}

// debian names the package that ships a binary.
func debian(binary string) string {
	switch {
	case binary == "bwrap":
		return "bubblewrap"
	case strings.HasPrefix(binary, "qemu-system-x86"):
		return "qemu-system-x86"
	case strings.HasPrefix(binary, "qemu-system-aarch64"):
		return "qemu-system-arm"
	case binary == "setpriv" || binary == "unshare" || binary == "nsenter":
		return "util-linux"
	case binary == "dockerd" || binary == "docker":
		return "docker.io"
	case strings.HasPrefix(binary, "mkfs."):
		return "e2fsprogs squashfs-tools"
	}
	return binary
}

// cgroup makes and removes a cgroup below the places where package fuse looks.
// It shares no code with that package, whose tests call it.
func cgroup() error {
	var errs []error
	for _, dirs := range [][]string{{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"}, {ownV2()}} {
		err := probe(dirs)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("%w; fix: run as root, or under `systemd-run --user --scope -p Delegate=yes`", errors.Join(errs...))
}

func probe(dirs []string) error {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			return err
		}
		d, err := os.MkdirTemp(dir, "bsm-testreq-")
		if err != nil {
			return err
		}
		if err := os.Remove(d); err != nil {
			return err
		}
	}
	return nil
}

func ownV2() string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "/sys/fs/cgroup"
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join("/sys/fs/cgroup", path)
		}
	}
	return "/sys/fs/cgroup"
}
