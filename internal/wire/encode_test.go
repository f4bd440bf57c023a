package wire

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What is written by hand is what encoding/json writes.
func TestEncodeByHandIsJSON(t *testing.T) {
	text := rapid.OneOf(rapid.StringMatching(`[ -~]{0,20}`), rapid.String(), rapid.Just("\xff\u2028<&>\x7f"))
	rapid.Check(t, func(t *rapid.T) {
		s := func(name string) string { return text.Draw(t, name) }
		n := func(name string) int64 { return rapid.Int64().Draw(t, name) }
		flag := rapid.Bool().Draw(t, "flag")
		raw := json.RawMessage(rapid.SampledFrom([]string{"{}", "null", ` { "a" : [ 1 , "<" ] } `, "{", "x", "7"}).Draw(t, "raw"))
		if rapid.Bool().Draw(t, "no raw") {
			raw = nil
		}
		for _, m := range []any{
			&Hello{Type: s("a"), Version: int(n("b")), AgentSHA256: s("c"), PID: int(n("d")), VM: flag, Arch: s("e"), BootID: s("f"), Epoch: s("g"),
				Tools: rapid.SliceOf(text).Draw(t, "tools")},
			&Hello{},
			&ToolDispatch{s("h"), s("i"), s("j"), raw, n("k")},
			&ToolResult{s("l"), s("m"), int(n("n")), s("o"), s("p"), s("q"), s("r"), s("s"), n("t"), n("u"), s("v"), s("w"), flag},
			&ToolResult{},
			&GuestQuery{s("x"), s("y"), s("z"), s("0")},
			&GuestResponse{s("1"), s("2"), raw},
			&OpenFDCount{int(n("3"))},
			&ResetSignal{s("4"), s("5"), s("6"), n("7"), rapid.SliceOf(rapid.Byte()).Draw(t, "entropy")},
			&ResetSignal{},
			&ResetAck{s("8"), s("9"), rapid.SliceOf(text).Draw(t, "applied")},
		} {
			want, wantErr := marshal(m)
			got, err := Encode(m)
			require.Equal(t, wantErr == nil, err == nil, "%+v", m)
			require.Equal(t, string(want), string(got))
			framed, err := EncodeFrame(m)
			require.Equal(t, wantErr == nil, err == nil, "%+v", m)
			if err == nil {
				want, err := AppendFrame(nil, want)
				require.NoError(t, err)
				require.Equal(t, string(want), string(framed))
			}
		}
	})
}
