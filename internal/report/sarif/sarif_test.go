package sarif

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
)

func encoded(t require.TestingT, b []byte) log {
	var got log
	require.NoError(t, json.Unmarshal(b, &got))
	require.NotContains(t, string(b), "null")
	return got
}

func TestOnlyWhatFailedOrErroredIsAResult(t *testing.T) {
	for name, r := range reporttest.All() {
		t.Run(name, func(t *testing.T) {
			b, err := Encode(r, Options{PolicyPath: "policy.yaml"})
			require.NoError(t, err)
			results := 0
			for _, run := range encoded(t, b).Runs {
				results += len(run.Results)
			}
			require.Equal(t, r.Summary.Failed+r.Summary.Errored, results)
		})
	}
}
