package untrusted

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func quietly(t require.TestingT, v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(v))
	got := JSON(b.Bytes())
	var back any
	require.NoError(t, json.Unmarshal(got, &back), "%s", got)
	var want any
	require.NoError(t, json.Unmarshal(b.Bytes(), &want))
	require.Equal(t, want, back, "%s", got)
	return got
}

func TestJSONMeansTheSameAndIsQuiet(t *testing.T) {
	for _, s := range []string{"x ##[add-mask]y", "####[[", "/a.go:1:2: x", "\n/a.go: x", "a\u202eb\u200b\u009b2J\u007f", "\U000e0041", "e\u0301", `"\\" ##[error]`, `\`, "main.c:1:2: error: x"} {
		got := quietly(t, map[string]any{s: []string{s, s}, "n": 1.5, "b": true})
		require.Empty(t, annotated(string(got)), "%s", got)
		require.NotContains(t, string(got), "##")
	}
	require.Equal(t, `{"plain": "naïve #1: ok", "n": [1,2]}`+"\n", string(JSON([]byte(`{"plain": "naïve #1: ok", "n": [1,2]}`+"\n"))), "what is harmless stays as it is")
	word := rapid.SampledFrom([]string{".go:", ":", "1", " ", "(", "error", "/", "\\", `"`, "#", "[", "]", "add-mask", "::", "\n", "\x00", "\u200b", "\U000e0001", "x"})
	rapid.Check(t, func(t *rapid.T) {
		v := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(t, "keys") {
			s := ""
			for _, w := range rapid.SliceOf(word).Draw(t, "words") {
				s += w
			}
			v[s] = s
		}
		got := quietly(t, v)
		require.Empty(t, annotated(string(got)), "%s", got)
	})
}

// No bytes make it loop or panic, also when they are no JSON.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a":"##[b]"`))
	f.Add([]byte(`"\`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := JSON(b)
		var want, back any
		if json.Unmarshal(b, &want) == nil {
			require.NoError(t, json.Unmarshal(got, &back))
			require.Equal(t, want, back)
		}
	})
}
