package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestEveryDefaultIsValid(t *testing.T) {
	list, err := defaults.ReadDir("defaults")
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, e := range list {
		p, err := Default(strings.TrimSuffix(e.Name(), ".yaml"), backends.Limits{})
		require.NoError(t, err, e.Name())
		require.NotEmpty(t, p.Name)
		require.Positive(t, p.Limits.MemoryBytes, "a boundary without a memory limit cannot be tested for one")
	}
}

func TestDefaultFillsFromTheBackend(t *testing.T) {
	p, err := Default("nothing-of-the-kind", backends.Limits{Pids: 7})
	require.NoError(t, err)
	require.Equal(t, Policy{Name: "nothing-of-the-kind default", Limits: backends.Limits{Pids: 7}}, p)
	p, err = Default("mock", backends.Limits{MemoryBytes: 1, OpenFiles: 9})
	require.NoError(t, err)
	require.Equal(t, int64(64<<20), p.Limits.MemoryBytes, "the file goes first")
	require.Equal(t, 9, p.Limits.OpenFiles)
}

func TestParse(t *testing.T) {
	p, err := Parse([]byte(`
name: mine
limits: {memory: 256MiB, pids: 64, cpus: 1.5, disk: 1 GB, open_files: 1024}
egress: {promise: filtered, allow: [example.invalid:443], proxy: "http://127.0.0.1:3128"}
mounts: [{inside: /out, read_only: true}]
output: /out
user: nobody
capabilities: [CAP_CHOWN]
runtime: gvisor
allow_targets: [resolver]
leaks: [net]
`), Policy{})
	require.NoError(t, err)
	require.Equal(t, Policy{
		Name: "mine", Limits: backends.Limits{MemoryBytes: 256 << 20, Pids: 64, CPUs: 1.5, DiskBytes: 1e9, OpenFiles: 1024},
		Egress: Egress{Promise: "filtered", Allow: []string{"example.invalid:443"}, Proxy: "http://127.0.0.1:3128"},
		Mounts: []Mount{{Inside: "/out", ReadOnly: true}}, Output: "/out", User: "nobody",
		Capabilities: []string{"CAP_CHOWN"}, Runtime: "gvisor", AllowTargets: []string{"resolver"}, Leaks: []string{"net"},
	}, p)
}

func TestParseKeepsWhatIsNotMentioned(t *testing.T) {
	p, err := Parse([]byte("limits: {memory: 1MiB}\n"), Policy{Name: "base", Limits: backends.Limits{Pids: 5, MemoryBytes: 7}})
	require.NoError(t, err)
	require.Equal(t, Policy{Name: "base", Limits: backends.Limits{Pids: 5, MemoryBytes: 1 << 20}}, p)
}

func TestParseRefuses(t *testing.T) {
	for doc, want := range map[string]string{
		"":                                       "empty",
		"limit: {}":                              `line 1: unknown key "limit"; did you mean "limits"?`,
		"limits:\n  memory_bytes: 3":             `line 2: unknown key "limits.memory_bytes"; did you mean "limits.memory"?`,
		"egress: {alow: [x]}":                    `unknown key "egress.alow"; did you mean "egress.allow"?`,
		"mounts: [{inside: /x, readonly: true}]": `unknown key "mounts.readonly"; did you mean "mounts.read_only"?`,
		"limits: {memory: lots}":                 `"lots" is no size, such as 256MiB`,
		"limits: {memory: -1}":                   "no size",
		"limits: {memory: 0.3}":                  "no size",
		"limits: {memory: NaN}":                  "no size",
		"limits: {memory: 99999999TiB}":          "no size",
		"limits: {memory: [1]}":                  "no size",
		"limits: {pids: -4}":                     "limits.pids: -4 is out of range",
		"limits: {cpus: .nan}":                   "limits.cpus",
		"limits: {pids: many}":                   "cannot unmarshal",
		"limits: 5":                              "want keys and values",
		"- a":                                    "want keys and values",
		"egress: {promise: all}":                 `egress.promise: "all" is not one of none, filtered, operator`,
		"mounts: [{inside: out}]":                "not an absolute path",
		"output: out":                            "output: \"out\" is not an absolute path",
		"capabilities: [chown]":                  "not a capability's name",
		"name: a\n---\nname: b":                  "this has more",
		"name: &a x\nuser: *a":                   "aliases",
		"<<: {name: x}":                          "unknown key",
		"name: a\nname: b":                       "already defined",
		"name: [":                                "yaml",
	} {
		_, err := Parse([]byte(doc), Policy{})
		require.ErrorContains(t, err, want, doc)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "p.yaml")
	require.NoError(t, os.WriteFile(file, []byte("limits: {pids: 9}\n"), 0o600))
	p, err := Load(file, "mock", backends.Limits{})
	require.NoError(t, err)
	require.Equal(t, "p.yaml", p.Name)
	require.Equal(t, backends.Limits{MemoryBytes: 64 << 20, Pids: 9}, p.Limits)
	_, err = Load(filepath.Join(dir, "no.yaml"), "mock", backends.Limits{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, make([]byte, maxFile+1), 0o600))
	_, err = Load(file, "mock", backends.Limits{})
	require.ErrorContains(t, err, "larger than")
}

// FuzzParse: nothing crashes the parser, and what it accepts is valid.
func FuzzParse(f *testing.F) {
	f.Add("name: x\nlimits: {memory: 1KiB}\n")
	f.Add("a: &a [*a]\n")
	f.Add("mounts: [{inside: /x}]")
	f.Fuzz(func(t *testing.T, doc string) {
		p, err := Parse([]byte(doc), Policy{})
		if err == nil {
			require.NoError(t, p.Validate())
		}
	})
}

// The digest is of what is declared, not of what it is called.
func TestDigest(t *testing.T) {
	a, err := Parse([]byte("name: a\nlimits: {memory: 1GiB}"), Policy{})
	require.NoError(t, err)
	b, err := Parse([]byte("name: b\nlimits: {memory: 1024MiB}"), Policy{})
	require.NoError(t, err)
	c, err := Parse([]byte("name: a\nlimits: {memory: 2GiB}"), Policy{})
	require.NoError(t, err)
	require.Regexp(t, `^[0-9a-f]{64}$`, a.Digest())
	require.Equal(t, a.Digest(), b.Digest())
	require.NotEqual(t, a.Digest(), c.Digest())
	require.Equal(t, "a", a.Name)
}
