package image

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// What Ensure keeps besides the image it was asked for.
const (
	keepImages = 8
	keepFor    = time.Hour
)

// DefaultCacheDir is where kernels and images are kept for this user.
func DefaultCacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fail("find the cache directory", "set XDG_CACHE_HOME or HOME, or give --cache-dir", err)
	}
	return filepath.Join(dir, "bsm-redteam"), nil
}

// Ensure returns a verified image for o, building it only if there is no fresh
// one. An empty OutDir means a directory of the cache that belongs to these
// inputs alone, so that a new agent never replaces an image in use. Processes
// that share a cache wait for each other.
func Ensure(ctx context.Context, o Options) (Manifest, error) {
	if o.OutDir == "" {
		agent, err := agentInput(o)
		if err != nil {
			return Manifest{}, err
		}
		key := digest(fmt.Appendf(nil, "%d %q %q %q %q %q", Format, o.Arch, o.Kernel, o.ModulesDir, o.Modules, agent.SHA256))
		o.OutDir = filepath.Join(o.CacheDir, "images", o.Arch+"-"+key[:16])
	}
	unlock, err := lock(ctx, o)
	if err != nil {
		return Manifest{}, err
	}
	defer unlock()
	if m, ok := fresh(o.OutDir, o); ok {
		now := time.Now()
		_ = os.Chtimes(o.OutDir, now, now) // only the pruning order depends on it
		return m, nil
	}
	o.log().Info("building guest image", "dir", o.OutDir)
	m, err := Build(ctx, o)
	if err == nil {
		prune(filepath.Join(o.CacheDir, "images"), o.OutDir)
	}
	return m, err
}

// lock takes the cache's file lock, which the kernel drops with the process.
func lock(ctx context.Context, o Options) (unlock func(), err error) {
	if err := os.MkdirAll(o.CacheDir, 0o755); err != nil {
		return nil, ioError("make image cache", err)
	}
	f, err := os.OpenFile(filepath.Join(o.CacheDir, "image.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, ioError("lock image cache", err)
	}
	// Polled, because a blocked flock would outlive a cancelled context.
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			tick.Stop()
			return func() { _ = f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			_ = f.Close()
			return nil, ioError("lock image cache", err)
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			_ = f.Close()
			return nil, fmt.Errorf("wait for another build of the guest image: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// prune removes the images used longest ago. Failing to is harmless.
func prune(dir, current string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	type aged struct {
		path string
		used time.Time
	}
	var old []aged
	for _, e := range list {
		info, err := e.Info()
		path := filepath.Join(dir, e.Name())
		if err == nil && info.IsDir() && path != current && time.Since(info.ModTime()) > keepFor {
			old = append(old, aged{path, info.ModTime()})
		}
	}
	slices.SortFunc(old, func(a, b aged) int { return cmp.Compare(b.used.UnixNano(), a.used.UnixNano()) })
	for _, a := range old[min(keepImages, len(old)):] {
		_ = os.RemoveAll(a.path)
	}
}
