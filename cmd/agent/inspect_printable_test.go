package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
)

// FuzzPrintableInspection checks that a report on a terminal contains nothing that it obeys,
// whatever the names of processes, files and members are.
func FuzzPrintableInspection(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		r := sampleReport()
		hostiletext.Spread(&r, text)
		var shown, json bytes.Buffer
		require.NoError(t, r.writeText(&shown, true))
		require.NoError(t, r.writeJSON(&json))
		hostiletext.RequirePrintable(t, "inspect", strings.ReplaceAll(shown.String(), "\t", " "), json.String())
	})
}
