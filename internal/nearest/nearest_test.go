package nearest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTo(t *testing.T) {
	valid := []string{"mock", "qemu", "bwrap", "chv", "vf", "P-A1-net-egress", "P-A2-fs-escape", "P-LAT-boot"}
	for word, want := range map[string]string{
		"mok": "mock", "quemu": "qemu", "QEMU": "qemu", "bubblewrap": "bwrap", "chvv": "chv",
		"net-egress": "P-A1-net-egress", "P-A2-fs-scape": "P-A2-fs-escape", "lat-boot": "P-LAT-boot",
	} {
		require.Equal(t, want, To(word, valid), word)
	}
	require.Empty(t, To("x", nil))
	require.Equal(t, "a", To("", []string{"a", "bb"}))
	require.Equal(t, 3, distance("kitten", "sitting"))
}
