package sarif

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// The schema of the standard is taken from a Go module that holds it as a
// constant: the go command, which runs this test, fetches and keeps it. Nothing
// of the module is compiled. The digest is that of sarif-2.1/schema in
// oasis-tcs/sarif-spec.
const (
	schemaModule = "github.com/owenrumney/go-sarif/v3@v3.3.0"
	moduleSum    = "h1:p5oSxEV0uPWBRpAspTmwWr4t1YZyKUpdoFzSB7WE90A="
	schemaIn     = "pkg/report/v210/sarif/schema.go"
	schemaSHA256 = "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"
)

// oasis returns the schema of the standard. Without it the test is skipped, or
// fails where BSM_REQUIRE has "sarif-schema".
func oasis(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := fetchSchema(t.TempDir())
	if err != nil {
		testreq.Lacks(t, "sarif-schema", fmt.Errorf("%w; fix: go online once, or run `go mod download %s` in any module", err, schemaModule))
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(schema, doc))
	s, err := c.Compile(schema)
	require.NoError(t, err)
	return s
}

func fetchSchema(dir string) (string, error) {
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module schema\n"), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "mod", "download", "-json", schemaModule)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	var got struct{ Dir, Sum, Error string }
	if decodeErr := json.Unmarshal(out, &got); decodeErr != nil || got.Error != "" {
		return "", fmt.Errorf("download %s: %w", schemaModule, errors.Join(err, decodeErr, errors.New(got.Error)))
	}
	if got.Sum != moduleSum {
		return "", fmt.Errorf("%s has the sum %s, not %s", schemaModule, got.Sum, moduleSum)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(got.Dir, schemaIn), nil, 0)
	if err != nil {
		return "", err
	}
	var text string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && len(lit.Value) > len(text) {
			text = lit.Value
		}
		return true
	})
	if text, err = strconv.Unquote(text); err != nil {
		return "", err
	}
	if sum := sha256.Sum256([]byte(text)); hex.EncodeToString(sum[:]) != schemaSHA256 {
		return "", fmt.Errorf("the schema in %s is not the known one", schemaModule)
	}
	return text, nil
}

func TestMatchesTheSchemaOfTheStandard(t *testing.T) {
	s := oasis(t)
	validate := func(b []byte) error {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		require.NoError(t, err)
		return s.Validate(doc)
	}
	for name, r := range reporttest.All() {
		for _, o := range []Options{{}, {PolicyPath: "policies/a b%.yaml"}, {WorkflowPath: "ci:x.yml"}} {
			b, err := Encode(r, o)
			require.NoError(t, err)
			require.NoError(t, validate(b), "%s %+v", name, o)
		}
	}
	b, err := Encode(reporttest.Failing(), Options{})
	require.NoError(t, err)
	for _, bad := range [][2]string{
		{`"2.1.0"`, `"2.1"`}, {`"level": "error"`, `"level": "bad"`}, {`"startLine": 1`, `"startLine": 0`},
		{`"ruleId"`, `"ruleID"`}, {`"rules": [`, `"rules": null, "x": [`}, {`"endTimeUtc": "2026`, `"endTimeUtc": "soon`},
	} {
		broken := bytes.Replace(b, []byte(bad[0]), []byte(bad[1]), 1)
		require.NotEqual(t, string(b), string(broken))
		require.Error(t, validate(broken), bad[1])
	}
}
