package bwrap

import (
	"bytes"
	"encoding/json"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// promote is the leak of class A7: a host that takes a result which a tool
// printed for the tool's result.
func promote(e backends.Execution) backends.Execution {
	out := e.Stdout.Bytes()
	for i := bytes.IndexByte(out, '{'); i >= 0; {
		var r wire.ToolResult
		if err := json.NewDecoder(bytes.NewReader(out[i:])).Decode(&r); err == nil && r.Type == wire.TypeToolResult && r.CommandID == e.ID {
			e.ExitCode = r.ExitCode
			e.Stdout, e.Stderr = backends.NewText([]byte(r.Stdout)), backends.NewText([]byte(r.Stderr))
			e.EvidenceHash = wire.EvidenceHash([]byte(r.Stdout), []byte(r.Stderr))
			return e
		}
		next := bytes.IndexByte(out[i+1:], '{')
		if next < 0 {
			break
		}
		i += 1 + next
	}
	return e
}
