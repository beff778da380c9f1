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
)

// A reportFormat is the value of -o.
type reportFormat string

// The formats.
const (
	asTable reportFormat = "table"
	asJSON  reportFormat = "json"
	asYAML  reportFormat = "yaml"
)

// addTo declares -o.
func (f *reportFormat) addTo(command *cobra.Command) {
	*f = asTable
	command.Flags().VarP(f, "output", "o", "format of the output: table, json or yaml")
	_ = command.RegisterFlagCompletionFunc("output", // fails only if the flag does not exist
		cobra.FixedCompletions([]string{string(asTable), string(asJSON), string(asYAML)}, cobra.ShellCompDirectiveNoFileComp))
}

// String returns the value of the flag.
func (f *reportFormat) String() string { return string(*f) }

// Type names the value of the flag in the help.
func (f *reportFormat) Type() string { return "format" }

// Set sets the flag.
func (f *reportFormat) Set(value string) error {
	if !slices.Contains([]reportFormat{asTable, asJSON, asYAML}, reportFormat(value)) {
		return cli.UsageErrorf("use table, json or yaml")
	}
	*f = reportFormat(value)
	return nil
}

// write writes a report: as a table for people, or all of it for programs.
func (f *reportFormat) write(w io.Writer, report any, table func(io.Writer) error) error {
	var text []byte
	var err error
	switch *f {
	case asJSON:
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false) // The report has commands with && in them.
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	case asYAML:
		text, err = yaml.Marshal(report)
	case asTable:
		return table(w)
	}
	if err == nil {
		_, err = w.Write(text)
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// writeTable writes rows in columns, as kubectl does.
func writeTable(w io.Writer, rows [][]string) error {
	columns := printers.GetNewTabWriter(w)
	for _, row := range rows {
		if _, err := fmt.Fprintln(columns, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return columns.Flush()
}
