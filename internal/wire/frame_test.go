package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func header(n uint32, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, n), body...)
}

func TestFrameReader(t *testing.T) {
	var size *SizeError
	tests := map[string]struct {
		in   []byte
		max  int
		want error
		as   any
	}{
		"nothing":          {in: nil, want: io.EOF},
		"zero":             {in: header(0), want: ErrFrameEmpty},
		"half a header":    {in: []byte{0, 0}, want: ErrFrameTruncated},
		"header alone":     {in: header(5), want: ErrFrameTruncated},
		"truncated body":   {in: header(5, 1, 2), want: ErrFrameTruncated},
		"one over the cap": {in: header(9, make([]byte, 9)...), max: 8, as: &size},
		"over MaxFrame":    {in: header(MaxFrame + 1), as: &size},
		"all ones":         {in: header(0xffffffff), as: &size},
		"at the cap":       {in: header(8, make([]byte, 8)...), max: 8},
		"one byte":         {in: header(1, 'x')},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			body, err := NewFrameReader(bytes.NewReader(tt.in), tt.max, 0).Read()
			switch {
			case tt.as != nil:
				require.ErrorAs(t, err, tt.as)
			case tt.want != nil:
				require.ErrorIs(t, err, tt.want)
			default:
				require.NoError(t, err)
				require.Equal(t, tt.in[4:], body)
			}
		})
	}
}

func TestDripDoesNotExtendTheDeadline(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		defer far.Close()
		for _, c := range header(1000, make([]byte, 1000)...) {
			if _, err := far.Write([]byte{c}); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	begin := time.Now()
	_, err := NewFrameReader(near, 0, 100*time.Millisecond).Read()
	require.ErrorIs(t, err, ErrFrameTimeout)
	require.Less(t, time.Since(begin), 2*time.Second)
}

func TestNoDeadlineBetweenFrames(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	fr := NewFrameReader(near, 0, 20*time.Millisecond)
	go func() {
		defer far.Close()
		for range 2 {
			time.Sleep(60 * time.Millisecond) // longer than a frame may take
			if WriteFrame(far, []byte("x")) != nil {
				return
			}
		}
	}()
	for range 2 {
		body, err := fr.Read()
		require.NoError(t, err)
		require.Equal(t, "x", string(body))
	}
}

// A peer that announces much and sends little must cost little.
func TestAnnouncedLengthIsNotTrusted(t *testing.T) {
	in := header(MaxFrame, make([]byte, 10)...)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 16 {
		_, err := NewFrameReader(bytes.NewReader(in), 0, 0).Read()
		require.ErrorIs(t, err, ErrFrameTruncated)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16*2*growStep))
}

func TestWriteFrameRefusals(t *testing.T) {
	require.ErrorIs(t, WriteFrame(io.Discard, nil), ErrFrameEmpty)
	var size *SizeError
	require.ErrorAs(t, WriteFrame(io.Discard, make([]byte, MaxFrame+1)), &size)
	_, err := AppendFrame([]byte("kept"), nil)
	require.ErrorIs(t, err, ErrFrameEmpty)
}

type writes struct{ n int }

func (w *writes) Write(p []byte) (int, error) { w.n++; return len(p), nil }

func TestOneWritePerFrame(t *testing.T) {
	var w writes
	require.NoError(t, WriteFrame(&w, []byte("body")))
	require.Equal(t, 1, w.n, "two writes would interleave under concurrency")
}

func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bodies := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 1, 2000)).Draw(t, "bodies")
		var b bytes.Buffer
		for _, body := range bodies {
			if err := WriteFrame(&b, body); err != nil {
				t.Fatal(err)
			}
		}
		fr := NewFrameReader(&b, 0, 0)
		for _, want := range bodies {
			got, err := fr.Read()
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%x, %v", got, err)
			}
		}
		if _, err := fr.Read(); err != io.EOF {
			t.Fatalf("after the last frame: %v", err)
		}
	})
}

func FuzzFrameReader(f *testing.F) {
	f.Add(header(3, 'a', 'b', 'c'), 16)
	f.Add(header(0), 16)
	f.Add(header(0xffffffff, 1), 0)
	f.Add(append(header(1, 'x'), header(2, 'y')...), 1)
	f.Fuzz(func(t *testing.T, in []byte, max int) {
		fr := NewFrameReader(bytes.NewReader(in), max, time.Second)
		used := 0
		for {
			body, err := fr.Read()
			if err != nil {
				return
			}
			if max > 0 && len(body) > max || len(body) > MaxFrame || len(body) == 0 {
				t.Fatalf("a body of %d bytes under a cap of %d", len(body), max)
			}
			if !bytes.Equal(body, in[used+4:used+4+len(body)]) {
				t.Fatal("a body that was not sent")
			}
			used += 4 + len(body)
		}
	})
}

func TestAwaitPreamble(t *testing.T) {
	n := NewNonce()
	other := Preamble(NewNonce())
	// A nonce that looks like the magic, so that a search without memory of
	// what it has seen would step over the real one.
	var tricky Nonce
	copy(tricky[:], Magic)
	tests := map[string]struct {
		before  []byte
		nonce   Nonce
		limit   int64
		discard int64
		err     error
	}{
		"at once":         {nil, n, 0, 0, nil},
		"after junk":      {bytes.Repeat([]byte("junk"), 10), n, 100, 40, nil},
		"after half":      {Magic[:7], n, 100, 7, nil},
		"after old echo":  {other, n, 100, PreambleSize, nil},
		"magic twice":     {Magic, n, 100, int64(len(Magic)), nil},
		"tricky nonce":    {append(bytes.Clone(Magic), Magic...), tricky, 100, 2 * int64(len(Magic)), nil},
		"too much junk":   {make([]byte, 101), n, 100, 101, ErrNoPreamble},
		"exactly allowed": {make([]byte, 100), n, 100, 100, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := bufio.NewReader(bytes.NewReader(append(append(bytes.Clone(tt.before), Preamble(tt.nonce)...), "rest"...)))
			d, err := AwaitPreamble(r, tt.nonce, tt.limit)
			require.Equal(t, tt.discard, d)
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, "rest", string(rest), "nothing after the preamble is consumed")
		})
	}
	_, err := AwaitPreamble(bytes.NewReader(Preamble(n)[:20]), n, 100)
	require.ErrorIs(t, err, io.EOF)
}

func TestAwaitPreambleFindsItWhereverItIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Nonce
		copy(n[:], rapid.SliceOfN(rapid.SampledFrom([]byte{0xff, 0xfe, 'B', 'S', 0}), NonceSize, NonceSize).Draw(t, "nonce"))
		junk := rapid.SliceOf(rapid.SampledFrom(append(bytes.Clone(Magic), 0, 1))).Draw(t, "junk")
		stream := append(bytes.Clone(junk), Preamble(n)...)
		for _, r := range []io.ByteReader{bytes.NewReader(stream), bufio.NewReaderSize(bytes.NewReader(stream), 16)} {
			d, err := AwaitPreamble(r, n, int64(len(stream)))
			if err != nil || d != int64(bytes.Index(stream, Preamble(n))) {
				t.Fatalf("found after %d, %v", d, err)
			}
		}
	})
}

func TestMagicCannotBeginAFrameUnderTheCap(t *testing.T) {
	require.Greater(t, binary.BigEndian.Uint32(Magic), uint32(MaxFrame))
}
