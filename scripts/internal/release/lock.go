package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// noRelease stands in the lock's comment until there is one.
const noRelease = " There is no release yet, so there are no rows."

// writeLock makes the lock name the archives in dist, which must be those that
// were built: every digest is computed again and compared with SHA256SUMS.
func writeLock(lock, version, dist string) error {
	if lock == "" || dist == "" {
		return errors.New("--lock and --dist are needed")
	}
	before, err := os.ReadFile(lock)
	if err != nil {
		return err
	}
	sums, err := readSums(filepath.Join(dist, sumsFile))
	if err != nil {
		return err
	}
	var text strings.Builder
	for line := range strings.Lines(string(before)) {
		if strings.HasPrefix(line, "#") {
			text.WriteString(strings.Replace(line, noRelease, "", 1))
		}
	}
	fmt.Fprintf(&text, "version %s\n", version)
	for _, name := range assets() {
		path := filepath.Join(dist, name)
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%w; fix: build all platforms", err)
		}
		digest, err := fileDigest(path)
		if err != nil {
			return err
		}
		if sums[name] != digest {
			return fmt.Errorf("%s has digest %s, %s says %q", name, digest, sumsFile, sums[name])
		}
		fmt.Fprintf(&text, "%s %d %s\n", digest, info.Size(), name)
	}
	return os.WriteFile(lock, []byte(text.String()), 0o644)
}

// readSums reads what writeSums wrote: digest by name.
func readSums(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(b)) {
		digest, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if _, twice := sums[name]; !ok || twice || len(digest) != 64 {
			return nil, fmt.Errorf("%s: malformed line %q", path, line)
		}
		sums[name] = digest
	}
	return sums, nil
}
