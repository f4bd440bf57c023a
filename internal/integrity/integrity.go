// Package integrity answers one question after a reset: is this the sandbox
// that was recorded as golden? Three independent sources are read, each is
// compared with its baseline, and any one of them that disagrees halts. There
// is no quorum: two sources that agree do not outvote the third.
package integrity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// TSettling is how long a source may stay silent before it is asked once more.
const TSettling = 5 * time.Second

// The states that a source may report of a VMM or a container runtime.
const (
	StateRunning = "running"
	StatePaused  = "paused"
	StateStopped = "stopped"
	StateError   = "error"
)

// emptyHash is the digest of no bytes at all: what a hash over a missing or
// truncated substrate looks like.
const emptyHash = hashPrefix + "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

const (
	hashPrefix = "sha256:"
	// noHash stands for a hash that could not be read.
	noHash = hashPrefix + "0000000000000000000000000000000000000000000000000000000000000000"
)

// isHash reports whether s is "sha256:" and 64 lower-case hex digits.
func isHash(s string) bool {
	digits, ok := strings.CutPrefix(s, hashPrefix)
	return ok && len(digits) == 2*sha256.Size && strings.Trim(digits, "0123456789abcdef") == ""
}

// Baseline is what the three sources said of the golden sandbox.
type Baseline struct {
	// FSHash is "sha256:" and 64 lower-case hex digits.
	FSHash string `json:"fs_hash"`
	// OpenFDCount is the number of fds without sockets inside; never negative.
	OpenFDCount int `json:"open_fd_count"`
	// VMMState is the state expected of a working sandbox.
	VMMState string `json:"vmm_state"`
}

// Validate refuses a baseline that nothing real could have produced, the
// SHA-256 of nothing among them.
func (b Baseline) Validate() error {
	if err := ValidHash(b.FSHash); err != nil {
		return fmt.Errorf("baseline fs_hash: %w", err)
	}
	if b.OpenFDCount < 0 {
		return fmt.Errorf("baseline open_fd_count is negative: %d", b.OpenFDCount)
	}
	if !validState(b.VMMState) {
		return fmt.Errorf("baseline vmm_state %q is none of running, paused, stopped, error", b.VMMState)
	}
	return nil
}

// ValidHash reports why s cannot be the digest of a substrate.
func ValidHash(s string) error {
	switch {
	case !isHash(s):
		return fmt.Errorf("%q is not \"sha256:\" and 64 lower-case hex digits", s)
	case s == emptyHash:
		return ErrNothingHashed
	case s == noHash:
		return errors.New("the hash is all zeros")
	}
	return nil
}

func validState(s string) bool {
	return slices.Contains([]string{StateRunning, StatePaused, StateStopped, StateError}, s)
}

// Readings are the three sources. Each is called with a context that ends when
// the source counts as silent, and must return soon after that.
type Readings struct {
	FSHash      func(ctx context.Context) (string, error)
	OpenFDCount func(ctx context.Context) (int, error)
	VMMState    func(ctx context.Context) (string, error)
}

// Verifier holds what a verification can be configured with.
type Verifier struct {
	// Settling replaces TSettling when it is not zero.
	Settling time.Duration
	// Now is the wall clock of reset_at; nil means time.Now.
	Now func() time.Time
}

// Verify reads all three sources at once and compares them with base. golden
// is the digest that names the golden state in the report.
//
// It returns a *backends.DivergenceError when any source disagrees; a source
// that stays silent or fails twice disagrees. When all three do, it returns
// backends.ErrResetTimeout. A source named in off is read but its comparison
// is skipped: for controls and for deliberately leaking variants only.
//
// The state is filled in for every error except a refused baseline and an
// ended context.
func Verify(ctx context.Context, golden string, base Baseline, r Readings, off ...backends.Source) (backends.ResetState, error) {
	return Verifier{}.Verify(ctx, golden, base, r, off...)
}

// Verify is the function Verify with v's settings.
func (v Verifier) Verify(ctx context.Context, golden string, base Baseline, r Readings, off ...backends.Source) (backends.ResetState, error) {
	if err := base.Validate(); err != nil {
		return backends.ResetState{}, &backends.Error{Code: backends.ErrResetFailed, Doing: "verify reset", Err: err,
			Fix: "record a new baseline: bsm-redteam baseline record"}
	}
	settling, now := v.Settling, v.Now
	if settling == 0 {
		settling = TSettling
	}
	if now == nil {
		now = time.Now
	}

	hash := source[string]{read: func(ctx context.Context) (string, error) {
		s, err := r.FSHash(ctx)
		if err == nil && !isHash(s) {
			err = errors.New("the source returned no SHA-256")
		}
		return s, err
	}}
	fds := source[int]{read: func(ctx context.Context) (int, error) {
		n, err := r.OpenFDCount(ctx)
		if err == nil && n < 0 {
			err = errors.New("the source returned a negative count")
		}
		return n, err
	}}
	vmm := source[string]{read: r.VMMState}
	sources := []asked{&hash, &fds, &vmm}
	askAll(ctx, settling, sources)
	if again := slices.DeleteFunc(sources, func(s asked) bool { return !s.failed() }); len(again) > 0 && ctx.Err() == nil {
		askAll(ctx, settling, again)
	}
	h, n, s := hash.got, fds.got, vmm.got
	if err := ctx.Err(); err != nil {
		return backends.ResetState{}, err
	}

	if h.err != nil {
		h.value = noHash
	}
	if n.err != nil {
		n.value = 0
	}
	if s.err != nil || !validState(s.value) {
		s.value = StateError
	}
	st := backends.ResetState{
		ResetAt:    now().UTC().Format(time.RFC3339Nano),
		GoldenHash: golden,
		VerificationDetails: backends.VerificationDetails{
			FSHash: h.value, FSHashBaseline: base.FSHash, FSHashMatch: h.err == nil && h.value == base.FSHash,
			OpenFDCount: n.value, OpenFDCountBaseline: base.OpenFDCount,
			VMMAPIState: s.value, ExpectedVMMAPIState: base.VMMState,
			DivergenceAction: backends.ActionHalt,
		},
	}
	if h.err != nil && n.err != nil && s.err != nil {
		return st, &backends.Error{Code: backends.ErrResetTimeout, Doing: "verify reset",
			Err: fmt.Errorf("no source answered, each was asked twice for %s: %w", settling, errors.Join(h.err, n.err, s.err))}
	}

	agrees := map[backends.Source]bool{
		backends.SourceFSHash:      st.VerificationDetails.FSHashMatch,
		backends.SourceOpenFDCount: n.err == nil && n.value == base.OpenFDCount,
		backends.SourceVMMState:    s.err == nil && s.value == base.VMMState,
	}
	var diverged []backends.Source
	for _, src := range backends.Sources() {
		if !agrees[src] && !slices.Contains(off, src) {
			diverged = append(diverged, src)
		}
	}
	if len(diverged) > 0 {
		return st, &backends.DivergenceError{State: st, Sources: diverged}
	}
	st.VerificationPassed = true
	st.VerificationDetails.DivergenceAction = backends.ActionNone
	return st, nil
}

type reading[T any] struct {
	value T
	err   error
}

// source is one of the three, and the reading of it that is under way.
type source[T any] struct {
	read   func(context.Context) (T, error)
	answer chan reading[T]
	got    reading[T]
}

// ask begins a reading. It is not waited for if it ignores its context: a source
// that hangs is what a verification has to survive.
func (s *source[T]) ask(ctx context.Context) {
	answer := make(chan reading[T], 1)
	s.answer = answer
	go func() {
		v, err := s.read(ctx)
		answer <- reading[T]{v, err}
	}()
}

// wait takes an answer that is there before it looks at the clock: another
// source may have used up all the time.
func (s *source[T]) wait(ctx context.Context) {
	select {
	case s.got = <-s.answer:
		return
	default:
	}
	select {
	case s.got = <-s.answer:
	case <-ctx.Done():
		s.got = reading[T]{err: context.Cause(ctx)}
	}
}

func (s *source[T]) failed() bool { return s.got.err != nil }

// asked is a source of any type.
type asked interface {
	ask(ctx context.Context)
	wait(ctx context.Context)
	failed() bool
}

// askAll reads the sources at once and gives them one settling time.
func askAll(ctx context.Context, settling time.Duration, sources []asked) {
	ctx, cancel := context.WithTimeoutCause(ctx, settling, fmt.Errorf("silent for %s", settling))
	defer cancel()
	for _, s := range sources {
		s.ask(ctx)
	}
	for _, s := range sources {
		s.wait(ctx)
	}
}
