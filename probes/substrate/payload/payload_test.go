//go:build linux

package payload

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func call(t *testing.T, dirs []string, marker string, write bool) *wire.PayloadReport {
	t.Helper()
	p := attack.SubstrateAnchorParams{Nonce: wire.NewNonceString(), Marker: marker, Drop: write}
	params, err := json.Marshal(p)
	require.NoError(t, err)
	var stdout bytes.Buffer
	require.Zero(t, run(wire.ToolInput{Params: params, Stdout: &stdout}, dirs))
	r, err := wire.ParsePayloadReport(stdout.Bytes(), attack.SubstrateAnchor, p.Nonce)
	require.NoError(t, err)
	return r
}

func TestMarker(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "absent"), t.TempDir()}
	marker := wire.NewNonceString()

	r := call(t, dirs, marker, false)
	require.True(t, r.Proved(attack.AnchorCase))
	require.Equal(t, wire.ResultAbsent, r.Attempts[1].Result)

	r = call(t, dirs, marker, true)
	require.Equal(t, wire.ResultAbsent, r.Attempts[0].Result)
	require.Equal(t, wire.ResultOK, r.Attempts[1].Result)

	r = call(t, dirs, marker, false)
	require.Equal(t, wire.ResultOK, r.Attempts[1].Result)
	left, err := os.ReadDir(dirs[1])
	require.NoError(t, err)
	require.Len(t, left, 1, "the proof leaves nothing of its own")
}

func TestNoPlaceToWriteIsNoProof(t *testing.T) {
	r := call(t, []string{filepath.Join(t.TempDir(), "absent")}, wire.NewNonceString(), true)
	require.False(t, r.Proved(attack.AnchorCase))
}

func TestBadParameters(t *testing.T) {
	for _, params := range []string{`[]`, `{}`, `{"marker":"../../../../../../etc/passwd/0000"}`} {
		var stderr bytes.Buffer
		require.Equal(t, 2, run(wire.ToolInput{Params: []byte(params), Stderr: &stderr}, nil))
	}
}
