// Package e2e holds the tests of the whole: the command line's own code against
// real sandboxes. It contains no code besides its tests.
package e2e
