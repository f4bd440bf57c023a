package agent

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"sync"
	"sync/atomic"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// A capture keeps the beginning of an output and counts and hashes all of it.
type capture struct {
	mu     sync.Mutex
	cap    int
	budget *atomic.Int64
	held   int64 // taken from budget
	buf    []byte
	total  int64
	sum    hash.Hash // of everything, once buf is full
	closed bool
}

// Write never fails and never blocks: a tool must not be able to tell, or to
// wait for, what is kept of its output.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return len(p), nil
	}
	c.total += int64(len(p))
	n := 0
	if c.sum == nil {
		n = min(len(p), c.cap-len(c.buf))
		if c.budget.Add(-int64(n)) < 0 {
			c.budget.Add(int64(n))
			n = 0
		}
		c.held += int64(n)
		c.buf = append(c.buf, p[:n]...)
	}
	if n < len(p) {
		if c.sum == nil {
			c.sum = sha256.New()
			c.sum.Write(c.buf)
		}
		c.sum.Write(p[n:])
	}
	return len(p), nil
}

// into stores the capture in the fields of a result and returns what is in the
// frame. Later writes are discarded.
func (c *capture) into(text, encoding *string, length *int64, sum *string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	setOutput(text, encoding, c.buf)
	if c.sum != nil {
		*length, *sum = c.total, hex.EncodeToString(c.sum.Sum(nil))
	}
	return c.buf
}

// free gives the memory back to the budget.
func (c *capture) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.budget.Add(c.held)
	c.held, c.buf = 0, nil
}

// escapeWorth is the size from which the length of an output's escapes counts.
const escapeWorth = 64 << 10

// setOutput stores out as text, or in base64 where text is not possible or,
// for a big output of mostly control characters, several times as long. Two
// outputs of DefaultOutputCap then always fit a frame.
func setOutput(text, encoding *string, out []byte) {
	if len(out) >= escapeWorth && escapedLen(out) > base64.StdEncoding.EncodedLen(len(out)) {
		*text, *encoding = base64.StdEncoding.EncodeToString(out), wire.EncodingBase64
		return
	}
	wire.SetOutput(text, encoding, out)
}

// escapedLen is an upper bound of out's length as a JSON string.
func escapedLen(out []byte) int {
	n := len(out)
	for _, c := range out {
		switch {
		case c == '"', c == '\\', c == '\n', c == '\r', c == '\t':
			n++
		case c < ' ':
			n += 5
		case c == 0xe2: // U+2028 and U+2029 begin with it and are escaped
			n += 3
		}
	}
	return n
}
