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

func newCapture(limit int, budget *atomic.Int64) *capture {
	return &capture{cap: limit, budget: budget}
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
	wire.SetOutput(text, encoding, c.buf)
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

func base64Text(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
