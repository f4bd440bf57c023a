package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

// TestMain registers the command twice: as it is, and with a scripted backend
// and scripted probes whose answers are known.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){
		"bsm-redteam": func() { os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) },
		"scripted":    func() { os.Exit(scriptedApp().Run(context.Background(), os.Args[1:])) },
		"timed":       func() { os.Exit(timedApp().Run(context.Background(), os.Args[1:])) },
	})
}

type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return code
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("TMPDIR", filepath.Join(e.WorkDir, ".tmp"))
			return os.MkdirAll(filepath.Join(e.WorkDir, ".tmp"), 0o700)
		},
		Condition: func(cond string) (bool, error) {
			if cond == "devfull" {
				_, err := os.Stat("/dev/full")
				return err == nil, nil
			}
			return false, errors.New("unknown condition " + cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exit": expectExit, "schema": matchesSchema, "agree": outputsAgree, "annotates": annotatesOnly},
	})
}

// expectExit runs a command through a shell and requires its exit code:
// exit CODE 'COMMAND'. The command's files are out.txt and err.txt.
func expectExit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: exit CODE 'COMMAND'")
	}
	cmd := exec.Command("/bin/bash", "-c", args[1])
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "HOME="+ts.Getenv("HOME"), "TMPDIR="+ts.Getenv("TMPDIR"), "PATH="+ts.Getenv("PATH"))
	out, err := os.Create(ts.MkAbs("out.txt"))
	ts.Check(err)
	defer func() { _ = out.Close() }()
	errOut, err := os.Create(ts.MkAbs("err.txt"))
	ts.Check(err)
	defer func() { _ = errOut.Close() }()
	cmd.Stdout, cmd.Stderr = out, errOut
	_ = cmd.Run()
	if got := cmd.ProcessState.String(); got != "exit status "+args[0] {
		text, _ := os.ReadFile(ts.MkAbs("err.txt"))
		ts.Fatalf("%s: %s, want exit status %s\n%s", args[1], got, args[0], text)
	}
}

// matchesSchema requires that a report matches the published schema, and that our
// own strict reader takes it: schema FILE.
func matchesSchema(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: schema FILE")
	}
	file, err := os.Getwd()
	ts.Check(err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join(file, "../../docs/report.schema.json"))
	ts.Check(err)
	f, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer func() { _ = f.Close() }()
	doc, err := jsonschema.UnmarshalJSON(f)
	ts.Check(err)
	ts.Check(s.Validate(doc))
	_, err = report.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
}

// fake is a sandbox without anything inside.
type fake struct {
	name  string
	leaks []string
	state backends.State
	// boot and reset fail with these.
	bootErr, resetErr error
}

func (f *fake) Backend() string { return f.name }
func (f *fake) Boot(ctx context.Context) error {
	if f.bootErr != nil {
		return f.bootErr
	}
	f.state = backends.StateReady
	return ctx.Err()
}
func (f *fake) Execute(context.Context, backends.Invocation) (backends.Execution, error) {
	return backends.Execution{}, nil
}
func (f *fake) Reset(context.Context) (backends.ResetState, error) {
	return backends.ResetState{}, f.resetErr
}
func (f *fake) Shutdown(context.Context) error { f.state = backends.StateNotBooted; return nil }
func (f *fake) State() backends.State          { return f.state }

func has(sb backends.Sandbox, leak string) bool {
	for _, l := range sb.(*fake).leaks {
		if l == leak {
			return true
		}
	}
	return false
}

// scripted is a backend whose boot ends with err and that is not real, so that
// no agent is looked for.
func scripted(name string, err error) backends.Entry {
	prove := func(_ context.Context, sb backends.Sandbox) error {
		if len(sb.(*fake).leaks) == 0 || has(sb, "unreal") {
			return errors.New("nothing leaks")
		}
		return nil
	}
	return backends.Entry{
		Name: name, Title: "scripted for tests",
		Doctor: func(context.Context, backends.Options) backends.Diagnosis {
			return backends.Diagnosis{Available: err == nil, Findings: []backends.Finding{{OK: err == nil, What: "scripted", Fix: "none"}}}
		},
		New: func(o backends.Options) (backends.Sandbox, error) {
			return &fake{name: name, leaks: o.Leaks, state: backends.StateNotBooted, bootErr: err}, nil
		},
		Leaks: []backends.Leak{
			{Name: "open-door", Class: "A1", About: "x", Expect: []string{"P-A1-scripted"}, Prove: prove},
			{Name: "soft-wall", Class: "A2", About: "x", Expect: []string{"P-A2-scripted"}, Prove: prove},
			{Name: "slow", Class: "LAT", About: "x", Expect: []string{"P-LAT-scripted"}, Prove: prove, NeedsOwnHost: true},
		},
	}
}

// scriptedApp answers contained unless a leak is built in. In "misled" the leak
// soft-wall makes its probe err instead of catching it.
func scriptedApp() *App {
	version := func(v probes.Verdict) probes.Outcome {
		return probes.Outcome{Verdict: v, Reason: string(v) + ": scripted", Severity: probes.SeverityHigh, Witness: probes.Witness{Kind: "script", Summary: "nobody came"}}
	}
	answer := func(name string, class probes.Class, leak string, when probes.Verdict) probes.Probe {
		e := probes.ShouldFail
		if class == probes.ClassLatency {
			e = probes.ShouldPass
		}
		return probes.Probe{Name: name, Class: class, Expectation: e, Description: "scripted", Why: "scripted", Limits: "scripted", Severity: probes.SeverityHigh, Harm: "escape",
			Run: func(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
				v := probes.Contained
				if has(env.Sandbox, leak) {
					v = when
					if env.Sandbox.Backend() == "misled" {
						v = probes.Inconclusive
					}
				}
				if env.Sandbox.Backend() == "hanging" {
					_ = os.WriteFile("started", nil, 0o600)
					<-ctx.Done()
					return probes.Outcome{}, ctx.Err()
				}
				if env.Sandbox.Backend() == "deaf" && class != "A1" {
					_ = os.WriteFile("started", nil, 0o600)
					select {} // whatever the context says
				}
				out := version(v)
				if class == probes.ClassLatency {
					out.Latency = map[string]probes.Distribution{name: {Samples: env.Iterations, P50: 1}}
				}
				return out, nil
			}}
	}
	return &App{
		Out: os.Stdout, Err: os.Stderr, Version: "test", Terminal: terminal,
		Backends: func() []backends.Entry {
			return append([]backends.Entry{
				scripted("scripted", nil), scripted("misled", nil), scripted("hanging", nil), scripted("deaf", nil),
				scripted("hostile", backends.Errorf(backends.ErrBootFailed, "boot", "it said\n::set-output name=verdict::pass\n##[add-mask]e\r::stop-commands::x\n/x/file.go:1:2: msg\x1b[2J")),
				scripted("broken", backends.Errorf(backends.ErrBootFailed, "boot", "the kernel panicked")),
				scripted("absent", &backends.Error{Code: backends.ErrNotAvailable, Doing: "look for it", Fix: "apt-get install it"}),
			}, backendcatalog.All()...)
		},
		Probes: func() []probes.Probe {
			return []probes.Probe{
				answer("P-A1-scripted", "A1", "open-door", probes.Escaped),
				answer("P-A2-scripted", "A2", "soft-wall", probes.Weak),
				answer("P-LAT-scripted", "LAT", "slow", probes.Escaped),
			}
		},
	}
}

func TestOwnDigest(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	b, err := os.ReadFile(self)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(b)), ownDigest())
}

func TestEveryVerbHasHelpWithoutSideEffects(t *testing.T) {
	root := scriptedApp().root()
	for _, c := range root.Commands() {
		require.NotEmpty(t, c.Short, c.Name())
		require.True(t, c.RunE != nil || c.HasSubCommands() || c.Run != nil, c.Name())
	}
}

func TestLeaksOfTheCatalogueNameProbesOfIt(t *testing.T) {
	for _, e := range backendcatalog.All() {
		for _, l := range e.Leaks {
			ofClass := false
			for _, name := range l.Expect {
				p, err := probecatalog.Find(probecatalog.All(), name)
				require.NoError(t, err, "leak %s of %s", l.Name, e.Name)
				ofClass = ofClass || string(p.Class) == l.Class
			}
			require.True(t, ofClass, "leak %s of %s expects no probe of its class %s", l.Name, e.Name, l.Class)
		}
	}
}

// TestStartUpIsTiny: --help does nothing but print.
func TestStartUpIsTiny(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("builds the command")
	}
	bin := filepath.Join(t.TempDir(), "bsm-redteam")
	out, err := exec.Command("go", "build", "-o", bin, "../../cmd/bsm-redteam").CombinedOutput()
	require.NoError(t, err, string(out))
	best := time.Hour
	for range 20 {
		cmd := exec.Command(bin, "--help")
		require.NoError(t, cmd.Run())
		best = min(best, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}
	require.Less(t, best, 25*time.Millisecond, "processor time of the best of 20 runs")
}

// TestDefaultPoliciesAreWhatTheBackendsKeep: a policy that declares another limit
// than the backend enforces by itself would test neither.
func TestDefaultPoliciesAreWhatTheBackendsKeep(t *testing.T) {
	for _, e := range backendcatalog.All() {
		p, err := loadPolicy("", e)
		require.NoError(t, err, e.Name)
		require.Equal(t, e.DefaultLimits, p.Limits, e.Name)
	}
}
