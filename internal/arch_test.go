package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/brainst0rm/sandbox-redteam/"

// pkg is what `go list` says of one package of this module.
type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	require.NoError(t, err, errOut.String())
	var list []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		list = append(list, p)
	}
}

// under reports whether path is dir or lies below it.
func under(path string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return path == d || strings.HasPrefix(path, d+"/") })
}

// rule forbids imports; it returns why, or "".
type rule func(from, to string) string

// concrete reports whether path is one backend, not the contract or its suite.
func concrete(path string) bool {
	return under(path, "backends") && path != "backends" && !under(path, "backends/catalog", "backends/backendtest")
}

// oneProbe reports whether path is one probe, not the contract, runner or list.
func oneProbe(path string) bool {
	return under(path, "probes") && path != "probes" && !under(path, "probes/runner", "probes/catalog")
}

// top are the packages that only the command line and tests of the whole use.
var top = []string{"internal/cli", "internal/calibrate", "internal/gate", "internal/report", "internal/actions", "internal/compare", "internal/merge"}

// leaf reports whether path is an internal package that knows neither probes nor
// concrete backends: not of the top, no generator of docs, no helper of tests.
func leaf(path string) bool {
	return under(path, "internal") && !under(path, append(slices.Clone(top), "internal/probedoc")...) && !strings.HasSuffix(path, "test")
}

var rules = []rule{
	func(from, to string) string {
		if oneProbe(from) && concrete(to) {
			return "a probe never imports a concrete backend"
		}
		return ""
	},
	func(from, to string) string {
		if under(from, "backends") && under(to, "probes") {
			return "a backend never imports probes"
		}
		return ""
	},
	func(from, to string) string {
		if leaf(from) && (under(to, "probes") || concrete(to) || under(to, "backends/catalog")) {
			return "an internal leaf imports neither probes nor concrete backends"
		}
		return ""
	},
	func(from, to string) string {
		if under(to, "internal/cli") && from != "internal/cli" && !under(from, "cmd") {
			return "only commands import the command line"
		}
		return ""
	},
	func(from, to string) string {
		if (under(from, "backends", "probes") || leaf(from)) && under(to, top...) {
			return "imports point from the command line down"
		}
		return ""
	},
	func(from, to string) string {
		if under(from, "cmd/bsm-redteam") && strings.Contains(to, "/payload") {
			return "attack tools are not linked into bsm-redteam"
		}
		return ""
	},
	func(from, to string) string {
		if strings.HasSuffix(from, "/payload") && !under(to, "internal/wire", "internal/attack") && !strings.HasSuffix(to, "/payload") {
			return "a payload imports wire and attack types only"
		}
		return ""
	},
}

// owners name the only importer of a third-party module.
var owners = map[string]string{
	"github.com/sethvargo/go-githubactions": "internal/actions",
	"github.com/jstemmer/go-junit-report":   "internal/report/junit",
	"github.com/Code-Hex/vz":                "backends/vf",
}

func TestImportsPointOneWay(t *testing.T) {
	list := packages(t)
	require.Greater(t, len(list), 20)
	for _, p := range list {
		for _, imported := range p.Imports {
			if to, ours := strings.CutPrefix(imported, module); ours {
				for _, r := range rules {
					require.Empty(t, r(p.ImportPath, to), "%s imports %s", p.ImportPath, to)
				}
				continue
			}
			for dep, owner := range owners {
				if under(imported, dep) {
					require.Equal(t, owner, p.ImportPath, "only %s imports %s", owner, dep)
				}
			}
		}
	}
}

// TestTheRulesBite: each rule refuses what it is there for.
func TestTheRulesBite(t *testing.T) {
	for _, bad := range [][2]string{
		{"probes/egress", "backends/qemu"}, {"backends/qemu", "probes"}, {"backends/bwrap", "probes/egress"},
		{"internal/canary", "probes"}, {"internal/guest", "backends/mock"}, {"internal/report", "internal/cli"},
		{"probes/runner", "internal/gate"}, {"cmd/bsm-redteam", "probes/egress/payload"}, {"probes/egress/payload", "internal/canary"},
	} {
		broken := slices.ContainsFunc(rules, func(r rule) bool { return r(bad[0], bad[1]) != "" })
		require.True(t, broken, "%s may import %s", bad[0], bad[1])
	}
	for _, good := range [][2]string{
		{"probes/egress", "backends"}, {"backends/qemu", "internal/guest"}, {"probes/runner", "probes"}, {"internal/cli", "backends/catalog"},
		{"probes/egress/payload", "internal/wire"}, {"cmd/bsm-agent", "probes/egress/payload"},
	} {
		broken := slices.ContainsFunc(rules, func(r rule) bool { return r(good[0], good[1]) != "" })
		require.False(t, broken, "%s may not import %s", good[0], good[1])
	}
}

// TestTheCommandLinksNoAttack follows the imports of bsm-redteam to their end.
func TestTheCommandLinksNoAttack(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/bsm-redteam")
	cmd.Dir = ".."
	out, err := cmd.Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Greater(t, len(deps), 50)
	for _, dep := range deps {
		require.False(t, strings.HasPrefix(dep, module) && strings.HasSuffix(dep, "/payload"), dep)
	}
}
