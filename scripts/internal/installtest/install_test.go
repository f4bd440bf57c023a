package installtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

const version = "v1.2.3"

// program is a release's bsm-redteam, as far as installing it is concerned.
const program = "#!/bin/sh\n[ \"$*\" = version ] && echo 'bsm-redteam " + version + " (report schema 1.0, go1.26 linux/amd64)'\n"

// A release is what a server offers, and the lock that names it.
type release struct {
	files map[string][]byte
	lock  string
	hits  atomic.Int32
	// before answers a request instead of the file, where it returns true.
	before func(w http.ResponseWriter, req *http.Request, hit int32) bool
}

const linux, mac = "bsm-redteam_linux_amd64.tar.gz", "bsm-redteam_darwin_arm64.tar.gz"

func newRelease(t *testing.T) *release {
	t.Helper()
	r := &release{files: map[string][]byte{
		linux: pack(t, map[string]string{"LICENSE": "text", "bsm-redteam": program}),
		mac:   pack(t, map[string]string{"bsm-redteam": program + "# for the other platform\n"}),
	}}
	r.lock = "# comment\nversion " + version + "\n" + row(r.files[mac], mac) + row(r.files[linux], linux)
	return r
}

func row(content []byte, name string) string {
	return fmt.Sprintf("%x %d %s\n", sha256.Sum256(content), len(content), name)
}

func pack(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	tw := tar.NewWriter(gz)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		require.NoError(t, tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}))
		_, err := tw.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, tw.Close())
	require.NoError(t, gz.Close())
	return b.Bytes()
}

// serve offers the release on loopback.
func (r *release) serve(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		hit := r.hits.Add(1)
		if r.before != nil && r.before(w, req, hit) {
			return
		}
		name, ok := strings.CutPrefix(req.URL.Path, "/"+version+"/")
		content, there := r.files[name]
		if !ok || !there {
			http.NotFound(w, req)
			return
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections() // of a client that should have gone
		srv.Close()
	})
	return srv.URL
}

// install is a step that installs r.
func (r *release) install(t *testing.T) *step {
	t.Helper()
	testreq.Need(t, "curl")
	return newStep(t, "install.sh", r.lock).set("BSM_RELEASE_URL", r.serve(t))
}

func TestReleaseIsInstalled(t *testing.T) {
	r := newRelease(t)
	s := r.install(t)
	res, bin := s.succeeds()
	require.Equal(t, version, res.outputs["version"])
	require.Equal(t, program, read(t, bin))
	require.Equal(t, s.path("tools"), filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(bin)))))
	require.Equal(t, []string{bin}, s.installed(), "one member and no other")
	require.Contains(t, res.log, "attestation not checked", "what was not checked is said")
	require.EqualValues(t, 1, r.hits.Load())

	t.Run("macOS gets its own row", func(t *testing.T) {
		s := r.install(t).set("RUNNER_OS", "macOS", "RUNNER_ARCH", "ARM64")
		_, bin := s.succeeds()
		require.Contains(t, read(t, bin), "for the other platform")
	})
	t.Run("a tool cache of its own is not there everywhere", func(t *testing.T) {
		s := r.install(t)
		delete(s.env, "RUNNER_TOOL_CACHE")
		_, bin := s.succeeds()
		require.True(t, strings.HasPrefix(bin, s.path("temp")))
	})
	t.Run("shasum where there is no sha256sum", func(t *testing.T) {
		testreq.Need(t, "shasum")
		s := r.install(t)
		s.only("bash", "mkdir", "mktemp", "rm", "mv", "cp", "chmod", "touch", "find", "wc", "tar", "gzip", "curl", "sleep", "shasum")
		s.succeeds()
	})
}

func TestReuseIsHashedAgain(t *testing.T) {
	r := newRelease(t)
	s := r.install(t)
	_, first := s.succeeds()
	before, err := os.Stat(first)
	require.NoError(t, err)

	_, second := s.succeeds()
	require.Equal(t, first, second)
	after, err := os.Stat(second)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "an intact copy was replaced")
	require.EqualValues(t, 1, r.hits.Load(), "an intact copy was downloaded again")

	evil := "#!/bin/sh\ntouch " + s.path("owned") + "\n" + program
	for name, tamper := range map[string]func(){
		"changed binary":     func() { require.NoError(t, os.WriteFile(first, []byte(evil), 0o755)) },
		"no permission":      func() { require.NoError(t, os.Chmod(first, 0o644)) },
		"an agent beside it": func() { write(t, filepath.Join(filepath.Dir(first), "bsm-agent"), "x") },
		"a link": func() {
			require.NoError(t, os.Rename(first, s.path("moved")))
			require.NoError(t, os.Symlink(s.path("moved"), first))
		},
		"a linked directory": func() {
			require.NoError(t, os.Rename(filepath.Dir(first), s.path("elsewhere")))
			require.NoError(t, os.Symlink(s.path("elsewhere"), filepath.Dir(first)))
		},
		"no directory": func() {
			require.NoError(t, os.RemoveAll(filepath.Dir(first)))
			write(t, filepath.Dir(first), "a file")
		},
	} {
		t.Run(name, func(t *testing.T) {
			tamper()
			res, bin := s.succeeds()
			require.Equal(t, first, bin)
			require.Contains(t, res.log, "it is replaced")
			require.Equal(t, program, read(t, bin))
			info, err := os.Lstat(bin)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o755), info.Mode())
			require.Equal(t, []string{bin}, s.installed())
			require.NoFileExists(t, s.path("owned"))
			require.EqualValues(t, 1, r.hits.Load())
		})
	}
	t.Run("changed download", func(t *testing.T) {
		kept := s.glob("bsm-redteam/downloads/*")
		require.Len(t, kept, 1)
		content := []byte(read(t, kept[0]))
		content[len(content)/2] ^= 1
		require.NoError(t, os.WriteFile(kept[0], content, 0o644))
		res, bin := s.succeeds()
		require.Contains(t, res.log, "is not believed: its SHA-256 is")
		require.Equal(t, program, read(t, bin))
		require.EqualValues(t, 2, r.hits.Load())
		require.Equal(t, r.files[linux], []byte(read(t, kept[0])))
	})
}

func TestWhatIsNotTheLocksFileIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *release)
		want   []string
	}{
		"wrong digest":  {func(r *release) { r.files[linux][20] ^= 1 }, []string{"is not the file of release.lock: its SHA-256 is", "fix: "}},
		"truncated":     {func(r *release) { r.files[linux] = r.files[linux][:100] }, []string{"it has 100 bytes, not", "fix: "}},
		"larger":        {func(r *release) { r.files[linux] = append(r.files[linux], 0) }, []string{"is larger than the", "fix: "}},
		"not published": {func(r *release) { delete(r.files, linux) }, []string{"answered 404", "fix: "}},
		"another platform's": {func(r *release) { r.files[linux] = r.files[mac] }, []string{
			"is not the file of release.lock", "fix: "}},
		"never whole": {func(r *release) {
			r.before = func(w http.ResponseWriter, _ *http.Request, _ int32) bool {
				w.Header().Set("Content-Length", fmt.Sprint(len(r.files[linux])))
				_, _ = w.Write(r.files[linux][:50])
				return true
			}
		}, []string{"cannot get http://127.0.0.1:", "fix: "}},
		"a redirection": {func(r *release) {
			r.before = func(w http.ResponseWriter, _ *http.Request, _ int32) bool {
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(http.StatusFound)
				return true
			}
		}, []string{"it has 0 bytes, not"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			c.change(r)
			s := r.install(t)
			s.fails(c.want...)
			require.Empty(t, s.glob("bsm-redteam/downloads/*"))
		})
	}
}

func TestARowForADamagedArchive(t *testing.T) {
	whole := newRelease(t).files[linux]
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"cut":             {whole[:len(whole)-30], "holds no usable bsm-redteam"},
		"no archive":      {[]byte("<html>"), "holds no usable bsm-redteam"},
		"without program": {pack(t, map[string]string{"README": "x"}), "holds no usable bsm-redteam"},
		"empty program":   {pack(t, map[string]string{"bsm-redteam": ""}), "holds no usable bsm-redteam"},
		"does not run":    {pack(t, map[string]string{"bsm-redteam": "\x7fELF"}), "does not run here"},
		"other version": {pack(t, map[string]string{"bsm-redteam": strings.ReplaceAll(program, version, "v9.9.9")}),
			"says that it is v9.9.9"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			r.files[linux] = c.content
			r.lock = "version " + version + "\n" + row(c.content, linux)
			r.install(t).fails(c.want, "fix: ")
		})
	}
}

func TestPassingFailuresAreTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter){
		"500": func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"429": func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
		"cut off": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "200")
			_, _ = w.Write([]byte("part"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			r.before = func(w http.ResponseWriter, _ *http.Request, hit int32) bool {
				if hit < 3 {
					fail(w)
				}
				return hit < 3
			}
			res, bin := r.install(t).succeeds()
			require.Equal(t, program, read(t, bin))
			require.Contains(t, res.log, "attempt 2 of 3")
			require.EqualValues(t, 3, r.hits.Load())
		})
	}
	t.Run("not for ever", func(t *testing.T) {
		r := newRelease(t)
		r.before = func(w http.ResponseWriter, _ *http.Request, _ int32) bool {
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
		r.install(t).fails("cannot get", "502", "fix: ")
		require.EqualValues(t, 3, r.hits.Load())
	})
}

func TestNoNetwork(t *testing.T) {
	testreq.Need(t, "curl")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	closed := l.Addr().String()
	require.NoError(t, l.Close())
	newStep(t, "install.sh", newRelease(t).lock).set("BSM_RELEASE_URL", "http://"+closed).fails("cannot get http://"+closed, "fix: ")
}

func TestOnlyLoopbackReplacesGitHub(t *testing.T) {
	for _, url := range []string{
		"https://127.0.0.1:1", "http://localhost:1", "http://127.0.0.1", "http://127.0.0.2:1", "http://127.0.0.1.example:1", "http://127.0.0.1:1@example",
		"http://user@127.0.0.1:1", "http://127.0.0.1:1/?x", "http://127.0.0.1:1/#", "file:///etc/passwd", "-o/tmp/x", " http://127.0.0.1:1", "http://127.0.0.1:1\nx", "http://127.0.0.1:1/ -K x",
	} {
		t.Run(url, func(t *testing.T) {
			s := newStep(t, "install.sh", newRelease(t).lock).set("BSM_RELEASE_URL", url)
			s.tool("curl", "touch "+s.path("called"))
			s.fails("only http://127.0.0.1:PORT[/PATH] is accepted", "fix: ")
			require.NoFileExists(t, s.path("called"))
		})
	}
}

// TestCurlIsGivenNothingElse looks at the call for GitHub itself, which no test
// makes.
func TestCurlIsGivenNothingElse(t *testing.T) {
	s := newStep(t, "install.sh", newRelease(t).lock).set("GH_TOKEN", "secret")
	s.tool("curl", `printf '%s\n' "$@" >`+s.path("args")+`; env >`+s.path("env")+`; exit 6`)
	s.fails("cannot get https://github.com/brainst0rm/sandbox-redteam/releases/download/" + version + "/" + linux)
	args := strings.Split(read(t, s.path("args")), "\n")
	require.Equal(t, "-q", args[0], "before everything, or a .curlrc is read")
	text := strings.Join(args, " ")
	require.Contains(t, text, "--proto =https --proto-redir =https")
	require.NotContains(t, text, "noproxy")
	require.NotContains(t, read(t, s.path("env")), "secret")
}

func TestLockIsReadByExactFields(t *testing.T) {
	base := newRelease(t)
	sbom := base.files[mac]
	real := row(base.files[linux], linux)
	t.Run("rows of other assets", func(t *testing.T) {
		for name, extra := range map[string]string{
			"suffix": row(sbom, linux+".sbom.json"), "prefix": row(sbom, "x"+linux), "digest of it": row(sbom, linux+".sha256"), "pattern": row(sbom, "bsm-redteam_linux_amd64*"),
		} {
			for order, lock := range map[string]string{"before": extra + real, "after": real + extra} {
				t.Run(name+" "+order, func(t *testing.T) {
					r := newRelease(t)
					r.lock = "version " + version + "\n" + lock
					_, bin := r.install(t).succeeds()
					require.Equal(t, program, read(t, bin))
				})
			}
		}
	})
	for name, c := range map[string]struct {
		lock string
		want string
	}{
		"none yet":               {"# nothing\n", "no release yet, use install: source"},
		"empty":                  {"", "no release yet, use install: source"},
		"only another":           {"version " + version + "\n" + row(sbom, linux+".sbom.json"), "0 rows for " + linux},
		"twice":                  {"version " + version + "\n" + real + real, "2 rows for " + linux},
		"no version":             {real, "names no version"},
		"two versions":           {"version v1.2.3\nversion v1.2.4\n" + real, "line 2 is malformed"},
		"version without v":      {"version 1.2.3\n" + real, "line 1 is malformed"},
		"version with a path":    {"version v1.2.3-../../x\n" + real, "line 1 is malformed"},
		"short digest":           {"version " + version + "\n" + real[1:], "line 2 is malformed"},
		"upper case":             {"version " + version + "\n" + strings.ToUpper(real[:64]) + real[64:], "line 2 is malformed"},
		"no size":                {"version " + version + "\n" + real[:64] + "  " + linux + "\n", "line 2 is malformed"},
		"carriage return":        {"version " + version + "\r\n" + real, "line 1 is malformed"},
		"a field too many":       {"version " + version + "\n" + strings.TrimSuffix(real, "\n") + " x\n", "line 2 is malformed"},
		"command in it":          {"version " + version + "\nx ##[error]x ::error::y\n" + real, "line 2 is malformed"},
		"size that is no number": {"version " + version + "\n" + real[:64] + " 1x " + linux + "\n", "line 2 is malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStep(t, "install.sh", c.lock)
			s.tool("curl", "touch "+s.path("called"))
			s.fails(c.want)
			require.NoFileExists(t, s.path("called"))
		})
	}
	t.Run("last line without its end", func(t *testing.T) {
		r := newRelease(t)
		r.lock = strings.TrimSuffix(r.lock, "\n")
		r.install(t).succeeds()
	})
	t.Run("gone", func(t *testing.T) {
		s := newStep(t, "install.sh", "")
		require.NoError(t, os.Remove(filepath.Join(filepath.Dir(s.script), "release.lock")))
		s.fails("release.lock cannot be read", "fix: ")
	})
}

func TestUnknownPlatform(t *testing.T) {
	for _, c := range [][2]string{{"Windows", "X64"}, {"Linux", "ARM"}, {"Linux", "X86"}, {"", "X64"}, {"Linux", ""}, {"linux", "x64"}, {"Linux\n", "X64"}, {"*", "*"}, {"-Linux", "X64"}} {
		t.Run(c[0]+" "+c[1], func(t *testing.T) {
			newStep(t, "install.sh", newRelease(t).lock).set("RUNNER_OS", c[0], "RUNNER_ARCH", c[1]).
				fails("there is no build for", "supported: Linux X64, Linux ARM64, macOS ARM64, macOS X64")
		})
	}
}

func TestMissingTool(t *testing.T) {
	all := []string{"bash", "mkdir", "mktemp", "rm", "mv", "cp", "chmod", "touch", "find", "wc", "tar", "gzip", "sha256sum", "curl", "sleep"}
	testreq.Need(t, all...)
	for _, missing := range all[1:] {
		t.Run(missing, func(t *testing.T) {
			s := newRelease(t).install(t)
			s.only(without(all, missing)...)
			s.fails(missing, "in PATH", "fix: ")
		})
	}
	t.Run("go", func(t *testing.T) {
		s := newStep(t, "install.sh", "").set("BSM_INSTALL", "source")
		s.only(all...)
		s.fails("go is not in PATH", "fix: ")
	})
}

func without(list []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == name })
}

func TestUnwritableToolCache(t *testing.T) {
	s := newRelease(t).install(t)
	write(t, s.path("file"), "")
	s.set("RUNNER_TOOL_CACHE", s.path("file", "below"))
	res, bin := s.succeeds()
	require.Contains(t, res.log, "the tool cache is not used: cannot write to "+s.path("file", "below"))
	require.True(t, strings.HasPrefix(bin, s.path("temp")), bin)

	require.NoError(t, os.Remove(s.path("output")))
	s.set("RUNNER_TEMP", s.path("file", "temp"))
	s.fails("cannot write to "+s.path("file", "temp"), "fix: ")

	delete(s.env, "RUNNER_TOOL_CACHE")
	delete(s.env, "RUNNER_TEMP")
	s.fails("neither RUNNER_TOOL_CACHE nor RUNNER_TEMP is set", "fix: ")
}

// TestACacheThatOthersCanChange: what was hashed there could be another program
// when it is started.
func TestACacheThatOthersCanChange(t *testing.T) {
	const other = 65534
	mkdir := func(t *testing.T, path string, mode os.FileMode) {
		t.Helper()
		require.NoError(t, os.MkdirAll(path, 0o755))
		require.NoError(t, os.Chmod(path, mode))
	}
	give := func(t *testing.T, path string) {
		t.Helper()
		testreq.Need(t, "root")
		mkdir(t, path, 0o755)
		require.NoError(t, os.Chown(path, other, other))
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, s *step)
		used   bool
	}{
		"ours, for everybody":      {func(t *testing.T, s *step) { mkdir(t, s.path("tools/bsm-redteam"), 0o777) }, false},
		"ours, for a group":        {func(t *testing.T, s *step) { mkdir(t, s.path("tools/bsm-redteam"), 0o775) }, false},
		"ours, sticky":             {func(t *testing.T, s *step) { mkdir(t, s.path("tools/bsm-redteam"), 0o777|os.ModeSticky) }, false},
		"bin, for everybody":       {func(t *testing.T, s *step) { mkdir(t, s.path("tools/bsm-redteam/bin"), 0o777) }, false},
		"downloads, for a group":   {func(t *testing.T, s *step) { mkdir(t, s.path("tools/bsm-redteam/downloads"), 0o775) }, false},
		"the cache, for everybody": {func(t *testing.T, s *step) { mkdir(t, s.path("tools"), 0o777) }, false},
		"above it, for everybody": {func(t *testing.T, s *step) {
			mkdir(t, s.path("tools/open"), 0o777)
			s.set("RUNNER_TOOL_CACHE", s.path("tools/open/cache"))
		}, false},
		"a link to what is there": {func(t *testing.T, s *step) {
			mkdir(t, s.path("elsewhere"), 0o755)
			require.NoError(t, os.Symlink(s.path("elsewhere"), s.path("tools/bsm-redteam")))
		}, false},
		"another user's":          {func(t *testing.T, s *step) { give(t, s.path("tools/bsm-redteam")) }, false},
		"bin of another user":     {func(t *testing.T, s *step) { give(t, s.path("tools/bsm-redteam/bin")) }, false},
		"in another user's cache": {func(t *testing.T, s *step) { give(t, s.path("tools")) }, false},
		"all of it ours":          {func(*testing.T, *step) {}, true},
		"ours in a sticky one":    {func(t *testing.T, s *step) { mkdir(t, s.path("tools"), 0o777|os.ModeSticky) }, true},
		"by a link to what is ours": {func(t *testing.T, s *step) {
			require.NoError(t, os.Symlink(s.path("tools"), s.path("link")))
			s.set("RUNNER_TOOL_CACHE", s.path("link"))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRelease(t).install(t)
			c.change(t, s)
			res, bin := s.succeeds()
			where := map[bool]string{true: "tools", false: "temp"}[c.used]
			require.True(t, strings.HasPrefix(bin, s.path(where)+"/"), bin)
			require.Equal(t, !c.used, strings.Contains(res.log, "the tool cache is not used: "), res.log)
			require.Equal(t, c.used, len(s.installed()) != 0)
			for dir := filepath.Dir(bin); dir != s.path(where); dir = filepath.Dir(dir) {
				info, err := os.Stat(dir)
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), dir)
			}
		})
	}
	t.Run("nor one of RUNNER_TEMP", func(t *testing.T) {
		s := newRelease(t).install(t)
		delete(s.env, "RUNNER_TOOL_CACHE")
		mkdir(t, s.path("temp/bsm-redteam"), 0o777)
		s.fails(s.path("temp/bsm-redteam")+", or what is in it, belongs to another user or can be written to by others", "fix: ")
	})
}

func TestTwoAtOnce(t *testing.T) {
	const jobs = 4
	r := newRelease(t)
	var together sync.WaitGroup
	together.Add(jobs)
	r.before = func(http.ResponseWriter, *http.Request, int32) bool {
		together.Done()
		together.Wait() // no one is served before all have asked
		return false
	}
	first := r.install(t)
	var wg sync.WaitGroup
	bins := make([]string, jobs)
	for i := range jobs {
		s := *first
		s.env = maps.Clone(first.env)
		s.env["GITHUB_OUTPUT"] = first.path(fmt.Sprintf("output%d", i))
		cmd := s.command()
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		wg.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Errorf("job %d: %v: %s", i, err, log.String())
				return
			}
			bins[i] = s.result(cmd, log.String()).outputs["bin"]
		})
	}
	wg.Wait()
	for _, bin := range bins {
		require.Equal(t, bins[0], bin)
	}
	require.Equal(t, program, read(t, bins[0]))
	require.Equal(t, []string{bins[0]}, first.installed())
	require.Empty(t, first.leftovers())
}

// TestAnotherJobWasFirst: what it installed is taken if it is the same.
func TestAnotherJobWasFirst(t *testing.T) {
	for name, c := range map[string]struct {
		meddle string
		same   bool
	}{"with the same": {":", true}, "with something else": {`echo x >>"$4/${3##*/}/bsm-redteam"`, false}} {
		t.Run(name, func(t *testing.T) {
			s := newRelease(t).install(t)
			s.tool("mv", `case $3 in */bin/) set -- x "$@"; cp -R "$3" "$4"; `+c.meddle+`; shift ;; esac; exec /bin/mv "$@"`)
			r := s.run()
			require.Equal(t, c.same, r.code == 0, r.log)
			require.Empty(t, s.leftovers())
			if c.same {
				require.Equal(t, program, read(t, r.outputs["bin"]))
			} else {
				require.Contains(t, r.log, "cannot write "+filepath.Dir(s.installed()[0]))
				require.Empty(t, r.outputs)
			}
		})
	}
}

// TestCancelled: the runner interrupts only the script itself.
func TestCancelled(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			r := newRelease(t)
			asked, gone := make(chan struct{}), make(chan struct{})
			r.before = func(_ http.ResponseWriter, req *http.Request, _ int32) bool {
				close(asked)
				<-req.Context().Done()
				close(gone)
				return true
			}
			s := r.install(t)
			cmd := s.command()
			var log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &log, &log
			cmd.WaitDelay = 10 * time.Second
			require.NoError(t, cmd.Start())
			<-asked
			require.NoError(t, cmd.Process.Signal(sig))
			_ = cmd.Wait()
			require.Equal(t, 128+int(sig), cmd.ProcessState.ExitCode(), log.String())
			require.Empty(t, s.leftovers())
			require.Empty(t, s.installed())
			require.NoFileExists(t, s.path("output"))
			select {
			case <-gone:
			case <-time.After(20 * time.Second):
				t.Error("the download goes on")
			}
		})
	}
}

// TestEveryRefInstallsTheSame: a tag, a commit and a branch of the same tree.
func TestEveryRefInstallsTheSame(t *testing.T) {
	testreq.Need(t, "git", "curl")
	r := newRelease(t)
	url := r.serve(t)
	origin := filepath.Join(t.TempDir(), "origin")
	copyScripts(t, origin, r.lock)
	git(t, origin, "init", "-q", "-b", "main")
	git(t, origin, "add", ".")
	git(t, origin, "commit", "-q", "-m", "release")
	git(t, origin, "tag", version)
	git(t, origin, "tag", "v1")
	commit := git(t, origin, "rev-parse", "HEAD")
	write(t, filepath.Join(origin, "README"), "later\n")
	git(t, origin, "add", ".")
	git(t, origin, "commit", "-q", "-m", "later")

	contents := map[string]string{}
	for _, ref := range []string{version, "v1", commit, "main"} {
		clone := filepath.Join(t.TempDir(), "clone")
		git(t, filepath.Dir(clone), "clone", "-q", origin, clone)
		git(t, clone, "checkout", "-q", ref)
		s := stepOf(t, filepath.Join(clone, "scripts", "install.sh")).set("BSM_RELEASE_URL", url, "GITHUB_ACTION_REF", ref, "GITHUB_ACTION_PATH", clone)
		res, bin := s.succeeds()
		require.Equal(t, version, res.outputs["version"])
		contents[read(t, bin)] = ref
	}
	require.Len(t, contents, 1, "refs install different programs")
	require.Contains(t, contents, program)
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

func TestAttestation(t *testing.T) {
	const works = `[ "$3" = --help ] && exit 0; printf '%s\n' "$@" "$GH_TOKEN" "$GH_HOST" >>"$HOME/gh"`
	// refused is a gh that verifies nothing, and whose api command prints and says this.
	refused := func(prints, says string) string {
		return `[ "$1" = api ] && { printf '%s\n' "$@" "$GH_TOKEN" "$GH_HOST" >"$HOME/api"; printf '` + prints + `'; echo '` + says + `' >&2; exit ` + map[bool]string{true: "0", false: "1"}[says == ""] + `; }
` + works + "; echo 'no attestation ##[x]' >&2; exit 1"
	}
	for name, c := range map[string]struct {
		mode, token, gh, server string
		fails, says             string
		asked                   bool
	}{
		"auto with all":        {mode: "auto", token: "t0ken", gh: works, says: "attestation of " + linux + " verified", asked: true},
		"required with all":    {mode: "required", token: "t0ken", gh: works, says: "attestation of " + linux + " verified", asked: true},
		"off":                  {mode: "off", token: "t0ken", gh: works},
		"auto, no token":       {mode: "auto", gh: works, says: "attestation not checked: there is no github-token"},
		"required, no token":   {mode: "required", gh: works, fails: "cannot be checked: there is no github-token"},
		"auto, another server": {mode: "auto", token: "t", gh: works, server: "https://ghe.example", says: "attestation not checked: the token is not one of github.com"},
		"auto, old gh":         {mode: "auto", token: "t", gh: "exit 1", says: "attestation not checked: this gh has no attestation command"},
		"required, old gh":     {mode: "required", token: "t", gh: "exit 1", fails: "this gh has no attestation command"},
		"required, refused":    {mode: "required", token: "t", gh: refused("HTTP/2.0 503 x\\r\\n", "x"), fails: "gh attestation verify refused " + linux + ": no attestation", asked: true},
		"auto, there is one":   {mode: "auto", token: "t", gh: refused("HTTP/2.0 200 OK\\r\\n\\r\\n{}", ""), fails: "gh attestation verify refused " + linux + ": no attestation", asked: true},
		"auto, there is none":  {mode: "auto", token: "t", gh: refused("HTTP/2.0 404 Not Found\\r\\n", "gh: HTTP 404"), fails: "gh attestation verify refused", asked: true},
		"auto, bad question":   {mode: "auto", token: "t", gh: refused("HTTP/2.0 422 x\\r\\n", "gh: HTTP 422"), fails: "gh attestation verify refused", asked: true},
		"auto, no answer":      {mode: "auto", token: "t", gh: refused("", "error connecting to api.github.com"), says: "attestation not checked: GitHub could not be asked for it now: error connecting to api.github.com; the SHA-256 of release.lock was", asked: true},
		"auto, bad token":      {mode: "auto", token: "t", gh: refused("HTTP/2.0 401 Unauthorized\\r\\n", "gh: Bad credentials (HTTP 401)"), says: "Bad credentials", asked: true},
		"auto, too many":       {mode: "auto", token: "t", gh: refused("HTTP/1.1 403 Forbidden\\r\\n", "gh: API rate limit exceeded (HTTP 403)"), says: "rate limit exceeded", asked: true},
		"auto, outage":         {mode: "auto", token: "t", gh: refused("HTTP/2.0 502 Bad Gateway\\r\\n", "gh: HTTP 502"), says: "gh: HTTP 502", asked: true},
		"unknown mode":         {mode: "maybe", gh: works, fails: "attestation is 'maybe'; fix: use off, auto or required"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRelease(t)
			s := r.install(t).set("BSM_ATTESTATION", c.mode, "GH_TOKEN", c.token)
			if c.server != "" {
				s.set("GITHUB_SERVER_URL", c.server)
			}
			s.tool("gh", c.gh)
			if c.fails != "" {
				s.fails(c.fails, "fix: ")
				require.Empty(t, s.glob("bsm-redteam/downloads/*"))
			} else {
				res, _ := s.succeeds()
				require.Contains(t, res.log, c.says)
			}
			if !c.asked {
				require.NoFileExists(t, s.path("home", "gh"))
				return
			}
			asked := strings.Split(strings.TrimSpace(read(t, s.path("home", "gh"))), "\n")
			require.Equal(t, []string{"attestation", "verify"}, asked[:2])
			require.Contains(t, strings.Join(asked, " "), "--repo brainst0rm/sandbox-redteam --signer-workflow brainst0rm/sandbox-redteam/.github/workflows/release.yml --deny-self-hosted-runners")
			require.Equal(t, []string{c.token, "github.com"}, asked[len(asked)-2:])
			if again, err := os.ReadFile(s.path("home", "api")); err == nil {
				require.Equal(t, fmt.Sprintf("api\n--include\nrepos/brainst0rm/sandbox-redteam/attestations/sha256:%x\n%s\ngithub.com\n", sha256.Sum256(r.files[linux]), c.token), string(again))
			} else {
				require.True(t, c.mode == "required" || strings.Contains(c.says, "verified"), "who refused was not asked")
			}
		})
	}
	t.Run("required without gh", func(t *testing.T) {
		s := newRelease(t).install(t).set("BSM_ATTESTATION", "required", "GH_TOKEN", "t")
		s.only("bash", "mkdir", "mktemp", "rm", "mv", "cp", "chmod", "touch", "find", "wc", "tar", "gzip", "sha256sum", "curl", "sleep")
		s.fails("gh is not in PATH", "fix: ")
	})
	t.Run("required, but nothing was released", func(t *testing.T) {
		for _, mode := range []string{"source", "none"} {
			newStep(t, "install.sh", "").set("BSM_INSTALL", mode, "BSM_ATTESTATION", "required").fails("attestation: required needs install: release")
		}
	})
	t.Run("also for what is in the cache", func(t *testing.T) {
		s := newRelease(t).install(t)
		s.succeeds()
		s.tool("gh", works)
		res, _ := s.set("GH_TOKEN", "t", "BSM_ATTESTATION", "required").succeeds()
		require.Contains(t, res.log, "verified")
	})
}

func TestNone(t *testing.T) {
	step := func(bin string) *step { return newStep(t, "install.sh", "").set("BSM_INSTALL", "none", "BSM_BIN", bin) }
	t.Run("relative to the workspace", func(t *testing.T) {
		for _, name := range []string{"bsm", "-rf", "a b", "$(touch x)", "--", "*", "a'b\"c", "##[error]"} {
			s := step(name)
			writeScript(t, s.path("workspace", name), strings.TrimPrefix(program, "#!/bin/sh\n"))
			r := s.run()
			require.Zero(t, r.code, r.log)
			require.Equal(t, map[string]string{"bin": s.path("workspace", name), "version": version}, r.outputs)
			require.NoFileExists(t, s.path("workspace", "x"))
		}
	})
	t.Run("absolute", func(t *testing.T) {
		s := step("")
		writeScript(t, s.path("prog"), strings.TrimPrefix(program, "#!/bin/sh\n"))
		r := s.set("BSM_BIN", s.path("prog")).run()
		require.Equal(t, s.path("prog"), r.outputs["bin"], r.log)
		require.Empty(t, s.installed(), "nothing was to be installed")
	})
	for name, c := range map[string]struct{ bin, body, want string }{
		"not set":      {"", "", "install: none needs bin"},
		"missing":      {"absent", "", "bin is no file"},
		"a blank":      {" ", "", "bin is no file"},
		"a directory":  {".", "", "bin is no file"},
		"an option":    {"--version", "", "bin is no file"},
		"an output":    {"x\nversion=v9", "", "bin holds control characters"},
		"a command":    {"x\n::add-mask::a", "", "bin holds control characters"},
		"fails":        {"prog", "exit 1", "does not answer version"},
		"says nothing": {"prog", "exit 0", "does not answer version"},
		"another":      {"prog", "echo curl 8.0 '('", "does not answer version"},
		"injects":      {"prog", `printf 'bsm-redteam v1\nbin=/evil (x\n'`, "does not answer version"},
		"long version": {"prog", "echo bsm-redteam v" + strings.Repeat("1", 200) + " '(x'", "does not answer version"},
		"NUL":          {"prog", `printf '\0\0'`, "does not answer version"},
		"no program":   {"prog", "\x00", "does not answer version"},
	} {
		t.Run(name, func(t *testing.T) {
			s := step(c.bin)
			if c.body == "\x00" {
				require.NoError(t, os.WriteFile(s.path("workspace", "prog"), []byte("\x7fELF\x00"), 0o755))
			} else if c.body != "" {
				writeScript(t, s.path("workspace", "prog"), c.body)
			}
			s.fails(c.want)
		})
	}
	t.Run("not executable", func(t *testing.T) {
		s := step("prog")
		write(t, s.path("workspace", "prog"), program)
		s.fails("bin is not executable", "fix: chmod +x")
	})
	t.Run("only for none", func(t *testing.T) {
		for _, mode := range []string{"release", "source", ""} {
			newStep(t, "install.sh", "").set("BSM_INSTALL", mode, "BSM_BIN", "x").fails("bin is only for install: none", "fix: ")
		}
	})
}

func TestHostileValues(t *testing.T) {
	for _, mode := range []string{"--help", "-", " ", "release ", "Release", "release\nbin=/evil", "$(touch owned)", "`touch owned`", "##[error]x", "\r\n::stop-commands::x", "use_bin", "../x", "\x1b[2J", "%0A::error::x"} {
		t.Run(mode, func(t *testing.T) {
			s := newStep(t, "install.sh", newRelease(t).lock).set("BSM_INSTALL", mode)
			s.fails("install is '", "fix: use release, source or none")
			require.NoFileExists(t, s.path("workspace", "owned"))
		})
	}
	t.Run("tool caches with odd names", func(t *testing.T) {
		for _, name := range []string{"a b", "-rf", "$(touch owned)", "'", "*", "%s", "tab\there"} {
			r := newRelease(t)
			s := r.install(t)
			s.set("RUNNER_TOOL_CACHE", s.path("tools", name))
			if strings.Contains(name, "\t") {
				s.fails("RUNNER_TOOL_CACHE holds control characters", "fix: ")
				continue
			}
			_, bin := s.succeeds()
			require.True(t, strings.HasPrefix(bin, s.path("tools", name)+"/"), bin)
		}
	})
	t.Run("a relative tool cache", func(t *testing.T) {
		newRelease(t).install(t).set("RUNNER_TOOL_CACHE", "tools").fails("RUNNER_TOOL_CACHE is no absolute path")
	})
	t.Run("settings of tools", func(t *testing.T) {
		s := newRelease(t).install(t)
		write(t, s.path("home", ".curlrc"), "output = "+s.path("stolen")+"\n")
		s.set("TAR_OPTIONS", "--to-command=touch "+s.path("owned"), "GZIP", "-9", "CDPATH", "/", "IFS", "/", "LC_ALL", "tr_TR.UTF-8", "http_proxy", "http://127.0.0.1:1", "ALL_PROXY", "http://127.0.0.1:1")
		_, bin := s.succeeds()
		require.Equal(t, program, read(t, bin))
		require.NoFileExists(t, s.path("owned"))
		require.NoFileExists(t, s.path("stolen"))
	})
	t.Run("no output file to write", func(t *testing.T) {
		s := newRelease(t).install(t).set("GITHUB_OUTPUT", "/nonexistent/output")
		r := s.run()
		require.NotZero(t, r.code)
		require.Contains(t, r.log, "cannot write GITHUB_OUTPUT")
	})
}

// tiny is a module with the two commands and nothing else; building the real ones
// once is enough.
func tiny(t *testing.T, checkout string) {
	t.Helper()
	copyScripts(t, checkout, "")
	write(t, filepath.Join(checkout, "go.mod"), "module example.invalid/tiny\n\ngo 1.24\n")
	write(t, filepath.Join(checkout, "cmd/bsm-agent/main.go"), "package main\n\nfunc main() {}\n")
	write(t, filepath.Join(checkout, "cmd/bsm-redteam/main.go"), `package main

import (
	"fmt"
	"runtime/debug"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	version := info.Main.Version
	if version == "(devel)" || version == "" {
		version = "devel"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				version += "-" + s.Value
			}
		}
	}
	fmt.Println("bsm-redteam", version, "(tiny)")
}
`)
}

func sourceStep(t *testing.T, checkout string) *step {
	t.Helper()
	testreq.Need(t, "go", "git")
	s := stepOf(t, filepath.Join(checkout, "scripts", "install.sh")).set("BSM_INSTALL", "source")
	// The build cache of whoever runs the tests: a step has a warm one, too.
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	require.NoError(t, err)
	dirs := strings.Split(strings.TrimSpace(string(out)), "\n")
	return s.set("GOCACHE", dirs[0], "GOMODCACHE", dirs[1], "GIT_CONFIG_GLOBAL", "/dev/null", "GIT_CONFIG_SYSTEM", "/dev/null")
}

func TestSource(t *testing.T) {
	t.Run("with the version of git", func(t *testing.T) {
		checkout := filepath.Join(t.TempDir(), "a b")
		tiny(t, checkout)
		git(t, checkout, "init", "-q")
		git(t, checkout, "add", ".")
		git(t, checkout, "commit", "-q", "-m", "x")
		git(t, checkout, "tag", "v1.4.0")
		s := sourceStep(t, checkout)
		res, bin := s.succeeds()
		require.Equal(t, "v1.4.0", res.outputs["version"])
		require.ElementsMatch(t, []string{bin, filepath.Join(filepath.Dir(bin), "bsm-agent")}, s.installed())
		require.Empty(t, git(t, checkout, "status", "--porcelain"), "the checkout was changed")

		before, err := os.Stat(bin)
		require.NoError(t, err)
		_, again := s.succeeds()
		after, err := os.Stat(again)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after), "the same sources were installed twice")

		write(t, filepath.Join(checkout, "cmd/bsm-agent/main.go"), "package main\n\nfunc main() { println() }\n")
		res, other := s.succeeds()
		require.NotEqual(t, bin, other, "other sources, the same place")
		require.Contains(t, res.outputs["version"], "+dirty")
	})
	t.Run("an archive of the action has no git", func(t *testing.T) {
		checkout := t.TempDir()
		tiny(t, checkout)
		res, _ := sourceStep(t, checkout).succeeds()
		require.Equal(t, "devel", res.outputs["version"])
	})
	t.Run("inside another project", func(t *testing.T) {
		outer := t.TempDir()
		tiny(t, filepath.Join(outer, "vendored"))
		git(t, outer, "init", "-q")
		git(t, outer, "add", ".")
		git(t, outer, "commit", "-q", "-m", "x")
		git(t, outer, "tag", "v9.9.9")
		res, _ := sourceStep(t, filepath.Join(outer, "vendored")).succeeds()
		require.Equal(t, "devel", res.outputs["version"])
	})
	t.Run("settings of Go", func(t *testing.T) {
		checkout := t.TempDir()
		tiny(t, checkout)
		write(t, filepath.Join(checkout, "..", "go.work"), "not a workspace")
		s := sourceStep(t, checkout).set("GOOS", "windows", "GOARCH", "mips", "CGO_ENABLED", "1", "GOFLAGS", "-toolexec=/nonexistent", "GOWORK", "/nonexistent/go.work", "GOEXPERIMENT", "nonsense")
		s.succeeds()
	})
	t.Run("does not build", func(t *testing.T) {
		checkout := t.TempDir()
		tiny(t, checkout)
		write(t, filepath.Join(checkout, "cmd/bsm-agent/main.go"), "package main\n")
		sourceStep(t, checkout).fails("go could not build bsm-agent", "fix: ")
	})
	t.Run("go does not work", func(t *testing.T) {
		checkout := t.TempDir()
		tiny(t, checkout)
		s := sourceStep(t, checkout)
		s.tool("go", "echo go.mod requires a newer go >&2; exit 1")
		r := s.fails("go env failed", "fix: ")
		require.Contains(t, r.log, "requires a newer go")
	})
}

// TestSourceOfThisTree builds the real programs.
func TestSourceOfThisTree(t *testing.T) {
	root, err := filepath.Abs(filepath.Join(scripts, ".."))
	require.NoError(t, err)
	s := sourceStep(t, root)
	res, bin := s.succeeds()
	out, err := exec.Command(bin, "version").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "bsm-redteam "+res.outputs["version"]+" (")
	arch := strings.TrimSpace(strings.TrimSuffix(string(out[strings.LastIndexByte(string(out), '/')+1:]), ")\n"))
	require.NoError(t, agentbin.Check(bin, arch), "static, for this machine")

	agent := filepath.Join(t.TempDir(), "bsm-agent")
	require.NoError(t, agentbin.Build(t.Context(), arch, agent))
	require.True(t, read(t, agent) == read(t, filepath.Join(filepath.Dir(bin), "bsm-agent")), "the agent is not the one that bsm-redteam itself would build")
}

// TestABuiltReleaseIsInstalled: what scripts/internal/release makes is what
// install.sh takes, says the version of the lock, and carries its agent.
func TestABuiltReleaseIsInstalled(t *testing.T) {
	testreq.Need(t, "go", "linux")
	arch := map[string]string{"amd64": "X64", "arm64": "ARM64"}[runtime.GOARCH]
	asset := "bsm-redteam_linux_" + runtime.GOARCH + ".tar.gz"
	dist := filepath.Join(t.TempDir(), "dist")
	cmd := exec.Command("go", "run", "./scripts/internal/release", "build", "--version", version, "--out", dist, "--platforms", "linux/"+runtime.GOARCH)
	cmd.Dir = filepath.Join(scripts, "..")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	content := []byte(read(t, filepath.Join(dist, asset)))
	r := &release{files: map[string][]byte{asset: content}, lock: "version " + version + "\n" + row(content, asset)}
	s := r.install(t).set("RUNNER_ARCH", arch)
	res, bin := s.succeeds()
	require.Equal(t, version, res.outputs["version"])
	require.Equal(t, []string{bin}, s.installed(), "the agent is inside")
	require.NoError(t, agentbin.Check(bin, runtime.GOARCH), "static, for this machine")
}
