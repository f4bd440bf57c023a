package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// writeFile writes a cgroup control file. It never creates one: outside a
// cgroup file system that would be a plain file that limits nothing.
func writeFile(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

func readInt(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
}

// readKey reads the value of a "key value" line.
func readKey(path, key string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %q", path, key)
}

func readPIDs(path string) ([]int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []int
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if pid > 0 { // 0 stands for a process outside our pid namespace
			out = append(out, pid)
		}
	}
	return out, nil
}

// clockTick is the unit of the times in /proc/PID/stat; USER_HZ is 100 on every
// architecture that Go supports.
const clockTick = 10 * time.Millisecond

// cpuTime sums the processor time of pids and of the children that they reaped.
func cpuTime(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue // gone meanwhile
		}
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(f) < 15 {
			continue
		}
		for _, v := range f[11:15] { // utime, stime, cutime, cstime
			ticks, err := strconv.ParseInt(string(v), 10, 64)
			if err == nil {
				sum += time.Duration(ticks) * clockTick
			}
		}
	}
	return sum
}
