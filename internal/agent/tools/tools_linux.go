// Package tools holds the agent's benign tools: small, read-mostly commands
// that exist in a guest without a userland. None of them attacks anything.
package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Exit codes of a benign tool.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = wire.ExitNoTool
)

// Table lists the benign tools. noop and echo run in the agent, because the
// round trip is measured with them.
func Table() agent.Table {
	return agent.Table{
		"noop":           {Run: noop, InProcess: true},
		"echo":           {Run: echo, InProcess: true},
		"cat":            {Run: cat},
		"cat-file":       {Run: cat},
		"disk.usage":     {Run: diskUsage},
		"env":            {Run: env},
		"fs.write":       {Run: fsWrite, InProcess: true},
		"ls":             {Run: ls, InProcess: true},
		"net.interfaces": {Run: netInterfaces},
		"proc.list":      {Run: procList},
		"sh":             {Run: shell},
		"shell.exec":     {Run: shell},
		"stdout.echo":    {Run: stdoutEcho},
		"time.sleep":     {Run: timeSleep},
		"tty.type":       {Run: ttyType},
		"uname":          {Run: uname},
		"whoami":         {Run: whoami},
	}
}

// params decodes a tool's parameters or says on stderr why it cannot.
func params(in wire.ToolInput, into any) bool {
	if len(in.Params) == 0 {
		return true
	}
	if err := json.Unmarshal(in.Params, into); err != nil {
		_, _ = fmt.Fprintf(in.Stderr, "%s: bad parameters: %v\n", in.Name, err)
		return false
	}
	return true
}

func fail(in wire.ToolInput, err error) int {
	_, _ = fmt.Fprintf(in.Stderr, "%s: %v\n", in.Name, err)
	return exitFailed
}

// printed turns the error of the last write into an exit code: a tool whose
// output did not get out has failed.
func printed(in wire.ToolInput, err error) int {
	if err != nil {
		return fail(in, err)
	}
	return 0
}

func noop(context.Context, wire.ToolInput) int { return 0 }

func echo(_ context.Context, in wire.ToolInput) int {
	var p struct {
		Message string `json:"message"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	_, err := io.WriteString(in.Stdout, p.Message)
	return printed(in, err)
}

func stdoutEcho(_ context.Context, in wire.ToolInput) int {
	var p struct {
		Content string `json:"content"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	_, err := io.WriteString(in.Stdout, p.Content)
	return printed(in, err)
}

func whoami(_ context.Context, in wire.ToolInput) int {
	uid := strconv.Itoa(os.Getuid())
	name := "uid " + uid
	if u, err := user.LookupId(uid); err == nil {
		name = u.Username
	} else if uid == "0" {
		name = "root"
	}
	_, err := fmt.Fprintln(in.Stdout, name)
	return printed(in, err)
}

// needPath decodes the parameter that most file tools have.
func needPath(in wire.ToolInput) (string, bool) {
	var p struct {
		Path string `json:"path"`
	}
	if !params(in, &p) {
		return "", false
	}
	if p.Path == "" {
		_, _ = fmt.Fprintf(in.Stderr, "%s: the parameter path is missing\n", in.Name)
		return "", false
	}
	return p.Path, true
}

func cat(_ context.Context, in wire.ToolInput) int {
	path, ok := needPath(in)
	if !ok {
		return exitUsage
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(in, err)
	}
	defer f.Close()
	_, err = io.Copy(in.Stdout, f)
	return printed(in, err)
}

func ls(_ context.Context, in wire.ToolInput) int {
	var p struct {
		Path string `json:"path"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	if p.Path == "" {
		p.Path = "."
	}
	entries, err := os.ReadDir(p.Path)
	if err != nil {
		return fail(in, err)
	}
	for _, e := range entries {
		size := int64(0)
		if info, err := e.Info(); err == nil {
			size = info.Size()
		}
		if _, err := fmt.Fprintf(in.Stdout, "%s %12d %s\n", e.Type(), size, strconv.Quote(e.Name())); err != nil {
			return fail(in, err)
		}
	}
	return 0
}

func env(_ context.Context, in wire.ToolInput) int {
	vars := os.Environ()
	slices.Sort(vars)
	for _, v := range vars {
		if _, err := fmt.Fprintln(in.Stdout, v); err != nil {
			return fail(in, err)
		}
	}
	return 0
}

// fsWrite creates a file that must not exist: it plants markers, and a marker
// that replaced a file would be damage.
func fsWrite(_ context.Context, in wire.ToolInput) int {
	var p struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	if !filepath.IsAbs(p.Path) {
		_, _ = fmt.Fprintf(in.Stderr, "%s: path is not absolute\n", in.Name)
		return exitUsage
	}
	f, err := os.OpenFile(p.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fail(in, err)
	}
	_, err = io.WriteString(f, p.Content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return printed(in, err)
}

func timeSleep(ctx context.Context, in wire.ToolInput) int {
	var p struct {
		Milliseconds int64 `json:"ms"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	t := time.NewTimer(time.Duration(p.Milliseconds) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return 0
	case <-ctx.Done():
		return fail(in, ctx.Err())
	}
}

// shells are where a shell may be; the guest image has none.
var shells = []string{"/bin/sh", "/usr/bin/sh", "/rootfs/bin/sh"}

// shell runs a command line, which is called script or cmd.
func shell(ctx context.Context, in wire.ToolInput) int {
	var p struct {
		Script string `json:"script"`
		Cmd    string `json:"cmd"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	if p.Script == "" {
		p.Script = p.Cmd
	}
	if p.Script == "" {
		_, _ = fmt.Fprintf(in.Stderr, "%s: the parameter script is missing\n", in.Name)
		return exitUsage
	}
	for _, sh := range shells {
		if _, err := os.Stat(sh); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, sh, "-c", p.Script)
		cmd.Stdout, cmd.Stderr = in.Stdout, in.Stderr
		err := cmd.Run()
		if cmd.ProcessState == nil {
			return fail(in, err)
		}
		if code := cmd.ProcessState.ExitCode(); code >= 0 {
			return code
		}
		return fail(in, err)
	}
	_, _ = fmt.Fprintf(in.Stderr, "%s: there is no shell in this sandbox (looked for %q)\n", in.Name, shells)
	return exitNotFound
}
