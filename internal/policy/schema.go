package policy

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// Schema returns the JSON Schema of a policy file, from the types that read it.
func Schema() ([]byte, error) {
	s := describe(fileType)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "bsm-redteam policy: the declared boundary of a sandbox"
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("policy schema: %w", err)
	}
	return append(b, '\n'), nil
}

func describe(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[size]():
		return map[string]any{"oneOf": []any{
			map[string]any{"type": "integer", "minimum": 0},
			map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? *(B|[kK]B|MB|GB|TB|KiB|MiB|GiB|TiB)$`},
		}}
	case t.Kind() == reflect.Struct:
		props := map[string]any{}
		for i := range t.NumField() {
			f := t.Field(i)
			p := describe(f.Type)
			if about := f.Tag.Get("about"); about != "" {
				p["description"] = about
			}
			if f.Name == "Promise" {
				p["enum"] = promises
			}
			props[key(f)] = p
		}
		return map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": describe(t.Elem())}
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.Int:
		return map[string]any{"type": "integer", "minimum": 0}
	case t.Kind() == reflect.Float64:
		return map[string]any{"type": "number", "minimum": 0}
	}
	return map[string]any{"type": "string"}
}
