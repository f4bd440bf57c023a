package mock

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPipeCarriesAll(t *testing.T) {
	near, far := newPipe()
	want := bytes.Repeat([]byte("0123456789"), pipeBuffer/3)
	go func() {
		_, _ = near.Write(want)
		_ = near.Close()
	}()
	got, err := io.ReadAll(far)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	_, err = far.Write([]byte("x"))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	_, err = near.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.ErrClosedPipe)
}

func TestPipeDeadlines(t *testing.T) {
	near, far := newPipe()
	defer far.Close()
	b := make([]byte, 1)
	require.NoError(t, near.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
	_, err := near.Read(b)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, near.SetReadDeadline(time.Time{}))
	go func() { _, _ = far.Write([]byte("y")) }()
	_, err = near.Read(b)
	require.NoError(t, err)

	require.NoError(t, near.SetWriteDeadline(time.Now().Add(5*time.Millisecond)))
	n, err := near.Write(make([]byte, 2*pipeBuffer))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, pipeBuffer, n)
}

func TestPipeCloseWakesBoth(t *testing.T) {
	near, far := newPipe()
	done := make(chan error, 2)
	go func() { _, err := near.Read(make([]byte, 1)); done <- err }()
	go func() { _, err := near.Write(make([]byte, 2*pipeBuffer)); done <- err }()
	require.NoError(t, near.Close())
	require.ErrorIs(t, <-done, io.ErrClosedPipe)
	require.ErrorIs(t, <-done, io.ErrClosedPipe)
	require.NoError(t, far.Close())
}
