//go:build linux

// Package canarytest runs attack payloads in processes of the test binary, with
// and without a namespace boundary, and wraps them in guests that lie. It is
// for the tests of probes only.
package canarytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	toolEnv     = "BSM_CANARYTEST_TOOL"
	boundaryEnv = "BSM_CANARYTEST_BOUNDARY"
)

// Main runs a tool and exits when this process is a re-execution for one. Call
// it first in TestMain.
func Main(tools map[string]wire.ToolFunc) {
	name := os.Getenv(toolEnv)
	if name == "" {
		return
	}
	if os.Getenv(boundaryEnv) != "" {
		// A child that the tool starts is inside already.
		if err := errors.Join(os.Unsetenv(boundaryEnv), settle()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(wire.ExitAgentError)
		}
	}
	params, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(wire.ExitAgentError)
	}
	run, ok := tools[name]
	if !ok {
		os.Exit(wire.ExitNoTool)
	}
	os.Exit(run(context.Background(), wire.ToolInput{Name: name, Params: params, Stdout: os.Stdout, Stderr: os.Stderr}))
}

// settle makes the fresh namespaces look like a sandbox's: loopback up, a proc
// of its own, a private /tmp, nothing of the host's below.
func settle() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(ifr))); errno != 0 {
		return fmt.Errorf("bring lo up: %w", errno)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root := "/mnt"
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a root: %w", err)
	}
	for _, d := range []string{"proc", "tmp", "dev", "old"} {
		if err := os.Mkdir(root+"/"+d, 0o777); err != nil {
			return err
		}
	}
	// The test binary may be linked dynamically.
	for _, lib := range []string{"/lib", "/lib64", "/usr/lib"} {
		if _, err := os.Stat(lib); err != nil {
			continue
		}
		if err := os.MkdirAll(root+lib, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(lib, root+lib, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", lib, err)
		}
	}
	if err := os.WriteFile(root+"/dev/null", nil, 0o666); err != nil {
		return err
	}
	if err := unix.Mount("/dev/null", root+"/dev/null", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", root+"/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if err := unix.PivotRoot(root, root+"/old"); err != nil {
		return fmt.Errorf("pivot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return unix.Unmount("/old", unix.MNT_DETACH)
}

// Boundary is the set of namespaces that a contained tool gets.
const Boundary = unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Executor runs tools.
type Executor func(ctx context.Context, inv backends.Invocation) (backends.Execution, error)

// Execute implements backends.Executor.
func (e Executor) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	return e(ctx, inv)
}

// Close makes an Executor an open target.
func (e Executor) Close() error { return nil }

// Process runs each tool in a process of its own, in new namespaces if bounded.
func Process(bounded bool) Executor {
	return func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		params, err := json.Marshal(inv.Params)
		if err != nil {
			return backends.Execution{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, inv.Deadline)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Env = []string{toolEnv + "=" + inv.Tool, "PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"}
		cmd.Stdin = bytes.NewReader(params)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if bounded {
			cmd.Env = append(cmd.Env, boundaryEnv+"=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: Boundary,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		}
		err = cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return backends.Execution{}, err
		}
		return backends.Execution{ExitCode: cmd.ProcessState.ExitCode(), Stdout: backends.NewText(stdout.Bytes()), Stderr: backends.NewText(stderr.Bytes())}, nil
	}
}

// Missing is an agent without attack tools.
func Missing() Executor {
	return func(context.Context, backends.Invocation) (backends.Execution, error) {
		return backends.Execution{ExitCode: wire.ExitNoTool, Stderr: backends.NewText([]byte("no such tool"))}, nil
	}
}

// Mute carries every attack out and then says that it failed, with nothing in
// its output.
func Mute(ex Executor) Executor {
	return func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		_, err := ex(ctx, inv)
		return backends.Execution{ExitCode: 1, Stderr: backends.NewText([]byte("permission denied"))}, err
	}
}

// Boaster claims success in each of the cases, tries nothing, and binds its
// report correctly.
func Boaster(cases ...string) Executor {
	return func(_ context.Context, inv backends.Invocation) (backends.Execution, error) {
		raw, err := json.Marshal(inv.Params)
		if err != nil {
			return backends.Execution{}, err
		}
		var p struct{ Nonce string }
		if err := json.Unmarshal(raw, &p); err != nil {
			return backends.Execution{}, err
		}
		r := wire.NewRecorder(inv.Tool, p.Nonce)
		for _, c := range cases {
			r.Prove(wire.Attempt{Case: c, Op: "read", Result: wire.ResultOK})
			r.Try(wire.Attempt{Case: c, Op: "read", Result: wire.ResultOK})
		}
		var out bytes.Buffer
		if err := r.Write(&out); err != nil {
			return backends.Execution{}, err
		}
		return backends.Execution{Stdout: backends.NewText(out.Bytes())}, nil
	}
}

// Sandbox is a sandbox around an Executor.
type Sandbox struct {
	Executor
	// Addresses and Credential are what it says of itself; nil says nothing.
	Addresses []backends.HostAddress
}

// Backend implements backends.Sandbox.
func (*Sandbox) Backend() string { return "canarytest" }

// Boot implements backends.Sandbox.
func (*Sandbox) Boot(context.Context) error { return nil }

// Reset implements backends.Sandbox.
func (*Sandbox) Reset(context.Context) (backends.ResetState, error) {
	return backends.ResetState{}, nil
}

// Shutdown implements backends.Sandbox.
func (*Sandbox) Shutdown(context.Context) error { return nil }

// State implements backends.Sandbox.
func (*Sandbox) State() backends.State { return backends.StateReady }

// HostAddresses implements backends.HostAddresser.
func (s *Sandbox) HostAddresses() []backends.HostAddress { return s.Addresses }

// Env is an environment whose sandbox runs attack and whose open target runs
// control.
func Env(t testing.TB, attack, control Executor) *probes.Env {
	t.Helper()
	return &probes.Env{
		Sandbox: &Sandbox{Executor: attack},
		Open:    func(context.Context, probes.OpenOptions) (probes.Target, error) { return control, nil },
		Dir:     t.TempDir(),
		Log:     slog.New(slog.DiscardHandler),
	}
}

// Namespaces skips, loudly, where this host refuses the test boundary.
func Namespaces(t testing.TB) {
	t.Helper()
	x, err := Process(true)(t.Context(), backends.Invocation{Tool: "none", Params: map[string]any{}, Deadline: backends.DefaultDeadline})
	if err != nil || x.ExitCode != wire.ExitNoTool {
		t.Skipf("this host refuses user namespaces with a proc of their own (%v, exit %d, %s); fix: sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0", err, x.ExitCode, x.Stderr)
	}
}
