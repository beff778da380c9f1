// Command style measures how a tree of Go files reads: the length of functions and lines,
// the share of vague names, and the wording of comments. It prints one number per line, so
// that two trees can be compared with diff.
//
//	go run ./tools/style [DIRECTORY]
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
)

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := run(dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string, out io.Writer) error {
	m, err := measure(dir)
	if err != nil {
		return fmt.Errorf("measuring %s: %w", dir, err)
	}
	for _, r := range m.report() {
		fmt.Fprintf(out, "%-62s %v\n", r.name, r.value)
	}
	return nil
}

// row is one line of the report.
type row struct {
	name  string
	value any
}

func (m *measurement) report() []row {
	duplicates := 0
	for _, packages := range m.types {
		if len(packages) > 1 {
			duplicates++
		}
	}
	return []row{
		{"function length, median / 90th percentile / longest", fmt.Sprintf("%d / %d / %d",
			percentile(m.functions, 50), percentile(m.functions, 90), percentile(m.functions, 100))},
		{"column at which comments end, 90th percentile / last", fmt.Sprintf("%d / %d",
			percentile(m.commentColumns, 90), percentile(m.commentColumns, 100))},
		{"functions named with one word", fmt.Sprintf("%d %% of %d", 100*m.oneWordNames/max(m.names, 1), m.names)},
		{`doc comments that open with "says that" or "says whether"`, m.docsSay},
		{`"nobody", "somebody", "whoever", "anew" in Go files`, m.vagueWords},
		{"unexported type names declared in more than one package", duplicates},
		{"files, tests left out", m.files[false]},
		{fmt.Sprintf("files under %d lines, tests left out", minLines), m.shortFiles},
		{"lines of code / tests", fmt.Sprintf("%d / %d", m.lines[false], m.lines[true])},
		{"tokens of code / tests (no comments, no wrapping)", fmt.Sprintf("%d / %d", m.tokens[false], m.tokens[true])},
	}
}

// percentile returns the smallest value that at least p percent of values do not exceed.
func percentile(values []int, p int) int {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
