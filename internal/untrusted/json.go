package untrusted

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// JSON rewrites a valid JSON document so that it means the same and may be
// printed into a job's log or on a terminal: in its strings, whatever is not
// printable, a command of the GitHub runner or a place in a file is escaped.
func JSON(doc []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(doc))
	for len(doc) > 0 {
		begin := bytes.IndexByte(doc, '"') + 1
		if begin == 0 {
			out.Write(doc)
			break
		}
		end := begin + stringEnd(doc[begin:])
		out.Write(doc[:begin])
		out.WriteString(quiet(doc[begin:end]))
		doc = doc[end:]
		if len(doc) > 0 {
			out.WriteByte('"')
			doc = doc[1:]
		}
	}
	return out.Bytes()
}

// stringEnd returns where the closing quote of a string stands.
func stringEnd(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(b)
}

// quiet escapes more of the inside of a JSON string.
func quiet(s []byte) string {
	var b strings.Builder
	last := rune(0)
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		switch {
		case r == '#' && last == '#':
			b.WriteString(`\u0023`)
			r = 0 // an escaped one does not begin a pair
		case r > 0xffff && !unicode.IsPrint(r):
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		case !unicode.IsPrint(r) || unicode.Is(unicode.Mn, r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.Write(s[:n])
		}
		last, s = r, s[n:]
	}
	return withoutPlaces(b.String(), `\u%04x`)
}
