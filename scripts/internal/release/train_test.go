package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// train is a clone of this tree with a remote on this disk and a gh that only
// writes down what it was asked for.
type train struct {
	t      *testing.T
	clone  string
	remote string
	dist   string
	built  string // what the tagged commit builds
	calls  string
	env    []string
}

// gh answers as GitHub would: a draft is there unless NO_DRAFT is set, its assets
// are those in DIST, attestations hold unless FORGED names the asset, and the tag
// of the major version is at MAJOR_AT, if that is set.
const gh = `#!/usr/bin/env bash
set -euo pipefail
printf '%s\n' "$*" >>"$CALLS"
case "$1 $2" in
"release view") [ -z "${NO_DRAFT:-}" ] && echo true ;;
"release download") cp "$DIST"/* "$5" ;;
"attestation verify") [ "${3##*/}" != "${FORGED:-}" ] ;;
"api repos/o/r/git/ref/tags/v1") [ -n "${MAJOR_AT:-}" ] && echo "$MAJOR_AT" ;;
esac
`

func newTrain(t *testing.T) *train {
	t.Helper()
	testreq.Need(t, "go", "git", "bash")
	tr := &train{t: t, clone: copyTree(t, checkout), remote: filepath.Join(t.TempDir(), "remote.git"), dist: t.TempDir(), built: t.TempDir(), calls: filepath.Join(t.TempDir(), "calls")}
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "gh"), []byte(gh), 0o755))
	require.NoError(t, os.WriteFile(tr.calls, nil, 0o600))
	tr.env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "CALLS="+tr.calls, "DIST="+tr.dist,
		"GITHUB_REPOSITORY=o/r", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com")
	for _, name := range assets() {
		require.NoError(t, os.WriteFile(filepath.Join(tr.dist, name), []byte("content of "+name), 0o600))
	}
	require.NoError(t, writeSums(tr.dist))
	tr.rebuild()
	tr.git("init", "-q", "-b", "main")
	tr.git("add", "-A")
	tr.git("commit", "-q", "-m", "before")
	tr.git("init", "-q", "--bare", tr.remote)
	tr.git("remote", "add", "origin", tr.remote)
	tr.git("push", "-q", "origin", "main")
	return tr
}

// rebuild makes the tagged commit build what the draft has.
func (tr *train) rebuild() {
	tr.t.Helper()
	require.NoError(tr.t, os.RemoveAll(tr.built))
	require.NoError(tr.t, os.CopyFS(tr.built, os.DirFS(tr.dist)))
}

func (tr *train) git(args ...string) string {
	tr.t.Helper()
	out, err := tr.run("git", nil, args...)
	require.NoError(tr.t, err, out)
	return strings.TrimSpace(out)
}

func (tr *train) run(name string, env []string, args ...string) (string, error) {
	tr.t.Helper()
	cmd := exec.CommandContext(tr.t.Context(), name, args...)
	cmd.Dir, cmd.Env = tr.clone, append(tr.env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (tr *train) script(env []string, args ...string) (string, error) {
	tr.t.Helper()
	return tr.run(filepath.Join(tr.clone, "scripts", "internal", args[0]), env, args[1:]...)
}

// asked returns what gh was asked for since the last time.
func (tr *train) asked() string {
	tr.t.Helper()
	b, err := os.ReadFile(tr.calls)
	require.NoError(tr.t, err)
	require.NoError(tr.t, os.WriteFile(tr.calls, nil, 0o600))
	return string(b)
}

// release makes the lock name dist, and tags that commit of main.
func (tr *train) release(version string) {
	tr.t.Helper()
	require.NoError(tr.t, run(tr.t.Context(), []string{"lock", "--version", version, "--dist", tr.dist, "--lock", filepath.Join(tr.clone, "scripts", "release.lock")}))
	tr.git("commit", "-q", "-m", version, "--", "scripts/release.lock")
	tr.git("push", "-q", "origin", "main")
	tr.git("tag", version)
}

func TestDraft(t *testing.T) {
	tr := newTrain(t)
	before := tr.git("rev-parse", "main")
	out, err := tr.script(nil, "release-draft", "v1.2.3", tr.dist)
	require.NoError(t, err, out)
	asked := tr.asked()
	require.Contains(t, asked, "release create v1.2.3 --draft")
	require.Contains(t, asked, assets()[0])
	require.Contains(t, asked, "pr create --base main --head release/v1.2.3")
	require.Equal(t, before, tr.git("--git-dir", tr.remote, "rev-parse", "main"), "main is nobody's to move")
	require.Equal(t, "scripts/release.lock", tr.git("diff", "--name-only", before, "release/v1.2.3"))
	lock := tr.git("--git-dir", tr.remote, "show", "release/v1.2.3:scripts/release.lock")
	require.Contains(t, lock, "\nversion v1.2.3\n")

	tr.git("switch", "-q", "main")
	tr.git("tag", "v1.2.4")
	tr.git("push", "-q", "origin", "v1.2.4")
	out, err = tr.script(nil, "release-draft", "v1.2.4", tr.dist)
	require.Error(t, err)
	require.Contains(t, out, "there already")
	require.Empty(t, tr.asked())
}

func TestPublish(t *testing.T) {
	tr := newTrain(t)
	tr.release("v1.2.3")
	commit := tr.git("rev-parse", "HEAD")
	publish := "release edit v1.2.3 --draft=false"

	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"no draft":          {[]string{"NO_DRAFT=1"}, "there is no draft"},
		"forged provenance": {[]string{"FORGED=" + assets()[2]}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := tr.script(c.env, "release-publish", "v1.2.3", tr.built)
			require.Error(t, err)
			require.Contains(t, out, c.want)
			require.NotContains(t, tr.asked(), "release edit")
		})
	}
	t.Run("an asset is not that of the lock", func(t *testing.T) {
		victim := filepath.Join(tr.dist, assets()[0])
		before, err := os.ReadFile(victim)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(victim, []byte("other content"), 0o600))
		out, err := tr.script(nil, "release-publish", "v1.2.3", tr.built)
		require.Error(t, err)
		require.Contains(t, out, "does not build the assets")
		require.NotContains(t, tr.asked(), "release edit")

		tr.rebuild()
		out, err = tr.script(nil, "release-publish", "v1.2.3", tr.built)
		require.Error(t, err)
		require.Contains(t, out, "has digest")
		require.NotContains(t, tr.asked(), "release edit")

		require.NoError(t, renewSums(tr.dist))
		tr.rebuild()
		out, err = tr.script(nil, "release-publish", "v1.2.3", tr.built)
		require.Error(t, err)
		require.Contains(t, out, "not those of scripts/release.lock")
		require.NotContains(t, tr.asked(), "release edit")
		require.NoError(t, os.WriteFile(victim, before, 0o600))
		require.NoError(t, renewSums(tr.dist))
		tr.rebuild()
	})
	t.Run("another version, no version", func(t *testing.T) {
		for version, want := range map[string]string{"v1.2.4": "", "main": "no version of ours", "v1.2.3; true": "no version of ours"} {
			out, err := tr.script(nil, "release-publish", version, tr.built)
			require.Error(t, err)
			require.Contains(t, out, want)
			require.Empty(t, tr.asked())
		}
	})
	t.Run("published, then the major version moves", func(t *testing.T) {
		tr.git("tag", "-a", "-m", "v1.1.9", "v1.1.9", "v1.2.3~1")
		for env, move := range map[string]string{
			"MAJOR_AT=" + tr.git("rev-parse", "v1.1.9"):          "api --method PATCH repos/o/r/git/refs/tags/v1 -f sha=" + commit,
			"MAJOR_AT=" + tr.git("rev-parse", "v1.1.9^{commit}"): "api --method PATCH repos/o/r/git/refs/tags/v1 -f sha=" + commit,
			"MAJOR_AT=" + commit:                                 "api --method PATCH repos/o/r/git/refs/tags/v1 -f sha=" + commit,
			"MAJOR_AT=":                                          "api --method POST repos/o/r/git/refs -f ref=refs/tags/v1 -f sha=" + commit,
		} {
			out, err := tr.script([]string{env}, "release-publish", "v1.2.3", tr.built)
			require.NoError(t, err, out)
			asked := tr.asked()
			require.Contains(t, asked, publish)
			require.Contains(t, asked, move)
			require.Less(t, strings.Index(asked, "attestation verify"), strings.Index(asked, publish))
			require.Less(t, strings.Index(asked, publish), strings.Index(asked, move))
			require.Equal(t, len(assets())+1, strings.Count(asked, "attestation verify"), "every asset and the sums")
		}
	})
	t.Run("the major version never moves back", func(t *testing.T) {
		for version, moves := range map[string]bool{"v1.1.10": false, "v1.2.2": false, "v1.10.0": true} {
			tr.release(version)
			out, err := tr.script([]string{"MAJOR_AT=" + commit}, "release-publish", version, tr.built)
			require.NoError(t, err, out)
			asked := tr.asked()
			require.Contains(t, asked, "release edit "+version+" --draft=false")
			require.Equal(t, moves, strings.Contains(asked, "--method"), asked)
			if !moves {
				require.Contains(t, out, "v1 stays at v1.2.3, which is newer than "+version)
			}
		}
	})
	t.Run("the major version is at no version of ours", func(t *testing.T) {
		tr.release("v1.11.0")
		tr.git("commit", "-q", "--allow-empty", "-m", "no version")
		elsewhere := tr.git("rev-parse", "HEAD")
		tr.git("switch", "-q", "--detach", "v1.11.0")
		for at, want := range map[string]string{elsewhere: "which is no version", strings.Repeat("1", 40): "not in this clone"} {
			out, err := tr.script([]string{"MAJOR_AT=" + at}, "release-publish", "v1.11.0", tr.built)
			require.Error(t, err)
			require.Contains(t, out, "v1.11.0 is published, but v1 is at")
			require.Contains(t, out, want)
			require.NotContains(t, tr.asked(), "--method")
		}
		tr.git("switch", "-q", "main")
	})
	t.Run("not on main", func(t *testing.T) {
		tr.git("switch", "-q", "--detach")
		tr.git("commit", "-q", "--allow-empty", "-m", "aside")
		tr.git("tag", "v1.9.0")
		out, err := tr.script(nil, "release-publish", "v1.9.0", tr.built)
		require.Error(t, err)
		require.Contains(t, out, "not on main")
		require.Empty(t, tr.asked())
		tr.git("switch", "-q", "main")
	})
	t.Run("a candidate moves nothing", func(t *testing.T) {
		tr.release("v1.3.0-rc.1")
		out, err := tr.script(nil, "release-publish", "v1.3.0-rc.1", tr.built)
		require.NoError(t, err, out)
		asked := tr.asked()
		require.Contains(t, asked, "release edit v1.3.0-rc.1 --draft=false --prerelease")
		require.NotContains(t, asked, "tags/v1")
	})
}

// renewSums digests the assets once more.
func renewSums(dir string) error {
	if err := os.Remove(filepath.Join(dir, sumsFile)); err != nil {
		return fmt.Errorf("renew the sums: %w", err)
	}
	return writeSums(dir)
}
