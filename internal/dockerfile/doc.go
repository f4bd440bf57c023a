// Package dockerfile holds the test of the Dockerfile: it builds and runs the
// image with an engine of its own. It contains no code besides its tests.
package dockerfile
