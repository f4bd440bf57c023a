//go:build linux

// Command bsm-agent is the half of bsm-redteam that runs inside a sandbox.
//
//	bsm-agent serve --stdio [--keep-tree]   serve the protocol on stdin and stdout
//	bsm-agent tool NAME                     run one tool, parameters on stdin
//	bsm-agent version                       print the version and the own digest
//
// As the init of a virtual machine whose kernel command line names its digest
// (bsm.agent=SHA256) it takes no arguments and serves a virtio-serial port.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/agent/proc"
	"github.com/brainst0rm/sandbox-redteam/internal/agent/vm"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

const usage = `usage: bsm-agent serve --stdio [--keep-tree]
       bsm-agent tool NAME < PARAMETERS
       bsm-agent version
`

// The first goroutine keeps the first thread until main knows whether it needs
// it; see proc.RunTool. Only an init function can promise that.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) >= 2 && os.Args[1] == "tool" {
		os.Exit(runTool(os.Args[2:]))
	}
	runtime.UnlockOSThread()
	params, ours, err := vm.Ours(fileDigest)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bsm-agent: not entering VM mode:", err)
	}
	if ours {
		serveVM(params)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	switch {
	case len(args) >= 1 && args[0] == "serve":
		stdio := slices.Contains(args[1:], "--stdio")
		keep := slices.Contains(args[1:], "--keep-tree")
		if !stdio || slices.ContainsFunc(args[1:], func(a string) bool { return a != "--stdio" && a != "--keep-tree" }) {
			break
		}
		return serveStdio(keep)
	case len(args) == 1 && args[0] == "version":
		return version()
	}
	fmt.Fprint(os.Stderr, usage)
	return exitUsage
}

func version() int {
	digest, err := fileDigest("/proc/self/exe")
	if err != nil {
		fmt.Fprintln(os.Stderr, "bsm-agent:", err)
		return exitFailed
	}
	v := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	fmt.Printf("bsm-agent %s %s %s sha256:%s\n", v, runtime.Version(), runtime.GOARCH, digest)
	return 0
}

// runTool is the first process of a call.
func runTool(args []string) int {
	if len(args) != 1 {
		fmt.Fprint(os.Stderr, usage)
		return exitUsage
	}
	tool, ok := table()[args[0]]
	if !ok {
		fmt.Fprintln(os.Stderr, "bsm-agent: no such tool")
		return wire.ExitNoTool
	}
	params, err := io.ReadAll(io.LimitReader(os.Stdin, wire.MaxFrame))
	if err != nil {
		fmt.Fprintln(os.Stderr, "bsm-agent: read parameters:", err)
		return wire.ExitAgentError
	}
	in := wire.ToolInput{Name: args[0], Params: json.RawMessage(params), Stdout: os.Stdout, Stderr: os.Stderr}
	if tool.Channel {
		in.Channel = os.NewFile(proc.ChannelFD, "channel")
	}
	code, err := proc.RunTool(func() (code int) {
		defer func() {
			if p := recover(); p != nil {
				fmt.Fprintln(os.Stderr, "bsm-agent: tool panicked:", p)
				code = wire.ExitAgentError
			}
		}()
		return tool.Run(context.Background(), in)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bsm-agent:", err)
		return wire.ExitAgentError
	}
	return code
}

// stdio is stdin and stdout as one stream.
type stdio struct{ in, out *os.File }

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

// pollable makes closing fd wake a blocked read or write. A terminal's
// descriptor is shared with the user's shell and is left as it is.
func pollable(f *os.File) *os.File {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return f
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil || unix.SetNonblock(fd, true) != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// shutdownLimit bounds the killing of what is left when the agent ends.
const shutdownLimit = 10 * time.Second

// serveStdio serves until stdin ends or a signal asks to stop, and ends with
// every process that descends from it.
func serveStdio(keep bool) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	// A host that is gone shows as an error of Write, which must not kill the
	// agent before its tree.
	signal.Ignore(syscall.SIGPIPE)
	var digest string
	hashed := make(chan error, 1)
	go func() { // while the rest is prepared: it takes longer than that
		var err error
		digest, err = fileDigest("/proc/self/exe")
		hashed <- err
	}()
	runner, err := proc.New("")
	if err != nil {
		fmt.Fprintln(os.Stderr, "bsm-agent:", err)
		return exitFailed
	}
	bootID := proc.BootID()
	if err := <-hashed; err != nil {
		fmt.Fprintln(os.Stderr, "bsm-agent: hash the agent:", err)
		return exitFailed
	}
	err = agent.Serve(ctx, stdio{pollable(os.Stdin), pollable(os.Stdout)}, agent.Options{
		Table: table(), Digest: digest, BootID: bootID, KeepTree: keep,
		Spawn: runner.Spawn, World: &proc.World{Runner: runner},
	})
	end, cancel := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancel()
	if kerr := runner.Close(end); kerr != nil {
		fmt.Fprintln(os.Stderr, "bsm-agent:", kerr)
		return exitFailed
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "bsm-agent:", err)
		return exitFailed
	}
	return 0
}

// serveVM never returns: an init that ends takes the machine with it.
func serveVM(params map[string]string) {
	// An init that ends of a signal panics the kernel. Caught rather than
	// ignored, because tools would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1))
	cgroup, warnings, err := vm.Setup(params)
	if err != nil {
		halt(err)
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "bsm-agent:", w)
	}
	runner, err := proc.New(cgroup)
	if err != nil {
		halt(err)
	}
	port, err := vm.OpenPort()
	if err != nil {
		halt(err)
	}
	vm.SilenceConsole()
	_, keep := params[vm.KeepTreeKey]
	share := vm.NewShare(params)
	spawn := func(ctx context.Context, c agent.Call) (agent.Exit, error) {
		if err := share.Mount(); err != nil {
			return agent.Exit{}, err
		}
		return runner.Spawn(ctx, c)
	}
	for {
		// Serve ends only if the port does; then there is a new one to find.
		_ = agent.Serve(context.Background(), port, agent.Options{
			Table: table(), Digest: params[vm.DigestKey], VM: true, BootID: proc.BootID(), KeepTree: keep,
			Spawn: spawn, World: &proc.World{Runner: runner, Renew: vm.Renew},
		})
		for {
			if port, err = vm.OpenPort(); err == nil {
				break
			}
		}
	}
}

// halt reports why the machine cannot work and waits for the host to end it.
func halt(err error) {
	fmt.Fprintln(os.Stderr, "bsm-agent: cannot set the machine up:", err)
	for {
		time.Sleep(time.Hour)
	}
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
