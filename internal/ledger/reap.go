package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Reaped is one resource that Reap removed, or why it could not.
type Reaped struct {
	Kind   Kind
	Target string
	PID    int
	Err    error
}

// killWait bounds the wait for one killed process or emptied cgroup to go.
const killWait = 5 * time.Second

// Reap removes whatever is left of runs whose owner is no longer alive:
// processes first, then the cgroups that held them, then mounts, then the
// directories that they were in. What cannot be removed keeps its record.
func (l *Ledger) Reap(ctx context.Context) ([]Reaped, error) {
	if l == nil {
		return nil, nil
	}
	records, err := l.records()
	if err != nil {
		err = fmt.Errorf("read ledger: %w", err)
	}
	order := []Kind{KindProcess, KindCgroup, KindMount, KindDir}
	slices.SortStableFunc(records, func(a, b record) int {
		if k := slices.Index(order, a.Kind) - slices.Index(order, b.Kind); k != 0 {
			return k
		}
		return len(b.Target) - len(a.Target) // nested paths first
	})
	var out []Reaped
	for i := range records {
		if e := ctx.Err(); e != nil {
			return out, errors.Join(err, e)
		}
		r := &records[i]
		orphan, e := l.orphan(r)
		if e == nil && !orphan {
			continue
		}
		found := []Reaped(nil)
		if e != nil {
			found = []Reaped{{Kind: r.Kind, Target: r.Target, Err: e}}
		} else {
			found = l.reap(ctx, r)
		}
		out = append(out, found...)
		if slices.ContainsFunc(found, func(f Reaped) bool { return f.Err != nil }) {
			continue
		}
		if e := (&Entry{ID: r.ID, l: l}).Done(); e != nil {
			err = errors.Join(err, e)
		}
	}
	return out, err
}

// orphan reports whether the owner of r is dead. An owner in another pid
// namespace cannot be judged from here.
func (l *Ledger) orphan(r *record) (bool, error) {
	if r.Owner.Boot != l.owner.Boot {
		return true, nil
	}
	if r.Owner.PIDNS != l.owner.PIDNS {
		return false, nil
	}
	alive, err := r.Owner.alive()
	return !alive, err
}

func (l *Ledger) reap(ctx context.Context, r *record) []Reaped {
	one := func(gone bool, err error) []Reaped {
		if gone && err == nil {
			return nil
		}
		return []Reaped{{Kind: r.Kind, Target: r.Target, Err: err}}
	}
	// A reboot ended every process, cgroup and mount; a path of that name
	// belongs to somebody else now.
	if r.Owner.Boot != l.owner.Boot && r.Kind != KindDir {
		return nil
	}
	switch r.Kind {
	case KindProcess:
		return l.reapProcess(ctx, r)
	case KindCgroup:
		return one(reapCgroup(ctx, r.Target))
	case KindMount:
		return one(reapMount(r.Target))
	case KindDir:
		return one(reapDir(r))
	}
	return one(false, fmt.Errorf("unknown kind %q", r.Kind))
}

// reapProcess kills the recorded process and everything that carries the
// entry's id in its environment.
func (l *Ledger) reapProcess(ctx context.Context, r *record) []Reaped {
	var victims []identity
	if r.Process != nil && r.Process.Boot == l.owner.Boot {
		victims = append(victims, *r.Process)
	}
	found, err := carrying(EnvVar + "=" + r.ID)
	if err != nil {
		return []Reaped{{Kind: r.Kind, Target: r.Target, Err: err}}
	}
	victims = append(victims, found...)
	var out []Reaped
	seen := map[int]bool{os.Getpid(): true}
	for _, v := range victims {
		if seen[v.PID] {
			continue
		}
		seen[v.PID] = true
		killed, err := v.kill(ctx, killWait)
		if killed || err != nil {
			out = append(out, Reaped{Kind: r.Kind, Target: r.Target, PID: v.PID, Err: err})
		}
	}
	return out
}

// reapDir removes a directory tree of ours. It refuses one that lacks our
// marker and has content, is a link, or has anything mounted in it.
func reapDir(r *record) (gone bool, err error) {
	fi, err := os.Lstat(r.Target)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if !fi.IsDir() {
		return false, fmt.Errorf("%s is not the directory that was made; left alone", r.Target)
	}
	mark, err := os.ReadFile(filepath.Join(r.Target, Marker))
	if errors.Is(err, fs.ErrNotExist) {
		// Killed between mkdir and the marker: it is empty, or not ours.
		if err := os.Remove(r.Target); err != nil {
			return false, fmt.Errorf("%s has no marker of ours and is not empty; left alone", r.Target)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if string(mark) != r.ID {
		return false, fmt.Errorf("%s carries the marker of another entry; left alone", r.Target)
	}
	points, err := mountPoints()
	if err != nil {
		return false, err
	}
	for _, p := range points {
		if p == r.Target || strings.HasPrefix(p, r.Target+"/") {
			return false, fmt.Errorf("%s is mounted inside %s; left alone; fix: umount %s", p, r.Target, p)
		}
	}
	return false, removeTree(r.Target)
}

// removeTree removes dir although something in it may lack write permission.
func removeTree(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}
