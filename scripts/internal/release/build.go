package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
)

const (
	module   = "github.com/brainst0rm/sandbox-redteam"
	program  = "bsm-redteam"
	sumsFile = "SHA256SUMS"
)

// platforms are what there is a build for. darwin is built without cgo: what
// needs Apple's frameworks is not in it.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/arm64", "darwin/amd64"}

// A build makes one release in out.
type build struct {
	version   string
	out       string
	platforms []string
}

func (b build) run(ctx context.Context) error {
	if err := rightGo(); err != nil {
		return err
	}
	if err := emptyDir(b.out); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "bsm-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	agents, overlay, err := makeAgents(ctx, work)
	if err != nil {
		return err
	}
	for _, p := range b.platforms {
		goos, goarch, _ := strings.Cut(p, "/")
		bin := filepath.Join(work, program+"_"+goos+"_"+goarch)
		if err := b.compile(ctx, goos, goarch, overlay, bin); err != nil {
			return err
		}
		if err := b.pack(goos, goarch, bin, agents[goarch]); err != nil {
			return err
		}
	}
	return writeSums(b.out)
}

// rightGo refuses another Go than that of go.mod: both the compiler and the
// compressor would give other bytes.
func rightGo() error {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return fmt.Errorf("%w; fix: run this at the root of the module", err)
	}
	for line := range strings.Lines(string(mod)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "go" {
			if want := "go" + f[1]; runtime.Version() != want {
				return fmt.Errorf("this is %s, go.mod says %s; fix: GOTOOLCHAIN=%s", runtime.Version(), want, want)
			}
			return nil
		}
	}
	return errors.New("go.mod has no go line")
}

func emptyDir(dir string) error {
	if dir == "" {
		return errors.New("--out is needed")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("--out %s is not empty: it holds %s", dir, entries[0].Name())
	}
	return nil
}

// makeAgents builds the agents, and the overlay by which a build sees them in
// the source tree.
func makeAgents(ctx context.Context, work string) (agents map[string]string, overlay string, err error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, "", err
	}
	agents = map[string]string{}
	replace := map[string]string{}
	for _, goarch := range []string{"amd64", "arm64"} {
		agents[goarch] = filepath.Join(work, agentbin.Name+"-"+goarch)
		if err := agentbin.Build(ctx, goarch, agents[goarch]); err != nil {
			return nil, "", err
		}
		replace[filepath.Join(root, agentbin.EmbeddedPath(goarch))] = agents[goarch]
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay = filepath.Join(work, "overlay.json")
	return agents, overlay, os.WriteFile(overlay, text, 0o600)
}

// compile builds the program with nothing of this machine in it.
func (b build) compile(ctx context.Context, goos, goarch, overlay, bin string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", agentbin.ReleaseTag, "-overlay", overlay,
		"-ldflags", "-s -w -buildid= -X "+module+"/internal/cli.release="+b.version, "-o", bin, "./cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOFLAGS=-mod=readonly", "GOWORK=off",
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off", "GODEBUG=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w: %s", program, goos, goarch, err, out)
	}
	return nil
}

// pack writes the archive and the bill of materials of one platform.
func (b build) pack(goos, goarch, bin, agent string) error {
	name := fmt.Sprintf("%s_%s_%s", program, goos, goarch)
	f, err := os.Create(filepath.Join(b.out, name+".tar.gz"))
	if err != nil {
		return err
	}
	defer f.Close()
	members := []member{{"LICENSE", "LICENSE", 0o644}, {agentbin.Name, agent, 0o755}, {program, bin, 0o755}}
	if err := errors.Join(archive(f, members), f.Close()); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	info, err := buildinfo.ReadFile(bin)
	if err != nil {
		return err
	}
	digest, err := fileDigest(bin)
	if err != nil {
		return err
	}
	bill, err := billOf(b.version, goos+"/"+goarch, digest, info)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, name+".cdx.json"), bill, 0o644)
}

// A member is one file of an archive.
type member struct {
	name, from string
	mode       int64
}

// archive writes a gzipped tar that depends on names, modes and contents alone.
func archive(w io.Writer, members []member) error {
	gz, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(gz)
	for _, m := range members {
		content, err := os.ReadFile(m.from)
		if err != nil {
			return err
		}
		h := &tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: m.name, Mode: m.mode, Size: int64(len(content)), ModTime: time.Unix(0, 0)}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), gz.Close())
}

// writeSums digests every file of dir in the format of sha256sum.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, e := range entries {
		digest, err := fileDigest(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", digest, e.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), text.Bytes(), 0o644)
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// assets are the archives that a release must have, in the order of the lock.
func assets() []string {
	var names []string
	for _, p := range platforms {
		names = append(names, program+"_"+strings.ReplaceAll(p, "/", "_")+".tar.gz")
	}
	slices.Sort(names)
	return names
}
