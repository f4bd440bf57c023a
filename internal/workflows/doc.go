// Package workflows holds the tests of .github and of docs/examples: what a
// workflow of ours must and must not do. It contains no code besides its tests.
package workflows
