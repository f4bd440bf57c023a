package image

import (
	"bytes"
	"debug/elf"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"regexp"
)

type archFacts struct {
	// cmdline is what this architecture's kernel is booted with.
	cmdline string
	machine elf.Machine
}

var arches = map[string]archFacts{
	// On a busy host an emulated timer is so late that the kernel takes it for
	// broken and panics ("IO-APIC + timer doesn't work"); it is told to trust it,
	// as it does by itself under KVM.
	"amd64": {cmdline: "console=ttyS0 no_timer_check", machine: elf.EM_X86_64},
	"arm64": {cmdline: "console=ttyAMA0", machine: elf.EM_AARCH64},
}

// kernelRelease checks that b is a whole kernel that arch can boot and returns
// its release, such as 6.1.0-56-cloud-amd64.
func kernelRelease(b []byte, arch string) (string, error) {
	switch {
	case bytes.HasPrefix(b, []byte(elf.ELFMAG)):
		return elfRelease(b, arch)
	case len(b) > 0x206 && string(b[0x202:0x206]) == "HdrS":
		return bzImageRelease(b, arch)
	case len(b) >= 0x40 && string(b[0x38:0x3c]) == "ARMd":
		return armRelease(b, arch)
	case len(b) < 4096:
		return "", fmt.Errorf("%w: only %d bytes", ErrKernelTruncated, len(b))
	}
	return "", fmt.Errorf("%w: neither bzImage, ELF nor arm64 Image", ErrKernelFormat)
}

func wantArch(got, want string) error {
	if got != want {
		return fmt.Errorf("%w: the kernel is for %s, the image for %s", ErrArch, got, want)
	}
	return nil
}

// bzImageRelease reads the header of the Linux/x86 boot protocol
// (Documentation/arch/x86/boot.rst).
func bzImageRelease(b []byte, arch string) (string, error) {
	if err := wantArch("amd64", arch); err != nil {
		return "", err
	}
	if len(b) < 0x260 {
		return "", fmt.Errorf("%w: the boot header ends after %d bytes", ErrKernelTruncated, len(b))
	}
	le := binary.LittleEndian
	setup := int64(b[0x1f1])
	if setup == 0 {
		setup = 4
	}
	if need := (setup+1)*512 + int64(le.Uint32(b[0x1f4:]))*16; int64(len(b)) < need {
		return "", fmt.Errorf("%w: %d bytes, its header announces %d", ErrKernelTruncated, len(b), need)
	}
	if le.Uint16(b[0x206:]) >= 0x20c && le.Uint16(b[0x236:])&1 == 0 {
		return "", fmt.Errorf("%w: a 32-bit kernel", ErrArch)
	}
	at := int(le.Uint16(b[0x20e:])) + 0x200
	if at == 0x200 || at >= len(b) {
		return "", fmt.Errorf("%w: no version in the boot header", ErrKernelFormat)
	}
	text, _, _ := bytes.Cut(b[at:min(at+256, len(b))], []byte{0})
	release, _, _ := bytes.Cut(text, []byte(" "))
	return string(release), nil
}

func elfRelease(b []byte, arch string) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrKernelTruncated, err)
	}
	if want := arches[arch].machine; f.Machine != want {
		return "", fmt.Errorf("%w: the kernel is for %s, the image for %s", ErrArch, f.Machine, want)
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return "", fmt.Errorf("%w: ELF of type %s", ErrKernelFormat, f.Type)
	}
	for _, p := range f.Progs {
		if p.Off+p.Filesz > uint64(len(b)) {
			return "", fmt.Errorf("%w: a segment ends at %d of %d bytes", ErrKernelTruncated, p.Off+p.Filesz, len(b))
		}
	}
	return banner(b)
}

func armRelease(b []byte, arch string) (string, error) {
	if err := wantArch("arm64", arch); err != nil {
		return "", err
	}
	// The Image header has no file size; its EFI stub's section table has.
	if string(b[:2]) == "MZ" {
		f, err := pe.NewFile(bytes.NewReader(b))
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrKernelTruncated, err)
		}
		for _, s := range f.Sections {
			if end := int64(s.Offset) + int64(s.Size); end > int64(len(b)) {
				return "", fmt.Errorf("%w: section %s ends at %d of %d bytes", ErrKernelTruncated, s.Name, end, len(b))
			}
		}
	}
	return banner(b)
}

var linuxVersion = regexp.MustCompile(`Linux version ([0-9][^ \x00]{0,63}) `)

func banner(b []byte) (string, error) {
	m := linuxVersion.FindSubmatch(b)
	if m == nil {
		return "", fmt.Errorf("%w: no Linux version banner", ErrKernelFormat)
	}
	return string(m[1]), nil
}
