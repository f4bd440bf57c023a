package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// Magic opens a session. It begins and ends with bytes that cannot occur in
// UTF-8, so it never appears inside a frame's body, and its first byte cannot
// begin a frame under the cap. The agent scans everything it reads for it: a
// new session starts wherever it appears, even inside half a frame that the
// last session left in the pipe.
var Magic = []byte{0xff, 0xfe, 'B', 'S', 'M', '-', 'R', 'T', '-', '1', 0xfe, 0xff}

// NonceSize is the length of a session nonce.
const NonceSize = 16

// PreambleSize is the length of magic and nonce together.
const PreambleSize = 12 + NonceSize

// Nonce identifies a session. The host draws it; the agent echoes it.
type Nonce [NonceSize]byte

// NewNonce draws a nonce from the system's random source.
func NewNonce() Nonce {
	var n Nonce
	_, _ = rand.Read(n[:]) // crypto/rand.Read never fails since Go 1.24
	return n
}

// NewNonceString returns a fresh nonce in hex, for ids and tokens.
func NewNonceString() string {
	n := NewNonce()
	return hex.EncodeToString(n[:])
}

// Preamble returns the bytes that open a session: magic, then nonce.
func Preamble(n Nonce) []byte { return append(bytes.Clone(Magic), n[:]...) }

// ErrNoPreamble is returned when the junk before an expected preamble is over
// its limit.
var ErrNoPreamble = errors.New("session preamble not found")

// AwaitPreamble reads r until magic and want have been seen and returns the
// number of bytes that it discarded before them. It reads byte by byte, so that
// nothing after the preamble is consumed; give it a buffered reader. An echo
// with another nonce is skipped: it belongs to a session that is over.
func AwaitPreamble(r io.ByteReader, want Nonce, limit int64) (discarded int64, err error) {
	var target [PreambleSize]byte
	copy(target[copy(target[:], Magic):], want[:])
	var back [PreambleSize]int
	overlaps(target[:], back[:])
	matched := 0
	ahead, _ := r.(lookahead)
	for read := int64(1); ; read++ {
		if matched == 0 && ahead != nil {
			read += skip(ahead, target[0], limit-(read-1))
		}
		c, err := r.ReadByte()
		if err != nil {
			return read - 1 - int64(matched), err
		}
		for matched > 0 && target[matched] != c {
			matched = back[matched-1]
		}
		if target[matched] == c {
			matched++
		}
		discarded = read - int64(matched)
		switch {
		case matched == len(target):
			return discarded, nil
		case discarded > limit:
			return discarded, fmt.Errorf("%w in the first %d bytes", ErrNoPreamble, limit)
		}
	}
}

// lookahead is what a buffered reader offers.
type lookahead interface {
	Buffered() int
	Peek(n int) ([]byte, error)
	Discard(n int) (int, error)
}

// skip discards what is buffered before the next c, at most limit bytes.
func skip(r lookahead, c byte, limit int64) int64 {
	b, err := r.Peek(r.Buffered())
	if err != nil {
		return 0
	}
	b = b[:min(int64(len(b)), max(limit, 0))]
	n := bytes.IndexByte(b, c)
	if n < 0 {
		n = len(b)
	}
	n, _ = r.Discard(n)
	return int64(n)
}

// overlaps stores, for each prefix of p, the length of the longest proper prefix
// that also ends it (Knuth, Morris, Pratt): a nonce may look like the magic.
func overlaps(p []byte, back []int) {
	for i, k := 1, 0; i < len(p); i++ {
		for k > 0 && p[i] != p[k] {
			k = back[k-1]
		}
		if p[i] == p[k] {
			k++
		}
		back[i] = k
	}
}
