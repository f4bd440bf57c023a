package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPick(t *testing.T) {
	for doctor, want := range map[string]string{
		`{"backends":[{"backend":"bwrap","available":true},{"backend":"qemu","available":true}]}`:  "qemu",
		`{"backends":[{"backend":"qemu","available":false},{"backend":"bwrap","available":true}]}`: "bwrap",
		`{"backends":[{"backend":"mock","available":true},{"backend":"qemu","available":false}]}`:  "mock",
		`{"backends":[{"backend":"novel","available":true}]}`:                                      "mock",
	} {
		got, err := pick(strings.NewReader(doctor))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := pick(strings.NewReader("panic: no JSON"))
	require.Error(t, err)
}
