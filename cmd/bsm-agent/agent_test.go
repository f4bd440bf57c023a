//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// binary is the agent under test, built as it is shipped.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "bsm-agent-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, agentbin.Name)
		if err := agentbin.Build(context.Background(), runtime.GOARCH, binary); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

const patience = 15 * time.Second

// An instance is a running agent on stdio.
type instance struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	r     *bufio.Reader
	fr    *wire.FrameReader
	hello *wire.Hello
	ended chan struct{}
}

func start(t *testing.T, args ...string) *instance {
	t.Helper()
	i := attach(t, exec.Command(binary, append([]string{"serve", "--stdio"}, args...)...))
	n := wire.NewNonce()
	_, err := i.stdin.Write(wire.Preamble(n))
	require.NoError(t, err)
	_, err = wire.AwaitPreamble(i.r, n, 0)
	require.NoError(t, err)
	i.hello = receive[*wire.Hello](i)
	return i
}

// attach starts cmd, whose stdin and stdout are an agent's.
func attach(t *testing.T, cmd *exec.Cmd) *instance {
	t.Helper()
	i := &instance{t: t, cmd: cmd, ended: make(chan struct{})}
	i.cmd.Stderr = os.Stderr
	var err error
	i.stdin, err = i.cmd.StdinPipe()
	require.NoError(t, err)
	out, w, err := os.Pipe()
	require.NoError(t, err)
	i.cmd.Stdout = w
	require.NoError(t, i.cmd.Start())
	require.NoError(t, w.Close())
	go func() { _ = i.cmd.Wait(); close(i.ended) }()
	t.Cleanup(func() {
		_ = i.stdin.Close()
		select {
		case <-i.ended:
		case <-time.After(patience):
			t.Error("the agent outlives its stdin")
			_ = i.cmd.Process.Kill()
			<-i.ended
		}
		_ = out.Close()
	})
	require.NoError(t, out.SetDeadline(time.Now().Add(2*patience)))
	i.r = bufio.NewReader(out)
	i.fr = wire.NewFrameReader(i.r, 0, 0)
	return i
}

func receive[M any](i *instance) M {
	i.t.Helper()
	body, err := i.fr.Read()
	require.NoError(i.t, err)
	m, err := wire.Decode(body)
	require.NoError(i.t, err)
	got, ok := m.(M)
	require.True(i.t, ok, "got %s", body)
	return got
}

func (i *instance) send(m any) {
	i.t.Helper()
	body, err := wire.Encode(m)
	require.NoError(i.t, err)
	require.NoError(i.t, wire.WriteFrame(i.stdin, body))
}

func (i *instance) dispatch(id, tool string, params any, deadline time.Duration) {
	i.t.Helper()
	raw, err := json.Marshal(params)
	require.NoError(i.t, err)
	i.send(&wire.ToolDispatch{Type: wire.TypeToolDispatch, CommandID: id, Tool: tool, Params: raw, DeadlineMS: deadline.Milliseconds()})
}

func (i *instance) call(tool string, params any, deadline time.Duration) *wire.ToolResult {
	i.t.Helper()
	i.dispatch("c", tool, params, deadline)
	r := receive[*wire.ToolResult](i)
	out, err := wire.Output(r.Stdout, r.StdoutEncoding)
	require.NoError(i.t, err)
	errOut, err := wire.Output(r.Stderr, r.StderrEncoding)
	require.NoError(i.t, err)
	require.Equal(i.t, wire.EvidenceHash(out, errOut), r.EvidenceHash)
	return r
}

func (i *instance) query(kind string, into any) {
	i.t.Helper()
	i.send(&wire.GuestQuery{Type: wire.TypeGuestQuery, QueryID: "q", QueryKind: kind})
	require.NoError(i.t, json.Unmarshal(receive[*wire.GuestResponse](i).Result, into))
}

type script struct {
	Script string `json:"script"`
}
