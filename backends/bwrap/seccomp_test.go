package bwrap

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// interpret runs a filter the way the kernel does, over struct seccomp_data.
// It refuses whatever the kernel's checker would.
func interpret(t require.TestingT, p []insn, nr, arch uint32, args ...uint64) uint32 {
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data[offNR:], nr)
	binary.LittleEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[offArgs+8*i:], a)
	}
	var acc uint32
	for pc := 0; ; pc++ {
		require.Less(t, pc, len(p), "the program runs over its end")
		i := p[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(i.jt)
			} else {
				pc += int(i.jf)
			}
		}
		switch i.code {
		case opLoad:
			require.Zero(t, i.k%4, "an unaligned load")
			require.LessOrEqual(t, i.k, uint32(60))
			acc = binary.LittleEndian.Uint32(data[i.k:])
		case opJumpEq:
			jump(acc == i.k)
		case opJumpGe:
			jump(acc >= i.k)
		case opJumpOn:
			jump(acc&i.k != 0)
		case opRet:
			return i.k
		default:
			require.Fail(t, "unknown opcode")
		}
	}
}

var arches = map[string]uint32{"amd64": archAMD64, "arm64": archARM64}

func TestFilterByCall(t *testing.T) {
	const none = retErrno | eperm
	for goarch, arch := range arches {
		p, err := filter(goarch, rules())
		require.NoError(t, err)
		require.Less(t, len(p), 4096, "the kernel takes no longer program")
		number := func(name string) uint32 {
			for _, r := range rules() {
				if r.name == name {
					if goarch == "amd64" {
						return uint32(r.amd64)
					}
					return uint32(r.arm64)
				}
			}
			t.Fatalf("no rule for %s", name)
			return 0
		}
		for name, c := range map[string]struct {
			args []uint64
			want uint32
		}{
			"mount": {nil, none}, "ptrace": {nil, none}, "setns": {nil, none}, "unshare": {nil, none}, "keyctl": {nil, none},
			"bpf": {nil, none}, "perf_event_open": {nil, none}, "userfaultfd": {nil, none}, "io_uring_setup": {nil, retErrno | enosys},
			"kexec_load": {nil, none}, "init_module": {nil, none}, "open_by_handle_at": {nil, none}, "clone3": {nil, retErrno | enosys},
		} {
			require.Equal(t, c.want, interpret(t, p, number(name), arch, c.args...), "%s %s", goarch, name)
		}
		for _, c := range []struct {
			name string
			args []uint64
			want uint32
		}{
			{"clone", []uint64{0x11}, retAllow},           // SIGCHLD: a fork
			{"clone", []uint64{0x3d0f00}, retAllow},       // a thread
			{"clone", []uint64{0x10000000 | 0x11}, none},  // CLONE_NEWUSER
			{"clone", []uint64{0x00020000 | 0x11}, none},  // CLONE_NEWNS
			{"clone", []uint64{1<<40 | 0x11}, retAllow},   // high bits mean nothing to the kernel
			{"ioctl", []uint64{0, 0x5412}, none},          // TIOCSTI
			{"ioctl", []uint64{0, 0x541c}, none},          // TIOCLINUX
			{"ioctl", []uint64{0, 0x1_0000_5412}, none},   // the kernel looks at 32 bits only
			{"ioctl", []uint64{0x5412, 0x5401}, retAllow}, // TCGETS
			{"socket", []uint64{40}, none},                // AF_VSOCK
			{"socket", []uint64{17}, none},                // AF_PACKET
			{"socket", []uint64{2}, retAllow},             // AF_INET
		} {
			require.Equal(t, c.want, interpret(t, p, number(c.name), arch, c.args...), "%s %s %#x", goarch, c.name, c.args)
		}
		for other, foreign := range map[string]uint32{"386": 0x40000003, "arm": 0x40000028} {
			require.EqualValues(t, uint32(retKill), interpret(t, p, 1, foreign), other)
		}
	}
	p, err := filter("amd64", rules())
	require.NoError(t, err)
	require.EqualValues(t, retErrno|enosys, interpret(t, p, x32Bit|165, archAMD64), "x32 numbers are no way round")
	_, err = filter("riscv64", nil)
	require.Error(t, err)
}

// A call is denied if and only if a rule says so.
func TestFilterIsItsRules(t *testing.T) {
	for goarch, arch := range arches {
		p, err := filter(goarch, rules())
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) {
			nr := rapid.Uint32Range(0, 500).Draw(t, "nr")
			args := []uint64{rapid.Uint64().Draw(t, "arg0"), rapid.Uint64().Draw(t, "arg1")}
			want := uint32(retAllow)
			for _, r := range rules() {
				n := r.amd64
				if goarch == "arm64" {
					n = r.arm64
				}
				if n < 0 || uint32(n) != nr {
					continue
				}
				low := uint32(args[r.arg])
				hit := r.mask == 0 && len(r.equals) == 0 || low&r.mask != 0
				for _, v := range r.equals {
					hit = hit || low == v
				}
				if hit {
					want = retErrno | uint32(r.errno)
				}
			}
			require.Equal(t, fmt.Sprintf("%#x", want), fmt.Sprintf("%#x", interpret(t, p, nr, arch, args...)))
		})
	}
}

func TestNumbersAreUnique(t *testing.T) {
	for _, pick := range []func(rule) int32{func(r rule) int32 { return r.amd64 }, func(r rule) int32 { return r.arm64 }} {
		seen := map[int32]string{}
		for _, r := range rules() {
			if n := pick(r); n >= 0 {
				require.Empty(t, seen[n], "%s and %s have one number", r.name, seen[n])
				seen[n] = r.name
			}
		}
	}
}

func TestEncode(t *testing.T) {
	require.Equal(t, []byte{0x15, 0, 1, 2, 4, 3, 2, 1}, encode([]insn{{opJumpEq, 1, 2, 0x01020304}}))
}
