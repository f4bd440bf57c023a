package canary

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/hex"
	"io"
)

const (
	// maxInflate bounds what one compressed block may grow to.
	maxInflate = 1 << 20
	// maxUnpacked bounds what all blocks of one search may come to.
	maxUnpacked = 16 << 20
	// maxDepth bounds encodings within encodings.
	maxDepth = 3
	// minRun is the shortest run of digits that can hold a piece of a token.
	minRun = 16
)

type unpacked struct {
	name string
	data []byte
}

// unpacker decodes what looks encoded or compressed, within a budget.
type unpacker struct {
	left    int
	inflate io.ReadCloser
}

func newUnpacker() unpacker { return unpacker{left: maxUnpacked} }

// all returns what the blocks in blob, and in its letters and digits alone,
// decode to.
func (u *unpacker) all(blob, dense []byte) []unpacked {
	out := u.compressed(blob)
	runs(blob, isBase64, func(run []byte) { out = u.base64(out, run) })
	for _, text := range [][]byte{blob, dense} {
		runs(text, isHex, func(run []byte) { out = u.hex(out, run) })
		if len(dense) == len(blob) {
			break
		}
	}
	return out
}

func (u *unpacker) add(out []unpacked, name string, b []byte) []unpacked {
	if len(b) < pieceLen || u.left < len(b) {
		return out
	}
	u.left -= len(b)
	return append(out, unpacked{name, b})
}

func (u *unpacker) read(out []unpacked, name string, r io.Reader) []unpacked {
	if u.left <= 0 {
		return out
	}
	b, _ := io.ReadAll(io.LimitReader(r, maxInflate)) // a broken block still shows what it held
	return u.add(out, name, b)
}

func (u *unpacker) compressed(blob []byte) (out []unpacked) {
	for i := 0; i+2 < len(blob) && u.left > 0; i++ {
		switch {
		case blob[i] == 0x1f && blob[i+1] == 0x8b && blob[i+2] == 8:
			if r, err := gzip.NewReader(bytes.NewReader(blob[i:])); err == nil {
				out = u.read(out, "gzip", r)
			}
		case blob[i] == 0x78 && (uint(blob[i])<<8|uint(blob[i+1]))%31 == 0:
			if r, err := zlib.NewReader(bytes.NewReader(blob[i:])); err == nil {
				out = u.read(out, "zlib", r)
			}
		}
	}
	if len(blob) == 0 || blob[0]>>1&3 == 3 { // the reserved block type: no deflate
		return out
	}
	if u.inflate == nil {
		u.inflate = flate.NewReader(bytes.NewReader(blob))
	} else if err := u.inflate.(flate.Resetter).Reset(bytes.NewReader(blob), nil); err != nil {
		return out
	}
	return u.read(out, "deflate", u.inflate)
}

// base64 decodes a run from each offset that it may really begin at.
func (u *unpacker) base64(out []unpacked, run []byte) []unpacked {
	run = bytes.ReplaceAll(bytes.ReplaceAll(run, []byte("+"), []byte("-")), []byte("/"), []byte("_"))
	for at := range 4 {
		if len(run)-at > u.left {
			break
		}
		b := make([]byte, base64.RawURLEncoding.DecodedLen(len(run)-at))
		n, _ := base64.RawURLEncoding.Decode(b, run[at:])
		out = u.add(out, "base64", b[:n])
	}
	return out
}

func (u *unpacker) hex(out []unpacked, run []byte) []unpacked {
	for at := range 2 {
		if len(run)-at > u.left {
			break
		}
		b := make([]byte, (len(run)-at)/2)
		n, _ := hex.Decode(b, run[at:at+len(b)*2])
		out = u.add(out, "hex", b[:n])
	}
	return out
}

// runs calls fn with every run of at least minRun bytes that are in the set.
func runs(b []byte, in func(byte) bool, fn func([]byte)) {
	start := 0
	for i := 0; i <= len(b); i++ {
		if i < len(b) && in(b[i]) {
			continue
		}
		if i-start >= minRun {
			fn(b[start:i])
		}
		start = i + 1
	}
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isBase64(c byte) bool { return isAlnum(c) || c == '+' || c == '/' || c == '-' || c == '_' }
