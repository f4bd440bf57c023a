package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var syntaxSeeds = []string{
	``, ` `, `0`, `-0`, `00`, `01`, `-`, `1.`, `.1`, `1.5`, `1e`, `1e+`, `1E-7`, `1e5x`, `+1`, `--1`, `1 2`, "1\x00", "\x00",
	`"`, `""`, `"a`, `"\"`, `"\""`, `"\u12"`, `"\u12aF"`, `"\u12ag"`, `"\x"`, `"\`, `"\u`, "\"\x01\"", "\"\x7f\"", "\"\xff\"", `"\ud800"`, `"é"`,
	`true`, `tru`, `truex`, `false`, `null`, `nul`, `nullnull`, `NaN`, `Infinity`,
	`{}`, `{`, `}`, `[`, `]`, `[]`, `[,]`, `[1,]`, `[1 2]`, `[1,2]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`, `{a:1}`, `{1:1}`, `{"a":1,"a":[{}]}`,
	` { "a" : [ 1 , "x" ] } `, "\f{}", "\v1", "\u00a01", "{}\n\t\r ", `{}x`, `[}`, `{]`, `[[]`, `{"a":{}`, goodResult,
}

func sameSyntax(t *testing.T, body []byte) {
	t.Helper()
	err := checkSyntax(body)
	if err != nil && strings.Contains(err.Error(), "nested deeper") {
		require.GreaterOrEqual(t, strings.Count(string(body), "[")+strings.Count(string(body), "{"), MaxDepth+1)
		return
	}
	require.Equal(t, utf8.Valid(body) && json.Valid(body), err == nil, "%q: %v", body, err)
}

func TestSyntaxIsThatOfJSON(t *testing.T) {
	for _, s := range syntaxSeeds {
		sameSyntax(t, []byte(s))
		for i := range s { // cut short anywhere, or broken there
			sameSyntax(t, []byte(s[:i]))
			for _, c := range []byte("\"\\{}[]:,0-.eu \x00\xff") {
				sameSyntax(t, []byte(s[:i]+string([]byte{c})+s[i+1:]))
			}
		}
	}
}

func TestSyntaxDepth(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat(`[`, n) + strings.Repeat(`]`, n)) }
	require.NoError(t, checkSyntax(nested(MaxDepth)))
	require.ErrorContains(t, checkSyntax(nested(MaxDepth+1)), "nested deeper")
	require.ErrorContains(t, checkSyntax(nested(8<<20)), "nested deeper")
	require.NoError(t, checkSyntax([]byte(`"`+strings.Repeat("[", 1000)+`"`)), "brackets in a string are none")
}

func FuzzSyntax(f *testing.F) {
	for _, s := range syntaxSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(sameSyntax)
}
