package qemu

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

var (
	_ backends.Sandbox       = (*Sandbox)(nil)
	_ backends.Metered       = (*Sandbox)(nil)
	_ backends.HostProcesses = (*Sandbox)(nil)
	_ backends.HostIdentity  = (*Sandbox)(nil)
	_ backends.Machine       = (*Sandbox)(nil)
	_ backends.ChannelTapper = (*Sandbox)(nil)
	_ backends.HostAddresser = (*Sandbox)(nil)
	_ backends.Provenancer   = (*Sandbox)(nil)
	_ backends.Tamperable    = (*Sandbox)(nil)
	_ backends.FrameTimer    = (*Sandbox)(nil)
	_ backends.Renderer      = (*Sandbox)(nil)
	_ backends.Images        = (*Sandbox)(nil)
)

// Usage reads what the guest's memory occupies on the host, and what QEMU's
// threads use.
func (s *Sandbox) Usage(context.Context) (backends.Usage, error) {
	v, err := s.ready()
	if err != nil {
		return backends.Usage{}, err
	}
	u := backends.Usage{Kills: -1, Method: "smaps of guest RAM"}
	if u.MemoryBytes, err = guestRSS(v.pid); err != nil {
		return u, err
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", v.pid))
	if err != nil {
		return u, err
	}
	u.Tasks = len(tasks)
	u.CPUTime, err = cpuTime(v.pid)
	return u, err
}

// guestRSS sums the resident part of the mappings of the guest's memory.
func guestRSS(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	var total int64
	found, inside := false, false
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line := sc.Text()
		key, rest, _ := strings.Cut(line, ":")
		switch {
		case strings.Contains(key, "-") && strings.Contains(line, " "): // a mapping's first line
			inside = strings.Contains(line, "/memfd:bsm-ram")
			found = found || inside
		case inside && key == "Rss":
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read smaps of pid %d: %w", pid, err)
			}
			total += kb << 10
		}
	}
	if err := sc.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("pid %d does not map the guest's memory", pid)
	}
	return total, nil
}

// clockTick is the unit of times in /proc, which is 100 Hz on every Linux.
const clockTick = 10 * time.Millisecond

func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("malformed stat of pid %d", pid)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("malformed stat of pid %d", pid)
	}
	return time.Duration(user+system) * clockTick, nil
}

// HostPIDs is the VMM: the guest's processes are not host processes.
func (s *Sandbox) HostPIDs(context.Context) ([]int, error) {
	v, err := s.ready()
	if err != nil {
		return nil, err
	}
	return []int{v.pid}, nil
}

// InsideIsHost is false: the guest has a kernel of its own.
func (s *Sandbox) InsideIsHost() bool { return false }

// HostCredential is what whoever breaks out of QEMU would act with.
func (s *Sandbox) HostCredential() backends.Credential { return identity() }

// IsMachine is true.
func (s *Sandbox) IsMachine() bool { return true }

// HostAddresses are the same with and without a network: the guest without one
// has to try what would reach the host if it had.
func (s *Sandbox) HostAddresses() []backends.HostAddress {
	return []backends.HostAddress{{Guest: netip.AddrFrom4([4]byte{10, 0, 2, 2}), Host: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Via: "user-mode gateway"}}
}

// Tap passes on every byte read from the guest.
func (s *Sandbox) Tap(fn func(b []byte)) (stop func()) {
	v, err := s.ready()
	if err != nil {
		return func() {}
	}
	return v.client.Tap(fn)
}

// Inject writes raw bytes to the guest.
func (s *Sandbox) Inject(ctx context.Context, b []byte) error {
	v, err := s.ready()
	if err != nil {
		return err
	}
	return v.client.Inject(ctx, b)
}

// Resync opens a new session on the channel.
func (s *Sandbox) Resync(ctx context.Context) error {
	v, err := s.ready()
	if err != nil {
		return err
	}
	return v.during(ctx, v.client.Resync)
}

// SetFrameTimeout sets the whole-frame deadline of the next session.
func (s *Sandbox) SetFrameTimeout(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frame = d
	if s.cur != nil && s.cur.client != nil {
		s.cur.client.SetFrameTimeout(d)
	}
}

// Render renders nothing itself, so that the harness's own rendering is judged;
// with the leak it passes the guest's bytes on.
func (s *Sandbox) Render(_ string, t backends.Text) (string, bool) {
	if !s.leaks[leakRawRenderer] {
		return "", false
	}
	return string(t.Bytes()), true
}

// promote is the leak of a client that takes what a tool printed for messages
// of the agent: a forged result replaces the real one.
func (s *Sandbox) promote(ex backends.Execution) backends.Execution {
	if !s.leaks[leakStdoutFrames] {
		return ex
	}
	b := ex.Stdout.Bytes()
	if len(b) < 4 {
		return ex
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if n > uint64(len(b)-4) {
		return ex
	}
	var forged wire.ToolResult
	if json.Unmarshal(b[4:4+n], &forged) == nil && forged.Type == wire.TypeToolResult && forged.CommandID == ex.ID {
		ex.ExitCode, ex.Stdout, ex.Stderr = forged.ExitCode, backends.NewText([]byte(forged.Stdout)), backends.NewText([]byte(forged.Stderr))
	}
	return ex
}

// ImageFiles is this run's private copy of the disk.
func (s *Sandbox) ImageFiles() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == nil {
		return nil
	}
	return []string{s.r.rootfsPath}
}

// Provenance says what really runs.
func (s *Sandbox) Provenance() backends.Provenance {
	s.mu.Lock()
	r, v := s.r, s.cur
	s.mu.Unlock()
	if r == nil || v == nil {
		return backends.Provenance{}
	}
	return backends.Provenance{
		Accelerator: r.accel, VMMPath: r.qemu, VMMVersion: r.version, VMMPID: v.pid,
		Digests: maps.Clone(r.digests), Baseline: r.baselineKind, Hardening: hardening(v.pid, r.group != nil),
	}
}

// hardening reads back what is in force around QEMU.
func hardening(pid int, cgroup bool) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil
	}
	st := map[string]string{}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(line, ":")
		st[k] = strings.TrimSpace(v)
	}
	var out []string
	if st["Seccomp"] == "2" {
		out = append(out, "seccomp filter")
	}
	if st["NoNewPrivs"] == "1" {
		out = append(out, "no-new-privileges")
	}
	if f := strings.Fields(st["Uid"]); len(f) == 4 && f[0] != "0" && f[1] != "0" {
		out = append(out, "uid "+f[1])
	}
	if eff := st["CapEff"]; eff != "" && strings.Trim(eff, "0") == "" {
		out = append(out, "no capabilities")
	}
	if cgroup {
		out = append(out, "own memory and pids cgroup")
	}
	return out
}
