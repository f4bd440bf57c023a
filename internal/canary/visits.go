package canary

import (
	"context"
	"sync"
)

// maxAnonymous bounds a counter that a flood could otherwise drive; nothing
// else is stored for a visit without a known token.
const maxAnonymous = 1 << 20

// visits records who came. It remembers expected tokens only, so its memory is
// bounded by what the host expects, whatever is sent.
type visits struct {
	mu        sync.Mutex
	expected  map[string]int
	anonymous int
	inflight  int
	changed   chan struct{}
}

func newVisits() *visits {
	return &visits{expected: map[string]int{}, changed: make(chan struct{})}
}

func (v *visits) expect(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.expected[token]; !ok {
		v.expected[token] = 0
	}
}

// record notes a visit and reports whether its token was expected.
func (v *visits) record(token string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, ok := v.expected[token]
	if ok {
		v.expected[token] = n + 1
	} else if v.anonymous < maxAnonymous {
		v.anonymous++
	}
	v.wake()
	return ok
}

func (v *visits) begin() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inflight++
}

func (v *visits) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inflight--
	v.wake()
}

func (v *visits) wake() {
	close(v.changed)
	v.changed = make(chan struct{})
}

func (v *visits) count(token string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.expected[token]
}

func (v *visits) strangers() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.anonymous
}

// await returns once token was seen and no visit is in progress, or when ctx
// ends. It reports whether the token was seen.
func (v *visits) await(ctx context.Context, token string) bool {
	for {
		v.mu.Lock()
		seen, busy, changed := v.expected[token] > 0, v.inflight > 0, v.changed
		v.mu.Unlock()
		if seen && !busy {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return seen
		}
	}
}
