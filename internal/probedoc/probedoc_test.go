package probedoc_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/probedoc"
	"github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

var update = flag.Bool("update", false, "rewrite docs/probes")

const dir = "../../docs/probes"

// The pages under docs/probes are generated and complete, and nothing else is
// there.
func TestPagesAreCurrent(t *testing.T) {
	pages := map[string]string{"README.md": probedoc.Index(catalog.All())}
	for _, p := range catalog.All() {
		pages[p.Name+".md"] = probedoc.Page(p)
	}
	if *update {
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for name, text := range pages {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err, "run go test ./internal/probedoc -update")
		require.Equal(t, want, string(got), "run go test ./internal/probedoc -update")
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, len(pages), "a page without a probe")
}

// Every class of the threat model has a row, and every probe that the page
// names exists.
func TestThreatModelRows(t *testing.T) {
	b, err := os.ReadFile("../../docs/threat-model.md")
	require.NoError(t, err)
	page := string(b)
	rows := map[string]string{}
	for line := range strings.Lines(page) {
		if cells := strings.Split(line, "|"); len(cells) > 4 {
			rows[strings.TrimSpace(cells[1])] = line
		}
	}
	for _, class := range []string{"A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10", "side channels", "kernel CVE chains"} {
		row, ok := rows[class]
		require.True(t, ok, "no row for %s", class)
		require.True(t, strings.Contains(row, "P-"+class+"-") || strings.Contains(row, "out of scope:"),
			"the row of %s names neither its probe nor why there is none", class)
	}
	names := map[string]bool{}
	for _, p := range catalog.All() {
		names[p.Name] = true
		require.Contains(t, page, p.Name, "the threat model does not mention the probe")
	}
	for _, name := range regexp.MustCompile(`P-[A-Z0-9]+(-[a-z]+)+`).FindAllString(page, -1) {
		require.True(t, names[name], "%s does not exist", name)
	}
}
