package vm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParams(t *testing.T) {
	require.Equal(t, map[string]string{"quiet": "", "bsm.agent": "abc", "root": "UUID=x", "bsm.pids": "2"},
		Params([]byte("quiet bsm.agent=abc root=UUID=x bsm.pids=1 bsm.pids=2\n")))
	require.Empty(t, Params(nil))
}

// fakeProc is what ours reads of /proc.
func fakeProc(t *testing.T, ns, cmdline string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "self", "ns"), 0o700))
	if ns != "" {
		require.NoError(t, os.Symlink(ns, filepath.Join(dir, "self", "ns", "pid")))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cmdline"), []byte(cmdline), 0o600))
	return dir
}

func TestOnlyTheDigestMakesAMachineOurs(t *testing.T) {
	mine := func(string) (string, error) { return "d1g", nil }
	for name, c := range map[string]struct {
		ns, cmdline string
		digest      func(string) (string, error)
		ours, fails bool
	}{
		"ours":                      {initPIDNamespace, "quiet bsm.agent=d1g bsm.pids=9", mine, true, false},
		"kernel without namespaces": {"", "bsm.agent=d1g", mine, true, false},
		"no digest":                 {initPIDNamespace, "quiet", mine, false, false},
		"another agent's digest":    {initPIDNamespace, "bsm.agent=other", mine, false, true},
		"empty digest":              {initPIDNamespace, "bsm.agent=", mine, false, true},
		"prefix of the digest":      {initPIDNamespace, "bsm.agent=d1", mine, false, true},
		// In a container the command line is the machine's, and may be right.
		"container in our machine": {"pid:[4026532001]", "bsm.agent=d1g", mine, false, false},
		"unreadable executable":    {initPIDNamespace, "bsm.agent=d1g", func(string) (string, error) { return "", errors.New("no") }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, ours, err := ours(fakeProc(t, c.ns, c.cmdline), c.digest)
			require.Equal(t, c.ours, ours)
			require.Equal(t, c.fails, err != nil, "%v", err)
			if ours {
				require.Equal(t, "d1g", p[DigestKey])
			} else {
				require.Nil(t, p)
			}
		})
	}
}

func TestFindPort(t *testing.T) {
	class := t.TempDir()
	port := func(dev, name string) {
		require.NoError(t, os.MkdirAll(filepath.Join(class, dev), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(class, dev, "name"), []byte(name), 0o600))
	}
	_, ok := findPort(class)
	require.False(t, ok)
	port("vport0p1", "org.qemu.guest_agent.0\n")
	port("vport0p2", PortName+"x\n")
	_, ok = findPort(class)
	require.False(t, ok, "another port's name was taken for ours")
	port("vport1p1", PortName+"\n")
	dev, ok := findPort(class)
	require.True(t, ok)
	require.Equal(t, "vport1p1", dev)
}

func TestLoadModulesReportsEachThatFails(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, loadModules(dir, "order"), "no order file means that nothing is to be loaded")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "order"), []byte("a.ko\n\nsub/b.ko\n"), 0o600))
	errs := loadModules(dir, "order")
	require.Len(t, errs, 2)
	require.ErrorContains(t, errs[0], "a.ko")
	require.ErrorIs(t, errs[1], os.ErrNotExist)
}

func TestToolCgroupRefusesWhatIsNoCgroup(t *testing.T) {
	_, err := toolCgroup(t.TempDir(), "9")
	require.Error(t, err)
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "bsm"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "bsm", "cgroup.procs"), nil, 0o600))
	for _, limit := range []string{"x", "0", "-1", "9 9"} {
		dir, err := toolCgroup(root, limit)
		require.ErrorContains(t, err, PidsKey)
		require.NotEmpty(t, dir, "without its limit the cgroup still kills")
	}
	dir, err := toolCgroup(root, "9")
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, "pids.max"))
	require.NoError(t, err)
	require.Equal(t, "9", string(b))
}

// A port reads as empty while no host is connected; that is no end.
func TestPortOutlivesItsHost(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p := &Port{f: r}
	_, err = w.Write([]byte("x"))
	require.NoError(t, err)
	b := make([]byte, 4)
	n, err := p.Read(b)
	require.NoError(t, err)
	require.Equal(t, "x", string(b[:n]))
	require.NoError(t, w.Close()) // from now on every read is an end of file
	done := make(chan error, 1)
	go func() {
		_, err := p.Read(b)
		done <- err
	}()
	require.NoError(t, p.Close())
	require.Error(t, <-done)
}
