package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// metaPackages name the newest kernel, on Debian and on Ubuntu.
func metaPackages(kernel, arch string) []string {
	if kernel == DistroGeneric {
		return []string{"linux-image-" + arch, "linux-image-generic"}
	}
	return []string{"linux-image-cloud-" + arch, "linux-image-virtual", "linux-image-" + arch}
}

// apt asks the distribution's package manager. With options it uses lists of
// its own under the cache, which needs neither root nor a foreign architecture
// known to dpkg.
type apt struct {
	options []string
}

// debPackage is what apt says about the candidate version of a package.
type debPackage struct {
	name, version, sha256 string
	depends               []string
}

func (a apt) run(ctx context.Context, dir, tool string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, tool, append(append([]string{}, a.options...), args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fail("look for a kernel package", "install apt, or give --kernel PATH and --modules-dir DIR", fmt.Errorf("%w: %s is not in PATH", ErrApt, tool))
	}
	if err != nil {
		text := strings.TrimSpace(stderr.String())
		if strings.Contains(text, "No space left") || strings.Contains(text, "enough free space") {
			return nil, fail(tool, "free about 300 MiB in the cache directory", fmt.Errorf("%w: %s", ErrNoSpace, text))
		}
		return nil, fmt.Errorf("%w: %s %s: %w: %s", ErrApt, tool, strings.Join(args, " "), err, text)
	}
	return out, nil
}

// show returns the candidate version of a package.
func (a apt) show(ctx context.Context, name string) (debPackage, error) {
	out, err := a.run(ctx, "", "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return debPackage{}, err
	}
	p := debPackage{name: name}
	stanza, _, _ := strings.Cut(string(out), "\n\n")
	for line := range strings.Lines(stanza) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Version":
			p.version = value
		case "SHA256":
			p.sha256 = value
		case "Depends":
			for _, d := range strings.Split(value, ",") {
				if f := strings.Fields(d); len(f) > 0 {
					p.depends = append(p.depends, f[0])
				}
			}
		}
	}
	if p.version == "" || len(p.sha256) != 64 {
		return debPackage{}, fmt.Errorf("%w: no version and SHA-256 of %s", ErrApt, name)
	}
	return p, nil
}

// kernel returns the packages that hold the newest kernel and its modules.
func (a apt) kernel(ctx context.Context, o Options) ([]debPackage, error) {
	var errs []error
	for _, meta := range metaPackages(o.Kernel, o.Arch) {
		p, err := a.show(ctx, meta)
		for err == nil {
			next := p.dependsOn("linux-image-")
			if next == "" {
				break
			}
			p, err = a.show(ctx, next)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			errs = append(errs, err)
			continue
		}
		packages := []debPackage{p}
		if name := p.dependsOn("linux-modules-"); name != "" {
			m, err := a.show(ctx, name)
			if err != nil {
				return nil, err
			}
			packages = append(packages, m)
		}
		return packages, nil
	}
	return nil, errors.Join(errs...)
}

func (p debPackage) dependsOn(prefix string) string {
	for _, d := range p.depends {
		if strings.HasPrefix(d, prefix) {
			return d
		}
	}
	return ""
}

// fetch puts the package into dir, unless the very file is there, and returns
// its path. apt checks it against the signed lists, we against what apt says.
func (a apt) fetch(ctx context.Context, p debPackage, arch, dir string) (string, error) {
	path := filepath.Join(dir, p.name+"_"+strings.ReplaceAll(p.version, ":", "%3a")+"_"+arch+".deb")
	if f, err := hashFile(path); err == nil && f.SHA256 == p.sha256 {
		return path, nil
	}
	tmp, err := os.MkdirTemp(dir, ".tmp-*")
	if err != nil {
		return "", ioError("download "+p.name, err)
	}
	defer os.RemoveAll(tmp)
	if _, err := a.run(ctx, tmp, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", p.name+"="+p.version); err != nil {
		return "", err
	}
	got, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(got) != 1 {
		return "", fmt.Errorf("%w: apt-get download left %d packages", ErrApt, len(got))
	}
	f, err := hashFile(got[0])
	if err != nil {
		return "", ioError("read package", err)
	}
	if f.SHA256 != p.sha256 {
		return "", fmt.Errorf("%w: %s has digest %s, apt announced %s", ErrPackage, p.name, f.SHA256, p.sha256)
	}
	if err := os.Rename(got[0], path); err != nil {
		return "", ioError("keep package", err)
	}
	return path, nil
}

// distroPackages downloads the newest kernel for o.Arch. The system's own lists
// are asked first; when they are empty, out of date or of another architecture,
// lists of our own are fetched.
func distroPackages(ctx context.Context, o Options) ([]string, error) {
	dir := filepath.Join(o.CacheDir, "packages")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, ioError("make package cache", err)
	}
	var errs []error
	if o.Arch == runtime.GOARCH {
		paths, err := apt{}.get(ctx, o, dir)
		if err == nil || errors.Is(err, ErrNoSpace) || ctx.Err() != nil {
			return paths, err
		}
		errs = append(errs, err)
	}
	own, err := privateApt(ctx, o)
	if err == nil {
		var paths []string
		if paths, err = own.get(ctx, o, dir); err == nil {
			return paths, nil
		}
	}
	fix := "check the network and run `sudo apt-get update`, or give --kernel PATH and --modules-dir DIR"
	return nil, fail("get the distribution's kernel for "+o.Arch, fix, errors.Join(append(errs, err)...))
}

func (a apt) get(ctx context.Context, o Options, dir string) ([]string, error) {
	packages, err := a.kernel(ctx, o)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, p := range packages {
		path, err := a.fetch(ctx, p, o.Arch, dir)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func privateApt(ctx context.Context, o Options) (apt, error) {
	root, err := filepath.Abs(filepath.Join(o.CacheDir, "apt-"+o.Arch))
	if err != nil {
		return apt{}, err
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return apt{}, ioError("make package lists", err)
		}
	}
	status := filepath.Join(root, "status")
	if err := writeFile(status, nil); err != nil {
		return apt{}, err
	}
	a := apt{options: []string{
		"-o", "APT::Architecture=" + o.Arch, "-o", "APT::Architectures=" + o.Arch, "-o", "APT::Sandbox::User=root",
		"-o", "Dir::State=" + filepath.Join(root, "state"), "-o", "Dir::State::status=" + status, "-o", "Dir::Cache=" + filepath.Join(root, "cache"),
		"-o", "Acquire::Languages=none",
	}}
	o.log().Info("fetching package lists", "arch", o.Arch)
	_, err = a.run(ctx, "", "apt-get", "-q", "update")
	return a, err
}
