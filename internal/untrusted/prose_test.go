package untrusted

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestProseLeavesOurOwnTextsAlone(t *testing.T) {
	for _, s := range []string{"", "tcp4: the canary received the token", `the guest sent "a\x1b[2J"`, `C:\path`, "validated-qemu"} {
		require.Equal(t, s, Prose(s, 0))
	}
}

func TestProseIsOneLineOfPrintableASCII(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		got := Prose(s, len(s)+1)
		for i := range len(got) {
			require.True(t, got[i] >= 0x20 && got[i] < 0x7f, "byte %#x in %q", got[i], got)
		}
		require.NotContains(t, got, "##")
		require.NotRegexp(t, `^ *::`, got)
		if got != s {
			back, err := strconv.Unquote(`"` + got + `"`)
			require.NoError(t, err)
			require.Equal(t, s, back)
		}
	})
}

func TestProseSaysWhatItCut(t *testing.T) {
	got := Prose(strings.Repeat("a", 1000), 10)
	require.True(t, strings.HasPrefix(got, "aaaaaaaaaa (10 of 1000 bytes, sha256 "), got)
	require.True(t, strings.HasPrefix(Prose("\x00"+strings.Repeat("a", 1000), 3), `\x00aa (3 of 1001 bytes`))
}
