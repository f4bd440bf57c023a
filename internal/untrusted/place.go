package untrusted

import (
	"fmt"
	"regexp"
	"strings"
)

// A job's log is also read by problem matchers: regular expressions that other
// actions of the job registered, such as setup-go's. A line that one of them
// takes for a compiler's becomes an annotation. These are the shapes of a place in
// a file that the matchers of set-up actions, compilers and linters look for, also
// where they need what we print next, such as ": "; and the characters in them
// that are escaped to break them up.
var places = []struct {
	shape *regexp.Regexp
	marks string
}{
	{regexp.MustCompile(`(?i)\.go(?::(?:\s|\d+:|$)|$)`), "."},
	{regexp.MustCompile(`(?:^|\D)(?::\d+)+(?::|$)|(?::\d+){2,}(?::|$)`), ":"},
	{regexp.MustCompile(`(?i)[:(]\d+(?:[:,]\d+)*\)?:?\s+(?:-\s+)?(?:fatal\s+)?(?:error|warning|info|note|notice)\b`), ":("},
	{regexp.MustCompile(`(?i)\bline\s+\d+,\s+(?:col|in)\b`), "lL"},
}

// mayHavePlace is quick and right whenever it says no.
func mayHavePlace(s string) bool {
	return strings.ContainsAny(s, ":(,") || len(s) >= 3 && strings.EqualFold(s[len(s)-3:], ".go")
}

// hasPlace reports whether s holds what a problem matcher looks for.
func hasPlace(s string) bool {
	if !mayHavePlace(s) {
		return false
	}
	for _, p := range places {
		if p.shape.MatchString(s) {
			return true
		}
	}
	return false
}

// withoutPlaces breaks places up in a text with escapes of the given form, such
// as wire.Escape's, so that what reads the text back reads these back too.
func withoutPlaces(s, form string) string {
	if !mayHold(s) {
		return s
	}
	for _, p := range places {
		s = p.shape.ReplaceAllStringFunc(s, func(place string) string {
			var b strings.Builder
			for i := range len(place) {
				if c := place[i]; strings.IndexByte(p.marks, c) >= 0 {
					fmt.Fprintf(&b, form, c)
				} else {
					b.WriteByte(c)
				}
			}
			return b.String()
		})
	}
	return s
}

// mayHold reports whether s has what every shape of a place begins with or
// contains. Most strings have not, and looking for it is quicker than matching.
func mayHold(s string) bool {
	for i := 0; i+1 < len(s); i++ {
		switch next := s[i+1]; s[i] {
		case ':', '(':
			if next >= '0' && next <= '9' {
				return true
			}
		case '.':
			if next == 'g' || next == 'G' {
				return true
			}
		case 'l', 'L':
			if next == 'i' || next == 'I' {
				return true
			}
		}
	}
	return false
}
