package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// maxUnpacked bounds what one compressed member may become, far above any
// kernel package.
const maxUnpacked = 4 << 30

// walkDeb calls visit for every regular file of a Debian package's data
// archive, with a path that has no leading "./".
func walkDeb(deb io.Reader, visit func(path string, r io.Reader) error) error {
	name, member, err := dataMember(deb)
	if err != nil {
		return err
	}
	r, err := decompress(strings.TrimPrefix(name, "data.tar"), member)
	if err != nil {
		return err
	}
	defer r.Close()
	limited := &io.LimitedReader{R: r, N: maxUnpacked}
	t := tar.NewReader(limited)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrPackage, name, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := visit(strings.TrimPrefix(h.Name, "./"), t); err != nil {
			return err
		}
	}
}

// dataMember finds data.tar.* in the ar archive (common format: a magic, then
// members with a 60-byte header, padded to even offsets).
func dataMember(deb io.Reader) (string, io.Reader, error) {
	magic := make([]byte, 8)
	if _, err := io.ReadFull(deb, magic); err != nil || string(magic) != "!<arch>\n" {
		return "", nil, fmt.Errorf("%w: not an ar archive", ErrPackage)
	}
	for {
		h := make([]byte, 60)
		if _, err := io.ReadFull(deb, h); err != nil {
			return "", nil, fmt.Errorf("%w: no data.tar member: %w", ErrPackage, err)
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(h[48:58])), 10, 64)
		if err != nil || size < 0 || !bytes.Equal(h[58:], []byte("`\n")) {
			return "", nil, fmt.Errorf("%w: malformed ar header", ErrPackage)
		}
		name := strings.TrimSuffix(strings.TrimSpace(string(h[:16])), "/")
		if strings.HasPrefix(name, "data.tar") {
			return name, io.LimitReader(deb, size), nil
		}
		if _, err := io.CopyN(io.Discard, deb, size+size%2); err != nil {
			return "", nil, fmt.Errorf("%w: truncated in %s: %w", ErrPackage, name, err)
		}
	}
}

// decompress opens a stream by its file name extension; no extension is no
// compression.
func decompress(ext string, r io.Reader) (io.ReadCloser, error) {
	switch ext {
	case "":
		return io.NopCloser(r), nil
	case ".gz":
		return gzip.NewReader(r)
	case ".xz":
		x, err := xz.NewReader(r)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(x), nil
	case ".zst":
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("%w: unknown compression %q", ErrPackage, ext)
}
