package open

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/open/child"
)

// startTimeout bounds the start of the agent when the context does not.
const startTimeout = 20 * time.Second

// Target is a running open target. It is a probes.Target, and it is metered,
// lists its host processes and gives access to its channel.
type Target struct {
	client *guest.Client
	child  *child.Child
	group  *fuse.Group
	// ending is set before Close kills: what the agent answers from then on
	// tells of the kill, not of the tool.
	ending atomic.Bool
}

// Start starts an open target.
func Start(ctx context.Context, c Config) (started *Target, err error) {
	const doing = "start the open target"
	fail := func(err error, fix string) (*Target, error) {
		if backends.FixOf(err) != "" {
			fix = ""
		}
		return nil, &backends.Error{Code: backends.ErrBootFailed, Doing: doing, Err: err, Fix: fix}
	}
	if uid := os.Geteuid(); uid != 0 && (c.Credential.UID != uid || c.Credential.GID != os.Getegid()) {
		return fail(fmt.Errorf("uid %d cannot become uid %d", uid, c.Credential.UID), "run as root, or as that user")
	}
	exe, err := os.Open(c.Agent)
	if err != nil {
		return fail(err, "build the agent: go build -o bsm-agent ./cmd/bsm-agent")
	}
	defer exe.Close()
	if err := executableBy(exe, c.Credential); err != nil {
		return fail(err, "chmod 0755 "+c.Agent)
	}
	digest, err := integrity.HashReader(ctx, exe)
	if err != nil {
		return fail(fmt.Errorf("hash the agent: %w", err), "")
	}
	sum := strings.TrimPrefix(digest, "sha256:")
	if c.AgentSHA256 != "" && sum != c.AgentSHA256 {
		return fail(fmt.Errorf("agent %s has digest %s, expected %s", c.Agent, sum, c.AgentSHA256), "rebuild the agent")
	}
	dir, env, err := workDir(c)
	if err != nil {
		return fail(err, "")
	}
	if dir != nil {
		defer dir.Close()
	}

	t := &Target{}
	defer func() {
		if err != nil {
			started, err = nil, errors.Join(err, t.Close())
		}
	}()
	t.group, err = fuse.New(ctx, "open", fuse.Limits{MemoryBytes: c.MemoryBytes, Pids: c.Pids}, c.Ledger)
	if err != nil && (c.MemoryBytes > 0 || c.Pids > 0 || !errors.Is(err, fuse.ErrNoFuse)) {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	argv := []string{"bsm-agent", "serve", "--stdio"}
	if c.KeepTree {
		argv = append(argv, "--keep-tree")
	}
	t.child, err = child.Start(child.Spec{Exe: exe, Argv: argv, Env: env, Dir: dir, Credential: &c.Credential, Group: t.group, Ledger: c.Ledger})
	if err != nil {
		return fail(err, "")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	t.client, err = guest.Connect(ctx, guest.Options{Dial: t.child.Dial, AgentSHA256: sum, Log: c.Log})
	if err != nil {
		return fail(fmt.Errorf("%w (stderr %s)", err, t.child.Stderr()), "")
	}
	if err := t.child.Recorded(); err != nil {
		return fail(err, "")
	}
	return t, nil
}

// executableBy says why c could not execute f. Its path does not matter.
func executableBy(f *os.File, c backends.Credential) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("agent %s is not a regular file", f.Name())
	}
	if c.UID != os.Geteuid() && fi.Mode().Perm()&0o005 != 0o005 {
		return fmt.Errorf("agent %s (%04o) cannot be executed by uid %d: %w", f.Name(), fi.Mode().Perm(), c.UID, fs.ErrPermission)
	}
	return nil
}

// workDir opens the working directory and makes the environment.
func workDir(c Config) (*os.File, []string, error) {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C", "HOME=/"}
	if c.Dir == "" {
		return nil, append(env, "TMPDIR="+os.TempDir()), nil
	}
	dir, err := os.Open(c.Dir)
	if err != nil {
		return nil, nil, err
	}
	if os.Geteuid() == 0 {
		if err := dir.Chown(c.Credential.UID, c.Credential.GID); err != nil {
			return nil, nil, errors.Join(err, dir.Close())
		}
	}
	return dir, append(env, "TMPDIR="+c.Dir), nil
}

// Execute runs a tool. When the agent does not confirm that a timed-out tool
// is dead, the whole target is killed.
func (t *Target) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	begin := time.Now()
	e, err := t.client.Execute(ctx, inv)
	if err == nil && t.ending.Load() {
		return backends.Execution{}, backends.Errorf(backends.ErrClosed, "run "+inv.Tool, "the open target was closed during the call")
	}
	if !errors.Is(err, guest.ErrUnconfirmed) {
		return e, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if kerr := t.child.Kill(end); kerr != nil {
		return e, errors.Join(err, kerr)
	}
	return e, &backends.ToolTimeoutError{Tool: inv.Tool, ID: inv.ID, Deadline: inv.Deadline, Elapsed: time.Since(begin), SandboxKilled: true}
}

// PID is the agent's pid.
func (t *Target) PID() int { return t.child.PID() }

// HostPIDs lists the agent and everything that it started.
func (t *Target) HostPIDs(context.Context) ([]int, error) { return t.child.Tree() }

// InsideIsHost is true: inside is the host.
func (t *Target) InsideIsHost() bool { return true }

// HostAddresses are the loopback addresses.
func (t *Target) HostAddresses() []backends.HostAddress { return Loopback() }

// Usage reads the fuse's meters, or sums up the processes where there is none.
func (t *Target) Usage(context.Context) (backends.Usage, error) {
	if t.group != nil {
		return t.group.Usage()
	}
	return child.Usage(t.child)
}

// Tap sees every byte that the agent sends; see backends.ChannelTapper.
func (t *Target) Tap(fn func(b []byte)) (stop func()) { return t.client.Tap(fn) }

// Inject writes raw bytes to the agent.
func (t *Target) Inject(ctx context.Context, b []byte) error { return t.client.Inject(ctx, b) }

// Resync opens a new session with the agent.
func (t *Target) Resync(ctx context.Context) error { return t.client.Resync(ctx) }

// closeTimeout bounds the end of the tree.
const closeTimeout = 15 * time.Second

// Close ends the agent and everything that it ever started. It is idempotent.
func (t *Target) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	t.ending.Store(true)
	var err error
	if t.child != nil {
		err = t.child.Kill(ctx)
	}
	if t.client != nil {
		_ = t.client.Close() // its stream is closed already
	}
	return errors.Join(err, t.group.Close())
}
