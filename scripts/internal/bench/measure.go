package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type bench struct {
	bin    string
	rounds int
}

// usage is what one process took.
type usage struct {
	wall, cpu time.Duration
	rss       float64 // peak, MiB
	exit      int
}

// all runs the measurements in the order of the issue.
func (b bench) all(ctx context.Context) []line {
	lines := b.start(ctx, "--help")
	lines = append(lines, b.start(ctx, "skip report", "--sandbox", "chv", "--probes", "all", "--output", os.DevNull)...)
	lines = append(lines, b.mock(ctx)...)
	lines = append(lines, b.bwrap(ctx)...)
	return append(lines, b.qemu(ctx)...)
}

func (b bench) start(ctx context.Context, what string, args ...string) []line {
	if len(args) == 0 {
		args = []string{what}
	}
	u, err := b.median(ctx, args...)
	basis := fmt.Sprintf("1/8 of the peer's %s", peerStart)
	return []line{
		{what: what + ": wall", got: ms(u.wall), limit: ms(peerStart) / 8, unit: "ms", basis: basis, err: err},
		{what: what + ": peak memory", got: u.rss, limit: peerStartRSS / 2, unit: "MiB", basis: fmt.Sprintf("1/2 of the peer's %.1f MiB", peerStartRSS), err: err},
	}
}

func (b bench) mock(ctx context.Context) []line {
	u, err := b.median(ctx, "--sandbox", "mock", "--probes", "all", "--iterations", "1000", "--output", os.DevNull)
	return []line{
		{what: "mock, all probes, 1000 iterations: wall", got: ms(u.wall), limit: ms(peerMock) / 5, unit: "ms", basis: fmt.Sprintf("1/5 of the peer's %s", peerMock), err: err},
		{what: "mock, all probes, 1000 iterations: CPU", got: ms(u.cpu), limit: ms(peerMockCPU) / 5, unit: "ms", basis: fmt.Sprintf("1/5 of the peer's %s", peerMockCPU), err: err},
	}
}

func (b bench) bwrap(ctx context.Context) []line {
	floor, err := medianOf(b.rounds, func() (time.Duration, error) {
		u, err := run(ctx, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true")
		return u.wall, err
	})
	var boot float64
	if err == nil {
		boot, err = b.latency(ctx, "bwrap", "P-LAT-boot", b.rounds)
	}
	battery, batteryErr := b.battery(ctx, "bwrap")
	return []line{
		{what: "bwrap: boot to agent ready, p50", got: boot, limit: 1.2 * ms(floor), unit: "ms", basis: "1.2 × `bwrap … true` in this run", err: err},
		{what: "bwrap: adversarial battery", got: ms(battery), limit: 5000, unit: "ms", basis: "the issue", err: batteryErr},
	}
}

// The lab's best figures for the distribution's kernel on q35 under TCG.
const (
	labBoot  = 2150 * time.Millisecond
	labReset = 179 * time.Millisecond
)

func (b bench) qemu(ctx context.Context) []line {
	floor, err := medianOf(max(b.rounds/3, 3), func() (time.Duration, error) { return plainBoot(ctx, b.bin) })
	var boot, reset float64
	if err == nil {
		boot, err = b.latency(ctx, "qemu", "P-LAT-boot", max(b.rounds/3, 3))
	}
	resetErr := err
	if err == nil {
		reset, resetErr = b.latency(ctx, "qemu", "P-LAT-reset", b.rounds)
	}
	battery, batteryErr := b.battery(ctx, "qemu")
	// The lab measured a restore on a quieter machine; its boot there and
	// ours here say how much slower this one is now.
	scaled := ms(labReset) * ms(floor) / ms(labBoot)
	return []line{
		{what: "qemu/TCG: boot to agent ready, p50", got: boot, limit: 1.2 * ms(floor), unit: "ms", basis: "1.2 × the lab's command line in this run", err: err},
		{what: "qemu/TCG: verified reset, p50", got: reset, limit: 1.2 * scaled, unit: "ms", basis: fmt.Sprintf("1.2 × the lab's %s, scaled by the boots", labReset), err: resetErr},
		{what: "qemu/TCG: adversarial battery", got: ms(battery), limit: 30000, unit: "ms", basis: "the issue", err: batteryErr},
	}
}

// median runs bsm-redteam several times and takes each figure's median.
func (b bench) median(ctx context.Context, args ...string) (usage, error) {
	var walls, cpus []time.Duration
	var rss []float64
	for range b.rounds {
		u, err := run(ctx, filepath.Join(b.bin, "bsm-redteam"), args...)
		if err != nil {
			return usage{}, err
		}
		walls, cpus, rss = append(walls, u.wall), append(cpus, u.cpu), append(rss, u.rss)
	}
	return usage{wall: middle(walls), cpu: middle(cpus), rss: middle(rss)}, nil
}

func medianOf(n int, measure func() (time.Duration, error)) (time.Duration, error) {
	var all []time.Duration
	for range n {
		d, err := measure()
		if err != nil {
			return 0, err
		}
		all = append(all, d)
	}
	return middle(all), nil
}

func middle[T time.Duration | float64](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// battery times the adversarial battery, whose verdicts must all be good.
func (b bench) battery(ctx context.Context, sandbox string) (time.Duration, error) {
	rep, u, err := b.report(ctx, sandbox, "--probes", "adversarial")
	if err == nil && rep.Summary.Passed != rep.Summary.Total {
		err = fmt.Errorf("only %d of %d probes passed", rep.Summary.Passed, rep.Summary.Total)
	}
	return u.wall, err
}

// latency returns a probe's p50 in milliseconds.
func (b bench) latency(ctx context.Context, sandbox, probe string, n int) (float64, error) {
	rep, _, err := b.report(ctx, sandbox, "--probes", probe, "--iterations", strconv.Itoa(n))
	if err != nil {
		return 0, err
	}
	d, ok := rep.Latency[probe]
	if !ok || d.P50 <= 0 {
		return 0, fmt.Errorf("the report has no %s", probe)
	}
	return d.P50, nil
}

// result is the part of a report that is read here.
type result struct {
	Latency map[string]struct {
		P50 float64 `json:"p50_ms"`
	} `json:"latency"`
	Summary struct {
		Total, Passed, Skipped int
	} `json:"summary"`
}

func (b bench) report(ctx context.Context, sandbox string, args ...string) (result, usage, error) {
	dir, err := os.MkdirTemp("", "bsm-bench-")
	if err != nil {
		return result{}, usage{}, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "report.json")
	u, err := run(ctx, filepath.Join(b.bin, "bsm-redteam"), append([]string{"--sandbox", sandbox, "--output", path}, args...)...)
	if err != nil {
		return result{}, u, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return result{}, u, err
	}
	var rep result
	if err := json.Unmarshal(text, &rep); err != nil {
		return rep, u, fmt.Errorf("read the report: %w", err)
	}
	if rep.Summary.Total == 0 || rep.Summary.Skipped > 0 {
		return rep, u, fmt.Errorf("%d of %d probes were skipped on %s", rep.Summary.Skipped, rep.Summary.Total, sandbox)
	}
	return rep, u, nil
}

// run runs a program to its end; an exit code other than 0 is an error.
func run(ctx context.Context, name string, args ...string) (usage, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	err := cmd.Run()
	u := usage{wall: time.Since(start)}
	if s := cmd.ProcessState; s != nil {
		u.cpu, u.exit = s.UserTime()+s.SystemTime(), s.ExitCode()
		if r, ok := s.SysUsage().(*syscall.Rusage); ok {
			u.rss = float64(r.Maxrss) / 1024
			if runtime.GOOS == "darwin" { // bytes there, KiB on Linux
				u.rss /= 1024
			}
		}
	}
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		return u, errors.Join(fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err), tail(said))
	}
	return u, nil
}

func tail(said string) error {
	if said == "" {
		return nil
	}
	lines := strings.Split(said, "\n")
	return errors.New(strings.Join(lines[max(0, len(lines)-3):], "; "))
}
