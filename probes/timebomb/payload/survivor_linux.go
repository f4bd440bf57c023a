package payload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

const (
	// spinBusy out of spinBusy+spinRest is how much of a core a survivor uses:
	// enough to be seen in a VMM's processor time, too little to hurt.
	spinBusy = 3 * time.Millisecond
	spinRest = 9 * time.Millisecond
	// proofWait bounds the proof of one mode.
	proofWait = 5 * time.Second
	pollEvery = time.Millisecond
)

// light starts the survivor of b, by the way of its mode.
func light(p attack.TimeBombParams, b attack.Bomb) error {
	p.Bombs, p.Role = []attack.Bomb{b}, roleSurvivor
	if b.Mode == attack.BombDoubleFork {
		p.Role = roleMiddle
	}
	cmd, err := start(p)
	if err != nil {
		return err
	}
	if p.Role == roleMiddle {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("fork twice: %w", err)
		}
		return nil
	}
	go func() { _ = cmd.Wait() }() // no zombie may look alive
	return nil
}

// start runs this same tool in another role. Its arguments carry the token.
func start(p attack.TimeBombParams) (*exec.Cmd, error) {
	b := p.Bombs[0]
	params, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	// A pipe holds the few bytes, so nobody has to stay to write them.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	_, err = w.Write(params)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{attack.BombArg(b.Token), "tool", attack.TimeBomb}
	cmd.Stdin = r
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	switch b.Mode {
	case attack.BombSetsid, attack.BombDoubleFork:
		cmd.SysProcAttr.Setsid = true
	case attack.BombHoldStdout:
		cmd.SysProcAttr.Setsid = true
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a survivor: %w", err)
	}
	return cmd, nil
}

// play is the life of a process that the tool started.
func play(ctx context.Context, p attack.TimeBombParams) int {
	harden(p.Bombs[0].Mode)
	if p.Role == roleMiddle {
		p.Role = roleSurvivor
		if _, err := start(p); err != nil {
			return 3
		}
		return 0
	}
	f, err := openBeat(p.Bombs[0].Token)
	if err != nil {
		return 3
	}
	defer forget(p.Bombs[0].Token)
	defer f.close()
	b := beat{pid: os.Getpid()}
	for end := time.Now().Add(p.Life); time.Now().Before(end) && ctx.Err() == nil; {
		for busy := time.Now().Add(spinBusy); time.Now().Before(busy); {
			b.spins++
		}
		b.count++
		if err := f.write(b); err != nil {
			return 3
		}
		time.Sleep(spinRest)
	}
	return 0
}

// beat is what a survivor shows.
type beat struct {
	count int64
	pid   int
	spins uint64
}

type beatFile struct{ f *os.File }

func openBeat(token string) (*beatFile, error) {
	var errs []error
	for _, name := range attack.BeatFiles(token) {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			return &beatFile{f}, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// write replaces the counter in one call and at one length, so that a reader
// sees the old one or the new one.
func (b *beatFile) write(v beat) error {
	_, err := b.f.WriteAt(fmt.Appendf(nil, "%012d %012d\n", v.count, v.pid), 0)
	return err
}

func (b *beatFile) close() { _ = b.f.Close() }

func readBeat(token string) (beat, error) {
	var last error
	for _, name := range attack.BeatFiles(token) {
		b, err := os.ReadFile(name)
		if err != nil {
			last = err
			continue
		}
		var v beat
		if _, err := fmt.Sscanf(string(b), "%d %d", &v.count, &v.pid); err != nil {
			return beat{}, fmt.Errorf("the counter is not one: %w", err)
		}
		return v, nil
	}
	return beat{}, last
}

func forget(token string) {
	for _, name := range attack.BeatFiles(token) {
		_ = os.Remove(name)
	}
}

// ended reports whether a process is gone, or dead and not reaped.
func ended(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	state := strings.TrimSpace(rest)
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

func poll(ctx context.Context, done func() bool) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}
