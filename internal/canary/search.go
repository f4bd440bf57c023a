package canary

import (
	"bytes"
	"slices"
)

const (
	// pieceLen is the shortest part of a token that counts as a leak: 48 bits,
	// which chance does not produce in any output that is accepted.
	pieceLen = 12
	// filterBits is the size of the filter that most offsets fail.
	filterBits = 1 << 16
)

// Leaked searches everything that came out of a sandbox for a secret token, in
// any encoding that is tried, and whole or split over parts. It returns the
// name of the encoding that it was found in, or "".
func Leaked(token string, parts ...[]byte) string { return Scan([]string{token}, parts...)[0] }

// Scan is Leaked for several tokens in one pass. The result has one entry per
// token.
func Scan(tokens []string, parts ...[]byte) []string {
	s := newScanner(tokens)
	backwards := slices.Clone(parts)
	slices.Reverse(backwards)
	s.search("", bytes.Join(parts, nil), maxDepth)
	if len(parts) > 1 {
		s.search("", bytes.Join(backwards, nil), 0)
	}
	return s.found
}

// needle is a piece of a token in one spelling.
type needle struct {
	token int
	form  string
}

type scanner struct {
	found  []string
	pieces map[[pieceLen]byte]needle
	filter [filterBits / 64]uint64
	unpack unpacker
}

func newScanner(tokens []string) *scanner {
	s := &scanner{found: make([]string, len(tokens)), pieces: map[[pieceLen]byte]needle{}, unpack: newUnpacker()}
	for i, token := range tokens {
		for _, form := range []struct{ name, text string }{{"raw", token}, {"reversed", reverse(token)}, {"rot13", rot13(token)}} {
			for at := 0; at+pieceLen <= len(form.text); at++ {
				piece := [pieceLen]byte([]byte(form.text[at : at+pieceLen]))
				s.pieces[piece] = needle{i, form.name}
				h := hash4(piece[:])
				s.filter[h/64] |= 1 << (h % 64)
			}
		}
	}
	return s
}

func hash4(b []byte) uint32 {
	v := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
	return v * 0x9e3779b1 >> 16
}

// search looks through blob and through whatever it decodes to. how names the
// encodings that led here.
func (s *scanner) search(how string, blob []byte, depth int) {
	s.pass(how, bytes.ToLower(blob))
	// Without anything but letters and digits: also what was spaced out,
	// quoted, escaped, wrapped, or widened to UTF-16.
	dense := make([]byte, 0, len(blob))
	for _, c := range blob {
		if isAlnum(c) {
			dense = append(dense, c)
		}
	}
	s.pass(how, bytes.ToLower(dense))
	if depth == 0 {
		return
	}
	for _, u := range s.unpack.all(blob, dense) {
		s.search(joinHow(how, u.name), u.data, depth-1)
	}
}

func joinHow(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

func (s *scanner) pass(how string, b []byte) {
	for i := 0; i+pieceLen <= len(b); i++ {
		h := hash4(b[i:])
		if s.filter[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		n, ok := s.pieces[[pieceLen]byte(b[i:i+pieceLen])]
		if !ok || s.found[n.token] != "" {
			continue
		}
		s.found[n.token] = n.form
		if how != "" {
			s.found[n.token] = how
			if n.form != "raw" {
				s.found[n.token] += ", " + n.form
			}
		}
	}
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
