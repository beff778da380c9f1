// Package holdfast contains only tests of the whole module: the permitted imports, the names and
// comments, and the documents. README.md describes the project.
package holdfast
