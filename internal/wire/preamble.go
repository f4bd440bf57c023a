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
	target := Preamble(want)
	window := make([]byte, 0, len(target))
	for {
		c, err := r.ReadByte()
		if err != nil {
			return discarded, err
		}
		if len(window) == len(target) {
			copy(window, window[1:])
			window = window[:len(window)-1]
			discarded++
			if discarded > limit {
				return discarded, fmt.Errorf("%w in the first %d bytes", ErrNoPreamble, limit)
			}
		}
		window = append(window, c)
		if bytes.Equal(window, target) {
			return discarded, nil
		}
	}
}
