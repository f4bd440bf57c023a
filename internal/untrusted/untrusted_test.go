package untrusted

import (
	"encoding/xml"
	"html"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Whatever the bytes are, a line is printable ASCII on one line
// and can be turned back into the bytes.
func TestLineIsReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		s := Line(backends.NewText(b), len(b)+1)
		for i := range len(s) {
			require.True(t, s[i] >= 0x20 && s[i] < 0x7f, "byte %#x in %q", s[i], s)
		}
		back, err := strconv.Unquote(s)
		require.NoError(t, err)
		require.Equal(t, string(b), back)
	})
}

func TestLineHoldsNoCommand(t *testing.T) {
	for _, s := range []string{"::set-output name=x::y", "  ::add-mask::a", "x ##[add-mask]a", "####[group]", ":::error::", "##[[", "\n::stop-commands::t"} {
		got := Line(backends.NewText([]byte(s)), 0)
		require.NotRegexp(t, `^"?\s*::`, got)
		require.NotContains(t, got, "##")
		back, err := strconv.Unquote(got)
		require.NoError(t, err)
		require.Equal(t, s, back)
	}
}

func TestMarkdownIsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		s := Markdown(backends.NewText(b), len(b)+1)
		inner, ok := strings.CutPrefix(s, "<code>")
		require.True(t, ok)
		inner, ok = strings.CutSuffix(inner, "</code>")
		require.True(t, ok)
		require.NotContains(t, strings.NewReplacer("&#", "", ";", "").Replace(inner), "#")
		require.False(t, strings.ContainsAny(inner, "<>|`*_[]()!@\\\n"), "%q", inner)
		back, err := strconv.Unquote(`"` + html.UnescapeString(inner) + `"`)
		require.NoError(t, err)
		require.Equal(t, string(b), back)
	})
}

func TestXMLIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		var got string
		require.NoError(t, xml.Unmarshal([]byte("<x>"+XML(backends.NewText(b), len(b)+1)+"</x>"), &got))
		back, err := strconv.Unquote(`"` + got + `"`)
		require.NoError(t, err)
		require.Equal(t, string(b), back)
	})
}

func TestCutIsSaid(t *testing.T) {
	text := backends.NewText([]byte(strings.Repeat("a", 1000)))
	for _, kind := range Kinds() {
		s, ok := Render(kind, text, 10)
		require.True(t, ok)
		require.Contains(t, s, "(10 of 1000 bytes, sha256 "+text.SHA256()+")", kind)
		require.NotContains(t, s, strings.Repeat("a", 11))
	}
	_, ok := Render("carrier-pigeon", text, 10)
	require.False(t, ok)
}
