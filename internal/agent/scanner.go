package agent

import (
	"bytes"
	"encoding/binary"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// A scanner splits a stream into sessions and frames. It looks for the magic in
// every byte, because a new session may begin inside half a frame that the last
// one left in the pipe.
type scanner struct {
	max   uint32
	phase phase
	// matched is how much of the magic the last bytes were.
	matched int
	nonce   []byte
	head    [4]byte
	nhead   int
	need    int
	body    []byte
	// begun counts frames and preambles by their first byte, so that the loop
	// can tell a new one from more of the same.
	begun uint64
}

type phase int

const (
	// phaseLost discards everything up to the next magic.
	phaseLost phase = iota
	phaseNonce
	phaseHead
	phaseBody
	// phaseSuspect has read a header that is over the cap but is also the
	// beginning of the magic; the next bytes tell which.
	phaseSuspect
)

// An event is what the scanner found. Exactly one field is set.
type event struct {
	session *wire.Nonce
	frame   []byte
	code    string
}

// trust is how much memory an announced length is trusted with at once.
const trust = 64 << 10

// feed consumes p. What it emits does not alias p.
func (s *scanner) feed(p []byte, emit func(event)) {
	for len(p) > 0 {
		if n := s.plain(p); n > 0 {
			if s.phase == phaseBody {
				s.body = append(s.body, p[:n]...)
				s.endBody(emit)
			}
			p = p[n:]
			continue
		}
		s.step(p[0], emit)
		p = p[1:]
	}
}

// plain returns how many bytes can be taken at once because the magic does not
// begin in them.
func (s *scanner) plain(p []byte) int {
	if s.matched != 0 || (s.phase != phaseBody && s.phase != phaseLost) {
		return 0
	}
	if s.phase == phaseBody {
		p = p[:min(len(p), s.need-len(s.body))]
	}
	if i := bytes.IndexByte(p, wire.Magic[0]); i >= 0 {
		return i
	}
	return len(p)
}

func (s *scanner) step(c byte, emit func(event)) {
	before := s.matched
	switch c {
	case wire.Magic[s.matched]:
		s.matched++
	case wire.Magic[0]:
		s.matched = 1
	default:
		s.matched = 0
	}
	if s.matched == len(wire.Magic) {
		// Its last byte is also a first one: a magic that was cut short just
		// before it is completed by the beginning of the next.
		s.matched = 1
		s.phase, s.nonce, s.body = phaseNonce, s.nonce[:0], nil
		s.begun++
		return
	}
	switch s.phase {
	case phaseNonce:
		if s.nonce = append(s.nonce, c); len(s.nonce) == wire.NonceSize {
			n := wire.Nonce(s.nonce)
			s.phase, s.nhead = phaseHead, 0
			emit(event{session: &n})
		}
	case phaseHead:
		s.stepHead(c, emit)
	case phaseBody:
		s.body = append(s.body, c)
		s.endBody(emit)
	case phaseSuspect:
		if s.matched <= before {
			s.phase = phaseLost
			emit(event{code: CodeFrameTooLarge})
		}
	case phaseLost:
	}
}

func (s *scanner) stepHead(c byte, emit func(event)) {
	if s.nhead == 0 {
		s.begun++
	}
	s.head[s.nhead] = c
	if s.nhead++; s.nhead < len(s.head) {
		return
	}
	s.nhead = 0
	n := binary.BigEndian.Uint32(s.head[:])
	switch {
	case n == 0:
		emit(event{code: CodeMalformed})
	case n <= s.max:
		s.phase, s.need, s.body = phaseBody, int(n), make([]byte, 0, min(n, trust))
	case s.matched == len(s.head):
		s.phase = phaseSuspect
	default:
		s.phase = phaseLost
		emit(event{code: CodeFrameTooLarge})
	}
}

func (s *scanner) endBody(emit func(event)) {
	if len(s.body) < s.need {
		return
	}
	body := s.body
	s.phase, s.body = phaseHead, nil
	emit(event{frame: body})
}

// midFrame reports whether a frame or a preamble has begun and not ended.
func (s *scanner) midFrame() bool {
	switch s.phase {
	case phaseHead:
		return s.nhead > 0
	case phaseLost:
		return false
	}
	return true
}

// abandon drops what has begun and waits for the next session.
func (s *scanner) abandon() { s.phase, s.body = phaseLost, nil }
