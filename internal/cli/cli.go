package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/nearest"
	"github.com/brainst0rm/sandbox-redteam/probes"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

// App is the program with what it works on. Tests put other backends and probes
// in; nothing else differs.
type App struct {
	Out, Err io.Writer
	Backends func() []backends.Entry
	Probes   func() []probes.Probe
	// Terminal reports whether a stream is a terminal, and its width.
	Terminal func(w io.Writer) (width int, ok bool)
	Version  string
}

// Main runs the program and returns its exit code.
func Main(args []string, out, errOut io.Writer) int {
	a := &App{Out: out, Err: errOut, Backends: backendcatalog.All, Probes: probecatalog.All, Terminal: terminal, Version: version()}
	return a.Run(context.Background(), args)
}

// Run carries one command line out. The first SIGINT, SIGTERM or SIGHUP ends the work
// in an orderly way, with a partial report; nothing stops that clean-up.
func (a *App) Run(ctx context.Context, args []string) int {
	// A reader that leaves must not end the run: the error of the write does,
	// after everything was cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // not Ignore: children would inherit that
	ctx, stop, caught := onSignal(ctx)
	defer stop()
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	err := root.ExecuteContext(ctx)
	code, text := codeOf(err)
	if text != "" {
		a.say("bsm-redteam: %s", plain(strings.ReplaceAll(text, "\n", "; "))) // it may quote a guest or a report
	}
	if sig := caught(); sig != nil && code != ExitUsage {
		return 128 + int(sig.(syscall.Signal))
	}
	return code
}

// onSignal cancels the context at the first SIGINT, SIGTERM or SIGHUP: a closed
// terminal must not leave a sandbox behind.
func onSignal(parent context.Context) (context.Context, func(), func() os.Signal) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	done := make(chan struct{})
	got := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-signals:
				select {
				case got <- sig:
				default:
				}
				cancel(fmt.Errorf("%s: %w", sig, context.Canceled))
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil); <-done }, func() os.Signal {
		select {
		case sig := <-got:
			return sig
		default:
			return nil
		}
	}
}

func (a *App) root() *cobra.Command {
	o := newRunOptions()
	root := &cobra.Command{
		Use:   "bsm-redteam",
		Short: "Attack a sandbox from inside, watch from outside, and say whether it holds",
		Long: "bsm-redteam boots a sandbox, attacks its boundary from inside, watches from outside whether\n" +
			"anything got out, and writes a verdict that a CI job can gate on.\n\n" +
			"Without a flag it runs every probe against the mock, which is no boundary but exercises the harness.",
		Example: "  bsm-redteam --sandbox qemu --probes adversarial -o report.json\n" +
			"  bsm-redteam --sandbox bwrap --probes A1,P-A5-time-bomb\n" +
			"  bsm-redteam doctor",
		Args: noArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context(), o) },
	}
	o.addFlags(root.Flags())
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(a.listCommand(), a.explainCommand(), a.doctorCommand(), a.gateCommand(), a.reportCommand(), a.compareCommand(), a.abCommand(), a.mergeCommand(), a.calibrateCommand(), a.baselineCommand(), a.imageCommand(), a.reapCommand(), a.versionCommand())
	root.AddCommand(a.actionCommand())
	return root
}

// noArgs refuses positional arguments and names the verb that was meant.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var verbs []string
	for _, c := range cmd.Root().Commands() {
		if !c.Hidden {
			verbs = append(verbs, c.Name())
		}
	}
	if cmd.HasParent() || len(verbs) == 0 {
		return usagef("%s takes no argument, but got %q", cmd.CommandPath(), args[0])
	}
	return usagef("unknown command %q; did you mean %q? commands: %s", args[0], nearest.To(args[0], verbs), strings.Join(verbs, ", "))
}

// flagError names the nearest flag for an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return usage(err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	name := unknown.GetSpecifiedName()
	if unknown.GetSpecifiedShortnames() != "" {
		return usagef("unknown flag -%s; see --help", name)
	}
	return usagef("unknown flag --%s; did you mean --%s?", name, nearest.To(name, names))
}
