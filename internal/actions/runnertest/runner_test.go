package runnertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func printed(lines ...string) *Runner {
	r := New(Matchers()...)
	r.Print([]byte(strings.Join(lines, "\n")))
	return r
}

// Each line is a rule of the runner's parser: what it makes of a line.
func TestCommands(t *testing.T) {
	for line, want := range map[string]*Command{
		"::set-output name=a::b":                     {"set-output", map[string]string{"name": "a"}, "b"},
		"::SET-OUTPUT NAME=a::b":                     {"SET-OUTPUT", map[string]string{"name": "a"}, "b"},
		" \t\u00a0\u3000\u2028\u0085::add-mask::x":   {"add-mask", map[string]string{}, "x"},
		"x ::add-mask::x":                            nil,
		"::add-mask":                                 nil,
		"::add-mask:x":                               nil,
		"::nothing-of-ours::x":                       nil,
		"::internal-set-repo-path repoFullName=a::b": nil,
		":: add-mask::x":                             nil,
		"::add-mask ::x":                             {"add-mask", map[string]string{}, "x"},
		"::add-mask:\u00ad:x":                        {"add-mask", map[string]string{}, ":x"},
		"\u200b::add-mask::x":                        nil, // found at its start, but then cut at the wrong place
		"::warning file=a.go,line=1,col=%3A%2C%25::m%0A%25%3A": {"warning", map[string]string{"file": "a.go", "line": "1", "col": ":,%"}, "m\n%%3A"},
		"::warning  file = a ,,=b,c=,d==e::":                   {"warning", map[string]string{"file ": " a ", "d": "e"}, ""},
		"::debug::a::b":                                        {"debug", map[string]string{}, "a::b"},
		"##[add-mask]x":                                        {"add-mask", map[string]string{}, "x"},
		"anything ##[add-mask]x":                               {"add-mask", map[string]string{}, "x"},
		"any #\u200b#\x00[add-mask]x":                          nil, // found, but then cut at the wrong place
		"##[set-output name=a;x=%3B%5D%25]b%3B":                {"set-output", map[string]string{"name": "a", "x": ";]%"}, "b;"},
		"##[nothing]x ##[add-mask]y":                           nil, // only the first is looked at
		"##[add-mask":                                          nil,
		"##[]x":                                                nil,
		"# #[add-mask]x":                                       nil,
		"::nothing:: ##[add-mask]y":                            {"add-mask", map[string]string{}, "y"},
	} {
		got := printed(line).Commands
		if want == nil {
			require.Empty(t, got, "%q", line)
			continue
		}
		require.Equal(t, []Command{*want}, got, "%q", line)
	}
}

// A line ends at LF, CR or both, and a byte order mark at the start of a stream is
// dropped.
func TestLines(t *testing.T) {
	for _, s := range []string{"a\n::add-mask::b", "a\r::add-mask::b", "a\r\n::add-mask::b", "\xef\xbb\xbf::add-mask::b", "\n\n::add-mask::b\n"} {
		require.Len(t, printed(s).Commands, 1, "%q", s)
	}
	for _, s := range []string{"a\v::add-mask::b", "a\f::add-mask::b", "a\u2028::add-mask::b", "a\u0085::add-mask::b", "a\x00::add-mask::b"} {
		require.Empty(t, printed(s).Commands, "%q", s)
	}
	require.Equal(t, []string{"", "a", "", "b\ufffd"}, printed("\na\r\n\rb\xff").Log)
}

func TestWhatCommandsDo(t *testing.T) {
	r := printed("::set-output name=a::1", "##[set-output name=A]2", "::save-state name=s::t", "::add-mask::one%0A two ", "::debug::x", "::group::g", "::endgroup::x")
	require.Equal(t, map[string]string{"A": "2"}, r.Outputs)
	require.Equal(t, map[string]string{"s": "t"}, r.State)
	require.Equal(t, []string{"one\n two ", "one", "two"}, r.Masks)
	require.Equal(t, []string{"##[group]g", "##[endgroup]"}, r.Log)
	require.False(t, r.Failed)
	require.NotEmpty(t, r.Untouched())
	require.Empty(t, printed("nothing", ":: :: ::", "## [x]").Untouched())

	r = printed("::add-mask::e", "here", "::notice::gen")
	require.Equal(t, "h***r***", r.Log[0])
	require.Equal(t, "g***n", r.Annotations[0].Message)

	for _, line := range []string{"::set-env name=a::b", "::add-path::/x", "::set-output::b", "::save-state::b", "::echo::maybe", "::stop-commands::", "::stop-commands::Error", "::stop-commands::pause-logging"} {
		r := printed(line)
		require.True(t, r.Failed, line)
		require.Equal(t, "error", r.Annotations[0].Level, line)
		require.Empty(t, r.Env)
	}
	r = New()
	r.Insecure = true
	r.Print([]byte("::set-env name=a::b\n::set-env name=node_options::x\n::add-path::/x"))
	require.Equal(t, map[string]string{"a": "b"}, r.Env)
	require.Equal(t, []string{"/x"}, r.Paths)
	require.Len(t, r.Annotations, 1, "NODE_OPTIONS is refused")
}

func TestStopCommands(t *testing.T) {
	r := printed("::stop-commands::0123456", "::set-output name=a::b", "##[error]x", "::0123456::", "::set-output name=c::d")
	require.Equal(t, map[string]string{"c": "d"}, r.Outputs)
	require.Empty(t, r.Annotations)
	require.Equal(t, []string{"0123456"}, r.Masks)
	require.Equal(t, []string{"::set-output name=a::b", "##[error]x", "::***::"}, r.Log)
	require.Empty(t, printed("::stop-commands::012345").Masks, "a short token is not masked")
	require.Empty(t, printed("::stop-commands::Tok", "##[tOK]x", "::set-output name=a::b", "::tok::").token, "resumed in the old syntax and any case")
}

func TestAnnotations(t *testing.T) {
	var lines []string
	for i := range 12 {
		lines = append(lines, fmt.Sprintf("::error::%d", i), fmt.Sprintf("::notice::%d", i))
	}
	r := printed(append(lines, "::warning file=f.go,line=3,title=T::"+strings.Repeat("\U0001f600", 3000))...)
	require.Len(t, r.Annotations, 21, "ten of each level")
	require.Equal(t, 4, r.Lost)
	last := r.Annotations[20]
	require.Equal(t, map[string]string{"file": "f.go", "line": "3", "title": "T"}, last.Properties)
	require.Equal(t, MaxMessage/2, strings.Count(last.Message, "\U0001f600"), "4096 units of UTF-16")
}

func TestMatchers(t *testing.T) {
	for line, owner := range map[string]string{
		"/a/b.go:1:2: msg":                     "go",
		"prefix: ./b.go:1:2: msg":              "go",
		`"\nx.go: msg`:                         "go",
		"\x1b[31m/b.go:1:2: red":               "go",
		"\x0033[31m/b.go:1:2: red":             "go",
		"b.go:1:2: msg":                        "",
		"/b.go:1: msg":                         "",
		"/b.go:1:2:msg":                        "",
		"/b.go:1:2:  ":                         "",
		"x: main.c:1:2: error: msg":            "gcc",
		"main.c:1: warning: msg":               "gcc",
		"src/a.ts(1,2): error TS1: msg":        "tsc",
		"src/a.ts:1:2 - info TS1: msg":         "", // matched, but of no level that there is
		"A.cs(1,2,3,4): warning CS1: m [p]":    "csc",
		"a.js: line 1, col 2, Error - m (rul)": "eslint-compact",
		"nothing at 12:34:56":                  "",
	} {
		r := printed(line)
		if owner == "" {
			require.Empty(t, r.Annotations, "%q", line)
			continue
		}
		require.Len(t, r.Annotations, 1, "%q", line)
		require.Equal(t, owner, r.Annotations[0].Matcher, "%q", line)
	}
	r := printed("/a/b.go:1:2: msg")
	require.Equal(t, map[string]string{"file": "/a/b.go", "line": "1", "col": "2"}, r.Annotations[0].Properties)
	require.Equal(t, []string{"##[error]/a/b.go:1:2: msg"}, r.Log)
	require.Equal(t, []string{"##[error]/b.go:1:2: \x1b[1mred"}, printed("\x0033[31;1m/b.go:1:2: \x1b[1mred").Log, "colours are not stripped, something else is")
	require.Empty(t, printed("::remove-matcher owner=go::", "/a/b.go:1:2: msg").Annotations)
}

func TestFileCommands(t *testing.T) {
	for text, want := range map[string][]Pair{
		"":                                nil,
		"\n\na=b\n\n":                     {{"a", "b"}},
		"a=b=c":                           {{"a", "b=c"}},
		"a=b<<c\n":                        {{"a", "b<<c"}},
		"a=\r\n":                          {{"a", "\r"}},
		"=b\n":                            {{"", "b"}},
		"a<<E\n1\n\n2\nE\nb=c":            {{"a", "1\n\n2"}, {"b", "c"}},
		"a<<E\nE":                         {{"a", ""}},
		"a<<E<<F\nx\nE<<F\n":              {{"a", "x"}},
		"a<<E\n E\nE \nE\n":               {{"a", " E\nE "}},
		"\xef\xbb\xbfa=b":                 {{"a", "b"}},
		"v<<D\nx\nD\nv<<D\nforged\nD\n":   {{"v", "x"}, {"v", "forged"}},
		"a<<E\n\r\nE\nb<<E\r\nz\nE\r\n":   {{"a", "\r"}, {"b", "z"}},
		"a =b\n":                          {{"a ", "b"}},
		"a<<_\ninvalid \xff utf-8\n_\n":   {{"a", "invalid \ufffd utf-8"}},
		"a<<E\nkey=value\nk<<X\nE\nb=c":   {{"a", "key=value\nk<<X"}, {"b", "c"}},
		"a=b\nname<<E\ntext\nE\nname=c\n": {{"a", "b"}, {"name", "text"}, {"name", "c"}},
	} {
		got, err := ParsePairs([]byte(text))
		require.NoError(t, err, "%q", text)
		require.Equal(t, want, got, "%q", text)
	}
	for _, text := range []string{"a=b\nnonsense", "a=b\n<<E\nE", "a=b\nc<<\nx", "a=b\nc<<E\nx\n", "a=b\nc<<E\nx", "a=b\nc<<E\nx\nE ", "a=b\n \n"} {
		got, err := ParsePairs([]byte(text))
		require.Error(t, err, "%q", text)
		require.Equal(t, []Pair{{"a", "b"}}, got, "what came before counts: %q", text)
	}
}

func TestFilesOfAStep(t *testing.T) {
	r := New()
	r.OutputFile([]byte("verdict=fail\nVERDICT=pass\n"))
	r.EnvFile([]byte("A=1\na=2\nnode_options=x\n"))
	r.StateFile([]byte("s=t"))
	r.PathFile([]byte("/a\r\n\n/b"))
	require.Equal(t, map[string]string{"VERDICT": "pass"}, r.Outputs, "the last write wins, in any case")
	require.Equal(t, map[string]string{"A": "1", "a": "2"}, r.Env)
	require.Equal(t, map[string]string{"s": "t"}, r.State)
	require.Equal(t, []string{"/a", "/b"}, r.Paths)
	require.Len(t, r.Annotations, 1)
	require.False(t, r.Failed)

	r.OutputFile([]byte("=x\n"))
	require.True(t, r.Failed)
}

func TestSummary(t *testing.T) {
	r := printed("::add-mask::secret")
	r.SummaryFile([]byte("a secret\n"))
	require.Equal(t, "a ***\n", r.Summary)
	r.SummaryFile(make([]byte, MaxSummary))
	require.Len(t, r.Annotations, 0)
	r = New()
	r.SummaryFile(make([]byte, MaxSummary+1))
	require.Empty(t, r.Summary)
	require.Equal(t, "error", r.Annotations[0].Level)
}

// FuzzRunner: no input stops the model, and what it makes of it keeps the limits.
func FuzzRunner(f *testing.F) {
	for _, s := range []string{"::set-output name=a::b", "##[add-mask]x\r::error::y", "a<<E\nb\nE\n", "::stop-commands::x\n::x::", "/b.go:1:2: m", "::warning =,==a=::"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := New(Matchers()...)
		r.Insecure = true
		r.Print(b)
		r.OutputFile(b)
		r.EnvFile(b)
		r.StateFile(b)
		r.PathFile(b)
		r.SummaryFile(b)
		levels := map[string]int{}
		for _, a := range r.Annotations {
			levels[a.Level]++
			require.LessOrEqual(t, levels[a.Level], MaxAnnotations)
		}
		if len(r.Commands) > 0 {
			s := decode(b)
			require.True(t, strings.ContainsAny(s, ":#"), "a command of nothing")
		}
	})
}
