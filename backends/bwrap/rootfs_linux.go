package bwrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// layoutVersion changes whenever the tree below would come out differently.
const layoutVersion = "1"

// shadowMarker shows in a file that an escape to the host would not find there.
const shadowMarker = "bsm-guest-marker"

// files are the rootfs beside the agent. Mount points are empty directories:
// nothing can be created in it later, it is bound read-only.
func files() map[string]string {
	return map[string]string{
		"etc/passwd":   "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/tmp:/sbin/nologin\n",
		"etc/group":    "root:x:0:\nnogroup:x:65534:\n",
		"etc/shadow":   "root:!" + shadowMarker + ":19000:0:99999:7:::\n",
		"etc/hosts":    "127.0.0.1 localhost\n::1 localhost\n",
		"etc/hostname": "sandbox\n",
	}
}

var mountPoints = []string{"proc", "dev", "tmp", "bin", "etc"}

// rootfs is a finished tree and the digest that it had when it was built.
type rootfs struct{ dir, digest string }

// cacheDir returns a directory of ours that c can reach and nobody else can
// write.
func cacheDir(workDir string, c backends.Credential) (string, error) {
	var bases []string
	if workDir != "" {
		bases = append(bases, workDir)
	}
	if os.Geteuid() == 0 {
		bases = append(bases, "/var/cache")
	} else if home, err := os.UserCacheDir(); err == nil {
		bases = append(bases, home)
	}
	bases = append(bases, os.TempDir())
	var errs []error
	for _, base := range bases {
		dir := filepath.Join(base, "bsm-redteam-"+strconv.Itoa(os.Geteuid()), "bwrap")
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = reachable(dir, c)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no directory for the root file system: %w", errors.Join(errs...))
}

// reachable says why c could not enter dir, or why somebody else could change
// what is in it.
func reachable(dir string, c backends.Credential) error {
	for d, first := dir, true; ; d, first = filepath.Dir(d), false {
		fi, err := os.Stat(d)
		if err != nil {
			return err
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("%s: no owner known", d)
		}
		perm := fi.Mode().Perm()
		if perm&0o001 == 0 && (int(st.Uid) != c.UID || perm&0o100 == 0) {
			return fmt.Errorf("uid %d cannot enter %s (%04o)", c.UID, d, perm)
		}
		if first && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to uid %d", d, st.Uid)
		}
		if perm&0o022 != 0 && fi.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("%s (%04o) can be changed by others", d, perm)
		}
		if d == "/" {
			return nil
		}
	}
}

// treeOf is where the tree for an agent of that digest lies.
func treeOf(cache, sum string) string { return filepath.Join(cache, sum[:32]+"-"+layoutVersion) }

// noteOf is where the digest of exactly this file is noted. Whoever changes the
// file changes one of these numbers. What runs is the copy in the tree, which is
// hashed in every boot.
func noteOf(agent *os.File, cache string) (string, error) {
	fi, err := agent.Stat()
	if err != nil {
		return "", err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("the agent has no inode number")
	}
	return filepath.Join(cache, fmt.Sprintf("agent-%x-%x-%x-%x-%x", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())), nil
}

// remembered finds the tree for an agent without reading the agent.
func remembered(agent *os.File, cache string) (rootfs, string, error) {
	note, err := noteOf(agent, cache)
	if err != nil {
		return rootfs{}, "", err
	}
	b, err := os.ReadFile(note)
	if err != nil {
		return rootfs{}, "", err
	}
	sum := string(b)
	if err := integrity.ValidHash("sha256:" + sum); err != nil {
		return rootfs{}, "", err
	}
	r, err := built(treeOf(cache, sum))
	return r, sum, err
}

// built returns a tree that was built before.
func built(dir string) (rootfs, error) {
	digest, err := os.ReadFile(dir + ".digest")
	if err == nil {
		err = integrity.ValidHash(string(digest))
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, agentInside))
	}
	return rootfs{dir, string(digest)}, err
}

// prepare returns the cached tree for an agent, or builds it, and the agent's
// digest in hex.
func prepare(ctx context.Context, agent *os.File, cache string, led *ledger.Ledger) (rootfs, string, error) {
	hash, err := integrity.HashReader(ctx, agent)
	if err != nil {
		return rootfs{}, "", fmt.Errorf("hash the agent: %w", err)
	}
	sum := strings.TrimPrefix(hash, "sha256:")
	dir := treeOf(cache, sum)
	r, err := built(dir)
	if err != nil {
		r, err = construct(ctx, agent, sum, dir, led)
	}
	if err != nil {
		return r, "", err
	}
	note, err := noteOf(agent, cache)
	if err != nil {
		return r, "", err
	}
	return r, sum, replaceFile(note, sum)
}

// replaceFile writes a small file in one step.
func replaceFile(path, content string) error {
	tmp := path + ".new-" + wire.NewNonceString()
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// expiry is how long a tree that nobody built again is kept.
const expiry = 7 * 24 * time.Hour

// expire removes trees and notes that were written long ago, best effort: what
// is still there is only in the way.
func expire(cache string) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > expiry {
			_ = os.RemoveAll(filepath.Join(cache, e.Name()))
		}
	}
}

// construct builds a tree beside its place and moves it there.
func construct(ctx context.Context, agent *os.File, sum, dir string, led *ledger.Ledger) (rootfs, error) {
	expire(filepath.Dir(dir))
	tmp := dir + ".new-" + wire.NewNonceString()
	entry, err := led.MakeDir(tmp)
	if err != nil {
		return rootfs{}, err
	}
	err = build(ctx, filepath.Join(tmp, "rootfs"), agent)
	var r rootfs
	if err == nil {
		err = holds(ctx, filepath.Join(tmp, "rootfs"), sum)
	}
	if err == nil {
		r, err = install(ctx, tmp, dir)
	}
	return r, errors.Join(err, os.RemoveAll(tmp), entry.Done())
}

// holds binds the digest of a tree to that of its agent.
func holds(ctx context.Context, dir, sum string) error {
	got, err := integrity.HashFile(ctx, filepath.Join(dir, agentInside))
	if err == nil && got != "sha256:"+sum {
		err = errors.New("the agent changed while it was copied")
	}
	return err
}

// build makes the tree.
func build(ctx context.Context, dir string, agent *os.File) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, d := range mountPoints {
		path := filepath.Join(dir, d)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chmod(path, 0o755)); err != nil { // whatever the umask
			return err
		}
	}
	for name, content := range files() {
		if err := place(filepath.Join(dir, name), bytes.NewReader([]byte(content)), 0o644); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := agent.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := place(filepath.Join(dir, agentInside), agent, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

func place(path string, r io.Reader, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// install moves a tree that was built in tmp to its place. Of two that do so at
// once the first one wins; both trees are the same.
func install(ctx context.Context, tmp, dir string) (rootfs, error) {
	built, sum := filepath.Join(tmp, "rootfs"), filepath.Join(tmp, "digest")
	digest, err := integrity.HashTree(ctx, built)
	if err != nil {
		return rootfs{}, err
	}
	if err := os.WriteFile(sum, []byte(digest), 0o644); err != nil {
		return rootfs{}, err
	}
	if err := os.Rename(built, dir); err != nil {
		// There already, or what is left of one: it has to be the same tree.
		if there, herr := integrity.HashTree(ctx, dir); herr != nil || there != digest {
			return rootfs{}, &backends.Error{Code: backends.ErrBootFailed, Doing: "install the root file system", Err: errors.Join(err, herr), Fix: "rm -rf " + dir}
		}
	}
	return rootfs{dir, digest}, os.Rename(sum, dir+".digest")
}
