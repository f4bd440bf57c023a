package junit

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// strict reads doc to its end and refuses what is not XML 1.0.
func strict(t require.TestingT, doc []byte) {
	d := xml.NewDecoder(strings.NewReader(string(doc)))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

func TestCountsAreTheSummarys(t *testing.T) {
	for name, r := range reporttest.All() {
		t.Run(name, func(t *testing.T) {
			doc, err := Encode(r)
			require.NoError(t, err)
			strict(t, doc)
			var got struct {
				Tests    int `xml:"tests,attr"`
				Failures int `xml:"failures,attr"`
				Errors   int `xml:"errors,attr"`
				Skipped  int `xml:"skipped,attr"`
			}
			require.NoError(t, xml.Unmarshal(doc, &got))
			s := r.Summary
			require.Equal(t, s, probes.Summary{Total: got.Tests, Passed: got.Tests - got.Failures - got.Errors - got.Skipped, Failed: got.Failures, Errored: got.Errors, Skipped: got.Skipped})
		})
	}
}
