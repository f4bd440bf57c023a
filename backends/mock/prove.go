package mock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// The checks below show, without the probes and their canaries, that a leak is
// real: each makes a little thing of its own that only a crossing can touch.

func call(ctx context.Context, sb backends.Sandbox, tool string, params any) (backends.Execution, error) {
	return sb.Execute(ctx, backends.Invocation{Tool: tool, Params: params, Deadline: 5 * time.Second})
}

func proveEgress(ctx context.Context, sb backends.Sandbox) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	heard := make(chan string, 1)
	go func() {
		defer close(heard)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		line, _ := bufio.NewReader(c).ReadString('\n') // an unfinished line is no token
		heard <- strings.TrimSpace(line)
	}()
	token := wire.NewNonceString()
	_, err = call(ctx, sb, attack.NetEgress, attack.EgressParams{Nonce: token, Targets: []attack.EgressTarget{
		{Case: "proof", Via: attack.ViaTCP, Address: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Token: token}}})
	if err := errors.Join(err, l.Close()); err != nil {
		return err
	}
	if got := <-heard; got != token {
		return errors.New("nobody called the listener")
	}
	return nil
}

func proveFiles(ctx context.Context, sb backends.Sandbox) error {
	dir, err := os.MkdirTemp("", "bsm-mock-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	secret, path := wire.NewNonceString(), filepath.Join(dir, "secret")
	if err := os.WriteFile(path, []byte("mark "+secret), 0o600); err != nil {
		return err
	}
	e, err := call(ctx, sb, attack.FSEscape, attack.FSEscapeParams{Nonce: "proof", Path: path, Marker: "mark ", Append: "+"})
	if err != nil {
		return err
	}
	r, err := wire.ParsePayloadReport(e.Stdout.Bytes(), attack.FSEscape, "proof")
	if err != nil {
		return err
	}
	for _, a := range r.Attempts {
		if bytes.Contains(a.Data, []byte(secret)) {
			return nil
		}
	}
	return errors.New("the secret did not come out")
}

func proveProcesses(ctx context.Context, sb backends.Sandbox) error {
	id := "bsm-mock-" + wire.NewNonceString()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "echo; read _", id)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// Its command line is there once it speaks.
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	_, callErr := call(ctx, sb, attack.ProcEscape, attack.ProcEscapeParams{Nonce: "proof",
		Canaries: map[string]attack.ProcCanary{attack.ProcSignal: {PID: cmd.Process.Pid, ID: id}}})
	_ = stdin.Close() // an unharmed process ends with its input, by itself
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case callErr != nil:
		return callErr
	case errors.As(err, &exit) && exit.ExitCode() == -1: // ended by a signal
		return nil
	}
	return errors.New("the process was not signalled")
}

func proveLimits(ctx context.Context, sb backends.Sandbox) error {
	m, ok := sb.(backends.Metered)
	if !ok {
		return errors.New("the sandbox has no meter")
	}
	_, err := call(ctx, sb, attack.ResourceExhaust, attack.ExhaustParams{Nonce: "proof", Case: attack.ExhaustMemory, AskBytes: 1 << 30, StopBytes: 1 << 30})
	if err != nil {
		return err
	}
	u, err := m.Usage(ctx)
	if err != nil {
		return err
	}
	if u.PeakBytes < 1<<30 {
		return fmt.Errorf("the meter rose to %d bytes only", u.PeakBytes)
	}
	return nil
}

func proveTree(ctx context.Context, sb backends.Sandbox) error {
	token := wire.NewNonceString()
	_, err := sb.Execute(ctx, backends.Invocation{Tool: attack.TimeBomb, Deadline: 20 * time.Millisecond, Params: attack.TimeBombParams{
		Do: attack.BombExplode, Bombs: []attack.Bomb{{Mode: attack.BombSleep, Token: token}}, Run: time.Second, Life: time.Second}})
	if !errors.Is(err, backends.ErrToolTimeout) {
		return fmt.Errorf("no timeout: %w", err)
	}
	m, ok := sb.(backends.Metered)
	if !ok {
		return errors.New("the sandbox has no meter")
	}
	u, err := m.Usage(ctx)
	if err != nil {
		return err
	}
	if u.Tasks <= baseTasks {
		return errors.New("no task is left after the deadline")
	}
	return nil
}

func proveSubstrate(ctx context.Context, sb backends.Sandbox) error {
	t, ok := sb.(backends.Tamperable)
	if !ok {
		return errors.New("the sandbox has no substrate")
	}
	undo, err := t.Tampers()[0].Apply(ctx)
	if err != nil {
		return err
	}
	_, err = sb.Reset(ctx)
	return errors.Join(err, undo())
}

func proveRenderer(_ context.Context, sb backends.Sandbox) error {
	r, ok := sb.(backends.Renderer)
	if !ok {
		return errors.New("the sandbox renders nothing")
	}
	const escape = "\x1b[31m"
	if s, ok := r.Render("terminal", backends.NewText([]byte(escape))); !ok || s != escape {
		return errors.New("the escape sequence did not come through")
	}
	return nil
}

func proveDecoder(ctx context.Context, sb backends.Sandbox) error {
	timer, ok := sb.(backends.FrameTimer)
	if !ok {
		return errors.New("the frame deadline cannot be set")
	}
	channel, ok := sb.(backends.ChannelTapper)
	if !ok {
		return errors.New("there is no raw channel")
	}
	timer.SetFrameTimeout(50 * time.Millisecond)
	if err := channel.Resync(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
	defer cancel()
	_, err := call(ctx, sb, attack.ChannelPoison, attack.ChannelPoisonParams{Nonce: wire.NewNonceString(), Mode: attack.PoisonTruncated, HoldMS: 1000})
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("half a frame did not hold the decoder: %w", err)
	}
	return nil
}

func proveLatency(ctx context.Context, sb backends.Sandbox) error {
	for range latEvery {
		e, err := call(ctx, sb, "noop", nil)
		if err != nil {
			return err
		}
		if e.ExitCode != 0 {
			return nil
		}
	}
	return errors.New("no call failed")
}
