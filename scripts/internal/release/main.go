// Command release builds what a release consists of. The same sources give the
// same bytes, whatever the machine and directory; scripts/internal/release-build
// runs it with the Go version of go.mod.
//
//	release build --version v1.2.3 --out DIR [--platforms linux/amd64,...]
//	release lock  --version v1.2.3 --dist DIR --lock scripts/release.lock
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// versions are those of tags; the leading v is part of them.
var versions = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-rc\.[1-9][0-9]*)?$`)

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("needs a verb: build or lock")
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	version := f.String("version", "", "version with its v, as in the tag")
	var b build
	var dist, lock string
	switch args[0] {
	case "build":
		f.StringVar(&b.out, "out", "", "new or empty directory for the result")
		f.Func("platforms", "os/arch, separated by commas (default: all)", func(s string) error {
			b.platforms = strings.Split(s, ",")
			return nil
		})
	case "lock":
		f.StringVar(&dist, "dist", "", "directory of a build of all platforms")
		f.StringVar(&lock, "lock", "", "lock file, which is rewritten")
	default:
		return fmt.Errorf("unknown verb %q; there are build and lock", args[0])
	}
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%s takes no argument, but got %q", args[0], f.Arg(0))
	}
	if !versions.MatchString(*version) {
		return fmt.Errorf("--version %q is not of the form v1.2.3 or v1.2.3-rc.1", *version)
	}
	if args[0] == "lock" {
		return writeLock(lock, *version, dist)
	}
	if len(b.platforms) == 0 {
		b.platforms = platforms
	}
	for _, p := range b.platforms {
		if !slices.Contains(platforms, p) {
			return fmt.Errorf("--platforms: %q is not one of %s", p, strings.Join(platforms, ", "))
		}
	}
	b.version = *version
	return b.run(ctx)
}
