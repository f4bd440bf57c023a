package wire

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// span is where a value stands in JSON text.
type span struct{ from, to int }

func (s span) empty() bool { return s.to == 0 }

// split passes on the members of the object that body is. It refuses what is not
// UTF-8, not JSON, nested deeper than MaxDepth or not an object.
func split(body []byte, member func(key, value span) error) error {
	s := syntax{b: body}
	if s.space(); s.peek() != '{' || !utf8.Valid(body) {
		if err := checkSyntax(body); err != nil {
			return err
		}
		return fmt.Errorf("%w: not an object", ErrMalformed)
	}
	s.i++
	var err error
	ok := s.list('}', 1, func(depth int) bool {
		var key, value span
		key.from = s.i
		if !s.text() {
			return false
		}
		key.to = s.i
		if s.space(); !s.take(':') {
			return false
		}
		s.space()
		value.from = s.i
		if !s.value(depth) {
			return false
		}
		value.to = s.i
		err = member(key, value)
		return err == nil
	})
	if err != nil {
		return err
	}
	return s.end(ok)
}

// checkSyntax accepts what encoding/json accepts, if it is UTF-8 and nested no
// deeper than MaxDepth. A fuzz target compares the two; this one allocates
// nothing and looks at each byte once, and never recurses deeper than MaxDepth.
func checkSyntax(body []byte) error {
	if !utf8.Valid(body) {
		return fmt.Errorf("%w: not UTF-8", ErrMalformed)
	}
	s := syntax{b: body}
	s.space()
	return s.end(s.value(0))
}

// end says what is wrong with the text, of which all but white space has been
// read if it was ok so far.
func (s *syntax) end(ok bool) error {
	s.space()
	switch {
	case s.deep:
		return fmt.Errorf("%w: nested deeper than %d", ErrMalformed, MaxDepth)
	case !ok || s.i != len(s.b):
		return fmt.Errorf("%w: not JSON", ErrMalformed)
	}
	return nil
}

// syntax is a position in JSON text.
type syntax struct {
	b    []byte
	i    int
	deep bool
}

// peek returns the byte at the position, or NUL at the end, which begins
// nothing.
func (s *syntax) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *syntax) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// take moves past c if it is next.
func (s *syntax) take(c byte) bool {
	if s.peek() != c || s.i == len(s.b) {
		return false
	}
	s.i++
	return true
}

func (s *syntax) value(depth int) bool {
	switch c := s.peek(); {
	case c == '{' || c == '[':
		if depth == MaxDepth {
			s.deep = true
			return false
		}
		s.i++
		if c == '{' {
			return s.list('}', depth+1, s.member)
		}
		return s.list(']', depth+1, s.value)
	case c == '"':
		return s.text()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return s.number()
}

// list is what stands between brackets.
func (s *syntax) list(end byte, depth int, item func(depth int) bool) bool {
	s.space()
	if s.take(end) {
		return true
	}
	for {
		if !item(depth) {
			return false
		}
		s.space()
		if s.take(end) {
			return true
		}
		if !s.take(',') {
			return false
		}
		s.space()
	}
}

func (s *syntax) member(depth int) bool {
	if !s.text() {
		return false
	}
	s.space()
	if !s.take(':') {
		return false
	}
	s.space()
	return s.value(depth)
}

func (s *syntax) text() bool {
	if !s.take('"') {
		return false
	}
	for s.i < len(s.b) {
		if plain := s.b[s.i:]; len(plain) >= 8 && !hasSpecial(binary.LittleEndian.Uint64(plain)) {
			s.i += 8
			continue
		}
		c := s.b[s.i]
		s.i++
		switch {
		case c == '"':
			return true
		case c < ' ':
			return false
		case c == '\\' && !s.escape():
			return false
		}
	}
	return false
}

// hasSpecial reports whether one of eight bytes ends a string, begins an escape
// or is a control character: for each kind the top bit of the first such byte
// is set by a borrow (Hacker's Delight, 6-1).
func hasSpecial(eight uint64) bool {
	const ones = 0x0101010101010101
	quote, slash := eight^ones*'"', eight^ones*'\\'
	return ((eight-ones*' ')&^eight|(quote-ones)&^quote|(slash-ones)&^slash)&(ones<<7) != 0
}

// escape is what follows a backslash.
func (s *syntax) escape() bool {
	c := s.peek()
	s.i++
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for range 4 {
			c := s.peek()
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
				return false
			}
			s.i++
		}
		return true
	}
	return false
}

func (s *syntax) word(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return false
	}
	s.i += len(w)
	return true
}

func (s *syntax) number() bool {
	s.take('-')
	if !s.take('0') && !s.digits() {
		return false
	}
	if s.take('.') && !s.digits() {
		return false
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		return s.digits()
	}
	return true
}

// digits moves past one or more.
func (s *syntax) digits() bool {
	from := s.i
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.i++
	}
	return s.i > from
}
