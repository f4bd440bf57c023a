package policy

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write docs/policy.schema.json")

const schemaFile = "../../docs/policy.schema.json"

func TestThePublishedSchemaIsTheTypes(t *testing.T) {
	want, err := Schema()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, want, 0o644))
	}
	got, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "fix: go test ./internal/policy -run Published -update")
}

// TestSchemaAndParserAgree gives both the same documents.
func TestSchemaAndParserAgree(t *testing.T) {
	raw, err := Schema()
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("policy.json", doc))
	s, err := c.Compile("policy.json")
	require.NoError(t, err)
	for text, ok := range map[string]bool{
		"name: x":                       true,
		"limits: {memory: 256MiB}":      true,
		"limits: {memory: 0.5 GiB}":     true,
		"limits: {memory: 4096}":        true,
		"limits: {memory: lots}":        false,
		"limits: {memory: 5 bananas}":   false,
		"limits: {memory: -1}":          false,
		"limits: {pids: -1}":            false,
		"limits: {cpus: 0.5}":           true,
		"limit: {}":                     false,
		"egress: {promise: none}":       true,
		"egress: {promise: maybe}":      false,
		"mounts: [{inside: /a}]":        true,
		"mounts: [{inside: /a, b: /c}]": false,
		"capabilities: [CAP_CHOWN]":     true,
		"capabilities: CAP_CHOWN":       false,
	} {
		var v any
		require.NoError(t, yaml.Unmarshal([]byte(text), &v))
		_, err := Parse([]byte(text), Policy{})
		require.Equal(t, ok, err == nil, "parser on %s: %v", text, err)
		require.Equal(t, ok, s.Validate(v) == nil, "schema on %s", text)
	}
}
