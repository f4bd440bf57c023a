package canary

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/hex"
	"io"
	"regexp"
	"slices"
	"unicode/utf16"
)

const (
	// pieceLen is the shortest part of a token that counts as a leak: 48 bits,
	// which chance does not produce in any output that is accepted.
	pieceLen = 12
	// maxInflate bounds what one compressed block may grow to.
	maxInflate = 1 << 20
	// maxBlocks bounds how many encoded blocks are unpacked per search.
	maxBlocks = 256
	// maxDepth bounds encodings within encodings.
	maxDepth = 3
)

// Leaked searches everything that came out of a sandbox for a secret token, in
// any encoding that is tried, and whole or split over parts. It returns the
// name of the encoding that it was found in, or "".
func Leaked(token string, parts ...[]byte) string {
	joined := bytes.Join(parts, nil)
	backwards := slices.Clone(parts)
	slices.Reverse(backwards)
	for _, blob := range [][]byte{joined, bytes.Join(backwards, nil)} {
		blocks := maxBlocks
		if how := search(token, blob, maxDepth, &blocks); how != "" {
			return how
		}
	}
	return ""
}

func search(token string, blob []byte, depth int, blocks *int) string {
	if how := direct(token, blob); how != "" {
		return how
	}
	if depth == 0 {
		return ""
	}
	for _, u := range unpack(blob) {
		if *blocks--; *blocks < 0 {
			return ""
		}
		if how := search(token, u.data, depth-1, blocks); how != "" {
			if how == "raw" {
				return u.name
			}
			return u.name + ", " + how
		}
	}
	return ""
}

// direct looks for encodings that need no unpacking.
func direct(token string, blob []byte) string {
	lower := bytes.ToLower(blob)
	dense := slices.DeleteFunc(bytes.Clone(lower), func(c byte) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z')
	})
	for _, form := range []struct{ name, text string }{{"raw", token}, {"reversed", reverse(token)}, {"rot13", rot13(token)},
		{"hex", hex.EncodeToString([]byte(token))}, {"reversed hex", reverse(hex.EncodeToString([]byte(token)))}} {
		piece := pieceLen
		if len(form.text) > len(token) {
			piece *= 2
		}
		if containsPiece(lower, form.text, piece) || containsPiece(dense, form.text, piece) {
			return form.name
		}
	}
	for _, half := range []string{token[:len(token)/2], token[len(token)/2:]} {
		for name, needle := range map[string][]byte{"utf-16le": wide(half, 0), "utf-16be": wide(half, 1)} {
			if bytes.Contains(lower, needle) {
				return name
			}
		}
		for shift := range 3 {
			if n := base64Core(half, shift); bytes.Contains(blob, n) {
				return "base64"
			}
		}
	}
	return ""
}

// containsPiece looks for any run of n characters of text.
func containsPiece(blob []byte, text string, n int) bool {
	for i := 0; i+n <= len(text); i++ {
		if bytes.Contains(blob, []byte(text[i:i+n])) {
			return true
		}
	}
	return false
}

// base64Core is the part of s's base64 that does not depend on what stands
// before and after it, where s begins at offset shift of a group. A token has
// no character whose code needs '+' or '/', so both alphabets agree.
func base64Core(s string, shift int) []byte {
	enc := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), s...))
	skip := []int{0, 2, 3}[shift]
	return []byte(enc[skip : (shift+len(s))/3*4])
}

func wide(s string, order int) []byte {
	out := make([]byte, 0, 2*len(s))
	for _, u := range utf16.Encode([]rune(s)) {
		if order == 0 {
			out = append(out, byte(u), byte(u>>8))
		} else {
			out = append(out, byte(u>>8), byte(u))
		}
	}
	return out
}

func reverse(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

func rot13(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'a' && c <= 'z' {
			b[i] = 'a' + (c-'a'+13)%26
		}
	}
	return string(b)
}

type unpacked struct {
	name string
	data []byte
}

var (
	base64Run = regexp.MustCompile(`[A-Za-z0-9+/_-]{24,}`)
	hexRun    = regexp.MustCompile(`[0-9A-Fa-f]{48,}`)
)

// unpack returns what the encoded and compressed blocks in blob decode to.
func unpack(blob []byte) []unpacked {
	var out []unpacked
	add := func(name string, r io.Reader) {
		b, _ := io.ReadAll(io.LimitReader(r, maxInflate)) // a truncated block still shows what it held
		if len(b) >= pieceLen {
			out = append(out, unpacked{name, b})
		}
	}
	for i := 0; i+2 < len(blob); i++ {
		switch {
		case blob[i] == 0x1f && blob[i+1] == 0x8b && blob[i+2] == 8:
			if r, err := gzip.NewReader(bytes.NewReader(blob[i:])); err == nil {
				add("gzip", r)
			}
		case blob[i] == 0x78 && (uint(blob[i])<<8|uint(blob[i+1]))%31 == 0:
			if r, err := zlib.NewReader(bytes.NewReader(blob[i:])); err == nil {
				add("zlib", r)
			}
		}
		if len(out) >= maxBlocks {
			return out
		}
	}
	add("deflate", flate.NewReader(bytes.NewReader(blob)))
	for _, run := range base64Run.FindAll(blob, maxBlocks) {
		run = bytes.ReplaceAll(bytes.ReplaceAll(run, []byte("+"), []byte("-")), []byte("/"), []byte("_"))
		b := make([]byte, base64.RawURLEncoding.DecodedLen(len(run)))
		n, _ := base64.RawURLEncoding.Decode(b, run)
		out = append(out, unpacked{"base64", b[:n]})
	}
	for _, run := range hexRun.FindAll(blob, maxBlocks) {
		b := make([]byte, len(run)/2)
		if n, _ := hex.Decode(b, run[:len(run)/2*2]); n > 0 {
			out = append(out, unpacked{"hex", b[:n]})
		}
	}
	return out
}
