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
