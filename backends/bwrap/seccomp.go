package bwrap

import (
	"encoding/binary"
	"fmt"
)

// A rule of the filter. Without a condition the call is denied whatever its
// arguments.
type rule struct {
	name string
	// amd64 and arm64 are the call's numbers, -1 where it does not exist.
	amd64, arm64 int32
	errno        uint16
	// arg, mask: denied when argument arg has any bit of mask set.
	arg  int
	mask uint32
	// equals: denied when the low 32 bits of argument arg are one of these.
	equals []uint32
}

// Errnos are numbers, not names, because they are those of Linux whatever this
// program is built for. ENOSYS makes a C library fall back; EPERM does not.
const (
	eperm  = 1
	enosys = 38
)

// namespaceFlags are the CLONE_NEW* bits. CLONE_NEWTIME (0x80) is only valid
// for unshare and clone3; in clone it is part of the exit signal.
const (
	namespaceFlags = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
	cloneNewTime   = 0x80
)

// rules lists what a sandboxed program has no business with: new mounts and
// namespaces, other processes' memory, and the parts of the kernel that its
// exploits come through.
func rules() []rule {
	deny := func(name string, amd64, arm64 int32) rule {
		return rule{name: name, amd64: amd64, arm64: arm64, errno: eperm}
	}
	return []rule{
		deny("mount", 165, 40), deny("umount2", 166, 39), deny("pivot_root", 155, 41), deny("chroot", 161, 51),
		deny("open_tree", 428, 428), deny("move_mount", 429, 429), deny("fsopen", 430, 430), deny("fsconfig", 431, 431),
		deny("fsmount", 432, 432), deny("fspick", 433, 433), deny("mount_setattr", 442, 442),
		deny("setns", 308, 268), deny("unshare", 272, 97),
		{name: "clone", amd64: 56, arm64: 220, errno: eperm, arg: 0, mask: namespaceFlags},
		// The flags of clone3 are in memory, where a filter cannot see them.
		{name: "clone3", amd64: 435, arm64: 435, errno: enosys},
		deny("ptrace", 101, 117), deny("process_vm_readv", 310, 270), deny("process_vm_writev", 311, 271),
		deny("pidfd_getfd", 438, 438), deny("kcmp", 312, 272), deny("process_madvise", 440, 440),
		deny("keyctl", 250, 219), deny("add_key", 248, 217), deny("request_key", 249, 218),
		deny("bpf", 321, 280), deny("perf_event_open", 298, 241), deny("userfaultfd", 323, 282),
		{name: "io_uring_setup", amd64: 425, arm64: 425, errno: enosys},
		{name: "io_uring_enter", amd64: 426, arm64: 426, errno: enosys},
		{name: "io_uring_register", amd64: 427, arm64: 427, errno: enosys},
		deny("kexec_load", 246, 104), deny("kexec_file_load", 320, 294),
		deny("init_module", 175, 105), deny("finit_module", 313, 273), deny("delete_module", 176, 106),
		deny("open_by_handle_at", 304, 265),
		deny("fanotify_init", 300, 262), deny("quotactl", 179, 60), deny("quotactl_fd", 443, 443),
		deny("reboot", 169, 142), deny("swapon", 167, 224), deny("swapoff", 168, 225), deny("acct", 163, 89),
		deny("syslog", 103, 116), deny("iopl", 172, -1), deny("ioperm", 173, -1), deny("modify_ldt", 154, -1),
		deny("settimeofday", 164, 170), deny("clock_settime", 227, 112), deny("clock_adjtime", 305, 266), deny("adjtimex", 159, 171),
		deny("vhangup", 153, 58), deny("lookup_dcookie", 212, 18), deny("uselib", 134, -1), deny("personality", 135, 92),
		// TIOCSTI and TIOCLINUX push input into a terminal.
		{name: "ioctl", amd64: 16, arm64: 29, errno: eperm, arg: 1, equals: []uint32{0x5412, 0x541c}},
		// AF_PACKET and AF_VSOCK. AF_NETLINK stays: it is how interfaces are listed.
		{name: "socket", amd64: 41, arm64: 198, errno: eperm, arg: 0, equals: []uint32{17, 40}},
	}
}

// What seccomp sees: struct seccomp_data in native, that is little-endian, order.
const (
	offNR   = 0
	offArch = 4
	offArgs = 16
)

// BPF opcodes and seccomp's return values; see linux/bpf_common.h and
// linux/seccomp.h.
const (
	opLoad   = 0x20 // BPF_LD | BPF_W | BPF_ABS
	opJumpEq = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	opJumpGe = 0x35 // BPF_JMP | BPF_JGE | BPF_K
	opJumpOn = 0x45 // BPF_JMP | BPF_JSET | BPF_K
	opRet    = 0x06 // BPF_RET | BPF_K

	retKill  = 0x8000_0000 // SECCOMP_RET_KILL_PROCESS
	retErrno = 0x0005_0000
	retAllow = 0x7fff_0000

	archAMD64 = 0xc000_003e
	archARM64 = 0xc000_00b7
	// x32Bit marks a call of the x32 ABI, which has numbers of its own.
	x32Bit = 0x4000_0000
)

// insn is one BPF instruction.
type insn struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// filter assembles rules into the seccomp filter of an architecture. A program of
// another architecture is killed: its call numbers would mean something else.
func filter(goarch string, rules []rule) ([]insn, error) {
	var arch uint32
	switch goarch {
	case "amd64":
		arch = archAMD64
	case "arm64":
		arch = archARM64
	default:
		return nil, fmt.Errorf("no seccomp filter for %s", goarch)
	}
	p := []insn{
		{opLoad, 0, 0, offArch},
		{opJumpEq, 1, 0, arch},
		{opRet, 0, 0, retKill},
		{opLoad, 0, 0, offNR},
	}
	if goarch == "amd64" {
		p = append(p, insn{opJumpGe, 0, 1, x32Bit}, insn{opRet, 0, 0, retErrno | enosys})
	}
	for _, r := range rules {
		nr := r.amd64
		if goarch == "arm64" {
			nr = r.arm64
		}
		if nr < 0 {
			continue
		}
		body := r.body()
		p = append(p, insn{opJumpEq, 0, uint8(len(body)), uint32(nr)})
		p = append(p, body...)
	}
	return append(p, insn{opRet, 0, 0, retAllow}), nil
}

// body is what runs once the number matched. It always returns, so the
// accumulator need not be restored.
func (r rule) body() []insn {
	denied := insn{opRet, 0, 0, retErrno | uint32(r.errno)}
	if r.mask == 0 && len(r.equals) == 0 {
		return []insn{denied}
	}
	out := []insn{{opLoad, 0, 0, uint32(offArgs + 8*r.arg)}}
	if r.mask != 0 {
		return append(out, insn{opJumpOn, 0, 1, r.mask}, denied, insn{opRet, 0, 0, retAllow})
	}
	for i, v := range r.equals {
		// Skip the remaining comparisons and the allow.
		out = append(out, insn{opJumpEq, uint8(len(r.equals) - i), 0, v})
	}
	return append(out, insn{opRet, 0, 0, retAllow}, denied)
}

// encode lays the program out as an array of struct sock_filter, which is what
// bubblewrap reads.
func encode(p []insn) []byte {
	b := make([]byte, 0, 8*len(p))
	for _, i := range p {
		b = binary.LittleEndian.AppendUint16(b, i.code)
		b = append(b, i.jt, i.jf)
		b = binary.LittleEndian.AppendUint32(b, i.k)
	}
	return b
}
