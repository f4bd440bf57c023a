package policy

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/nearest"
)

// file is a policy as it is written. docs/policy.schema.json is generated from
// it; the about tags are the descriptions there.
type file struct {
	Name         string   `yaml:"name" about:"Identifies the policy in reports."`
	Limits       limits   `yaml:"limits" about:"The declared resource bounds; 0 or absent declares none."`
	Egress       Egress   `yaml:"egress" about:"What the sandbox may reach."`
	Mounts       []Mount  `yaml:"mounts" about:"Host paths that are meant to be visible inside."`
	Output       string   `yaml:"output" about:"Directory inside from which results are copied out."`
	User         string   `yaml:"user" about:"Identity inside that tools are meant to have."`
	Capabilities []string `yaml:"capabilities" about:"Linux capabilities that tools may keep, such as CAP_CHOWN."`
	Runtime      string   `yaml:"runtime" about:"The runtime that is expected, such as gvisor."`
	AllowTargets []string `yaml:"allow_targets" about:"Named targets other than our canaries that may be tried."`
	Leaks        []string `yaml:"leaks" about:"Deliberate weaknesses to build in, for self-tests."`
}

type limits struct {
	Memory    size    `yaml:"memory" about:"Memory, such as 256MiB."`
	Pids      int     `yaml:"pids" about:"Number of processes and threads."`
	CPUs      float64 `yaml:"cpus" about:"Number of processors, such as 1.5."`
	Disk      size    `yaml:"disk" about:"Writable disk space, such as 1GiB."`
	OpenFiles int     `yaml:"open_files" about:"Open files of one process."`
}

func fromPolicy(p Policy) file {
	l := p.Limits
	return file{p.Name, limits{size(l.MemoryBytes), l.Pids, l.CPUs, size(l.DiskBytes), l.OpenFiles}, p.Egress,
		p.Mounts, p.Output, p.User, p.Capabilities, p.Runtime, p.AllowTargets, p.Leaks}
}

func (f file) policy() Policy {
	l := backends.Limits{MemoryBytes: int64(f.Limits.Memory), Pids: f.Limits.Pids, CPUs: f.Limits.CPUs,
		DiskBytes: int64(f.Limits.Disk), OpenFiles: f.Limits.OpenFiles}
	return Policy{f.Name, l, f.Egress, f.Mounts, f.Output, f.User, f.Capabilities, f.Runtime, f.AllowTargets, f.Leaks}
}

// size is a number of bytes that may be written with a unit.
type size int64

// units are those of sizes: powers of 1024 and of 1000.
var units = []struct {
	name  string
	bytes float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// UnmarshalYAML reads 268435456, 256MiB or 0.25 GiB.
func (s *size) UnmarshalYAML(n *yaml.Node) error {
	v, err := parseSize(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is no size, such as 256MiB", n.Line, n.Value)
	}
	*s = v
	return nil
}

func parseSize(text string) (size, error) {
	number, factor := strings.TrimSpace(text), 1.0
	for _, u := range units {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, err
	}
	if v *= factor; !(v >= 0) || v > math.MaxInt64/2 || v != math.Trunc(v) {
		return 0, fmt.Errorf("%s is no whole number of bytes", text)
	}
	return size(v), nil
}

var fileType = reflect.TypeFor[file]()

// known refuses keys that t does not have, at every depth.
func known(n *yaml.Node, t reflect.Type, at string) error {
	if n.Kind == yaml.AliasNode {
		return fmt.Errorf("line %d: aliases are not accepted in a policy", n.Line)
	}
	switch {
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for _, item := range n.Content {
			if err := known(item, t.Elem(), at); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		return knownKeys(n, t, at)
	case t.Kind() == reflect.Struct:
		return fmt.Errorf("line %d: %swant keys and values", n.Line, at)
	}
	return nil
}

func knownKeys(n *yaml.Node, t reflect.Type, at string) error {
	keys := make([]string, t.NumField())
	for i := range keys {
		keys[i] = key(t.Field(i))
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		j := slices.Index(keys, name.Value)
		if j < 0 {
			return fmt.Errorf("line %d: unknown key %q; did you mean %q? valid: %s", name.Line, at+name.Value, at+nearest.To(name.Value, keys), strings.Join(keys, ", "))
		}
		if err := known(n.Content[i+1], t.Field(j).Type, at+name.Value+"."); err != nil {
			return err
		}
	}
	return nil
}

// key is the name of a field in YAML.
func key(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}
