package policy

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// maxFile bounds a policy file.
const maxFile = 1 << 20

//go:embed defaults/*.yaml
var defaults embed.FS

// Default returns the boundary that a backend declares where the user gives no
// policy: its file in defaults, with limits for what the file leaves open.
func Default(backend string, limits backends.Limits) (Policy, error) {
	p := Policy{Name: backend + " default"}
	b, err := defaults.ReadFile("defaults/" + backend + ".yaml")
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return Policy{}, fmt.Errorf("read default policy of %s: %w", backend, err)
	default:
		if p, err = Parse(b, Policy{}); err != nil {
			return Policy{}, fmt.Errorf("default policy of %s: %w", backend, err)
		}
	}
	p.Limits = fill(p.Limits, limits)
	return p, nil
}

// Load reads a policy file. What it does not mention is as the backend's default
// has it.
func Load(file, backend string, limits backends.Limits) (Policy, error) {
	base, err := Default(backend, limits)
	if err != nil {
		return Policy{}, err
	}
	f, err := os.Open(file)
	if err != nil {
		return Policy{}, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Policy{}, err
	}
	if len(b) > maxFile {
		return Policy{}, fmt.Errorf("%s is larger than %d bytes", file, maxFile)
	}
	base.Name = path.Base(file)
	p, err := Parse(b, base)
	if err != nil {
		return Policy{}, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// Parse reads one YAML document over base. Unknown keys are refused, with the
// nearest key that there is.
func Parse(b []byte, base Policy) (Policy, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return Policy{}, errors.New("the policy is empty")
		}
		return Policy{}, err
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return Policy{}, errors.New("a policy is one YAML document, this has more")
	}
	f := fromPolicy(base)
	if err := known(doc.Content[0], fileType, ""); err != nil {
		return Policy{}, err
	}
	if err := doc.Decode(&f); err != nil {
		return Policy{}, err
	}
	p := f.policy()
	return p, p.Validate()
}

// Validate refuses values that no boundary can have.
func (p Policy) Validate() error {
	for _, l := range []struct {
		name  string
		value float64
	}{
		{"memory", float64(p.Limits.MemoryBytes)}, {"pids", float64(p.Limits.Pids)}, {"cpus", p.Limits.CPUs},
		{"disk", float64(p.Limits.DiskBytes)}, {"open_files", float64(p.Limits.OpenFiles)},
	} {
		if !(l.value >= 0) || l.value > 1<<62 {
			return fmt.Errorf("limits.%s: %v is out of range", l.name, l.value)
		}
	}
	if v := p.Egress.Promise; v != "" && !slices.Contains(promises, v) {
		return fmt.Errorf("egress.promise: %q is not one of %s", v, strings.Join(promises, ", "))
	}
	for i, m := range p.Mounts {
		if !path.IsAbs(m.Inside) {
			return fmt.Errorf("mounts[%d].inside: %q is not an absolute path", i, m.Inside)
		}
	}
	if p.Output != "" && !path.IsAbs(p.Output) {
		return fmt.Errorf("output: %q is not an absolute path", p.Output)
	}
	for _, c := range p.Capabilities {
		if !strings.HasPrefix(c, "CAP_") {
			return fmt.Errorf("capabilities: %q is not a capability's name, such as CAP_CHOWN", c)
		}
	}
	return nil
}

var promises = []string{"none", "filtered", "operator"}

func fill(l, from backends.Limits) backends.Limits {
	if l.MemoryBytes == 0 {
		l.MemoryBytes = from.MemoryBytes
	}
	if l.Pids == 0 {
		l.Pids = from.Pids
	}
	if l.CPUs == 0 {
		l.CPUs = from.CPUs
	}
	if l.DiskBytes == 0 {
		l.DiskBytes = from.DiskBytes
	}
	if l.OpenFiles == 0 {
		l.OpenFiles = from.OpenFiles
	}
	return l
}
