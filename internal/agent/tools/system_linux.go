package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// printJSON prints v as one line.
func printJSON(in wire.ToolInput, v any) int {
	return printed(in, json.NewEncoder(in.Stdout).Encode(v))
}

func uname(_ context.Context, in wire.ToolInput) int {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fail(in, err)
	}
	return printJSON(in, map[string]string{
		"sysname": unix.ByteSliceToString(u.Sysname[:]), "nodename": unix.ByteSliceToString(u.Nodename[:]),
		"release": unix.ByteSliceToString(u.Release[:]), "version": unix.ByteSliceToString(u.Version[:]),
		"machine": unix.ByteSliceToString(u.Machine[:]),
	})
}

// A mountUsage is one line of disk.usage, in bytes.
type mountUsage struct {
	Path      string `json:"path"`
	Type      string `json:"type"`
	Total     uint64 `json:"total_bytes"`
	Free      uint64 `json:"free_bytes"`
	Available uint64 `json:"available_bytes"`
}

func diskUsage(_ context.Context, in wire.ToolInput) int {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fail(in, err)
	}
	out := []mountUsage{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(unescape(f[1]), &st); err != nil || st.Blocks == 0 {
			continue
		}
		size := uint64(st.Bsize)
		out = append(out, mountUsage{unescape(f[1]), f[2], st.Blocks * size, st.Bfree * size, st.Bavail * size})
	}
	return printJSON(in, out)
}

// unescape undoes the octal escapes of /proc/self/mounts.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

type networkInterface struct {
	Name      string   `json:"name"`
	Flags     string   `json:"flags"`
	Addresses []string `json:"addresses"`
}

func netInterfaces(_ context.Context, in wire.ToolInput) int {
	ifs, err := net.Interfaces()
	if err != nil {
		return fail(in, err)
	}
	out := []networkInterface{}
	for _, i := range ifs {
		n := networkInterface{Name: i.Name, Flags: i.Flags.String(), Addresses: []string{}}
		addrs, err := i.Addrs()
		if err != nil {
			return fail(in, err)
		}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, a.String())
		}
		out = append(out, n)
	}
	return printJSON(in, out)
}

func procList(_ context.Context, in wire.ToolInput) int {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return fail(in, err)
	}
	out := []wire.Process{}
	for _, e := range names {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		comm, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err != nil {
			continue
		}
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		out = append(out, wire.Process{PID: pid, Comm: strings.TrimSpace(string(comm)),
			Args: string(bytes.ReplaceAll(bytes.TrimRight(args, "\x00"), []byte{0}, []byte{' '}))})
	}
	slices.SortFunc(out, func(a, b wire.Process) int { return a.PID - b.PID })
	return printJSON(in, out)
}

// ttyType types text into the controlling terminal, as if it came from its
// keyboard; see ioctl_tty(2).
func ttyType(_ context.Context, in wire.ToolInput) int {
	var p struct {
		Text string `json:"text"`
	}
	if !params(in, &p) {
		return exitUsage
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return fail(in, err)
	}
	defer tty.Close()
	for _, c := range []byte(p.Text) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, tty.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&c))); errno != 0 {
			return fail(in, os.NewSyscallError("TIOCSTI", errno))
		}
	}
	return 0
}
