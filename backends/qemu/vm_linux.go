package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/qmp"
)

// maxSocketPath is what fits sun_path with its final NUL.
const maxSocketPath = 107

// A vm is one QEMU with its two channels. Everything of it is gone after kill.
type vm struct {
	*process
	dir    string
	dirRec *ledger.Entry
	qmp    *qmp.Client
	client *guest.Client
	signal io.Closer // leak: the host's end of the port that signals
}

// socketDir makes the private directory for one QEMU's sockets, short enough
// for their paths.
func socketDir(l *ledger.Ledger, parent, name string) (string, *ledger.Entry, error) {
	dir := filepath.Join(parent, name)
	if n := len(filepath.Join(dir, "agent.sock")); n > maxSocketPath {
		return "", nil, fmt.Errorf("socket path %s would have %d bytes, a Unix socket allows %d; fix: set TMPDIR or --work-dir to a shorter path, such as /tmp",
			filepath.Join(dir, "agent.sock"), n, maxSocketPath)
	}
	e, err := l.MakeDir(dir)
	return dir, e, err
}

// listen makes a listening socket that QEMU takes over: its path is ours, so
// QEMU needs no access to the directory.
func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	return f, errors.Join(err, l.Close())
}

// inherit collects descriptors for a child.
type inherit struct{ files []*os.File }

// add returns f's number in the child.
func (i *inherit) add(f *os.File) int {
	i.files = append(i.files, f)
	return 2 + len(i.files)
}

// launchVM starts a QEMU for spec, whose descriptors are filled in here, and
// opens its QMP session. Nothing is left behind after an error.
func (s *Sandbox) launchVM(ctx context.Context, spec vmSpec, ram *os.File) (_ *vm, err error) {
	s.r.runs++
	v := &vm{}
	if v.dir, v.dirRec, err = socketDir(s.o.Ledger, s.r.dir, "v"+strconv.Itoa(s.r.runs)); err != nil {
		return nil, err
	}
	var opened []*os.File // ours only until QEMU has them
	defer func() {
		for _, f := range opened {
			_ = f.Close()
		}
		if err != nil {
			err = errors.Join(err, v.kill())
		}
	}()
	sock := func(name string) *os.File {
		if err != nil {
			return nil
		}
		var f *os.File
		f, err = listen(filepath.Join(v.dir, name))
		if f != nil {
			opened = append(opened, f)
		}
		return f
	}
	qmpSock, agentSock := sock("qmp.sock"), sock("agent.sock")
	var signalSock *os.File
	if s.leaks[leakSignalPort] {
		signalSock = sock("signal.sock")
	}
	if err != nil {
		return nil, err
	}

	var in inherit
	spec.Machine, spec.Accel, spec.MemMiB = "q35", s.r.accel, s.r.memMiB
	spec.RAM, spec.QMP, spec.Agent, spec.Rootfs = in.add(ram), in.add(qmpSock), in.add(agentSock), in.add(s.r.rootfs)
	spec.Writable, spec.UserNet = s.leaks[leakWritableDisk], s.leaks[leakUserNet]
	if !spec.Incoming {
		spec.Kernel, spec.Initrd = in.add(s.r.kernel), in.add(s.r.initramfs)
	}
	if signalSock != nil {
		spec.Signal = in.add(signalSock)
	}
	if s.r.shareDir != nil {
		spec.ShareDir = in.add(s.r.shareDir)
	}
	v.process, err = start(launch{path: s.r.qemu, args: spec.args(), files: in.files, cred: s.credential(), ledg: s.o.Ledger, group: s.r.group})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.r.qemu, err)
	}
	err = v.during(ctx, func(ctx context.Context) error {
		conn, err := dialUnix(ctx, filepath.Join(v.dir, "qmp.sock"))
		if err != nil {
			return err
		}
		v.qmp, err = qmp.New(ctx, conn, nil)
		return err
	})
	if err == nil && signalSock != nil {
		v.signal, err = serveSignals(ctx, filepath.Join(v.dir, "signal.sock"))
	}
	return v, err
}

func dialUnix(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is no Unix socket", path), c.Close())
	}
	return u, nil
}

// connect opens a session with the agent. QEMU holds our first bytes until the
// guest opens its port, so that the first answer means ready and nothing polls.
func (s *Sandbox) connect(ctx context.Context, v *vm) error {
	return v.during(ctx, func(ctx context.Context) error {
		c, err := guest.Connect(ctx, guest.Options{
			Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
				return dialUnix(ctx, filepath.Join(v.dir, "agent.sock"))
			},
			AgentSHA256: s.r.agentSHA256, FrameTimeout: s.frame, NoLimits: s.leaks[leakNoLimits], Log: s.log,
		})
		if err != nil {
			return err
		}
		v.client = c
		return nil
	})
}

// kill ends everything that belongs to v.
func (v *vm) kill() error {
	var errs []error
	if v.client != nil {
		errs = append(errs, ignoreClosed(v.client.Close()))
	}
	if v.signal != nil {
		errs = append(errs, v.signal.Close())
	}
	if v.qmp != nil {
		errs = append(errs, v.qmp.Close())
	}
	if v.process != nil {
		errs = append(errs, v.process.kill())
	}
	errs = append(errs, os.RemoveAll(v.dir), v.dirRec.Done())
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// status asks QEMU and maps its many states to the four of a report.
func (v *vm) status(ctx context.Context) (string, error) {
	raw, err := v.rawStatus(ctx)
	if err != nil {
		return "", err
	}
	return mapStatus(raw), nil
}

func (v *vm) rawStatus(ctx context.Context) (string, error) {
	var st struct {
		Status string `json:"status"`
	}
	err := v.qmp.Do(ctx, "query-status", nil, &st)
	return st.Status, err
}

// mapStatus sorts QEMU's run states.
func mapStatus(s string) string {
	switch s {
	case "running":
		return integrity.StateRunning
	case "paused", "suspended", "prelaunch", "debug":
		return integrity.StatePaused
	case "shutdown", "postmigrate", "finish-migrate", "inmigrate", "save-vm", "restore-vm", "colo":
		return integrity.StateStopped
	}
	return integrity.StateError // internal-error, io-error, guest-panicked, watchdog, whatever comes
}

// until polls a condition of QEMU's own that it does not announce.
func until(ctx context.Context, cond func(ctx context.Context) (bool, error)) error {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		ok, err := cond(ctx)
		if ok || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// save pauses the guest and writes its devices' state to f. RAM is not copied:
// it stays in its memfd.
func (v *vm) save(ctx context.Context, f *os.File) error {
	return v.during(ctx, func(ctx context.Context) error {
		if err := v.qmp.Do(ctx, "stop", nil, nil); err != nil {
			return err
		}
		st, err := v.rawStatus(ctx)
		if err != nil {
			return err
		}
		if st != "paused" {
			return fmt.Errorf("the guest is %q after stop, expected paused", st)
		}
		if err := v.ignoreShared(ctx); err != nil {
			return err
		}
		if err := v.migrateFD(ctx, "migrate", f); err != nil {
			return err
		}
		return until(ctx, func(ctx context.Context) (bool, error) {
			var m struct {
				Status string `json:"status"`
				Desc   string `json:"error-desc"`
			}
			if err := v.qmp.Do(ctx, "query-migrate", nil, &m); err != nil {
				return false, err
			}
			if m.Status == "failed" || m.Status == "cancelled" {
				return false, fmt.Errorf("snapshot %s: %q", m.Status, m.Desc)
			}
			return m.Status == "completed", nil
		})
	})
}

// load reads a snapshot and lets the guest run. An empty or truncated one makes
// QEMU wait for ever or exit; the context and the process bound both.
func (v *vm) load(ctx context.Context, state *os.File) error {
	return v.during(ctx, func(ctx context.Context) error {
		if err := v.ignoreShared(ctx); err != nil {
			return err
		}
		if err := v.migrateFD(ctx, "migrate-incoming", state); err != nil {
			return err
		}
		last := ""
		err := until(ctx, func(ctx context.Context) (bool, error) {
			var err error
			last, err = v.rawStatus(ctx)
			return last != "inmigrate", err
		})
		if err != nil {
			return fmt.Errorf("restore: qemu is %q: %w", last, err)
		}
		if last == "running" {
			return nil
		}
		return v.qmp.Do(ctx, "cont", nil, nil)
	})
}

func (v *vm) ignoreShared(ctx context.Context) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	return v.qmp.Do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []capability{{"x-ignore-shared", true}}}, nil)
}

func (v *vm) migrateFD(ctx context.Context, command string, f *os.File) error {
	if err := v.qmp.DoFD(ctx, "getfd", map[string]string{"fdname": "state"}, nil, int(f.Fd())); err != nil {
		return err
	}
	return v.qmp.Do(ctx, command, map[string]string{"uri": "fd:state"}, nil)
}
