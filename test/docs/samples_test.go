package docs

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	messagesDir = "pkg/protect/quorum/testdata/messages/"
	// lastResort begins the last step of each refusal.
	lastResort = "  - as a last resort, "
)

// TestSamples compares the sample messages in the pages with those that the code makes. A
// sample is the fenced block that follows a comment: `<!-- refusal: NAME -->` for a golden
// file of pkg/protect/quorum, `<!-- condition: REASON -->` for the message of a condition of a
// hold. The comment of a refusal may end with `, members`, for these lines alone. With -update it
// writes the samples.
func TestSamples(t *testing.T) {
	t.Chdir(root)
	block := regexp.MustCompile("(?m)^<!-- (refusal|condition): ([\\w-]+)(, members)? -->" +
		"\n```\\w+\n((?s:.*?))```$")
	conditions, used := holdConditions(), map[string]bool{}
	for path, page := range pages(t) {
		updated := block.ReplaceAllStringFunc(page, func(found string) string {
			b := block.FindStringSubmatch(found)
			kind, name, sample := b[1], b[2], b[4]
			var text string
			switch {
			case kind == "condition":
				require.Contains(t, conditions, name, path)
				used[name] = true
				text = conditions[name]
			case b[3] != "":
				_, afterFirst, _ := strings.Cut(golden(t, name), "\n")
				text = wrapped(before(t, afterFirst, "what to do, "))
			default:
				text = wrapped(golden(t, name))
			}
			command, _, isCall := strings.Cut(sample, "denied the request:\n")
			if isCall {
				text = command + "denied the request:\n" + text
			}
			return strings.TrimSuffix(found, sample+"```") + text + "```"
		})
		if flag.Lookup("update").Value.String() == "true" && updated != page {
			require.NoError(t, os.WriteFile(path, []byte(updated), 0o600))
		} else {
			require.Equal(t, updated, page, "%s: run `go test ./test/docs -run TestSamples -update`", path)
		}
	}
	for name := range conditions {
		require.True(t, used[name], "no page shows the condition %s", name)
	}
}

// TestFirstLines checks that the first line of each refusal has one of the phrases by which
// docs/refusals/README.md finds a page, and that each phrase is in one.
func TestFirstLines(t *testing.T) {
	t.Chdir(root)
	row := regexp.MustCompile("(?m)^\\| ((?:`[^`]+`(?:, )?)+) \\| \\[[A-Z]")
	unused := map[string]bool{}
	for _, cells := range row.FindAllStringSubmatch(read(t, "docs/refusals/README.md"), -1) {
		for phrase := range strings.SplitSeq(strings.Trim(cells[1], "`"), "`, `") {
			unused[phrase] = true
		}
	}
	phrases := slices.Sorted(maps.Keys(unused))
	require.Greater(t, len(phrases), 8)
	messages, err := filepath.Glob(messagesDir + "*.txt")
	require.NoError(t, err)
	require.Greater(t, len(messages), 50)
	for _, file := range messages {
		text := read(t, file)
		if !strings.Contains(text, lastResort) {
			continue // allowed
		}
		first, _, _ := strings.Cut(text, "\n")
		isFound := false
		for _, phrase := range phrases {
			if strings.Contains(first, phrase) {
				isFound = true
				delete(unused, phrase)
			}
		}
		require.True(t, isFound, "docs/refusals/README.md does not find: %s", first)
	}
	require.Empty(t, unused)
}

func golden(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimRight(read(t, messagesDir+name+".txt"), "\n") + "\n"
}

// before returns the text of a refusal before one of its parts.
func before(t *testing.T, text, part string) string {
	t.Helper()
	text, _, isFound := strings.Cut(text, part)
	require.True(t, isFound, "%q is not in: %s", part, text)
	return text
}

// wrapped breaks lines at column 98, and indents what follows by four more. It does not
// break commands.
func wrapped(text string) string {
	const width = 98
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		rest := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(rest)]
		more, isCommand := indent+"    ", strings.HasPrefix(rest, "kubectl ")
		for !isCommand && len(indent)+len(rest) > width {
			at := strings.LastIndex(rest[:width-len(indent)], " ")
			if at < 0 {
				break
			}
			out.WriteString(indent + rest[:at] + "\n")
			rest, indent = rest[at+1:], more
		}
		out.WriteString(indent + rest + "\n")
	}
	return out.String()
}
