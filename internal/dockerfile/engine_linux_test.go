package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// engine is a Docker engine of this test alone: its data, socket and mounts are
// nobody else's, and it changes neither bridges nor firewall.
type engine struct {
	t    *testing.T
	host string
}

// cgroupParent holds the cgroups of its containers.
const cgroupParent = "bsm-dockerfile-test"

// startEngine starts one, and ends and removes it after the test.
func startEngine(t *testing.T) engine {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bsm-t-") // short: the socket has to fit
	require.NoError(t, err)
	config := filepath.Join(dir, "daemon.json")
	require.NoError(t, os.WriteFile(config, []byte("{}"), 0o600))
	forget := unwritten(t, "/etc/docker", "/etc/docker/key.json")

	var log bytes.Buffer
	socket := "unix://" + filepath.Join(dir, "sock")
	// In a mount namespace of its own: what it mounts ends with it.
	cmd := exec.Command("unshare", "--mount", "--propagation", "private",
		"dockerd", "--config-file", config, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", socket, "--bridge=none", "--iptables=false", "--ip6tables=false",
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", cgroupParent, "--log-level", "warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		stop(t, cmd.Process, ended)
		require.NoError(t, os.RemoveAll(dir))
		removeCgroups(t)
		forget()
	})

	e := engine{t, socket}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err := e.try(nil, "version"); err == nil {
			return e
		}
		select {
		case err := <-ended:
			ended <- err
			testreq.Lacks(t, "dockerd", fmt.Errorf("it did not start: %w: %s; fix: run where an engine can run", err, log.String()))
		default:
		}
		if time.Now().After(deadline) {
			testreq.Lacks(t, "dockerd", errors.New("it does not answer after a minute; fix: run where an engine can run"))
		}
	}
}

// stop ends the engine, by its process and no other, and everything that it started.
func stop(t *testing.T, p *os.Process, ended chan error) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		_ = p.Kill()
		<-ended
		t.Error("the engine did not end when told to")
	}
}

// unwritten returns a function that removes those of the paths that were not
// there before: the engine writes an identity that no flag moves elsewhere.
func unwritten(t *testing.T, paths ...string) func() {
	var absent []string
	for _, path := range paths {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			absent = append([]string{path}, absent...)
		}
	}
	return func() {
		for _, path := range absent {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	}
}

// removeCgroups removes the empty directories that the engine leaves behind.
func removeCgroups(t *testing.T) {
	for _, pattern := range []string{"/sys/fs/cgroup/" + cgroupParent, "/sys/fs/cgroup/*/" + cgroupParent} {
		dirs, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, dir := range dirs {
			require.NoError(t, os.Remove(dir))
		}
	}
}

// try runs the client, and returns what it printed to stdout.
func (e engine) try(stdin *exec.Cmd, args ...string) (string, error) {
	cmd := exec.CommandContext(e.t.Context(), "docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+e.host, "DOCKER_BUILDKIT=0", "DOCKER_CONFIG="+e.t.TempDir())
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if stdin != nil {
		pipe, err := stdin.StdoutPipe()
		if err != nil {
			return "", err
		}
		cmd.Stdin = pipe
		if err := stdin.Start(); err != nil {
			return "", err
		}
	}
	err := cmd.Run()
	if stdin != nil {
		err = errors.Join(err, stdin.Wait())
	}
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", args[0], err, tail(text.String()+out.String()))
	}
	return out.String(), err
}

func (e engine) must(args ...string) string {
	e.t.Helper()
	out, err := e.try(nil, args...)
	require.NoError(e.t, err)
	return out
}

func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// tool runs another program of this machine.
func tool(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	require.NoError(t, cmd.Run(), "%s %s\n%s", name, strconv.Quote(strings.Join(args, " ")), tail(text.String()))
	return out.String()
}
