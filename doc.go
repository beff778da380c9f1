// Package holdfast keeps Kubernetes nodes that matter: see README.md. It holds no code but tests:
// of the import arrows, and of what the documents say.
package holdfast
