// Command pickbackend reads the output of `bsm-redteam doctor --json` and
// prints the strongest sandbox that is available, or mock.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// strength orders the real sandboxes, the one with the most between guest and
// host first.
var strength = []string{"chv", "vf", "qemu", "gvisor", "docker", "oci", "bwrap"}

func main() {
	name, err := pick(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pickbackend:", err)
		os.Exit(1)
	}
	fmt.Println(name)
}

func pick(doctor io.Reader) (string, error) {
	var report struct {
		Backends []struct {
			Backend   string `json:"backend"`
			Available bool   `json:"available"`
		} `json:"backends"`
	}
	if err := json.NewDecoder(doctor).Decode(&report); err != nil {
		return "", fmt.Errorf("read the doctor's report: %w", err)
	}
	available := map[string]bool{}
	for _, b := range report.Backends {
		available[b.Backend] = b.Available
	}
	for _, name := range strength {
		if available[name] {
			return name, nil
		}
	}
	return "mock", nil
}
