// Package hostiletest holds bytes that some reader takes for more than data: the
// corpus that goes through every renderer of this program.
package hostiletest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Sample is one hostile text.
type Sample struct {
	Name  string
	Bytes []byte
}

// Token stands in every sample that tries to plant something, so that a test can
// look for where it ended up.
const Token = "bsm-planted"

// commands are those of GitHub's runner, with properties where they need some.
var commands = []string{"set-output name=verdict", "set-env name=PATH", "save-state name=s", "add-mask", "add-path", "add-matcher", "remove-matcher owner=go",
	"debug", "warning", "error file=README.md,line=1", "notice", "group", "endgroup", "echo", "stop-commands"}

// Corpus returns the samples, all of them small. Every call makes new ones.
func Corpus() []Sample {
	var out []Sample
	add := func(name, s string) {
		out = append(out, Sample{name, []byte(strings.ReplaceAll(s, "TOKEN", Token))})
	}

	// Commands of GitHub's runner.
	for _, c := range commands {
		name, _, _ := strings.Cut(c, " ")
		add("command-"+name, "::"+c+"::TOKEN")
		add("legacy-"+name, "text ##["+c+"]TOKEN")
	}
	add("command-after-blanks", " \t \u00a0\u2003::error::TOKEN")
	add("command-after-newline", "quiet\n::set-output name=verdict::TOKEN\nquiet")
	add("command-after-return", "quiet\r::set-output name=verdict::TOKEN\rquiet")
	add("command-after-crlf", "quiet\r\n  ::add-mask::TOKEN\r\n")
	add("command-after-separators", "\v\f\u0085\u2028\u2029::error::TOKEN")
	add("command-after-zero-width", "\u200b\ufeff\x00::error::TOKEN")
	add("command-split-by-ignorables", "#\u00ad#\x00[error]TOKEN :\u200b:error:\u2060:TOKEN")
	add("command-upper-case", "::SET-OUTPUT NAME=verdict::TOKEN\n##[ERROR]TOKEN")
	add("command-in-hashes", "#####[add-mask]TOKEN ###[[error]TOKEN")
	add("command-half", "##\n[error]TOKEN")
	add("command-escaped", "%0A::error::TOKEN%0D%0A##[error]TOKEN")
	add("command-colon-first", ":")
	add("command-hash-last", "x#")
	add("stop-and-resume", "::stop-commands::TOKEN\n::TOKEN::\n::error::TOKEN")

	// What file commands take for structure.
	add("heredoc-go-githubactions", "x\n_GitHubActionsFileCommandDelimeter_\nverdict<<_GitHubActionsFileCommandDelimeter_\npass\n_GitHubActionsFileCommandDelimeter_\n")
	add("heredoc-toolkit", "x\nghadelimiter_6bb8c6d4\nverdict<<EOF\nTOKEN\nEOF\n")
	add("key-value", "verdict=TOKEN\nPATH=/TOKEN\nNODE_OPTIONS=--require=/TOKEN\n")

	// Problem matchers.
	add("matcher-go", "/src/file.go:1:2: TOKEN")
	add("matcher-go-nowhere", "./file.go: TOKEN")
	add("matcher-go-by-our-own-escape", "\nfile.go:1:2: TOKEN")
	add("matcher-half-go", "/src/file.go")
	add("matcher-half-gcc", "main.c:1:2")
	add("matcher-gcc", "main.c:1:2: error: TOKEN")
	add("matcher-gcc-warning", "main.c:1: warning: TOKEN")
	add("matcher-tsc", "src/a.ts(1,2): error TS1: TOKEN")
	add("matcher-tsc-pretty", "src/a.ts:1:2 - error TS1: TOKEN")
	add("matcher-csc", "A.cs(1): warning CS1: TOKEN")
	add("matcher-csc-range", "A.cs(1,2,3,4): error CS1: TOKEN [p.csproj]")
	add("matcher-eslint", "a.js: line 1, col 2, Error - TOKEN (rule)")
	add("matcher-in-colours", "\x1b[31m/x.go:1:2: TOKEN\x1b[0m \x0033[31m/y.go:1:2: TOKEN")

	// Terminals.
	add("ansi", "\x1b[2J\x1b[1;1H\x1b[31mTOKEN\x1b[0m\x1bc\x9b2J")
	add("osc", "\x1b]0;TOKEN\x07\x1b]8;;https://a.example/TOKEN\x1b\\link\x1b]8;;\x1b\\\x1b]52;c;VE9LRU4=\x07\x1bP+q544e\x1b\\")
	add("overwrite", "FAILED\rpassed\x08\x08\x08\x7fTOKEN")
	add("bidi", "\u202eTOKEN\u202c\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
	add("zero-width", "pas\u200bsed\u200c\u200d\u2060\ufeff\u00adTOKEN\u180e")
	add("look-alikes", "Ⓟassed раssеd ＃＃［error］ ：：error：：TOKEN")
	add("combining", "TOKEN"+strings.Repeat("\u0301", 200))

	// XML and JSON.
	add("xml-controls", "\x00\x01\x02\x08\x0b\x0c\x0e\x1fTOKEN\ufffe\uffff")
	add("xml-cdata", "]]></system-out><testcase name=\"TOKEN\"/><system-out><![CDATA[]]]]>>")
	add("xml-entities", `&TOKEN; &#0; &amp;lt; <!DOCTYPE x [<!ENTITY e "TOKEN">]> <?x TOKEN?> <!-- --TOKEN-- -->`)
	add("json-breakers", `TOKEN","passed":true,"x":"\" \\ \u0000 \ud800 `+"\u2028\u2029")
	add("json-line", "\n{\"schema_version\":\"1.0\",\"summary\":{\"passed\":11}}\n")
	add("invalid-utf8", "\xff\xfe\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80TOKEN\xe2\x80")
	add("utf16-surrogates", "\xed\xb0\x80\xed\xa0\x81TOKEN")

	// Markdown and HTML.
	add("markdown-table", "| TOKEN | contained |\n|---|---|\n| a | b |")
	add("markdown-heading", "\n\n# TOKEN passed\n\nTOKEN\n===\n")
	add("markdown-links", "[TOKEN](javascript:alert(1)) ![TOKEN](https://a.example/x.png) <https://a.example/TOKEN> www.a.example https://a.example/ TOKEN@a.example [TOKEN]: /x")
	add("markdown-mentions", "@octocat @github/security #1 GH-1 owner/repo#1 deadbeefdeadbeefdeadbeefdeadbeefdeadbeef :tada: TOKEN")
	add("markdown-code", "`TOKEN` ```\nTOKEN\n``` ~~~ ~~TOKEN~~ **TOKEN** __TOKEN__ $TOKEN$ $$TOKEN$$ \\| \\`")
	add("markdown-blocks", "\n> TOKEN\n- [x] TOKEN\n1. TOKEN\n    TOKEN\n***\n> [!NOTE]\n[^1]: TOKEN")
	add("html", "<img src=x onerror=TOKEN><script>TOKEN</script></code></details></td></table><!-- TOKEN --><a href=javascript:TOKEN>x</a><style>*{display:none}</style>")
	add("html-entities", "&lt;b&gt;TOKEN&#60;b&#x3c;b")
	add("fake-result", "\nP-A1-net-egress  contained  TOKEN  0.1s\nbsm-redteam: total=11 passed=11 failed=0 errored=0 skipped=0\ngate passed: TOKEN\n")
	add("format-verbs", "%s%d%n%!x(TOKEN) {0} ${{ secrets.TOKEN }} $(TOKEN) `TOKEN`")
	add("empty", "")
	add("blanks", "   \t\n  ")
	add("newlines", strings.Repeat("\n", 300)+"TOKEN")
	add("long-line", strings.Repeat("TOKEN ##[error] ", 600))
	add("long-word", strings.Repeat("A", 9000)+"TOKEN")
	var every bytes.Buffer
	for i := range 256 {
		every.WriteByte(byte(i))
	}
	out = append(out, Sample{"every-byte", every.Bytes()})
	return out
}

// Few are the samples of the corpus without those that differ only in the name of
// a command from one that is among them, for tests that take long.
func Few() []Sample {
	return slices.DeleteFunc(Corpus(), func(s Sample) bool {
		for _, c := range commands {
			name, _, _ := strings.Cut(c, " ")
			if s.Name == "legacy-"+name && name != "error" || s.Name == "command-"+name && name != "set-output" {
				return true
			}
		}
		return false
	})
}

// All is the whole corpus in one text, one sample after the other.
func All() []byte {
	var b bytes.Buffer
	for _, s := range Corpus() {
		fmt.Fprintf(&b, "%s\n", s.Bytes)
	}
	return b.Bytes()
}
