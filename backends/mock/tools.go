package mock

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// tools is the mock's own table. The names are those of the real agent.
var tools = map[string]func(*world, context.Context, wire.ToolInput) int{
	"noop": (*world).noop, "echo": alone(echo), "stdout.echo": alone(stdoutEcho), "time.sleep": alone(timeSleep),
	"whoami": alone(whoami), "uname": alone(uname), "cat": (*world).cat, "cat-file": (*world).cat, "ls": (*world).ls, "env": alone(env),
	"sh": alone(shell), "shell.exec": alone(shell), "fs.write": (*world).fsWrite, "disk.usage": alone(empty), "net.interfaces": alone(empty),
	"proc.list": (*world).procList, attack.NetEgress: (*world).egress, attack.FSEscape: (*world).escapeFiles,
	attack.ProcEscape: (*world).escapeProcesses, attack.ResourceExhaust: (*world).exhaust, attack.TimeBomb: (*world).timeBomb,
	attack.SubstrateAnchor: (*world).anchor, attack.StdoutForge: alone(forge), attack.ChannelPoison: alone(poison),
}

var toolNames = slices.Sorted(maps.Keys(tools))

// alone makes a tool of what needs no world.
func alone(run wire.ToolFunc) func(*world, context.Context, wire.ToolInput) int {
	return func(_ *world, ctx context.Context, in wire.ToolInput) int { return run(ctx, in) }
}

// Tool looks a tool up for the agent.
func (w *world) Tool(name string) (agent.Tool, bool) {
	run, ok := tools[name]
	return agent.Tool{Run: func(ctx context.Context, in wire.ToolInput) int { return run(w, ctx, in) },
		InProcess: true, Channel: name == attack.ChannelPoison}, ok
}

// Names lists the tools for the agent.
func (w *world) Names() []string { return toolNames }

const (
	exitFailed = 1
	exitUsage  = 2
)

// params decodes a tool's parameters; they come from the host, so a mistake in
// them is one of ours.
func params(in wire.ToolInput, into any) bool {
	if err := json.Unmarshal(in.Params, into); err != nil {
		_, _ = fmt.Fprintf(in.Stderr, "%s: bad parameters: %v\n", in.Name, err)
		return false
	}
	return true
}

func say(in wire.ToolInput, text string) int {
	if _, err := io.WriteString(in.Stdout, text); err != nil {
		return exitFailed
	}
	return 0
}

func complain(in wire.ToolInput, what string) int {
	_, _ = fmt.Fprintf(in.Stderr, "%s: %s\n", in.Name, what)
	return exitFailed
}

func (w *world) noop(context.Context, wire.ToolInput) int {
	if !w.leaks.lat {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noops++; w.noops%latEvery == 0 {
		return exitFailed
	}
	return 0
}

func echo(_ context.Context, in wire.ToolInput) int {
	var p struct{ Message string }
	if !params(in, &p) {
		return exitUsage
	}
	return say(in, p.Message)
}

func stdoutEcho(_ context.Context, in wire.ToolInput) int {
	var p struct{ Content string }
	if !params(in, &p) {
		return exitUsage
	}
	return say(in, p.Content)
}

func timeSleep(ctx context.Context, in wire.ToolInput) int {
	var p struct {
		Milliseconds int64 `json:"ms"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	if !sleep(ctx, time.Duration(p.Milliseconds)*time.Millisecond) {
		return complain(in, "killed")
	}
	return 0
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func whoami(_ context.Context, in wire.ToolInput) int { return say(in, "root\n") }

func uname(_ context.Context, in wire.ToolInput) int {
	return say(in, `{"sysname":"Mock","nodename":"mock","release":"0","version":"simulated","machine":"none"}`+"\n")
}

func env(_ context.Context, in wire.ToolInput) int   { return say(in, "PATH=/\n") }
func empty(_ context.Context, in wire.ToolInput) int { return say(in, "[]\n") }

func shell(_ context.Context, in wire.ToolInput) int {
	complain(in, "there is no shell in the mock")
	return wire.ExitNoTool
}

func (w *world) procList(_ context.Context, in wire.ToolInput) int {
	list, _ := w.Processes(wire.MaxProcesses) // the simulated list has no error
	if err := json.NewEncoder(in.Stdout).Encode(list.Processes); err != nil {
		return exitFailed
	}
	return 0
}

func (w *world) cat(_ context.Context, in wire.ToolInput) int {
	var p struct{ Path string }
	if !params(in, &p) {
		return exitUsage
	}
	b, ok := w.read(path.Clean(p.Path))
	if !ok {
		return complain(in, "no such file")
	}
	return say(in, string(b))
}

func (w *world) ls(_ context.Context, in wire.ToolInput) int {
	var p struct{ Path string }
	if !params(in, &p) {
		return exitUsage
	}
	names := w.list(path.Clean("/" + p.Path))
	if len(names) == 0 {
		return complain(in, "no such directory")
	}
	return say(in, strings.Join(names, "\n")+"\n")
}

func (w *world) fsWrite(_ context.Context, in wire.ToolInput) int {
	var p struct{ Path, Content string }
	if !params(in, &p) {
		return exitUsage
	}
	switch {
	case !path.IsAbs(p.Path):
		complain(in, "path is not absolute")
		return exitUsage
	case !strings.HasPrefix(path.Clean(p.Path), "/tmp/"):
		return complain(in, "read-only file system")
	case w.exists(path.Clean(p.Path)):
		return complain(in, "file exists")
	}
	w.write(path.Clean(p.Path), []byte(p.Content))
	return 0
}

// anchor leaves a marker in the overlay, or looks for it.
func (w *world) anchor(_ context.Context, in wire.ToolInput) int {
	var p attack.SubstrateAnchorParams
	if !params(in, &p) {
		return exitUsage
	}
	rec := wire.NewRecorder(attack.SubstrateAnchor, p.Nonce)
	at := "/tmp/bsm-anchor-" + p.Marker
	result := func() wire.Result {
		if w.exists(at) {
			return wire.ResultOK
		}
		return wire.ResultAbsent
	}
	if p.Drop {
		w.write(at, []byte(p.Marker))
		rec.Try(wire.Attempt{Case: attack.AnchorCase, Op: "write", Target: at, Result: wire.ResultOK})
		rec.Prove(wire.Attempt{Case: attack.AnchorCase, Op: "read", Target: at, Result: result()})
	} else {
		own := "/tmp/bsm-anchor-own-" + p.Nonce
		w.write(own, nil)
		_, ok := w.read(own)
		w.remove(own)
		if ok {
			rec.Prove(wire.Attempt{Case: attack.AnchorCase, Op: "read", Target: own, Result: wire.ResultOK})
		}
		rec.Try(wire.Attempt{Case: attack.AnchorCase, Op: "read", Target: at, Result: result()})
	}
	return report(in, rec)
}

func report(in wire.ToolInput, rec *wire.Recorder) int {
	if err := rec.Write(in.Stdout); err != nil {
		return exitFailed
	}
	return 0
}
