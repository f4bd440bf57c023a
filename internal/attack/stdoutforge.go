// Package attack holds what the host half of a probe, its payload inside and
// the mock share: the names of attack tools and their parameters. It contains
// no attack.
package attack

// StdoutForge is the tool of P-A7. It prints a hostile text on stdout and its
// own report on stderr.
const StdoutForge = "stdout.forge"

// StdoutForgeParams are the parameters of StdoutForge.
type StdoutForgeParams struct {
	Nonce string `json:"nonce"`
	// Case is echoed in the report.
	Case string `json:"case"`
	// Content is printed as it is.
	Content []byte `json:"content"`
}
