// Program versions runs the tests that start a kube-apiserver, and records for one version of
// Kubernetes which of them passed. docs/kubernetes-versions.md has a table of what it recorded.
//
//	HOLDFAST_SERVERS=bin/kubernetes-1.34 go run ./test/versions -kubernetes v1.34.4
//	go run ./test/versions -kubernetes v1.37.2 ./manifests ./charts
//	go run ./test/versions # writes the table only
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

const module = "github.com/holdfast-dev/holdfast/"

func main() {
	version := flag.String("kubernetes", "", "version of the kube-apiserver, such as v1.34.4")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tests packages on a version, and writes the results and the table. A failed test is part of
// the results.
func run(ctx context.Context, version string, packages []string) error {
	root, err := process.RepositoryRoot()
	if err != nil {
		return err
	}
	if version == "" {
		return record(root, "", nil)
	}
	if err = checkServer(ctx, version); err != nil {
		return err
	}
	if len(packages) == 0 {
		if packages, err = findPackages(ctx); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-timeout", "20m"}, packages...)...)
	cmd.Stderr = os.Stderr
	out, testErr := cmd.Output()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	results, err := parseEvents(out)
	if err != nil {
		return errors.Join(err, testErr)
	}
	return errors.Join(testErr, record(root, version, results))
}

// checkServer returns an error if the tests would start another version.
func checkServer(ctx context.Context, version string) error {
	binary, err := process.Binary("kube-apiserver")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return fmt.Errorf("reading the version of %s: %w", binary, err)
	}
	if found := strings.TrimSpace(string(out)); found != "Kubernetes "+version {
		return fmt.Errorf("%s is %s, want %s", binary, found, version)
	}
	return nil
}

// findPackages returns the packages whose tests start a kube-apiserver.
func findPackages(ctx context.Context) ([]string, error) {
	const format = `{{if .ForTest}}{{.ForTest}} {{join .Deps " "}}{{end}}`
	out, err := exec.CommandContext(ctx, "go", "list", "-test", "-f", format, "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w", err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if slices.Contains(fields, module+"internal/testenv/apiserver") && !slices.Contains(found, fields[0]) {
			found = append(found, fields[0])
		}
	}
	return found, nil
}

// An event is a line of `go test -json`.
type event struct{ Action, Package, Test, Output string }

// A packageResult is what the tests of a package did on one version. It counts the tests without
// subtests.
type packageResult struct {
	Passed int
	Failed []string `json:",omitempty"`
	// Skipped contains the reason for each test that did not run.
	Skipped map[string]string `json:",omitempty"`
}

// parseEvents returns the results of each package, by its directory. It prints the output of
// failed tests. A test is a function or subtest without subtests; of the others only failures
// count that no subtest explains.
func parseEvents(out []byte) (map[string]*packageResult, error) {
	results, output, hasSubtests := map[string]*packageResult{}, map[event]string{}, map[event]bool{}
	decoder := json.NewDecoder(bytes.NewReader(out))
	for decoder.More() {
		var e event
		if err := decoder.Decode(&e); err != nil {
			return nil, fmt.Errorf("reading the events of go test: %w", err)
		}
		id := event{Package: e.Package, Test: e.Test}
		switch e.Action {
		case "run":
			hasSubtests[event{Package: e.Package, Test: path.Dir(e.Test)}] = true
		case "output":
			output[id] += e.Output
		case "pass", "fail", "skip":
			dir := strings.TrimPrefix(e.Package, module)
			if results[dir] == nil {
				results[dir] = &packageResult{Skipped: map[string]string{}}
			}
			results[dir].add(e, hasSubtests[id], output[id])
		}
	}
	return results, nil
}

// add counts the end of a test. The end of a package has no name of a test.
func (r *packageResult) add(end event, hasSubtests bool, output string) {
	switch isGroup := hasSubtests || end.Test == ""; {
	case end.Action == "fail":
		fmt.Fprintf(os.Stderr, "FAILED: %s %s\n%s", end.Package, end.Test, output)
		if !isGroup || len(r.Failed) == 0 {
			r.Failed = append(r.Failed, cmp.Or(end.Test, "the package"))
		}
	case isGroup:
	case end.Action == "pass":
		r.Passed++
	case end.Action == "skip":
		_, reason, _ := strings.Cut(output, "SKIPPED: ")
		reason, _, _ = strings.Cut(reason, "\n")
		r.Skipped[end.Test] = reason
	}
}

// record merges results into the recorded ones, and writes the table.
func record(root, version string, results map[string]*packageResult) error {
	all, err := recorded(root)
	if err != nil {
		return err
	}
	versions, err := pinned(root)
	if err != nil {
		return err
	}
	if all[version] == nil {
		all[version] = map[string]*packageResult{}
	}
	maps.Copy(all[version], results)
	maps.DeleteFunc(all, func(version string, _ map[string]*packageResult) bool {
		return !slices.Contains(versions, version)
	})
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	//nolint:gosec // The file is published.
	if err := os.WriteFile(filepath.Join(root, recordFile), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("recording the results: %w", err)
	}
	return updatePage(root, versions, all)
}
