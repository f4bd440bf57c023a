package cli

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
)

type imageOptions struct {
	image.Options
	force   bool
	verbose bool
}

func (a *App) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Build the guest image", Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("image needs a verb: build") }}
	var o imageOptions
	build := &cobra.Command{
		Use: "build", Short: "Build the guest image (kernel, initramfs, root disk) unless a fresh one is there", Args: noArgs,
		Example: "  bsm-redteam image build\n  bsm-redteam image build --kernel bzImage --out guest",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.imageBuild(cmd.Context(), o) },
	}
	f := build.Flags()
	f.StringVar(&o.OutDir, "out", "", "directory of the image (default: one in the cache)")
	f.StringVar(&o.CacheDir, "cache-dir", "", "directory of downloaded kernels and images (default: this user's cache)")
	f.StringVar(&o.Arch, "arch", runtime.GOARCH, "architecture: amd64 or arm64")
	f.StringVar(&o.Kernel, "kernel", image.Distro, "path of a kernel, or "+image.Distro+" for the distribution's package")
	f.StringVar(&o.ModulesDir, "modules-dir", "", "modules (lib/modules/RELEASE) of a kernel given by path")
	f.StringSliceVar(&o.Modules, "module", nil, "further module to load at boot (repeatable)")
	f.StringVar(&o.Agent, "agent", "", "path of the bsm-agent for the image (default: found or built)")
	f.BoolVar(&o.force, "force", false, "build even if a fresh image is there")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log what is done")
	c.AddCommand(build)
	return c
}

func (a *App) imageBuild(ctx context.Context, o imageOptions) (err error) {
	if err := oneOf("--arch", o.Arch, "amd64", "arm64"); err != nil {
		return err
	}
	if o.force && o.OutDir == "" {
		return usagef("--force needs --out: images of the cache are named by their inputs and always fresh")
	}
	o.Log = a.logger(o.verbose)
	if o.CacheDir == "" {
		if o.CacheDir, err = image.DefaultCacheDir(); err != nil {
			return findings(err)
		}
	}
	if o.Agent, err = agentFor(ctx, o.Arch, o.Agent); err != nil {
		return findings(fmt.Errorf("find the agent: %w", err))
	}
	build := image.Ensure
	if o.force {
		build = image.Build
	}
	m, err := build(ctx, o.Options)
	if err != nil {
		return findings(err)
	}
	_, err = fmt.Fprintln(a.Out, m.Dir)
	return written(err)
}

// agentFor finds the agent for an architecture; another than this machine's is
// built.
func agentFor(ctx context.Context, arch, explicit string) (string, error) {
	switch {
	case explicit != "":
		return explicit, agentbin.Check(explicit, arch)
	case arch == runtime.GOARCH:
		path, _, err := agentbin.Find(ctx, "")
		return path, err
	}
	return agentbin.Cached(ctx, arch)
}
