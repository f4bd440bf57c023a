package wire

import (
	"fmt"
	"unicode/utf8"
)

// checkSyntax accepts what encoding/json accepts, if it is UTF-8 and nested no
// deeper than MaxDepth. A fuzz target compares the two; this one allocates
// nothing and looks at each byte once, and never recurses deeper than MaxDepth.
func checkSyntax(body []byte) error {
	if !utf8.Valid(body) {
		return fmt.Errorf("%w: not UTF-8", ErrMalformed)
	}
	s := syntax{b: body}
	s.space()
	ok := s.value(0)
	s.space()
	switch {
	case s.deep:
		return fmt.Errorf("%w: nested deeper than %d", ErrMalformed, MaxDepth)
	case !ok || s.i != len(body):
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
