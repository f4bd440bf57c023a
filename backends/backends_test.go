package backends

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every error type answers to its code, also when wrapped.
func TestErrorsCarryTheirCode(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code Code
	}{
		{Errorf(ErrBootFailed, "start qemu", "exit status %d", 1), ErrBootFailed},
		{&ToolTimeoutError{Tool: "x", Deadline: time.Second}, ErrToolTimeout},
		{&FrameTooLargeError{Declared: 1 << 30, Max: 1 << 24}, ErrFrameTooLarge},
		{&DivergenceError{Sources: []Source{SourceFSHash}}, ErrResetDivergence},
	} {
		wrapped := fmt.Errorf("outer: %w", tc.err)
		require.ErrorIs(t, wrapped, tc.code)
		require.Equal(t, tc.code, CodeOf(wrapped))
		require.Contains(t, tc.err.Error(), string(tc.code))
		for _, other := range Codes() {
			require.Equal(t, other == tc.code, errors.Is(wrapped, other))
		}
	}
	require.Empty(t, CodeOf(errors.New("plain")))
}

func TestFixIsFound(t *testing.T) {
	inner := &Error{Code: ErrNotAvailable, Doing: "find qemu", Fix: "apt-get install qemu-system-x86"}
	outer := fmt.Errorf("run: %w", &Error{Code: ErrNotAvailable, Doing: "preflight", Err: inner})
	require.Equal(t, inner.Fix, FixOf(outer))
	require.Empty(t, FixOf(errors.New("plain")))
}

// However a Text is printed or marshalled by accident, nothing in it acts.
func TestTextIsInert(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		text := NewText(b)
		for _, s := range []string{text.String(), fmt.Sprint(text), fmt.Sprintf("%v|%s|%+v", text, text, text)} {
			for i := range len(s) {
				require.True(t, s[i] >= 0x20 && s[i] < 0x7f)
			}
			require.NotContains(t, s, "##[")
		}
		j, err := json.Marshal(text)
		require.NoError(t, err)
		for _, c := range j {
			require.True(t, c >= 0x20 && c < 0x7f)
		}
		if len(b) <= previewBytes {
			back, err := strconv.Unquote(text.String())
			require.NoError(t, err)
			require.Equal(t, string(b), back)
		}
	})
}

func TestTextSaysWhatWasCut(t *testing.T) {
	text := NewText([]byte(strings.Repeat("x", 1000)))
	require.Contains(t, text.String(), "(200 of 1000 bytes, sha256 ")
	require.False(t, text.Truncated())
	cut := NewTruncatedText([]byte("ab"), 5000, [32]byte{1})
	require.True(t, cut.Truncated())
	require.EqualValues(t, 5000, cut.Len())
	require.True(t, strings.HasPrefix(cut.SHA256(), "01"))
}
