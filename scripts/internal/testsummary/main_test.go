package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	passing = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"A","Elapsed":0.1}
`
	end = `{"Action":"pass","Package":"p","Elapsed":0.2}
`
)

func TestSummarize(t *testing.T) {
	tests := map[string]struct {
		in    string
		green bool
		want  []string
		not   []string
	}{
		"pass": {passing + end, true, []string{"1 tests: 1 passed, 0 failed, 0 skipped, in 1 packages"}, []string{"quiet"}},
		"skip is listed with its reason": {passing + `{"Action":"output","Package":"p","Test":"B","Output":"=== RUN   B\n"}
{"Action":"output","Package":"p","Test":"B","Output":"    b_test.go:3: needs kvm: no\n"}
{"Action":"skip","Package":"p","Test":"B"}
` + end, true, []string{"p.B: b_test.go:3: needs kvm: no", "1 passed, 0 failed, 1 skipped"}, nil},
		"failure is shown": {passing + `{"Action":"output","Package":"p","Test":"C","Output":"c_test.go:9: boom\n"}
{"Action":"fail","Package":"p","Test":"C"}
{"Action":"fail","Package":"p"}
`, false, []string{"c_test.go:9: boom", "failed:\n  p.C\n  p\n"}, nil},
		"package that fails without a test": {passing + `{"Action":"output","Package":"p","Output":"goleak: found leaks\n"}
{"Action":"fail","Package":"p"}
`, false, []string{"goleak: found leaks"}, nil},
		"does not build": {passing + end + `{"ImportPath":"q","Action":"build-output","Output":"q.go:1: syntax error\n"}
{"ImportPath":"q","Action":"build-fail"}
`, false, []string{"q.go:1: syntax error", "q (does not build)"}, nil},
		"killed in the middle": {`{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"A"}
`, false, []string{"p.A (never finished)"}, nil},
		"only skips": {`{"Action":"skip","Package":"p","Test":"B"}
{"Action":"pass","Package":"p"}
`, false, []string{"no test passed"}, nil},
		"package without tests": {passing + end + `{"Action":"skip","Package":"empty"}
`, true, []string{"0 skipped, in 1 packages"}, []string{"empty"}},
		"nothing":     {"", false, []string{"no test passed"}, nil},
		"plain lines": {"go: downloading x\n" + passing + end, true, []string{"go: downloading x"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s, err := summarize(strings.NewReader(tt.in), &out)
			require.NoError(t, err)
			require.Equal(t, tt.green, s.green(), out.String())
			for _, w := range tt.want {
				require.Contains(t, out.String(), w)
			}
			for _, w := range tt.not {
				require.NotContains(t, out.String(), w)
			}
		})
	}
}
