package payload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// progress is how far a worker came, and how it ended.
type progress struct {
	reached int64
	asked   string // errno with which the big mapping was refused
	errno   string // errno of the refusal
	end     string // one of the attack.End constants
	how     string // in words
}

// runWorker runs this same tool in a process of its own and follows it to its
// end, whatever that is.
func runWorker(ctx context.Context, p attack.ExhaustParams) (progress, error) {
	spareThreads()
	p.Worker = true
	params, err := json.Marshal(p)
	if err != nil {
		return progress{end: attack.EndBroken, how: "not started"}, err
	}
	// The parent-death signal comes when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "tool", attack.ResourceExhaust)
	cmd.Stdin = bytes.NewReader(params)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return progress{end: attack.EndBroken, how: "not started"}, err
	}
	if err := cmd.Start(); err != nil {
		return progress{end: attack.EndBroken, how: "not started"}, err
	}
	got := follow(out)
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return got, err
	}
	got.conclude(cmd.ProcessState, ctx.Err())
	return got, nil
}

// follow reads what the worker tells until it is gone.
func follow(r io.Reader) progress {
	var got progress
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		word, value, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case wordAsked:
			got.asked = value
		case wordReached:
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				got.reached = n
			}
		case wordRefused:
			got.end, got.errno = attack.EndRefused, value
		case wordStopped:
			got.end = attack.EndStopped
		}
	}
	return got
}

// conclude tells a kill from an end of the worker's own. A worker that had
// already said how it fared may still be killed while it holds what it has.
func (p *progress) conclude(st *os.ProcessState, late error) {
	ws, ok := st.Sys().(syscall.WaitStatus)
	switch {
	case late != nil:
		p.end, p.how = attack.EndBroken, "it ran out of time"
	case ok && ws.Signaled():
		p.end, p.how = attack.EndKilled, fmt.Sprintf("killed by signal %d", ws.Signal())
	case p.end == attack.EndRefused:
		p.how = "the kernel refused more with " + p.errno
	case p.end == attack.EndStopped && st.ExitCode() == 0:
		p.how = "it had all it may take"
	default:
		p.end, p.how = attack.EndBroken, fmt.Sprintf("the worker exited with %d", st.ExitCode())
	}
}

// spareThreads makes the runtime keep a few idle threads: at the process limit
// it could not start one, and a Go program that cannot is aborted.
func spareThreads() {
	const n = 4
	ready, release, done := make(chan struct{}, n), make(chan struct{}), make(chan struct{}, n)
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready <- struct{}{}
			<-release
			done <- struct{}{}
		}()
	}
	for range n {
		<-ready
	}
	close(release)
	for range n {
		<-done
	}
}
