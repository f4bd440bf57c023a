package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShowKeepsOnlyWhatWasMeasured(t *testing.T) {
	good := line{what: "good", got: 1, limit: 2, unit: "ms"}
	over := line{what: "slow", got: 3, limit: 2, unit: "ms"}
	unknown := line{what: "unknown", limit: 2, err: errors.New("no qemu")}
	var out strings.Builder
	require.True(t, show(&out, []line{good}))
	require.False(t, show(&out, []line{good, over}))
	require.False(t, show(&out, []line{good, unknown}), "what was not measured is not within its budget")
	require.False(t, show(&out, nil))
	require.Contains(t, out.String(), "OVER  slow")
	require.Contains(t, out.String(), "not measured: no qemu")
}

// fakeTool is a bsm-redteam that writes a fixed report.
func fakeTool(t *testing.T, report string) bench {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --output ] && out=$2; shift; done\ncat >\"$out\" <<'END'\n" + report + "\nEND\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bsm-redteam"), []byte(script), 0o755))
	return bench{bin: dir, rounds: 3}
}

func TestReportIsBelievedOnlyWhole(t *testing.T) {
	b := fakeTool(t, `{"latency":{"P-LAT-boot":{"p50_ms":12.5}},"summary":{"total":1,"passed":1}}`)
	p50, err := b.latency(t.Context(), "x", "P-LAT-boot", 3)
	require.NoError(t, err)
	require.Equal(t, 12.5, p50)
	_, err = b.latency(t.Context(), "x", "P-LAT-reset", 3)
	require.ErrorContains(t, err, "has no P-LAT-reset")

	_, err = fakeTool(t, `{"summary":{"total":2,"passed":1,"skipped":1}}`).battery(t.Context(), "x")
	require.ErrorContains(t, err, "skipped")
	_, err = fakeTool(t, `{"summary":{"total":2,"passed":1}}`).battery(t.Context(), "x")
	require.ErrorContains(t, err, "only 1 of 2 probes passed")
	_, err = fakeTool(t, `{"summary":{}}`).battery(t.Context(), "x")
	require.Error(t, err)
}

func TestRun(t *testing.T) {
	u, err := run(t.Context(), "sh", "-c", "exit 0")
	require.NoError(t, err)
	require.Positive(t, u.wall)
	require.Positive(t, u.rss)
	_, err = run(t.Context(), "sh", "-c", "echo first >&2; echo why >&2; exit 3")
	require.ErrorContains(t, err, "why")
	require.Equal(t, 2*time.Second, middle([]time.Duration{3 * time.Second, time.Second, 2 * time.Second}))
}
