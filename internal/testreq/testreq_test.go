package testreq

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// fake records how Need ended a test without ending this one.
type fake struct {
	testing.TB
	skipped, failed string
}

func (f *fake) Helper()                      {}
func (f *fake) Skipf(s string, args ...any)  { f.skipped = fmt.Sprintf(s, args...) }
func (f *fake) Fatalf(s string, args ...any) { f.failed = fmt.Sprintf(s, args...) }

func TestNeed(t *testing.T) {
	const absent = "bsm-no-such-binary"
	for _, c := range []struct {
		name, require, need string
		skipped, failed     string
	}{
		{"present", "", "sh", "", ""},
		{"present and required", "sh", "sh", "", ""},
		{"absent", "", absent, "apt-get install " + absent, ""},
		{"absent, another one required", "sh,bwrap", absent, "not in PATH", ""},
		{"absent and required", "sh, " + absent, absent, "", "this job requires " + absent},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(EnvVar, c.require)
			f := &fake{}
			Need(f, c.need)
			if c.skipped == "" {
				require.Empty(t, f.skipped)
			}
			if c.failed == "" {
				require.Empty(t, f.failed)
			}
			require.Contains(t, f.skipped, c.skipped)
			require.Contains(t, f.failed, c.failed)
		})
	}
}

func TestLacks(t *testing.T) {
	err := errors.New("no network; fix: go online")
	t.Setenv(EnvVar, "")
	f := &fake{}
	Lacks(f, "a schema", err)
	require.Equal(t, fake{skipped: "needs a schema: no network; fix: go online"}, *f)
	t.Setenv(EnvVar, "x,a schema")
	f = &fake{}
	Lacks(f, "a schema", err)
	require.Equal(t, fake{failed: "this job requires a schema (BSM_REQUIRE=x,a schema): no network; fix: go online"}, *f)
}

func TestDebianNames(t *testing.T) {
	require.Equal(t, "bubblewrap", debian("bwrap"))
	require.Equal(t, "qemu-system-x86", debian("qemu-system-x86_64"))
	require.Equal(t, "docker.io", debian("dockerd"))
	require.Equal(t, "gvisor", debian("gvisor"))
}
