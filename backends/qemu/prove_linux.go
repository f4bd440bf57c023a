package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// prove returns the ground truth of a leak: QEMU's own account of the machine,
// the guest's kernel read through benign tools, the host's files and processes.
// No attack tool and no witness of a probe is used.
func prove(name string) func(context.Context, backends.Sandbox) error {
	return func(ctx context.Context, sb backends.Sandbox) error {
		s, ok := sb.(*Sandbox)
		if !ok {
			return fmt.Errorf("prove %s: not a qemu sandbox", name)
		}
		if err := s.prove(ctx, name); err != nil {
			return fmt.Errorf("prove %s: %w", name, err)
		}
		return nil
	}
}

func (s *Sandbox) prove(ctx context.Context, name string) error {
	v, err := s.ready()
	if err != nil {
		return err
	}
	switch name {
	case leakUserNet:
		return s.proveUserNet(ctx, v)
	case leakSharedDir:
		return s.proveShare(ctx)
	case leakWritableDisk:
		return s.proveWritable(ctx, v)
	case leakSignalPort:
		return s.proveSignals(ctx)
	case leakMemory4x:
		return s.proveMemory(ctx, v)
	case leakKeepTree:
		return s.proveKeepTree(ctx, v)
	case leakStdoutFrames:
		return s.proveFrames(ctx)
	case leakRawRenderer:
		if got, ok := s.Render("log", backends.NewText([]byte("\x1b[2J::x::"))); !ok || got != "\x1b[2J::x::" {
			return errors.New("the renderer changed the bytes")
		}
		return nil
	case leakNoLimits:
		return s.proveNoLimits(ctx)
	case leakNoRestore:
		return s.proveNoRestore(ctx)
	case leakSkipFSHash, leakSkipFDCount, leakSkipVMMState:
		return s.proveSkip(ctx, name)
	case leakLyingQMP:
		return s.proveLie(ctx, v)
	case leakFlakyBoot, leakFlakyReset, leakFlakyNoop:
		return s.proveFlaky(ctx, name)
	}
	return errors.New("there is no such leak")
}

// monitor runs a command of QEMU's human monitor.
func (v *vm) monitor(ctx context.Context, line string) (string, error) {
	var out string
	err := v.qmp.Do(ctx, "human-monitor-command", map[string]string{"command-line": line}, &out)
	return strings.TrimSpace(out), err
}

// proveUserNet has QEMU forward a host port to a closed port of the guest. That
// the connection is refused at once is the answer of the guest's kernel: there
// is a path between it and the host's loopback address.
func (s *Sandbox) proveUserNet(ctx context.Context, v *vm) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	rule := "tcp:" + addr
	if msg, err := v.monitor(ctx, "hostfwd_add net "+rule+"-:9"); err != nil || msg != "" {
		return errors.Join(fmt.Errorf("forward %s to the guest: %q", addr, msg), err)
	}
	defer func() { _, _ = v.monitor(ctx, "hostfwd_remove net "+rule) }()
	c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp4", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err = c.Read(make([]byte, 1))
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("the guest's kernel did not refuse a connection: %v", err)
	}
	return nil
}

func (s *Sandbox) read(ctx context.Context, path string) (string, error) {
	ex, err := s.Execute(ctx, backends.Invocation{Tool: "cat", Params: map[string]string{"path": path}})
	if err != nil {
		return "", err
	}
	if ex.ExitCode != 0 {
		return "", fmt.Errorf("cat %s inside: exit code %d: %s", path, ex.ExitCode, ex.Stderr)
	}
	return strings.TrimSpace(string(ex.Stdout.Bytes())), nil
}

func (s *Sandbox) sharedPath() string { return os.TempDir() }

func (s *Sandbox) proveShare(ctx context.Context) error {
	f, err := os.CreateTemp(s.sharedPath(), "bsm-share-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	secret := wire.NewNonceString()
	_, err = f.WriteString(secret)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	got, err := s.read(ctx, filepath.Join(shareMount, filepath.Base(f.Name())))
	if err != nil {
		return err
	}
	if got != secret {
		return errors.New("the guest reads something else in the host's file")
	}
	return nil
}

func (s *Sandbox) proveWritable(ctx context.Context, v *vm) error {
	ro, err := s.read(ctx, "/sys/block/vda/ro")
	if err != nil {
		return err
	}
	var blocks []struct {
		Device   string `json:"device"`
		Inserted struct {
			RO bool `json:"ro"`
		} `json:"inserted"`
	}
	if err := v.qmp.Do(ctx, "query-block", nil, &blocks); err != nil {
		return err
	}
	if ro != "0" || len(blocks) != 1 || blocks[0].Inserted.RO {
		return fmt.Errorf("the disk is read-only: %q inside, %+v outside", ro, blocks)
	}
	return nil
}

func (s *Sandbox) proveSignals(ctx context.Context) error {
	names, err := s.Execute(ctx, backends.Invocation{Tool: "ls", Params: map[string]string{"path": "/sys/class/virtio-ports"}})
	if err != nil {
		return err
	}
	found := false
	for _, port := range []string{"vport1p1", "vport1p2", "vport2p1", "vport2p2", "vport3p1", "vport3p2"} {
		if bytes.Contains(names.Stdout.Bytes(), []byte(port)) {
			name, err := s.read(ctx, "/sys/class/virtio-ports/"+port+"/name")
			found = found || err == nil && name == signalPort
		}
	}
	if !found {
		return fmt.Errorf("the guest has no port named %s", signalPort)
	}
	victim := exec.Command("sleep", "60")
	if err := victim.Start(); err != nil {
		return err
	}
	host, guestEnd := net.Pipe()
	server := startSignals(host)
	_, err = fmt.Fprintf(guestEnd, "signal %d\n", victim.Process.Pid)
	done := make(chan error, 1)
	go func() { done <- victim.Wait() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		err = errors.Join(err, errors.New("the process was not signalled"), victim.Process.Kill())
		<-done
	}
	return errors.Join(err, guestEnd.Close(), server.Close())
}

func (s *Sandbox) proveMemory(ctx context.Context, v *vm) error {
	var m struct {
		Base int64 `json:"base-memory"`
	}
	if err := v.qmp.Do(ctx, "query-memory-size-summary", nil, &m); err != nil {
		return err
	}
	var inside wire.MemUsage
	if err := v.client.Query(ctx, wire.QueryMemUsage, &inside); err != nil {
		return err
	}
	if want := 4 * s.o.Limits.MemoryBytes; m.Base < want || inside.TotalBytes < want/2 {
		return fmt.Errorf("the machine has %d bytes, the guest sees %d, declared are %d", m.Base, inside.TotalBytes, s.o.Limits.MemoryBytes)
	}
	return nil
}

func (s *Sandbox) proveKeepTree(ctx context.Context, v *vm) error {
	const long = "4242"
	_, err := s.Execute(ctx, backends.Invocation{Tool: "time.sleep", Params: map[string]int{"ms": 4242}, Deadline: 100 * time.Millisecond})
	if !errors.Is(err, backends.ErrToolTimeout) {
		return fmt.Errorf("a tool that sleeps for %s ms did not time out: %w", long, err)
	}
	var list wire.ProcessList
	if err := v.client.Query(ctx, wire.QueryProcessList, &list); err != nil {
		return err
	}
	for _, p := range list.Processes {
		if strings.Contains(p.Args, "time.sleep") {
			return nil
		}
	}
	return errors.New("no process of the tool is alive after its deadline")
}

func (s *Sandbox) proveFrames(ctx context.Context) error {
	id := "prove-" + wire.NewNonceString()
	body, err := json.Marshal(wire.ToolResult{Type: wire.TypeToolResult, CommandID: id, ExitCode: 42})
	if err != nil {
		return err
	}
	// Padded so that the length before it is valid UTF-8 as well.
	body = append(body, bytes.Repeat([]byte(" "), 0x170-len(body))...)
	var frame bytes.Buffer
	if err := wire.WriteFrame(&frame, body); err != nil {
		return err
	}
	path := "/tmp/" + id
	w, err := s.Execute(ctx, backends.Invocation{Tool: "fs.write", Params: map[string]string{"path": path, "content": frame.String()}})
	if err != nil || w.ExitCode != 0 {
		return fmt.Errorf("plant a frame: exit code %d: %w", w.ExitCode, err)
	}
	ex, err := s.Execute(ctx, backends.Invocation{ID: id, Tool: "cat", Params: map[string]string{"path": path}})
	if err != nil {
		return err
	}
	if ex.ExitCode != 42 {
		return fmt.Errorf("exit code %d: the frame on stdout was not believed", ex.ExitCode)
	}
	return nil
}

// proveNoRestore leaves an epoch in the agent's memory and finds it after a
// reset.
func (s *Sandbox) proveNoRestore(ctx context.Context) error {
	v, err := s.ready()
	if err != nil {
		return err
	}
	planted := wire.NewNonceString()
	if _, err := v.client.Reset(ctx, wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "prove", Epoch: planted}); err != nil {
		return err
	}
	if _, err := s.Reset(ctx); err != nil {
		return err
	}
	if v, err = s.ready(); err != nil {
		return err
	}
	var e wire.Epoch
	if err := v.client.Query(ctx, wire.QueryEpoch, &e); err != nil {
		return err
	}
	if e.Epoch != planted {
		return errors.New("the reset did restore")
	}
	return nil
}

// proveSkip changes what one source reads and has a reset pass all the same.
func (s *Sandbox) proveSkip(ctx context.Context, name string) (err error) {
	switch name {
	case leakSkipFSHash:
		path := s.r.rootfsPath
		if err := flipByte(path, 0); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, flipByte(path, 0)) }()
	case leakSkipFDCount:
		undo, _ := s.hook(func(h *hooks) { h.fds = func(n int) int { return n + 3 } })(ctx)
		defer func() { err = errors.Join(err, undo()) }()
	case leakSkipVMMState:
		undo, _ := s.hook(func(h *hooks) { h.status = func(string) string { return integrity.StateError } })(ctx)
		defer func() { err = errors.Join(err, undo()) }()
	}
	st, err := s.Reset(ctx)
	if err != nil {
		return fmt.Errorf("the comparison is on: %w", err)
	}
	d := st.VerificationDetails
	if d.FSHashMatch && d.OpenFDCount == d.OpenFDCountBaseline && d.VMMAPIState == d.ExpectedVMMAPIState {
		return errors.New("no source read anything but its baseline")
	}
	return nil
}

// proveLie pauses the machine for real and asks for its state.
func (s *Sandbox) proveLie(ctx context.Context, v *vm) (err error) {
	if err := v.qmp.Do(ctx, "stop", nil, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.qmp.Do(ctx, "cont", nil, nil)) }()
	truth, err := v.status(ctx)
	if err != nil {
		return err
	}
	said, err := s.reportedState(ctx, v)
	if err != nil {
		return err
	}
	if truth != integrity.StatePaused || said != integrity.StateRunning {
		return fmt.Errorf("the machine is %s and is reported as %s", truth, said)
	}
	return nil
}

// proveFlaky uses the thing as often as it takes to fail once.
func (s *Sandbox) proveFlaky(ctx context.Context, name string) error {
	for range flakyEvery {
		var err error
		switch name {
		case leakFlakyNoop:
			_, err = s.Execute(ctx, backends.Invocation{Tool: "noop"})
		case leakFlakyReset:
			if _, err := s.Execute(ctx, backends.Invocation{Tool: "noop"}); err != nil {
				return err
			}
			_, err = s.Reset(ctx)
		case leakFlakyBoot:
			if err := s.Shutdown(ctx); err != nil {
				return err
			}
			err = s.Boot(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return s.Boot(ctx) // ready again for whoever asked
		}
	}
	return fmt.Errorf("it worked %d times in a row", flakyEvery)
}
