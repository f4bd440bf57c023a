package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"
)

const fakeRelease = "9.9.9-fake"

// fakeELF returns an ELF file with one section, enough for debug/elf.
func fakeELF(machine elf.Machine, kind elf.Type, section string, body []byte) []byte {
	names := "\x00" + section + "\x00.shstrtab\x00"
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(kind), Machine: uint16(machine), Version: 1, Shoff: uint64(64 + len(body) + len(names)),
		Ehsize: 64, Phentsize: 56, Shentsize: 64, Shnum: 3, Shstrndx: 2}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	sections := []elf.Section64{{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 64, Size: uint64(len(body)), Addralign: 1},
		{Name: uint32(len(section) + 2), Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(body)), Size: uint64(len(names)), Addralign: 1}}
	for _, v := range []any{h, body, []byte(names), sections} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func fakeModule(name, depends string) []byte {
	return fakeELF(elf.EM_X86_64, elf.ET_REL, ".modinfo", []byte("name="+name+"\x00depends="+depends+"\x00vermagic="+fakeRelease+" SMP mod_unload \x00"))
}

// fakeBzImage is a boot header that announces 64 KiB of protected-mode code.
func fakeBzImage() []byte {
	b := make([]byte, 512*5+65536)
	le := binary.LittleEndian
	b[0x1f1] = 4
	le.PutUint32(b[0x1f4:], 65536/16)
	copy(b[0x202:], "HdrS")
	le.PutUint16(b[0x206:], 0x20f)
	le.PutUint16(b[0x20e:], 0x100)
	le.PutUint16(b[0x236:], 1)
	copy(b[0x300:], fakeRelease+" (nobody@nowhere) #1\x00")
	return b
}

// fakeModules maps paths below lib/modules/RELEASE to contents: a chain
// like the real one, every compression, and a built-in module.
func fakeModules(t *testing.T) map[string][]byte {
	return map[string][]byte{
		"kernel/drivers/virtio/virtio.ko":                    fakeModule("virtio", ""),
		"kernel/drivers/virtio/virtio_ring.ko.xz":            pack(t, ".xz", fakeModule("virtio_ring", "virtio")),
		"kernel/drivers/virtio/virtio_pci.ko.zst":            pack(t, ".zst", fakeModule("virtio_pci", "virtio_ring,virtio")),
		"kernel/drivers/char/virtio_console.ko.gz":           pack(t, ".gz", fakeModule("virtio_console", "virtio-ring")),
		"kernel/drivers/char/hw_random/virtio-rng.ko":        fakeModule("virtio_rng", "virtio"),
		"kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko": fakeModule("vmw_vsock_virtio_transport", "vsock"),
		"kernel/net/vmw_vsock/vsock.ko":                      fakeModule("vsock", ""),
		"modules.builtin":                                    []byte("kernel/drivers/block/virtio_blk.ko\n"),
		"kernel/drivers/extra/my-extra.ko":                   fakeModule("my_extra", ""),
		"kernel/drivers/extra/broken.ko":                     []byte("not an ELF file"),
		"kernel/drivers/extra/orphan.ko":                     fakeModule("orphan", "absent"),
		"kernel/drivers/extra/cycle_a.ko":                    fakeModule("cycle_a", "cycle_b"),
		"kernel/drivers/extra/cycle_b.ko":                    fakeModule("cycle_b", "cycle_a"),
		"kernel/drivers/extra/arm.ko":                        fakeELF(elf.EM_AARCH64, elf.ET_REL, ".modinfo", []byte("vermagic="+fakeRelease+" \x00")),
		"kernel/drivers/extra/other.ko":                      fakeELF(elf.EM_X86_64, elf.ET_REL, ".modinfo", []byte("vermagic=1.0 \x00")),
	}
}

func pack(t *testing.T, ext string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch ext {
	case "":
		return data
	case ".gz":
		w = gzip.NewWriter(&b)
	case ".xz":
		w, err = xz.NewWriter(&b)
	case ".zst":
		w, err = zstd.NewWriter(&b)
	}
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// fakeDeb returns a package with these files whose data is compressed as ext.
func fakeDeb(t *testing.T, ext string, files map[string][]byte) []byte {
	t.Helper()
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755}))
	for name, body := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: "./" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}))
		_, err := w.Write(body)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	out := []byte("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.xz", []byte("odd")}, {"data.tar" + ext, pack(t, ext, data.Bytes())}} {
		out = fmt.Appendf(out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", m.name, 0, 0, 0, 0o100644, len(m.data))
		out = append(out, m.data...)
		if len(m.data)%2 == 1 {
			out = append(out, '\n')
		}
	}
	return out
}

func put(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
}

// fakeInputs makes a kernel, a module tree and an agent in a directory of their
// own and returns options that build from them.
func fakeInputs(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, map[string][]byte{"vmlinuz": fakeBzImage(), "agent": fakeELF(elf.EM_X86_64, elf.ET_EXEC, ".text", []byte("agent"))})
	put(t, filepath.Join(dir, "modules", fakeRelease), fakeModules(t))
	return Options{
		OutDir: filepath.Join(dir, "out"), CacheDir: filepath.Join(dir, "cache"), Arch: "amd64", Kernel: filepath.Join(dir, "vmlinuz"),
		ModulesDir: filepath.Join(dir, "modules", fakeRelease), Agent: filepath.Join(dir, "agent"),
	}
}
