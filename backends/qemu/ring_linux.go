package qemu

import (
	"bytes"
	"strings"
	"sync"
)

// A ring keeps the last bytes of an endless output, such as a guest's serial
// console. Writing to it never blocks and never fails.
type ring struct {
	mu  sync.Mutex
	max int
	b   []byte
}

func newRing(max int) *ring { return &ring{max: max} }

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(p)
	if n >= r.max {
		r.b = append(r.b[:0], p[n-r.max:]...)
		return n, nil
	}
	if over := len(r.b) + n - r.max; over > 0 {
		r.b = append(r.b[:0], r.b[over:]...)
	}
	r.b = append(r.b, p...)
	return n, nil
}

// tail returns the last lines in printable ASCII: a guest writes here.
func (r *ring) tail(lines int) string {
	r.mu.Lock()
	b := bytes.TrimSpace(bytes.Clone(r.b))
	r.mu.Unlock()
	all := strings.FieldsFunc(string(b), func(c rune) bool { return c == '\n' || c == '\r' })
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	clean := func(c rune) rune {
		if c < ' ' || c > '~' {
			return '.'
		}
		return c
	}
	for i, l := range all {
		if len(l) > 300 {
			l = l[:300]
		}
		all[i] = strings.Map(clean, l)
	}
	return strings.Join(all, " | ")
}
