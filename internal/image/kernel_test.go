package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeArmImage is an arm64 Image whose EFI stub has one section of 4096 bytes
// that holds the banner.
func fakeArmImage() []byte {
	b := make([]byte, 0x400+4096)
	le := binary.LittleEndian
	copy(b, "MZ")
	copy(b[0x38:], "ARMd")
	le.PutUint32(b[0x3c:], 0x40)
	copy(b[0x40:], "PE\x00\x00")
	le.PutUint16(b[0x44:], 0xaa64)
	le.PutUint16(b[0x46:], 1)
	le.PutUint16(b[0x54:], 0) // no optional header
	section := b[0x58:]
	copy(section, ".text")
	le.PutUint32(section[16:], 4096)
	le.PutUint32(section[20:], 0x400)
	copy(b[0x500:], "Linux version 9.9.9-fake (nobody@nowhere) #1\n")
	return b
}

func TestKernelRelease(t *testing.T) {
	banner := []byte("Linux version 9.9.9-fake (nobody@nowhere) #1\n")
	thirtyTwo := fakeBzImage()
	thirtyTwo[0x236] = 0
	nameless := fakeBzImage()
	nameless[0x20e], nameless[0x20f] = 0, 0
	tests := map[string]struct {
		kernel []byte
		arch   string
		err    error
	}{
		"bzImage":             {fakeBzImage(), "amd64", nil},
		"vmlinux":             {fakeELF(elf.EM_X86_64, elf.ET_EXEC, ".rodata", banner), "amd64", nil},
		"arm64 Image":         {fakeArmImage(), "arm64", nil},
		"arm64 vmlinux":       {fakeELF(elf.EM_AARCH64, elf.ET_DYN, ".rodata", banner), "arm64", nil},
		"bzImage for arm64":   {fakeBzImage(), "arm64", ErrArch},
		"Image for amd64":     {fakeArmImage(), "amd64", ErrArch},
		"vmlinux for arm64":   {fakeELF(elf.EM_X86_64, elf.ET_EXEC, ".rodata", banner), "arm64", ErrArch},
		"32-bit bzImage":      {thirtyTwo, "amd64", ErrArch},
		"module":              {fakeELF(elf.EM_X86_64, elf.ET_REL, ".rodata", banner), "amd64", ErrKernelFormat},
		"ELF without banner":  {fakeELF(elf.EM_X86_64, elf.ET_EXEC, ".rodata", []byte("hello")), "amd64", ErrKernelFormat},
		"bzImage, no version": {nameless, "amd64", ErrKernelFormat},
		"cut bzImage":         {fakeBzImage()[:60000], "amd64", ErrKernelTruncated},
		"cut header":          {fakeBzImage()[:0x240], "amd64", ErrKernelTruncated},
		"cut vmlinux":         {fakeELF(elf.EM_X86_64, elf.ET_EXEC, ".rodata", banner)[:80], "amd64", ErrKernelTruncated},
		"cut Image":           {fakeArmImage()[:0x600], "arm64", ErrKernelTruncated},
		"nothing":             {nil, "amd64", ErrKernelTruncated},
		"noise":               {bytes.Repeat([]byte{0xa5}, 8192), "amd64", ErrKernelFormat},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			release, err := kernelRelease(tt.kernel, tt.arch)
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, fakeRelease, release)
		})
	}
}

func FuzzKernelRelease(f *testing.F) {
	f.Add(fakeBzImage()[:0x400], true)
	f.Add(fakeArmImage()[:0x600], false)
	f.Add(fakeELF(elf.EM_X86_64, elf.ET_EXEC, ".rodata", nil), true)
	f.Fuzz(func(t *testing.T, b []byte, amd64 bool) {
		arch := "arm64"
		if amd64 {
			arch = "amd64"
		}
		if release, err := kernelRelease(b, arch); err == nil && len(release) > 256 {
			t.Fatalf("release of %d bytes", len(release))
		}
	})
}
