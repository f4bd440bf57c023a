package wire

import (
	"fmt"
	"strings"
)

// Escape turns bytes of a guest into printable ASCII: the inside of a Go string
// literal, from which strconv.Unquote restores them. It also breaks up what the
// GitHub runner takes for a command, since whatever we print may end up in a
// job's log: "::" after leading blanks, and "##" anywhere.
func Escape(b []byte) string {
	var w strings.Builder
	w.Grow(len(b))
	leading := true // nothing but blanks so far
	var last byte
	for _, c := range b {
		switch {
		case c == '\\':
			w.WriteString(`\\`)
		case c == '"':
			w.WriteString(`\"`)
		case c == '\n':
			w.WriteString(`\n`)
		case c == '\t':
			w.WriteString(`\t`)
		case c == '\r':
			w.WriteString(`\r`)
		case c < 0x20, c >= 0x7f, c == ':' && leading, c == '#' && last == '#':
			fmt.Fprintf(&w, `\x%02x`, c)
			c = 0 // an escaped one does not begin a pair
		default:
			w.WriteByte(c)
		}
		leading = leading && c == ' '
		last = c
	}
	return w.String()
}
