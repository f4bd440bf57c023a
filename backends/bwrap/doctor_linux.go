package bwrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

// What a user can do. The profile is preferred to the sysctl: it opens user
// namespaces for bubblewrap alone.
const (
	fixInstall = "sudo apt-get install bubblewrap"
	fixAgent   = "build the agent: CGO_ENABLED=0 go build -o bsm-agent ./cmd/bsm-agent"
	fixUserNS  = "allow bubblewrap user namespaces: " +
		`printf 'abi <abi/4.0>,\ninclude <tunables/global>\nprofile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap` +
		"; or for every program: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	fixCount = "sudo sysctl -w user.max_user_namespaces=15000"
	fixClone = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
	fixOld   = "install bubblewrap 0.8 or newer"
)

// minVersion has every option that we use.
var minVersion = [2]int{0, 8}

// program is the bubblewrap that is used.
type program struct{ path, version, digest string }

// New makes a sandbox that is not booted. It touches nothing on the host.
func New(o backends.Options) (backends.Sandbox, error) { return newSandbox(o) }

// preflight says, without spawning anything, whether this host can run the
// backend.
func preflight(o backends.Options) (program, error) {
	refuse := func(err error, fix string) (program, error) {
		return program{}, &backends.Error{Code: backends.ErrNotAvailable, Doing: "check this host for bwrap", Err: err, Fix: fix}
	}
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return refuse(err, fixInstall)
	}
	if err := agentThere(o.Agent); err != nil {
		return refuse(err, fixAgent)
	}
	if fix, err := namespacesOff(); err != nil {
		return refuse(err, fix)
	}
	return program{path: path}, nil
}

func agentThere(path string) error {
	fi, err := os.Stat(path)
	if err == nil && (!fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0) {
		err = fmt.Errorf("agent %s is not an executable file", path)
	}
	return err
}

// namespacesOff reports a sysctl that forbids user namespaces altogether. What
// a security module forbids shows only when it is tried.
func namespacesOff() (fix string, err error) {
	for _, c := range []struct{ file, name, fix string }{
		{"/proc/sys/user/max_user_namespaces", "user.max_user_namespaces", fixCount},
		{"/proc/sys/kernel/unprivileged_userns_clone", "kernel.unprivileged_userns_clone", fixClone},
	} {
		b, err := os.ReadFile(c.file)
		if err == nil && strings.TrimSpace(string(b)) == "0" {
			return c.fix, fmt.Errorf("%s is 0, so there are no user namespaces", c.name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return c.fix, err
		}
	}
	return "", nil
}

// inspect completes what is known of the binary: its digest and what it says
// of its version.
func (b program) inspect(ctx context.Context) (program, error) {
	var err error
	if b.digest, err = integrity.HashFile(ctx, b.path); err != nil {
		return b, err
	}
	out, err := quiet(ctx, b.path, "--version").Output()
	if err != nil {
		return b, fmt.Errorf("ask bubblewrap for its version: %w", err)
	}
	b.version = strings.TrimPrefix(strings.TrimSpace(string(out)), "bubblewrap ")
	return b, nil
}

// remembered is inspect, except that a binary whose digest is known is not asked
// for its version again.
func (b program) remembered(ctx context.Context, cache string) (program, error) {
	digest, err := integrity.HashFile(ctx, b.path)
	if err != nil {
		return b, err
	}
	note := filepath.Join(cache, "version-"+strings.TrimPrefix(digest, "sha256:"))
	if said, err := os.ReadFile(note); err == nil && len(said) > 0 {
		b.digest, b.version = digest, string(said)
		return b, nil
	}
	if b, err = b.inspect(ctx); err != nil {
		return b, err
	}
	if b.digest != digest {
		return b, fmt.Errorf("%s changed while it was looked at", b.path)
	}
	return b, replaceFile(note, b.version)
}

// quiet is a command with the identity that bubblewrap gets, no environment
// and no input.
func quiet(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: insideUID, Gid: insideGID, Groups: []uint32{}}
	}
	return cmd
}

// oldVersion reports a version that lacks an option. An unknown form of
// version is given the benefit of the doubt.
func oldVersion(v string) bool {
	major, rest, ok := strings.Cut(v, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if !ok || err1 != nil || err2 != nil {
		return false
	}
	return a < minVersion[0] || (a == minVersion[0] && b < minVersion[1])
}

// fixFor reads bubblewrap's complaint.
func fixFor(stderr []byte) string {
	for _, c := range []struct{ symptom, fix string }{
		{"Unknown option", fixOld},
		{"setting up uid map: Permission denied", fixUserNS},
		{"loopback: Failed RTM_NEWADDR", fixUserNS},
		{"No permissions to creat", fixUserNS},
		{"Creating new namespace failed", fixUserNS},
		{"unshare user ns", fixUserNS},
	} {
		if bytes.Contains(stderr, []byte(c.symptom)) {
			return c.fix
		}
	}
	return ""
}

// doctorTimeout bounds the trial run.
const doctorTimeout = 10 * time.Second

// Doctor says whether this host can run the backend, by really building a
// sandbox around /bin/true.
func Doctor(ctx context.Context, o backends.Options) backends.Diagnosis {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	d := backends.Diagnosis{Available: true}
	check := func(what, fix string, err error) bool {
		if err == nil {
			d.Findings = append(d.Findings, backends.Finding{OK: true, What: what})
			return true
		}
		d.Available = false
		d.Findings = append(d.Findings, backends.Finding{What: what + ": " + err.Error(), Fix: fix})
		return false
	}
	if o.Agent != "" { // otherwise a run finds or builds one
		check("bsm-agent is an executable file", fixAgent, agentThere(o.Agent))
	}
	_, err := cacheDir(o.WorkDir, identity())
	check("a directory for the root file system", "choose a --work-dir that uid "+strconv.Itoa(identity().UID)+" can enter", err)
	path, err := exec.LookPath("bwrap")
	if check("bubblewrap is in PATH", fixInstall, err) {
		b, err := program{path: path}.inspect(ctx)
		if err == nil && oldVersion(b.version) {
			err = fmt.Errorf("it is %s", b.version)
		}
		check("bubblewrap is 0.8 or newer", fixOld, err)
		fix, off := namespacesOff()
		if check("user namespaces are switched on", fix, off) {
			fix, err := trial(ctx, path)
			check("bubblewrap builds a sandbox as uid "+strconv.Itoa(identity().UID), fix, err)
		}
	}
	if err := fuse.Available(ctx); err != nil {
		d.Findings = append(d.Findings, backends.Finding{Optional: true, What: "memory and pids limits: " + err.Error(), Fix: backends.FixOf(err)})
	} else {
		d.Findings = append(d.Findings, backends.Finding{OK: true, Optional: true, What: "memory and pids limits from a cgroup"})
	}
	return d
}

// trial runs true in a sandbox with every namespace.
func trial(ctx context.Context, bwrap string) (fix string, err error) {
	yes, err := exec.LookPath("true")
	if err != nil {
		return "sudo apt-get install coreutils", err
	}
	out, err := quiet(ctx, bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", yes).CombinedOutput()
	if err == nil {
		return "", nil
	}
	if fix = fixFor(out); fix == "" {
		fix = "run it by hand to see more: bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev true"
	}
	return fix, fmt.Errorf("%w: %s", err, backends.NewText(bytes.TrimSpace(out)))
}
