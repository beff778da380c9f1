package review

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// marksOfOthers sets one mark of each kind after the other on the first node, and deletes the
// second. The cache of the reviewer has not started, so it must read the marks from the API server.
func marksOfOthers(t *testing.T, f *storetest.Fixture) {
	f.WriteNonce("last")
	f.PublishAll("last")
	reviewer := newReviewer(f, 0, storetest.AddMarks("example.com/gone", "example.org/", "condition:example.org/Repair"),
		func(o *clusterstore.Options) { o.Cache = f.ColdCache() })
	req := f.Request(1)
	req.DryRun = true
	decide := func(isAllowed bool) quorum.Decision {
		t.Helper()
		decision := review(t, reviewer, req)
		require.Equal(t, isAllowed, decision.Allowed, decision.Message)
		return decision
	}
	requireCounted := func(set, remove, text string) {
		t.Helper()
		f.PatchNode(0, set)
		require.Contains(t, decide(false).Message, text)
		f.PatchNode(0, remove)
		decide(true)
	}
	for key, text := range map[string]string{
		"karpenter.sh/disrupted": "counts as lost",
		"example.com/gone":       "counts as lost",
		"medik8s.io/drain":       "away for a while",
		"example.org/repair":     "away for a while",
	} {
		requireCounted(`{"spec":{"taints":[{"key":"`+key+`","effect":"NoSchedule"}]}}`, `{"spec":{"taints":null}}`, text)
	}
	requireCounted(`{"metadata":{"labels":{"example.org/repair":"disk"}}}`,
		`{"metadata":{"labels":{"example.org/repair":"false"}}}`, "label example.org/repair")
	requireCounted(`{"metadata":{"annotations":{"holdfast.dev/shutdown":"{\"bootID\":\"b\"}"}}}`,
		`{"metadata":{"annotations":{"holdfast.dev/shutdown":null}}}`, "is shutting down or rebooting")
	for kind, text := range map[string]string{
		"MaintenanceInProgress": "MaintenanceInProgress, since 2026-05-01T12:00:00Z, reason Disk)",
		"example.org/Repair":    "is marked by --away-mark as away",
	} {
		f.SetCondition(0, kind, "True")
		require.Contains(t, decide(false).Message, text)
		f.SetCondition(0, kind, "Unknown")
		require.Contains(t, strings.Join(decide(true).Warnings, "\n"), "may be away, because the status of its condition is "+
			"Unknown (condition "+kind)
		f.SetCondition(0, kind, "False")
		require.NotContains(t, strings.Join(decide(true).Warnings, "\n"), "condition")
	}
	f.SetCondition(0, "MaintenancePlanned", "True")
	require.Contains(t, strings.Join(decide(true).Warnings, "\n"),
		"has maintenance planned (condition MaintenancePlanned")

	f.Cordon(0, true)
	decide(true) // A cordon alone has no effect.
}
