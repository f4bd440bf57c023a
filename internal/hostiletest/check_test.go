package hostiletest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
)

// sprung reports what the runner would have done with printed bytes besides
// printing them.
func sprung(b []byte) string {
	r := runnertest.New(runnertest.Matchers()...)
	r.Print(b)
	return r.Untouched()
}

// quiet requires that printed bytes are text that a terminal and the runner only
// show: printable ASCII in lines.
func quiet(t *testing.T, b []byte, about ...any) {
	t.Helper()
	require.Empty(t, sprung(b), about...)
	if i := bytes.IndexFunc(b, func(c rune) bool { return c != '\n' && (c < 0x20 || c >= 0x7f) }); i >= 0 {
		require.Fail(t, "not printable", "at %d: %.300q: %v", i, b[max(0, i-100):], about)
	}
}

// shows reports whether a sample can be had back from what was printed: as it is,
// from an escape of the kinds that we use, or, where it was cut, by its length and
// hash.
func shows(printed, sample []byte) bool { return shown(printed)(sample) }

func shown(printed []byte) func(sample []byte) bool {
	var forms [][]byte
	for _, text := range [][]byte{printed, []byte(html.UnescapeString(string(printed)))} {
		once := unescaped(text)
		forms = append(forms, text, once, unescaped(once))
	}
	return func(sample []byte) bool {
		remark := fmt.Appendf(nil, " of %d bytes, sha256 %x)", len(sample), sha256.Sum256(sample))
		return slices.ContainsFunc(forms, func(f []byte) bool { return bytes.Contains(f, sample) || bytes.Contains(f, remark) })
	}
}

// unescaped undoes the escapes of Go and JSON strings wherever they stand.
func unescaped(b []byte) []byte {
	var out []byte
	for len(b) > 0 {
		if b[0] != '\\' {
			i := bytes.IndexByte(b, '\\')
			if i < 0 {
				i = len(b)
			}
			out, b = append(out, b[:i]...), b[i:]
			continue
		}
		if len(b) > 1 && b[1] == '/' {
			out, b = append(out, '/'), b[2:]
			continue
		}
		head := string(b[:min(len(b), 12)])
		if strings.HasPrefix(head, `\u`) && len(head) == 12 { // perhaps a pair of surrogates
			if s, err := strconv.Unquote(`"\U` + pair(head) + `"`); err == nil {
				out, b = append(out, s...), b[12:]
				continue
			}
		}
		c, multibyte, tail, err := strconv.UnquoteChar(head, 0)
		if err != nil && len(head) > 1 && head[1] == '"' {
			c, tail, err = '"', head[2:], nil
		}
		if err != nil {
			out, b = append(out, b[0]), b[1:]
			continue
		}
		if multibyte || c < 0x80 {
			out = append(out, string(c)...)
		} else {
			out = append(out, byte(c))
		}
		b = b[len(head)-len(tail):]
	}
	return out
}

func pair(head string) string {
	hi, err1 := strconv.ParseUint(head[2:6], 16, 16)
	lo, err2 := strconv.ParseUint(head[8:], 16, 16)
	if err1 != nil || err2 != nil || head[6:8] != `\u` || hi < 0xd800 || hi > 0xdbff || lo < 0xdc00 || lo > 0xdfff {
		return "no pair"
	}
	return fmt.Sprintf("%08x", (hi-0xd800)<<10+(lo-0xdc00)+0x10000)
}

// The corpus does what it is there for when nobody renders it: the assertions of
// the other tests are about something.
func TestTheCorpusIsHostile(t *testing.T) {
	names := map[string]bool{}
	for _, s := range Corpus() {
		require.False(t, names[s.Name], s.Name)
		names[s.Name] = true
		kind, rest, _ := strings.Cut(s.Name, "-")
		if kind == "legacy" || kind == "matcher" && !strings.Contains("go-by-our-own-escape half-go half-gcc", rest) || kind == "command" && !strings.Contains("after-separators after-zero-width split-by-ignorables half escaped colon-first hash-last in-hashes", rest) || s.Name == "long-line" {
			require.NotEmpty(t, sprung(s.Bytes), s.Name)
		}
	}
	require.NotEmpty(t, sprung(All()))
	r := runnertest.New()
	for _, s := range Corpus() {
		if s.Name == "heredoc-go-githubactions" {
			r.OutputFile(fmt.Appendf(nil, "note<<_GitHubActionsFileCommandDelimeter_\n%s\n_GitHubActionsFileCommandDelimeter_\n", s.Bytes))
		}
	}
	require.Equal(t, "pass", r.Outputs["verdict"], "a value of several lines in the heredoc of go-githubactions forges another output")
}

func TestShows(t *testing.T) {
	sample := []byte("a\n\x00\"\\\u202e\U0001f600\xff")
	require.True(t, shows([]byte(`x a\n\x00\"\\\xe2\x80\xae\xf0\x9f\x98\x80\xff y`), sample))
	require.True(t, shows([]byte(`{"a\n\u0000\"\\\u202e\ud83d\ude00`+"\xff"+`"}`), sample))
	require.True(t, shows([]byte(`&#97;\n\x00&quot;\\\xe2\x80\xae\xf0\x9f\x98\x80\xff`), sample))
	require.False(t, shows([]byte(`x a\n\x00\"\\\xe2\x80\xae\xf0\x9f\x98 y`), sample))
	require.True(t, shows(fmt.Appendf(nil, "a (1 of %d bytes, sha256 %x)", len(sample), sha256.Sum256(sample)), sample))
	require.False(t, shows(fmt.Appendf(nil, "a (1 of %d bytes, sha256 %x)", len(sample), sha256.Sum256(nil)), sample))
}
