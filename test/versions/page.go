package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

const (
	recordFile = "test/versions/results.json"
	page       = "docs/kubernetes-versions.md"
	// The table is between these lines of the page.
	begin, end = "<!-- results: make test-kubernetes-versions -->\n", "<!-- end of results -->\n"
)

// requirement finds the version in a go.mod.
var requirement = regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes (v\S+)`)

// results contains the result of each package, by version and directory.
type results map[string]map[string]*packageResult

// recorded returns the recorded results.
func recorded(root string) (all results, err error) {
	text, err := os.ReadFile(filepath.Join(root, recordFile))
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("reading recorded results: %w", err)
	}
	return all, nil
}

// pinned returns the versions that tools/ contains, the newest first.
func pinned(root string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(root, "tools/kubernetes*/go.mod"))
	if err != nil {
		return nil, fmt.Errorf("listing versions: %w", err)
	}
	var versions []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading a version: %w", err)
		}
		found := requirement.FindSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("%s does not require k8s.io/kubernetes", file)
		}
		versions = append(versions, string(found[1]))
	}
	slices.SortFunc(versions, func(a, b string) int {
		return cmp.Compare(utilversion.MustParseSemantic(b).Minor(), utilversion.MustParseSemantic(a).Minor())
	})
	return versions, nil
}

// updatePage writes the results into the page.
func updatePage(root string, versions []string, all results) error {
	file := filepath.Join(root, page)
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the page: %w", err)
	}
	updated, err := insert(string(text), versions, all)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(updated), 0o644) //nolint:gosec // published
}

// insert returns the page with the results.
func insert(page string, versions []string, all results) (string, error) {
	before, rest, hasBegin := strings.Cut(page, begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		return "", fmt.Errorf("the page has no lines %q and %q", begin, end)
	}
	return before + begin + render(versions, all) + end + after, nil
}

// render returns the results as Markdown: a column for each version, and one row for all tests that
// did not run on the same versions for the same reason.
func render(versions []string, all results) string {
	var text strings.Builder
	fmt.Fprintf(&text, "| tests | %s |\n|---|%s\n", strings.Join(versions, " | "), strings.Repeat("---|", len(versions)))
	dirs := map[string]bool{}
	for _, version := range versions {
		for dir := range all[version] {
			dirs[dir] = true
		}
	}
	passed, failed, missing := "| passed |", "| failed |", "| packages that were not tested |"
	for _, version := range versions {
		sum, failures, untested := 0, []string{}, []string{}
		for _, dir := range slices.Sorted(maps.Keys(dirs)) {
			result := all[version][dir]
			if result == nil {
				untested = append(untested, "`"+dir+"`")
				continue
			}
			sum += result.Passed
			for _, test := range result.Failed {
				failures = append(failures, "`"+test+"` of `"+dir+"`")
			}
		}
		passed += fmt.Sprintf(" %d |", sum)
		failed += " " + cmp.Or(strings.Join(failures, ", "), "–") + " |"
		missing += " " + cmp.Or(strings.Join(untested, ", "), "–") + " |"
	}
	text.WriteString(passed + "\n" + failed + "\n" + missing + "\n")
	writeSkipped(&text, versions, all)
	return text.String()
}

func writeSkipped(text *strings.Builder, versions []string, all results) {
	reasons, skippedOn := map[string]string{}, map[string][]string{}
	for _, version := range versions {
		for dir, result := range all[version] {
			for test, reason := range result.Skipped {
				id := "`" + test + "` of `" + dir + "`"
				skippedOn[id], reasons[id] = append(skippedOn[id], version), reason
			}
		}
	}
	text.WriteString("\n| tests that did not run | on | because |\n|---|---|---|\n")
	tests := map[string][]string{} // by versions and reason
	for _, id := range slices.Sorted(maps.Keys(skippedOn)) {
		on := strings.Join(skippedOn[id], ", ")
		if len(skippedOn[id]) == len(versions) {
			on = "all"
		}
		cause := on + " | " + reasons[id]
		tests[cause] = append(tests[cause], id)
	}
	for _, cause := range slices.Sorted(maps.Keys(tests)) {
		fmt.Fprintf(text, "| %s | %s |\n", strings.Join(tests[cause], ", "), cause)
	}
}
