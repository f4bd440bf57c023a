// Package installtest drives the scripts that action.yml calls, as a runner does,
// against a file server on loopback and a made-up host.
package installtest
