package report

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

const schemaFile = "../../docs/report.schema.json"

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(schemaFile)
	require.NoError(t, err)
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, doc []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	require.NoError(t, err)
	return s.Validate(v)
}

func TestReportsMatchTheSchema(t *testing.T) {
	s := schema(t)
	whole, err := Encode(sample())
	require.NoError(t, err)
	require.NoError(t, validate(t, s, whole))
	empty, err := Encode(probes.Report{SchemaVersion: "1.0", GeneratedAt: "2026-04-27T12:00:00.000Z", Backend: "chv", FinalSandboxState: "not_booted"})
	require.NoError(t, err)
	require.NoError(t, validate(t, s, empty))
	peer, err := os.ReadFile("testdata/peer-shape.json")
	require.NoError(t, err)
	require.NoError(t, validate(t, s, peer))
	for _, bad := range [][2]string{{`"ready"`, `"fine"`}, {`"1.0"`, `"1.1"`}, {`"notes"`, `"note"`}, {`"validated-qemu"`, `"sure"`}, {`"total": 5`, `"total": -5`},
		{`"fail_severity": "low"`, `"fail_severity": "none"`}, {`"harness_sha256": "33`, `"harness_sha256": "sha256:33`}} {
		require.Error(t, validate(t, s, bytes.Replace(whole, []byte(bad[0]), []byte(bad[1]), 1)), bad[1])
	}
}

// TestSchemaNamesEveryField walks the Go type and the schema side by side, so
// that neither can gain a field that the other lacks.
func TestSchemaNamesEveryField(t *testing.T) {
	b, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(b, &doc))
	compare(t, "", reflect.TypeFor[probes.Report](), doc, doc["$defs"].(map[string]any))
}

func compare(t *testing.T, at string, typ reflect.Type, s, defs map[string]any) {
	t.Helper()
	if ref, ok := s["$ref"].(string); ok {
		s = defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	switch typ.Kind() {
	case reflect.Pointer:
		compare(t, at, typ.Elem(), s, defs)
	case reflect.Slice:
		compare(t, at+"[]", typ.Elem(), s["items"].(map[string]any), defs)
	case reflect.Map:
		if extra, ok := s["additionalProperties"].(map[string]any); ok {
			compare(t, at+"{}", typ.Elem(), extra, defs)
		}
	case reflect.Struct:
		props := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		want := map[string]bool{}
		for i := range typ.NumField() {
			name, rest, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			want[name] = true
			sub, ok := props[name].(map[string]any)
			require.True(t, ok, "%s.%s is not in the schema", at, name)
			if rest == "" {
				require.Contains(t, required, name, "%s.%s is always written", at, name)
			} else {
				require.NotContains(t, required, name, "%s.%s is optional", at, name)
			}
			compare(t, at+"."+name, typ.Field(i).Type, sub, defs)
		}
		for name := range props {
			require.True(t, want[name], "%s.%s is in the schema only", at, name)
		}
	}
}
