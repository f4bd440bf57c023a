package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

func (a *App) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.Out, "bsm-redteam %s (report schema %s, %s %s/%s)\n", a.Version, probes.SchemaVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return written(err)
		},
	}
}

// release is stamped into a release by the linker; elsewhere it is empty.
var release string

// version is that of the release, or of the module as the Go toolchain recorded
// it.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v += "-" + s.Value[:12]
			}
		}
	}
	return v
}

// ownDigest is the SHA-256 of the running executable in hex, or "" where it cannot
// be read: a report without it is whole, but its harness is only its version.
func ownDigest() string {
	path := "/proc/self/exe" // the file that runs, also when another took its place
	if runtime.GOOS != "linux" {
		var err error
		if path, err = os.Executable(); err != nil {
			return ""
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
