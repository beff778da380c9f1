package place_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect/place"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestTableInDocs: docs/verdict.md has what each use accepts.
func TestTableInDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/verdict.md")
	require.NoError(t, err)
	names := []string{
		"binding", "name", "name given up", "name left", "announcement", "own report", "earlier own report",
		"grant", "grant left", "one list", "sole list", "two lists", "any list",
	}
	for _, use := range place.Uses() {
		var always, silent []string
		for i, name := range names {
			p := place.Place{By: 1 << i}
			isOften, isSometimes := use.Accepts(p, false), use.Accepts(p, true)
			if p.IsLocated = true; isSometimes && !use.Accepts(p, true) {
				name += " (not located)"
			}
			switch {
			case isOften:
				always = append(always, name)
			case isSometimes:
				silent = append(silent, name)
			}
		}
		row := "\n| " + string(use) + " | " + strings.Join(always, ", ") + " | " + strings.Join(silent, ", ") + " | `"
		require.Contains(t, string(text), row)
	}
}

func TestMembers(t *testing.T) {
	places := []place.Place{
		{Member: "a", By: place.NameGivenUp}, {Member: "b", By: place.GrantedLeft},
		{Member: "c", By: place.Bound, Node: "w1"}, {Member: "c", By: place.Own, Node: "w2"},
	}
	require.Equal(t, quorumtest.IDs("c"), place.Unlabelled.Members(places, false))
	require.Equal(t, quorumtest.IDs("a", "c"), place.Unlabelled.Members(places, true))
	require.Empty(t, place.Use("unknown").Members(places, true))
}
