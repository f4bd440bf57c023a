package image

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const indexFile = "index.json"

// unpack returns the kernel and the module directory of the packages. What it
// unpacks is kept under the packages' digest, with the digest of every file, all
// of which are checked before it is used again: inflating a kernel package takes
// seconds, hashing it a moment.
func unpack(ctx context.Context, o Options, packages []inputFile) (kernel, modules string, err error) {
	var key string
	for _, p := range packages {
		key += p.SHA256
	}
	base := filepath.Join(o.CacheDir, "unpacked")
	dir := filepath.Join(base, digest([]byte(key)))
	if index, ok := checkIndex(dir); ok {
		return locate(dir, index)
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", "", ioError("unpack kernel package", err)
	}
	tmp, err := os.MkdirTemp(base, ".tmp-*")
	if err != nil {
		return "", "", ioError("unpack kernel package", err)
	}
	defer os.RemoveAll(tmp)
	index := map[string]string{}
	for _, p := range packages {
		o.log().Info("unpacking", "package", p.Name)
		if err := unpackOne(ctx, p.path, tmp, index); err != nil {
			return "", "", err
		}
	}
	text, err := json.Marshal(index)
	if err != nil {
		return "", "", err
	}
	if err := writeFile(filepath.Join(tmp, indexFile), text); err != nil {
		return "", "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", "", ioError("replace unpacked kernel", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		// Another build may have been quicker; its result is as good if it checks.
		if _, ok := checkIndex(dir); !ok {
			return "", "", ioError("keep unpacked kernel", err)
		}
	}
	return locate(dir, index)
}

// unwanted are drivers of real hardware, most of a general kernel's size.
var unwanted = []string{"/kernel/sound/", "/drivers/gpu/", "/drivers/media/", "/drivers/net/wireless/", "/drivers/infiniband/", "/drivers/staging/"}

// wanted picks the kernel and its modules out of a package.
func wanted(path string) bool {
	if !filepath.IsLocal(path) || slices.ContainsFunc(unwanted, func(dir string) bool { return strings.Contains(path, dir) }) {
		return false
	}
	return strings.HasPrefix(path, "boot/vmlinuz-") || strings.Contains(path, "lib/modules/")
}

func unpackOne(ctx context.Context, deb, dir string, index map[string]string) error {
	f, err := os.Open(deb)
	if err != nil {
		return ioError("unpack kernel package", err)
	}
	defer f.Close()
	// The xz reader takes single bytes.
	err = walkDeb(bufio.NewReaderSize(f, 1<<20), func(path string, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !wanted(path) {
			return nil
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrPackage, err)
		}
		to := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return ioError("unpack kernel package", err)
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			return ioError("unpack kernel package", err)
		}
		index[path] = digest(data)
		return nil
	})
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	return nil
}

// checkIndex re-hashes everything that the index of dir names.
func checkIndex(dir string) (map[string]string, bool) {
	text, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err != nil {
		return nil, false
	}
	var index map[string]string
	if json.Unmarshal(text, &index) != nil || len(index) == 0 {
		return nil, false
	}
	for path, want := range index {
		f, err := hashFile(filepath.Join(dir, path))
		if err != nil || f.SHA256 != want {
			return nil, false
		}
	}
	return index, true
}

func locate(dir string, index map[string]string) (kernel, modules string, err error) {
	for path := range index {
		if strings.HasPrefix(path, "boot/vmlinuz-") {
			kernel = filepath.Join(dir, path)
		}
	}
	release := strings.TrimPrefix(filepath.Base(kernel), "vmlinuz-")
	for _, m := range []string{"lib/modules", "usr/lib/modules"} {
		if st, err := os.Stat(filepath.Join(dir, m, release)); err == nil && st.IsDir() {
			modules = filepath.Join(dir, m, release)
		}
	}
	if kernel == "" || modules == "" {
		return "", "", fail("unpack kernel package", "give --kernel PATH and --modules-dir DIR", fmt.Errorf("%w: no kernel with modules in it: %w", ErrPackage, fs.ErrNotExist))
	}
	return kernel, modules, nil
}
