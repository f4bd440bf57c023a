package image

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestWalkDeb(t *testing.T) {
	files := map[string][]byte{"boot/vmlinuz-1": []byte("kernel"), "lib/x": bytes.Repeat([]byte("y"), 100_000)}
	for _, ext := range []string{"", ".gz", ".xz", ".zst"} {
		t.Run("data.tar"+ext, func(t *testing.T) {
			got := map[string][]byte{}
			deb := fakeDeb(t, ext, files)
			err := walkDeb(bytes.NewReader(deb), func(path string, r io.Reader) error {
				b, err := io.ReadAll(r)
				got[path] = b
				return err
			})
			require.NoError(t, err)
			require.Equal(t, files, got)
			for _, cut := range []int{0, 7, 30, 70, len(deb) / 2} {
				err := walkDeb(bytes.NewReader(deb[:cut]), func(_ string, r io.Reader) error {
					_, err := io.Copy(io.Discard, r)
					return err
				})
				require.Error(t, err, "cut at %d of %d", cut, len(deb))
			}
		})
	}
	err := walkDeb(bytes.NewReader(fakeDeb(t, ".gz", nil)[:68]), nil)
	require.ErrorIs(t, err, ErrPackage)
}

func FuzzWalkDeb(f *testing.F) {
	f.Add([]byte("!<arch>\ndata.tar        0           0     0     100644  4         `\nabcd"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = walkDeb(bytes.NewReader(b), func(_ string, r io.Reader) error {
			_, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
			return err
		})
	})
}

// archive is a package archive that fake apt tools serve.
type archive struct{ dir string }

// fakeApt puts apt tools before PATH that know the given packages. Each call is
// logged, and `show` knows a package only if its stanza exists.
func fakeApt(t *testing.T) archive {
	t.Helper()
	a := archive{t.TempDir()}
	bin := filepath.Join(a.dir, "bin")
	tool := func(name, body string) {
		require.NoError(t, os.MkdirAll(bin, 0o755))
		script := fmt.Sprintf("#!/bin/sh\ncd_dir=$PWD\nA=%q\necho \"%s $*\" >>\"$A/log\"\nfor last; do :; done\n%s\n", a.dir, name, body)
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755))
	}
	tool("apt-cache", `cat "$A/$last.stanza" 2>/dev/null || { echo "E: No packages found" >&2; exit 100; }`)
	tool("apt-get", `case $* in *update*) exit 0;; esac
[ -e "$A/offline" ] && { echo "E: Could not connect" >&2; exit 100; }
cp "$A/${last%%=*}.deb" .`)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return a
}

func (a archive) stanza(t *testing.T, name, depends, sum string) {
	t.Helper()
	text := fmt.Sprintf("Package: %s\nVersion: 9.9.9\nDepends: %s\nSHA256: %s\n\nPackage: %s\nVersion: 1.0\nSHA256: %064d\n", name, depends, sum, name, 0)
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, name+".stanza"), []byte(text), 0o644))
}

func (a archive) add(t *testing.T, name, depends string, deb []byte) {
	t.Helper()
	a.stanza(t, name, depends, digest(deb))
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, name+".deb"), deb, 0o644))
}

func (a archive) log(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(a.dir, "log"))
	require.NoError(t, err)
	return string(b)
}

// debian serves one kernel package behind a meta package, as Debian does.
func (a archive) debian(t *testing.T) {
	files := map[string][]byte{"boot/vmlinuz-" + fakeRelease: fakeBzImage(), "boot/config-" + fakeRelease: []byte("unwanted")}
	for name, data := range fakeModules(t) {
		files["lib/modules/"+fakeRelease+"/"+name] = data
	}
	a.add(t, "linux-image-cloud-amd64", "linux-image-"+fakeRelease+" (= 9.9.9)", nil)
	a.add(t, "linux-image-"+fakeRelease, "kmod, linux-base (>= 4.3~)", fakeDeb(t, ".xz", files))
}

func distroOptions(t *testing.T) Options {
	o := fakeInputs(t)
	o.Kernel, o.ModulesDir = Distro, ""
	return o
}

func TestDistroKernel(t *testing.T) {
	a := fakeApt(t)
	a.debian(t)
	o := distroOptions(t)
	m, err := Build(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, Distro, m.KernelSource)
	require.Equal(t, fakeRelease, m.KernelRelease)
	require.NotEmpty(t, m.BootModules)
	require.True(t, Fresh(o.OutDir, o))

	t.Run("the cache answers without the network", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(a.dir, "offline"), nil, 0o644))
		defer os.Remove(filepath.Join(a.dir, "offline"))
		again := o
		again.OutDir += "-again"
		m2, err := Build(t.Context(), again)
		require.NoError(t, err)
		require.Equal(t, m.Outputs, m2.Outputs)
	})
	t.Run("a damaged package in the cache is fetched again", func(t *testing.T) {
		debs, err := filepath.Glob(filepath.Join(o.CacheDir, "packages", "*.deb"))
		require.NoError(t, err)
		require.Len(t, debs, 1)
		require.NoError(t, os.WriteFile(debs[0], []byte("damaged"), 0o644))
		require.False(t, Fresh(o.OutDir, o))
		_, err = Build(t.Context(), o)
		require.NoError(t, err)
		require.True(t, Fresh(o.OutDir, o))
	})
	t.Run("a damaged unpacked file is unpacked again", func(t *testing.T) {
		kernels, err := filepath.Glob(filepath.Join(o.CacheDir, "unpacked", "*", "boot", "vmlinuz-*"))
		require.NoError(t, err)
		require.Len(t, kernels, 1)
		require.NoError(t, os.Truncate(kernels[0], 1000))
		m2, err := Build(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, m.Outputs, m2.Outputs)
	})
}

// Ubuntu splits kernel and modules, and compresses with zstd.
func TestDistroKernelInTwoPackages(t *testing.T) {
	a := fakeApt(t)
	modules := map[string][]byte{}
	for name, data := range fakeModules(t) {
		modules["lib/modules/"+fakeRelease+"/"+name] = data
	}
	a.add(t, "linux-image-virtual", "linux-image-"+fakeRelease, nil)
	a.add(t, "linux-image-"+fakeRelease, "linux-modules-"+fakeRelease, fakeDeb(t, ".zst", map[string][]byte{"boot/vmlinuz-" + fakeRelease: fakeBzImage()}))
	a.add(t, "linux-modules-"+fakeRelease, "", fakeDeb(t, ".zst", modules))
	m, err := Build(t.Context(), distroOptions(t))
	require.NoError(t, err)
	require.NotEmpty(t, m.BootModules)
}

func TestForeignArchitectureNeedsNoRoot(t *testing.T) {
	a := fakeApt(t)
	o := distroOptions(t)
	o.Arch = "arm64"
	o.Agent = filepath.Join(t.TempDir(), "agent")
	require.NoError(t, os.WriteFile(o.Agent, fakeELF(183, 2, ".text", nil), 0o755)) // EM_AARCH64, ET_EXEC
	_, err := Build(t.Context(), o)
	require.ErrorIs(t, err, ErrApt, "nothing is served")
	require.Contains(t, a.log(t), "-o APT::Architecture=arm64")
	require.NotContains(t, a.log(t), "dpkg")
	require.Contains(t, a.log(t), "Dir::State="+o.CacheDir, "the lists are our own")
}

func TestDistroKernelErrors(t *testing.T) {
	t.Run("no apt", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := Build(t.Context(), distroOptions(t))
		require.ErrorIs(t, err, ErrApt)
		require.Contains(t, backends.FixOf(err), "--kernel PATH")
	})
	t.Run("no such package", func(t *testing.T) {
		a := fakeApt(t)
		_, err := Build(t.Context(), distroOptions(t))
		require.ErrorIs(t, err, ErrApt)
		require.Contains(t, backends.FixOf(err), "apt-get update")
		require.Contains(t, a.log(t), "update", "our own lists were tried")
	})
	t.Run("offline", func(t *testing.T) {
		a := fakeApt(t)
		a.debian(t)
		require.NoError(t, os.WriteFile(filepath.Join(a.dir, "offline"), nil, 0o644))
		_, err := Build(t.Context(), distroOptions(t))
		require.ErrorIs(t, err, ErrApt)
		require.Contains(t, err.Error(), "Could not connect")
	})
	t.Run("another package than announced", func(t *testing.T) {
		a := fakeApt(t)
		a.debian(t)
		a.stanza(t, "linux-image-"+fakeRelease, "", fmt.Sprintf("%064d", 1))
		_, err := Build(t.Context(), distroOptions(t))
		require.ErrorIs(t, err, ErrPackage)
	})
	t.Run("package without a kernel", func(t *testing.T) {
		a := fakeApt(t)
		a.debian(t)
		a.add(t, "linux-image-"+fakeRelease, "", fakeDeb(t, ".xz", map[string][]byte{"lib/modules/x/y.ko": nil}))
		_, err := Build(t.Context(), distroOptions(t))
		require.ErrorIs(t, err, ErrPackage)
	})
}
