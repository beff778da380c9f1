package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// A reportFormat is the value of -o.
type reportFormat string

// The formats.
const (
	asTable reportFormat = "table"
	asJSON  reportFormat = "json"
	asYAML  reportFormat = "yaml"
)

func (f *reportFormat) addTo(command *cobra.Command) {
	*f = asTable
	command.Flags().VarP(f, "output", "o", "format of the output: table, json or yaml")
	_ = command.RegisterFlagCompletionFunc("output", // fails only if the flag does not exist
		cobra.FixedCompletions([]string{string(asTable), string(asJSON), string(asYAML)}, cobra.ShellCompDirectiveNoFileComp))
}

func (f *reportFormat) String() string { return string(*f) }

// Type names the value of the flag in the help.
func (f *reportFormat) Type() string { return "format" }

func (f *reportFormat) Set(value string) error {
	if !slices.Contains([]reportFormat{asTable, asJSON, asYAML}, reportFormat(value)) {
		return cli.UsageErrorf("use table, json or yaml")
	}
	*f = reportFormat(value)
	return nil
}

// write writes a report: its text for people, or all of it for programs.
func (f *reportFormat) write(w io.Writer, value any, text string) (err error) {
	switch *f {
	case asJSON:
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false) // The report has commands with && in them.
		encoder.SetIndent("", "  ")
		err = encoder.Encode(value)
	case asYAML:
		// The escapes of the output stream mean nothing in YAML, or are invalid there.
		var encoded []byte
		if encoded, err = json.Marshal(value); err == nil {
			encoded, err = yaml.JSONToYAML([]byte(printable.Text(string(encoded))))
		}
		if err == nil {
			_, err = w.Write(encoded)
		}
	case asTable:
		_, err = io.WriteString(w, text)
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// formatTable returns the rows in columns, as kubectl prints them. A heading without rows is no
// table.
func formatTable(rows [][]string) string {
	if len(rows) < 2 {
		return ""
	}
	var text strings.Builder
	columns := printers.GetNewTabWriter(&text)
	for _, row := range rows {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	_ = columns.Flush() // a strings.Builder returns no error
	return text.String()
}

// A refusalText is the message of a refusal in parts: the sentence about its node, the lines about
// what it found, the steps, and the last resort, which names the node.
type refusalText struct {
	*report.Removal
	first, steps, lastResort string
	found                    []string
}

// parseRefusal returns the parts of a message. isRefusal is false without steps.
func parseRefusal(r *report.Removal) (t refusalText, isRefusal bool) {
	facts, steps, isRefusal := strings.Cut(r.Message, "\n"+words.StepsTitle+"\n")
	last := max(0, strings.LastIndex("\n"+steps, "\n  - "))
	lines := strings.Split(facts, "\n")
	return refusalText{r, lines[0], steps[:last], steps[last:], lines[1:]}, isRefusal
}

// foldRefusals returns the answers without what the refusals of several nodes have in common, and
// that in a text of its own. The steps of a refusal stay together, because the safest is the first.
func foldRefusals(answers []report.Removal) (own []report.Removal, common string) {
	own = slices.Clone(answers)
	var texts []refusalText
	for i := range own {
		if t, isRefusal := parseRefusal(&own[i]); isRefusal {
			texts = append(texts, t)
		}
	}
	if len(texts) < 2 {
		return answers, ""
	}
	isEverywhere := func(line string) bool {
		return !slices.ContainsFunc(texts, func(t refusalText) bool { return !slices.Contains(t.found, line) })
	}
	shared := slices.DeleteFunc(slices.Clone(texts[0].found), func(line string) bool { return !isEverywhere(line) })
	steps := texts[0].steps
	hasSteps := steps != "" && !slices.ContainsFunc(texts, func(t refusalText) bool { return t.steps != steps })
	if hasSteps {
		shared = append(shared, words.StepsTitle, strings.TrimSuffix(steps, "\n"))
	}
	if len(shared) == 0 {
		return answers, ""
	}
	for _, t := range texts {
		lines := append([]string{t.first}, slices.DeleteFunc(slices.Clone(t.found), isEverywhere)...)
		if !hasSteps {
			lines, t.lastResort = append(lines, words.StepsTitle), t.steps+t.lastResort
		}
		t.Message = strings.Join(append(lines, t.lastResort), "\n")
	}
	names := printable.Join(texts, ", ", func(t refusalText) string { return t.Node })
	return own, fmt.Sprintf("\nthe same for %s:\n%s\n", names, strings.Join(shared, "\n"))
}
