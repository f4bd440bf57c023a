package columns

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAlign(t *testing.T) {
	require.Equal(t, "a    bb\nccc  d\ne\n", Align([][]string{{"a", "bb"}, {"ccc", "d"}, {"e"}}))
}
