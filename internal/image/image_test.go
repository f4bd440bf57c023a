package image

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/u-root/u-root/pkg/cpio"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestBuildIsReproducible(t *testing.T) {
	var first map[string][]byte
	for range 2 {
		o := fakeInputs(t)
		// Nothing of the host's clock or umask may show.
		require.NoError(t, os.Chtimes(o.Agent, time.Unix(1, 0), time.Now()))
		_, err := Build(t.Context(), o)
		require.NoError(t, err)
		got := map[string][]byte{}
		for _, name := range []string{KernelFile, InitramfsFile, RootfsFile, ManifestFile} {
			got[name], err = os.ReadFile(filepath.Join(o.OutDir, name))
			require.NoError(t, err)
		}
		if first == nil {
			first = got
			continue
		}
		for name := range first {
			require.True(t, bytes.Equal(first[name], got[name]), "%s differs between two builds", name)
		}
	}
	require.NotContains(t, string(first[ManifestFile]), os.TempDir(), "a path of this machine reached the manifest")
}

func TestInitramfsHoldsAgentAndModulesInLoadOrder(t *testing.T) {
	o := fakeInputs(t)
	o.Modules = []string{"my-extra"}
	m, err := Build(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []string{"virtio.ko", "virtio_ring.ko", "virtio_pci.ko", "virtio_console.ko", "my_extra.ko"}, m.BootModules)
	require.Equal(t, map[string][]string{"rng": {"virtio_rng.ko"}, "vsock": {"vsock.ko", "vmw_vsock_virtio_transport.ko"}}, m.Groups)
	require.Contains(t, m.Missing, "virtio_net")
	require.NotContains(t, m.Missing, "virtio_blk", "it is built in")
	require.Contains(t, m.Cmdline, "bsm.agent="+m.AgentSHA256)

	b, err := os.ReadFile(m.Initramfs())
	require.NoError(t, err)
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(b)))
	require.NoError(t, err)
	content := map[string][]byte{}
	for i, r := range records {
		if r.Name == cpio.Trailer {
			continue
		}
		require.Zero(t, r.MTime, r.Name)
		require.Zero(t, r.UID+r.GID, r.Name)
		require.EqualValues(t, i+1, r.Ino, r.Name)
		data := make([]byte, r.FileSize)
		if r.FileSize > 0 {
			_, err := r.ReadAt(data, 0)
			require.NoError(t, err)
		}
		content[r.Name] = data
	}
	agent, err := os.ReadFile(o.Agent)
	require.NoError(t, err)
	require.Equal(t, agent, content["init"], "init is the agent, byte for byte")
	require.Equal(t, strings.Join(m.BootModules, "\n")+"\n", string(content["lib/modules/bsm/order"]))
	require.Equal(t, "virtio_rng.ko\n", string(content["lib/modules/bsm/order.rng"]))
	require.Equal(t, fakeModule("virtio_ring", "virtio"), content["lib/modules/bsm/virtio_ring.ko"], "xz module was decompressed")
	require.Equal(t, fakeModule("virtio_pci", "virtio_ring,virtio"), content["lib/modules/bsm/virtio_pci.ko"], "zstd module was decompressed")
	require.Equal(t, fakeModule("virtio_console", "virtio-ring"), content["lib/modules/bsm/virtio_console.ko"], "gzip module was decompressed")
	require.Contains(t, content, "dev/console")
	require.Contains(t, string(content["etc/shadow"]), Marker)
}

func TestKernelWithoutModules(t *testing.T) {
	o := fakeInputs(t)
	o.ModulesDir = ""
	m, err := Build(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, m.BootModules)
	require.True(t, Fresh(o.OutDir, o))
}

// Freshness looks at contents: each change here keeps names, sizes and times.
func TestFreshComparesContents(t *testing.T) {
	flip := func(path string) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		st, err := os.Stat(path)
		require.NoError(t, err)
		b[len(b)-1] ^= 1
		require.NoError(t, os.WriteFile(path, b, 0o644))
		require.NoError(t, os.Chtimes(path, time.Time{}, st.ModTime()))
	}
	tests := map[string]func(o *Options){
		"kernel output":    func(o *Options) { flip(filepath.Join(o.OutDir, KernelFile)) },
		"initramfs output": func(o *Options) { flip(filepath.Join(o.OutDir, InitramfsFile)) },
		"rootfs output":    func(o *Options) { flip(filepath.Join(o.OutDir, RootfsFile)) },
		"output gone":      func(o *Options) { require.NoError(t, os.Remove(filepath.Join(o.OutDir, RootfsFile))) },
		"manifest gone":    func(o *Options) { require.NoError(t, os.Remove(filepath.Join(o.OutDir, ManifestFile))) },
		"manifest cut": func(o *Options) {
			require.NoError(t, os.Truncate(filepath.Join(o.OutDir, ManifestFile), 100))
		},
		"agent": func(o *Options) { flip(o.Agent) },
		// The last byte of the fake kernel is code that nothing parses.
		"kernel":            func(o *Options) { flip(o.Kernel) },
		"module":            func(o *Options) { flip(filepath.Join(o.ModulesDir, "kernel/drivers/virtio/virtio.ko")) },
		"modules dropped":   func(o *Options) { o.ModulesDir = "" },
		"further module":    func(o *Options) { o.Modules = []string{"my_extra"} },
		"other arch":        func(o *Options) { o.Arch = "arm64" },
		"other agent":       func(o *Options) { o.AgentSHA256 = strings.Repeat("0", 64) },
		"distro kernel":     func(o *Options) { o.Kernel = Distro },
		"kernel disappears": func(o *Options) { require.NoError(t, os.Remove(o.Kernel)) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			o := fakeInputs(t)
			_, err := Build(t.Context(), o)
			require.NoError(t, err)
			require.True(t, Fresh(o.OutDir, o))
			change(&o)
			require.False(t, Fresh(o.OutDir, o))
		})
	}
	t.Run("touched only", func(t *testing.T) {
		o := fakeInputs(t)
		_, err := Build(t.Context(), o)
		require.NoError(t, err)
		for _, p := range []string{o.Agent, o.Kernel, filepath.Join(o.OutDir, KernelFile)} {
			require.NoError(t, os.Chtimes(p, time.Now(), time.Now()))
		}
		require.True(t, Fresh(o.OutDir, o), "a new time is not new content")
	})
}

func TestVerifyRefusesForeignManifest(t *testing.T) {
	o := fakeInputs(t)
	m, err := Build(t.Context(), o)
	require.NoError(t, err)
	path := filepath.Join(o.OutDir, ManifestFile)
	edit := func(change func(map[string]any)) {
		text, err := json.Marshal(m)
		require.NoError(t, err)
		fields := map[string]any{}
		require.NoError(t, json.Unmarshal(text, &fields))
		change(fields)
		text, err = json.Marshal(fields)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, text, 0o644))
		_, err = Verify(o.OutDir)
		require.ErrorIs(t, err, ErrStale)
		require.NotEmpty(t, backends.FixOf(err))
	}
	edit(func(f map[string]any) { f["format"] = Format + 1 })
	edit(func(f map[string]any) { f["surprise"] = true })
	edit(func(f map[string]any) { f["outputs"] = f["outputs"].([]any)[1:] })
	edit(func(f map[string]any) { f["outputs"].([]any)[0].(map[string]any)["name"] = "../agent" })
}

func TestBuildErrors(t *testing.T) {
	tests := map[string]struct {
		spoil func(o *Options)
		want  error
	}{
		"kernel missing":   {func(o *Options) { o.Kernel += "-absent" }, ErrKernelMissing},
		"kernel truncated": {func(o *Options) { require.NoError(t, os.Truncate(o.Kernel, 30000)) }, ErrKernelTruncated},
		"kernel empty":     {func(o *Options) { require.NoError(t, os.Truncate(o.Kernel, 0)) }, ErrKernelTruncated},
		"kernel is text":   {func(o *Options) { require.NoError(t, os.WriteFile(o.Kernel, bytes.Repeat([]byte("x"), 9000), 0o644)) }, ErrKernelFormat},
		"kernel is a dir":  {func(o *Options) { o.Kernel = filepath.Dir(o.Kernel) }, ErrKernelMissing},
		"unknown arch":     {func(o *Options) { o.Arch = "mips" }, ErrArch},
		"agent missing":    {func(o *Options) { o.Agent += "-absent" }, ErrAgent},
		"agent digest":     {func(o *Options) { o.AgentSHA256 = strings.Repeat("0", 64) }, ErrAgent},
		"agent of other arch": {func(o *Options) {
			require.NoError(t, os.WriteFile(o.Agent, fakeELF(elf.EM_AARCH64, elf.ET_EXEC, ".text", nil), 0o755))
		}, ErrArch},
		"no modules there": {func(o *Options) { o.ModulesDir += "-absent" }, ErrModuleMissing},
		"boot module missing": {func(o *Options) {
			require.NoError(t, os.Remove(filepath.Join(o.ModulesDir, "kernel/drivers/virtio/virtio_pci.ko.zst")))
		}, ErrModuleMissing},
		"dependency missing":     {func(o *Options) { o.Modules = []string{"orphan"} }, ErrModuleMissing},
		"dependency cycle":       {func(o *Options) { o.Modules = []string{"cycle_a"} }, ErrModuleFormat},
		"module broken":          {func(o *Options) { o.Modules = []string{"broken"} }, ErrModuleFormat},
		"module other arch":      {func(o *Options) { o.Modules = []string{"arm"} }, ErrArch},
		"module of other kernel": {func(o *Options) { o.Modules = []string{"other"} }, ErrModuleFormat},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := fakeInputs(t)
			tt.spoil(&o)
			_, err := Build(t.Context(), o)
			require.ErrorIs(t, err, tt.want)
			_, err = Verify(o.OutDir)
			require.ErrorIs(t, err, ErrStale, "a failed build verifies")
		})
	}
}

func TestInterruptedBuildDoesNotVerify(t *testing.T) {
	o := fakeInputs(t)
	_, err := Build(t.Context(), o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Build(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	_, err = Verify(o.OutDir)
	require.ErrorIs(t, err, ErrStale)
}
