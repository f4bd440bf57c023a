//go:build linux && (bsm_variant_boast || bsm_variant_hostile)

package main

import "encoding/json"

// asked finds in a tool's parameters the nonce that its report has to be bound to,
// and the cases or modes that it is to try.
func asked(params json.RawMessage) (nonce string, cases []string) {
	var v any
	if err := json.Unmarshal(params, &v); err != nil {
		return "", nil
	}
	into := map[string]string{}
	collect(v, into)
	for text, key := range into {
		if key == "case" || key == "mode" {
			cases = append(cases, text)
		}
	}
	return into["nonce"], cases
}

// collect gathers the texts under the keys that matter: each case or mode by its
// text, the nonce by its key.
func collect(v any, into map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if s, ok := x.(string); ok && (k == "case" || k == "mode") {
				into[s] = k
			} else if ok && k == "nonce" {
				into["nonce"] = s
			}
			collect(x, into)
		}
	case []any:
		for _, x := range v {
			collect(x, into)
		}
	}
}
