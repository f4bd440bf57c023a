package junit

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

var update = flag.Bool("update", false, "rewrite testdata")

// strict reads doc to its end, refuses what is not XML 1.0, and returns its text
// and its attributes.
func strict(t require.TestingT, doc []byte) string {
	var all strings.Builder
	d := xml.NewDecoder(strings.NewReader(string(doc)))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		require.NoError(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			for _, a := range x.Attr {
				all.WriteString(a.Value + "\n")
			}
		case xml.CharData:
			all.Write(x)
		}
	}
}

func TestGolden(t *testing.T) {
	for name, r := range reporttest.All() {
		t.Run(name, func(t *testing.T) {
			got, err := Encode(r)
			require.NoError(t, err)
			file := filepath.Join("testdata", name+".xml")
			if *update {
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), "run go test -update and look at the difference")
		})
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
			require.Equal(t, r.Summary, probes.Summary{Total: got.Tests, Passed: got.Tests - got.Failures - got.Errors - got.Skipped,
				Failed: got.Failures, Errored: got.Errors, Skipped: got.Skipped})
		})
	}
}

func TestTimesDoNotOverflow(t *testing.T) {
	r := reporttest.Clean()
	for i := range r.Probes {
		r.Probes[i].DurationMS = math.MaxInt64
	}
	got, err := Encode(r)
	require.NoError(t, err)
	require.NotContains(t, string(got), `time="-`)
}

func TestWarningsStandInTheSuite(t *testing.T) {
	r := reporttest.Clean()
	r.Backend = "stub"
	doc, err := Encode(r)
	require.NoError(t, err)
	require.Contains(t, strict(t, doc), "warning: the mock is no boundary")
	doc, err = Encode(reporttest.Failing())
	require.NoError(t, err)
	require.Contains(t, strict(t, doc), "warning: the sandbox was weakened on purpose: user-net, no-seccomp\n")
}

func TestASummaryThatDisagreesIsRefused(t *testing.T) {
	r := reporttest.Failing()
	r.Summary.Passed++
	_, err := Encode(r)
	require.ErrorContains(t, err, "its probes are")
	r = reporttest.Clean()
	r.Summary.Skipped, r.Summary.Total = 1<<40, 1<<40+3
	_, err = Encode(r)
	require.ErrorContains(t, err, "does not name")
	r = reporttest.Failing()
	r.Summary.Skipped--
	_, err = Encode(r)
	require.Error(t, err)
}

// TestUnnamedSkipsOfAMergedReport: they are of none of its backends, and counted.
func TestUnnamedSkipsOfAMergedReport(t *testing.T) {
	r := reporttest.Merged()
	r.SkippedProbes = nil
	doc, err := Encode(r)
	require.NoError(t, err)
	require.Contains(t, string(doc), `classname="bsm-redteam.bwrap+qemu"`)
	require.Contains(t, string(doc), `skipped="2"`)
}

// TestGuestBytesAreData: an end of CDATA comes through as it is, and what XML
// cannot hold comes through escaped.
func TestGuestBytesAreData(t *testing.T) {
	for _, c := range [][2]string{
		{"a]]>b<![CDATA[c", "a]]>b<![CDATA[c"},
		{"<failure/>&amp;", "<failure/>&amp;"},
		{"\x00\x1b\ufffe", `\x00\x1b\xef\xbf\xbe`},
		{"two\nlines", `two\nlines`},
		{"</testsuites>", "</testsuites>"},
	} {
		r := reporttest.Failing()
		r.Probes[0].Reason = c[0]
		doc, err := Encode(r)
		require.NoError(t, err)
		require.Contains(t, strict(t, doc), "reason: "+c[1]+"\n")
		var counted struct {
			Cases []struct{} `xml:"testsuite>testcase"`
		}
		require.NoError(t, xml.Unmarshal(doc, &counted))
		require.Len(t, counted.Cases, r.Summary.Total)
	}
}

// FuzzEncode: whatever the strings of a report are, the document is XML 1.0 in
// printable ASCII, has every probe and holds every text.
func FuzzEncode(f *testing.F) {
	f.Add(reporttest.Nasty)
	f.Add("]]>")
	f.Add(strings.Repeat("\x00", 5000))
	f.Fuzz(func(t *testing.T, s string) {
		r := reporttest.Hostile(s)
		doc, err := Encode(r)
		require.NoError(t, err)
		for _, c := range doc {
			require.True(t, c == '\n' || c == '\t' || c >= 0x20 && c < 0x7f, "byte %#x", c)
		}
		all := strict(t, doc)
		for _, p := range r.Probes {
			require.Contains(t, all, text(p.Name))
			require.Contains(t, all, text(p.Reason))
			require.Contains(t, all, text(p.Witness.Summary))
			require.Contains(t, all, text(p.Control.Summary))
			require.Contains(t, all, text(p.Cases[0].Doubt))
		}
		for _, p := range r.SkippedProbes {
			require.Contains(t, all, text(p.Name))
			require.Contains(t, all, text(p.Reason))
		}
		var counted struct {
			Cases []struct{} `xml:"testsuite>testcase"`
		}
		require.NoError(t, xml.Unmarshal(doc, &counted))
		require.Len(t, counted.Cases, r.Summary.Total)
	})
}
