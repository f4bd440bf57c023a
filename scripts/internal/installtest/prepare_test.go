package installtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// A host is a made-up root of a file system, with a bsm-redteam that judges it
// and a user who is not root.
type host struct {
	*step
	root string
}

// newHost calls script on a host where /dev/kvm is closed and sudo asks for no
// password. What doctor finds is: KVM where the device has mode 0666, everything
// else where the file has-NAME exists.
func newHost(t *testing.T, script string) *host {
	t.Helper()
	testreq.Need(t, "flock", "stat")
	h := &host{step: newStep(t, script, ""), root: t.TempDir()}
	write(t, h.at("dev/kvm"), "")
	require.NoError(t, os.Chmod(h.at("dev/kvm"), 0o600))
	writeScript(t, h.path("bsm-redteam"), `
[ "$1" = doctor ] || exec "$BSM_TEST_PROGRAM" "$@"
echo "$*" >>`+h.at("asked")+`
[ "$3" != kvm ] || { [ "$(stat -c %a `+h.at("dev/kvm")+`)" = 666 ] && exit 0; exit 3; }
[ -e "`+h.root+`/has-$3" ] || exit 3`)
	h.set("BSM_BIN", h.path("bsm-redteam"), "BSM_HOST_ROOT", h.root)
	h.tool("id", "echo 1000")
	h.tool("sudo", `[ "$1" = -n ] || exit 9; shift; echo "$*" >>`+h.at("sudo")+`; exec env -i "PATH=$PATH" "$@"`)
	h.tool("udevadm", `echo "$*" >>`+h.at("udevadm"))
	h.tool("apparmor_parser", `for last; do :; done; cp "$last" `+h.at("profile")+`; : >`+h.at("has-bwrap"))
	for _, emulator := range []string{"qemu-system-x86_64", "qemu-system-aarch64"} {
		h.tool(emulator, "exit 1")
	}
	return h
}

func (h *host) at(path string) string { return filepath.Join(h.root, path) }

func (h *host) has(names ...string) {
	for _, name := range names {
		write(h.t, h.at("has-"+name), "")
	}
}

// done requires exit code 0 and every text, and returns the log.
func (h *host) done(texts ...string) string {
	h.t.Helper()
	r := h.run()
	require.Zero(h.t, r.code, r.log)
	for _, text := range texts {
		require.Contains(h.t, r.log, text)
	}
	return r.log
}

// untouched requires that nothing was done as root, or tried.
func (h *host) untouched() {
	h.t.Helper()
	for _, name := range []string{"sudo", "udevadm", "profile", "run"} {
		require.NoFileExists(h.t, h.at(name))
		require.NoDirExists(h.t, h.at(name))
	}
	info, err := os.Stat(h.at("dev/kvm"))
	require.NoError(h.t, err)
	require.Equal(h.t, os.FileMode(0o600), info.Mode())
}

func TestKVMIsOpened(t *testing.T) {
	h := newHost(t, "prepare-host.sh").with("qemu")
	h.has("qemu")
	h.done("KVM does not answer this user", "a udev rule opens /dev/kvm until the next reboot", "KVM answers this user now")
	require.Equal(t, "KERNEL==\"kvm\", MODE=\"0666\"\n", read(t, h.at("run/udev/rules.d/99-bsm-redteam-kvm.rules")))
	require.Equal(t, "control --reload-rules\ntrigger --name-match=kvm\n", read(t, h.at("udevadm")))

	calls := read(t, h.at("sudo"))
	h.done("KVM answers this user")
	require.Equal(t, calls, read(t, h.at("sudo")), "the second time there is nothing to do")
}

func (h *host) with(backend string) *host {
	h.set("BSM_BACKEND", backend)
	return h
}

func TestWhereNothingIsMissingNothingIsDone(t *testing.T) {
	for _, backend := range []string{"qemu", "bwrap", "mock", "chv", "", "--as-root", "qemu\n::error::x", "##[x]", "$(touch owned)", "../qemu"} {
		t.Run(backend, func(t *testing.T) {
			h := newHost(t, "prepare-host.sh").with(backend)
			require.NoError(t, os.Chmod(h.at("dev/kvm"), 0o666))
			h.tool("bwrap", "exit 1")
			h.has("qemu", "bwrap")
			h.done()
			require.NoError(t, os.Chmod(h.at("dev/kvm"), 0o600))
			h.untouched()
			require.NoFileExists(t, h.path("workspace", "owned"))
		})
	}
}

func TestWithoutRootNothingIsDone(t *testing.T) {
	for name, lose := range map[string]func(h *host){
		"sudo asks for a password": func(h *host) { h.tool("sudo", "exit 1") },
		"no sudo": func(h *host) {
			require.NoError(t, os.Remove(h.path("bin/sudo")))
			tools := h.path("bin")
			h.only("bash", "env", "sh", "stat", "uname", "flock", "chmod")
			h.set("PATH", tools+":"+h.env["PATH"])
		},
	} {
		for _, backend := range []string{"qemu", "bwrap"} {
			t.Run(name+" "+backend, func(t *testing.T) {
				h := newHost(t, "prepare-host.sh").with(backend)
				write(t, h.at("proc/sys/kernel/apparmor_restrict_unprivileged_userns"), "1\n")
				lose(h)
				if backend == "bwrap" {
					h.tool("bwrap", "exit 1")
					h.done("bubblewrap builds no sandbox as this user", "the bwrap backend cannot run here")
				} else {
					h.has("qemu")
					h.done("no root and no sudo without a password; the host is left alone")
				}
				h.untouched()
			})
		}
	}
}

func TestAsked(t *testing.T) {
	h := newHost(t, "prepare-host.sh").with("qemu")
	h.set("BSM_PREPARE_HOST", "never")
	h.done("the host is left alone, as asked for")
	h.untouched()
	require.NoFileExists(t, h.at("asked"))

	for _, value := range []string{"always", " auto", "never\n", "--as-root"} {
		h.set("BSM_PREPARE_HOST", value)
		r := h.run()
		require.Equal(t, 1, r.code)
		require.Contains(t, r.log, "fix: use auto or never")
	}
	h.untouched()
	h.set("BSM_PREPARE_HOST", "", "BSM_BIN", h.root)
	r := h.run()
	require.Equal(t, 1, r.code)
	require.Contains(t, r.log, "BSM_BIN is no executable")
}

func TestWhatDidNotHelpIsSaid(t *testing.T) {
	t.Run("no device", func(t *testing.T) {
		h := newHost(t, "prepare-host.sh").with("qemu")
		h.has("qemu")
		require.NoError(t, os.Remove(h.at("dev/kvm")))
		h.done("there is no /dev/kvm: QEMU will emulate")
		require.NoFileExists(t, h.at("sudo"))
	})
	t.Run("the mode does not last", func(t *testing.T) {
		h := newHost(t, "prepare-host.sh").with("qemu")
		h.has("qemu")
		h.tool("chmod", "exit 0")
		h.done("KVM does not answer this user, although /dev/kvm was opened")
		require.Equal(t, 11, strings.Count(read(t, h.at("asked")), "--require kvm"), "asked until it is clear")
	})
	t.Run("the mode cannot be changed", func(t *testing.T) {
		h := newHost(t, "prepare-host.sh").with("qemu")
		h.has("qemu")
		h.tool("chmod", "echo chmod: read-only file system >&2; exit 1")
		h.done("read-only file system", "that did not work: kvm")
	})
	t.Run("udev does not work", func(t *testing.T) {
		h := newHost(t, "prepare-host.sh").with("qemu")
		h.has("qemu")
		h.tool("udevadm", "exit 1")
		h.done("udevadm failed; the mode of /dev/kvm may not last", "KVM answers this user now")
	})
	t.Run("the backend still cannot run", func(t *testing.T) {
		h := newHost(t, "prepare-host.sh").with("qemu")
		h.done("KVM answers this user now", "the qemu backend cannot run here; this says why: bsm-redteam doctor --require qemu")
	})
}

func TestBubblewrapGetsAProfile(t *testing.T) {
	if path, err := exec.LookPath("bwrap"); err != nil || path != "/usr/bin/bwrap" {
		testreq.Need(t, "bwrap")
		t.Skipf("needs /usr/bin/bwrap: it is %s; fix: sudo apt-get install bubblewrap", path)
	}
	restricted := func(t *testing.T, value string) *host {
		h := newHost(t, "prepare-host.sh").with("bwrap")
		write(t, h.at("proc/sys/kernel/apparmor_restrict_unprivileged_userns"), value)
		return h
	}
	t.Run("restricted", func(t *testing.T) {
		h := restricted(t, "1\n")
		h.done("bubblewrap builds no sandbox as this user", "bubblewrap builds a sandbox now")
		require.Contains(t, read(t, h.at("profile")), "profile bsm-redteam-bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}")
		require.Equal(t, 3, strings.Count(read(t, h.at("asked")), "--require bwrap"), "tried before and after")

		calls := read(t, h.at("sudo"))
		h.done("bubblewrap builds a sandbox as this user")
		require.Equal(t, calls, read(t, h.at("sudo")))
	})
	for name, there := range map[string]string{"of the distribution": "bwrap (enforce)", "named by its path": "/usr/bin/bwrap (unconfined)"} {
		t.Run("there is a profile "+name, func(t *testing.T) {
			h := restricted(t, "1\n")
			write(t, h.at("sys/kernel/security/apparmor/profiles"), "unpriv_bwrap (enforce)\n"+there+"\n")
			h.done("AppArmor has a profile for bubblewrap already, which is left alone: "+there, "that did not work: userns", "the bwrap backend cannot run here")
			require.NoFileExists(t, h.at("profile"))
		})
	}
	t.Run("there are profiles of others, and ours", func(t *testing.T) {
		h := restricted(t, "1\n")
		write(t, h.at("sys/kernel/security/apparmor/profiles"), "unpriv_bwrap (enforce)\nbwrapper (enforce)\nbsm-redteam-bwrap (unconfined)\n")
		h.done("bubblewrap builds a sandbox now")
	})
	t.Run("the profile is refused", func(t *testing.T) {
		h := restricted(t, "1\n")
		h.tool("apparmor_parser", "echo AppArmor parser error >&2; exit 1")
		h.done("AppArmor parser error", "that did not work: userns", "the bwrap backend cannot run here")
	})
	t.Run("the profile does not help", func(t *testing.T) {
		h := restricted(t, "1\n")
		h.tool("apparmor_parser", "exit 0")
		h.done("bubblewrap builds no sandbox, although a profile allows it user namespaces")
	})
	for name, value := range map[string]string{"not restricted": "0\n", "no AppArmor": ""} {
		t.Run(name, func(t *testing.T) {
			h := restricted(t, value)
			h.done("AppArmor is not what keeps it from that")
			h.untouched()
		})
	}
	t.Run("another bubblewrap", func(t *testing.T) {
		h := restricted(t, "1\n")
		h.tool("bwrap", "exit 1")
		h.done("a profile would be for /usr/bin/bwrap, but it is " + h.path("bin/bwrap"))
		h.untouched()
	})
}

func TestPackagesAreInstalled(t *testing.T) {
	bare := func(t *testing.T, backend string) *host {
		h := newHost(t, "prepare-host.sh").with(backend)
		require.NoError(t, os.Chmod(h.at("dev/kvm"), 0o666))
		for _, name := range []string{"qemu-system-x86_64", "qemu-system-aarch64"} {
			require.NoError(t, os.Remove(h.path("bin", name)))
		}
		tools := h.path("bin")
		h.only("bash", "env", "sh", "stat", "uname", "flock", "chmod", "mkdir", "mv", "cp", "chown", "find", "rmdir", "grep", "cat", "true")
		h.set("PATH", tools+":"+h.env["PATH"])
		h.has(backend)
		return h
	}
	for backend, want := range map[string]string{"qemu": "qemu-system-", "bwrap": "bubblewrap"} {
		t.Run(backend, func(t *testing.T) {
			h := bare(t, backend)
			h.tool("apt-get", `echo "$*" >>`+h.at("apt")+`
case "$*" in *install*) for b in bwrap qemu-system-x86_64 qemu-system-aarch64; do cp `+h.path("bin/udevadm")+` `+h.path("bin")+`/$b; done ;; esac`)
			h.done("is missing", "installed "+want)
			require.Contains(t, read(t, h.at("apt")), " install -y --no-install-recommends "+want)
		})
	}
	t.Run("that fails", func(t *testing.T) {
		h := bare(t, "qemu")
		h.tool("apt-get", "echo E: Unable to fetch >&2; exit 100")
		h.done("E: Unable to fetch", "that did not work: package:qemu-system-")
	})
	t.Run("another distribution", func(t *testing.T) {
		h := bare(t, "qemu")
		h.done("no apt-get here; fix: install qemu-system-")
		require.NoFileExists(t, h.at("sudo"))
	})
}

func TestOneJobAtATimePreparesAHost(t *testing.T) {
	h := newHost(t, "prepare-host.sh").with("qemu")
	h.has("qemu")
	h.tool("chmod", `echo begin >>`+h.at("order")+`; /bin/sleep 0.2; echo end >>`+h.at("order")+`; exec /bin/chmod "$@"`)
	var wg sync.WaitGroup
	for range 3 {
		cmd := h.command()
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	order := read(t, h.at("order"))
	require.Equal(t, strings.Repeat("begin\nend\n", strings.Count(order, "begin")), order)
}

// TestPrepareBuildsWhatItAsks: without an installed bsm-redteam it is built.
func TestPrepareBuildsWhatItAsks(t *testing.T) {
	h := newHost(t, "prepare-host.sh").with("bwrap")
	h.tool("bwrap", "exit 1")
	h.has("bwrap")
	writeScript(t, filepath.Join(filepath.Dir(h.script), "install.sh"), `[ "$BSM_INSTALL" = source ] && printf 'bin=%s\nversion=devel\n' `+h.path("bsm-redteam"))
	delete(h.env, "BSM_BIN")
	h.done("bubblewrap builds a sandbox as this user")
}

// newRun is a step that becomes a program with an argument list of its own.
func newRun(t *testing.T, body string) *host {
	t.Helper()
	h := newHost(t, "with-fuse.sh")
	writeScript(t, h.path("program"), body)
	return h.program()
}

func (h *host) program() *host {
	h.set("BSM_TEST_PROGRAM", h.path("program"), "RUNNER_TRACKING_ID", "github_1")
	return h
}

// attack starts the script by way of a shell that first makes the entry of its
// process in the host's /proc.
func (h *host) attack(args ...string) (*exec.Cmd, *bytes.Buffer) {
	h.t.Helper()
	cmd := h.command()
	script := `mkdir -p "$0/proc/$$" && echo 0::/system.slice/runner.service >"$0/proc/$$/cgroup" && exec "$@"`
	cmd.Args = append([]string{"sh", "-c", script, h.root, cmd.Path, h.script}, args...)
	cmd.Path = "/bin/sh"
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	return cmd, &log
}

// unified gives the host a cgroup v2 tree as systemd makes it. A control file
// appears with its directory, as in the kernel.
func (h *host) unified() {
	write(h.t, h.at("sys/fs/cgroup/cgroup.controllers"), "cpu memory pids\n")
	write(h.t, h.at("sys/fs/cgroup/cgroup.subtree_control"), "cpu memory pids\n")
	write(h.t, h.at("sys/fs/cgroup/system.slice/cgroup.subtree_control"), "memory pids\n")
	write(h.t, h.at("sys/fs/cgroup/system.slice/runner.service/cgroup.subtree_control"), "\n")
	h.tool("mkdir", `/bin/mkdir "$@" || exit 1
for last; do :; done
case $last in */bsm-redteam-*) : >"$last/cgroup.procs"; : >"$last/cgroup.subtree_control"; : >`+h.at("has-fuse")+` ;; esac`)
	h.tool("chown", `echo "$*" >>`+h.at("chown"))
	h.tool("rmdir", `for d; do rm -r "$d"; done`)
}

func TestProgramIsEnclosedAndStaysTheJobs(t *testing.T) {
	h := newRun(t, `printf '%s|' "$$" "$RUNNER_TRACKING_ID" "$HOME" "$@"; exit 7`)
	h.unified()
	slice := h.at("sys/fs/cgroup/system.slice")
	for name, populated := range map[string]string{"bsm-redteam-1-1": "populated 0\nfrozen 0\n", "bsm-redteam-2-2": "populated 1\nfrozen 0\n", "another": "populated 0\n"} {
		write(t, filepath.Join(slice, name, "cgroup.events"), populated)
	}
	cmd, log := h.attack(h.path("bsm-redteam"), "action", "a b", "", "-x", "*")
	require.Error(t, cmd.Run())
	require.Equal(t, 7, cmd.ProcessState.ExitCode(), log.String())
	require.Contains(t, log.String(), "this run sits in a cgroup of its own")
	pid := fmt.Sprint(cmd.Process.Pid)
	require.Contains(t, log.String(), strings.Join([]string{pid, "github_1", h.path("home"), "action", "a b", "", "-x", "*", ""}, "|"), "the same process, user, environment and arguments")

	made, err := filepath.Glob(filepath.Join(slice, "bsm-redteam-"+pid+"-*"))
	require.NoError(t, err)
	require.Len(t, made, 1)
	require.Equal(t, pid+"\n", read(t, filepath.Join(made[0], "cgroup.procs")))
	require.Equal(t, "1000 "+made[0]+" "+made[0]+"/cgroup.procs "+made[0]+"/cgroup.subtree_control\n", read(t, h.at("chown")))
	require.NoDirExists(t, filepath.Join(slice, "bsm-redteam-1-1"), "an empty one of an earlier job")
	require.DirExists(t, filepath.Join(slice, "bsm-redteam-2-2"), "one in use")
	require.DirExists(t, filepath.Join(slice, "another"))
}

func TestProgramRunsWithoutEnclosure(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *host)
		says   string
		asked  bool
	}{
		"it can be had already": {func(h *host) { h.unified(); h.has("fuse") }, "", true},
		"not wanted":            {func(h *host) { h.unified(); h.set("BSM_PREPARE_HOST", "never") }, "", false},
		"no cgroup v2":          {func(*host) {}, "there is no cgroup v2 to delegate", true},
		"no root":               {func(h *host) { h.unified(); h.tool("sudo", "exit 1") }, "no cgroup with memory and pids limits can be made", true},
		"the kernel refuses":    {func(h *host) { h.unified(); h.tool("chown", "exit 1") }, "no cgroup with memory and pids limits can be made", true},
		"no ancestor offers both": {func(h *host) {
			h.unified()
			write(t, h.at("sys/fs/cgroup/cgroup.subtree_control"), "cpu pids\n")
			write(t, h.at("sys/fs/cgroup/system.slice/cgroup.subtree_control"), "memory\n")
		}, "no cgroup with memory and pids limits can be made", true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRun(t, "echo ran; exit 7")
			c.change(h)
			cmd, log := h.attack(h.path("bsm-redteam"), "action")
			require.Error(t, cmd.Run())
			require.Equal(t, 7, cmd.ProcessState.ExitCode(), log.String())
			require.Contains(t, log.String(), "ran\n")
			require.Contains(t, log.String(), c.says)
			if c.says == "" {
				require.Equal(t, "ran\n", log.String())
				require.NoFileExists(t, h.at("sudo"))
			}
			_, err := os.Stat(h.at("asked"))
			require.Equal(t, c.asked, err == nil)
		})
	}
	t.Run("no program", func(t *testing.T) {
		r := newRun(t, "").run()
		require.Equal(t, 1, r.code)
		require.Contains(t, r.log, "with-fuse.sh needs a program")
	})
}

// TestSignalsReachTheProgram: the runner signals the process that it started.
func TestSignalsReachTheProgram(t *testing.T) {
	h := newRun(t, `trap 'exit 42' INT; echo ready >`+"$HOME/ready"+`; while :; do /bin/sleep 0.05; done`)
	h.has("fuse")
	require.NoError(t, syscall.Mkfifo(h.path("home", "ready"), 0o600))
	cmd, log := h.attack(h.path("bsm-redteam"), "action")
	require.NoError(t, cmd.Start())
	require.Equal(t, "ready\n", read(t, h.path("home", "ready")))
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	require.Equal(t, 42, cmd.ProcessState.ExitCode(), log.String())
}

// TestACancelledStepDoesNotBegin: an interrupt while doctor is asked is not lost.
func TestACancelledStepDoesNotBegin(t *testing.T) {
	h := newRun(t, "echo began")
	writeScript(t, h.path("bsm-redteam"), `[ "$1" = doctor ] || exec "$BSM_TEST_PROGRAM" "$@"
echo ready >"$HOME/ready"; read -r line <"$HOME/go"`)
	for _, name := range []string{"ready", "go"} {
		require.NoError(t, syscall.Mkfifo(h.path("home", name), 0o600))
	}
	cmd, log := h.attack(h.path("bsm-redteam"), "action")
	require.NoError(t, cmd.Start())
	require.Equal(t, "ready\n", read(t, h.path("home", "ready")))
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	write(t, h.path("home", "go"), "on\n") // doctor ends well
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), log.String())
	require.NotContains(t, log.String(), "began")
}
