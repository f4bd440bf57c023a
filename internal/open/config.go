// Package open provides the open target: the agent as a plain process of this
// host, without any boundary. A control runs its payload there, pointed only at
// canaries, to show that payload and witness work.
//
// "Without a boundary" has two exceptions. It runs with the identity that the
// sandboxed agent would have on the host, so that file permissions never look
// like a sandbox; and where a limit is asked for it sits in a kernel fuse.
package open

import (
	"log/slog"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
)

// Config says what to start. Only Agent is required.
type Config struct {
	// Agent is the path of bsm-agent. AgentSHA256, when set, is what it must
	// hash to; the hello is compared with it either way.
	Agent       string
	AgentSHA256 string
	// Credential is the host identity to run with. Another than our own needs
	// root.
	Credential backends.Credential
	// Dir is the working directory; it is given to Credential. Empty means "/".
	Dir string
	// MemoryBytes and Pids bound the fuse. Where one is set and no fuse can be
	// made, Start refuses.
	MemoryBytes int64
	Pids        int
	// KeepTree asks for an agent that does not kill a tool's tree at its
	// deadline.
	KeepTree bool
	Ledger   *ledger.Ledger
	Log      *slog.Logger
}
