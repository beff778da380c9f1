// Package holdfast keeps Kubernetes nodes that matter: see README.md. It holds no code but the test of the import arrows.
package holdfast
