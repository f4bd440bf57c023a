// Package untrusted renders what came out of a sandbox. It is the only way from
// a backends.Text to something that a person or another program reads.
//
// Every rendering starts from wire.Escape, a reversible escape into printable
// ASCII, so that nothing is executed and nothing is lost; then it defuses what
// the kind of output would still take for structure. What is cut is said, with
// the length and the hash of the whole.
package untrusted

import (
	"fmt"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// DefaultMax is how many guest bytes a rendering shows when asked for 0.
const DefaultMax = 400

// Kinds lists the kinds of output that Render knows.
func Kinds() []string { return []string{"log", "markdown", "terminal", "xml"} }

// Render renders t for a kind of output, and reports whether the kind is known.
func Render(kind string, t backends.Text, limit int) (string, bool) {
	switch kind {
	case "markdown":
		return Markdown(t, limit), true
	case "log", "terminal":
		return Line(t, limit), true
	case "xml":
		return XML(t, limit), true
	}
	return "", false
}

// Line renders t as one line of printable ASCII, in quotes, for a terminal or a
// job's log: no byte of it moves a cursor, reorders the line, is a command or
// names a place in a file to a problem matcher.
func Line(t backends.Text, limit int) string {
	s, more := escape(t, limit)
	return `"` + s + `"` + more
}

// Markdown renders t for GitHub-flavoured Markdown. Everything but letters,
// digits and single blanks becomes a numeric character reference, which is text
// wherever it stands: in a table, in a paragraph, inside HTML.
func Markdown(t backends.Text, limit int) string {
	s, more := escape(t, limit)
	var b strings.Builder
	b.WriteString("<code>")
	last := byte(' ')
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == ' ' && last != ' ':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "&#%d;", c)
		}
		last = c
	}
	b.WriteString("</code>")
	b.WriteString(more)
	return b.String()
}

// XML renders t as character data of an XML 1.0 document, valid for any bytes.
func XML(t backends.Text, limit int) string {
	s, more := escape(t, limit)
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&apos;").Replace(s) + more
}

// escape returns the first limit bytes of t in printable ASCII, and a remark when
// there are more.
func escape(t backends.Text, limit int) (s, more string) {
	if limit <= 0 {
		limit = DefaultMax
	}
	b := t.Bytes()
	if len(b) > limit {
		b = b[:limit]
	}
	if int64(len(b)) < t.Len() {
		more = fmt.Sprintf(" (%d of %d bytes, sha256 %s)", len(b), t.Len(), t.SHA256())
	}
	return withoutPlaces(wire.Escape(b), `\x%02x`), more
}
