package review

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const kuredMark = "weave.works/kured-reboot-in-progress"

// kuredBesideAutoscaler reboots the first node as kured does, while an autoscaler deletes the
// second. The member on the first node answers until the reboot, and again before kured has
// finished.
func kuredBesideAutoscaler(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	requireRefused := func(texts ...string) {
		t.Helper()
		decision := review(t, reviewer, f.Request(1))
		require.False(t, decision.Allowed, decision.Message)
		require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason)
		for _, text := range texts {
			require.Contains(t, decision.Message, text)
		}
		require.Empty(t, f.Cluster().Spec.Grants)
	}
	dryRun := f.Request(1)
	dryRun.DryRun = true

	// kured wants to reboot all nodes, perhaps for days. It cordons the one that it reboots.
	for i := range f.Nodes {
		f.PatchNode(i, `{"metadata":{"annotations":{"`+kuredMark+`":"2026-05-01T11:55:00Z"}}}`)
	}
	f.WriteNonce("wanted")
	f.PublishAll("wanted")
	require.True(t, review(t, reviewer, dryRun).Allowed)
	f.PatchNode(0, `{"spec":{"unschedulable":true}}`)
	wait := "wait for etcd0 (" + string(f.MemberID(0)) + "): node " + f.Nodes[0].Name + " is being rebooted by kured " +
		"(annotation " + kuredMark + ", since 2026-05-01T11:55:00Z)"
	requireRefused(wait, "it still answers")
	own := f.Request(0)
	own.DryRun = true
	require.True(t, review(t, reviewer, own).Allowed, "the mark of a node must not refuse its own deletion")

	f.ChangeAgents(func() { f.Silent[f.Nodes[0].Name], f.Members[0].Healthy = true, false })
	requireRefused(wait, "only if node "+f.Nodes[0].Name+" never comes back: etcdctl member remove")
	f.ChangeAgents(func() { f.Silent[f.Nodes[0].Name], f.Members[0].Healthy = false, true })
	requireRefused(wait)

	// kured uncordons the node before it removes the annotation.
	f.PatchNode(0, `{"spec":{"unschedulable":false}}`)
	decision := review(t, reviewer, f.Request(1))
	require.True(t, decision.Allowed, decision.Message)
	require.Len(t, f.Cluster().Spec.Grants, 1)
}

// marksOfOthers sets one mark after the other on the first node, and deletes the second. The
// cache of the reviewer has not started, so it must read the marks from the API server.
func marksOfOthers(t *testing.T, f *storetest.Fixture) {
	f.WriteNonce("last")
	f.PublishAll("last")
	reviewer := newReviewer(f, 0, storetest.AddMarks("example.com/gone", "example.org/", "condition:example.org/Repair"),
		func(o *clusterstore.Options) { o.Cache = f.ColdCache() })
	req := f.Request(1)
	req.DryRun = true
	taint := func(key string) (set, remove string) {
		return `{"spec":{"taints":[{"key":"` + key + `","effect":"NoSchedule"}]}}`, `{"spec":{"taints":null}}`
	}
	requireCounted := func(set, remove, text string) {
		t.Helper()
		f.PatchNode(0, set)
		decision := review(t, reviewer, req)
		require.False(t, decision.Allowed, decision.Message)
		require.Contains(t, decision.Message, text)
		f.PatchNode(0, remove)
		decision = review(t, reviewer, req)
		require.True(t, decision.Allowed, decision.Message)
	}
	for key, text := range map[string]string{
		"karpenter.sh/disrupted":                                "counts as lost",
		"node-about-to-be-drained":                              "counts as lost",
		"node.kubernetes.io/out-of-service":                     "counts as lost",
		"cloud.google.com/impending-node-termination":           "counts as lost",
		"aws-node-termination-handler/rebalance-recommendation": "counts as lost",
		"example.com/gone":                                      "counts as lost",
		"medik8s.io/drain":                                      "away for a while",
		"medik8s.io/remediation":                                "away for a while",
		"remediation.medik8s.io/fence-agents-remediation":       "away for a while",
		"example.org/repair":                                    "away for a while",
	} {
		set, remove := taint(key)
		requireCounted(set, remove, text)
	}
	requireCounted(`{"metadata":{"labels":{"example.org/repair":"disk"}}}`,
		`{"metadata":{"labels":{"example.org/repair":"false"}}}`, "label example.org/repair")
	for kind, text := range map[string]string{
		"MaintenanceInProgress":          "MaintenanceInProgress, since 2026-05-01T12:00:00Z, reason Disk)",
		"DrainInProgress":                "away for a while: its node " + f.Nodes[0].Name + " is being drained",
		"Drained":                        "away for a while",
		"GracefulNodeShutdownInProgress": "away for a while",
		"example.org/Repair":             "is marked by --away-mark as away",
	} {
		f.SetCondition(0, kind, "True")
		decision := review(t, reviewer, req)
		require.False(t, decision.Allowed, decision.Message)
		require.Contains(t, decision.Message, text)
		f.SetCondition(0, kind, "Unknown")
		decision = review(t, reviewer, req)
		require.True(t, decision.Allowed, decision.Message)
		require.Contains(t, strings.Join(decision.Warnings, "\n"), "may be away, because the status of its condition is "+
			"Unknown (condition "+kind)
		f.SetCondition(0, kind, "False")
		decision = review(t, reviewer, req)
		require.True(t, decision.Allowed, decision.Message)
		require.NotContains(t, strings.Join(decision.Warnings, "\n"), "condition")
	}
	f.SetCondition(0, "MaintenancePlanned", "True")
	decision := review(t, reviewer, req)
	require.True(t, decision.Allowed, decision.Message)
	require.Contains(t, strings.Join(decision.Warnings, "\n"), "has maintenance planned (condition MaintenancePlanned")
	requireCounted(`{"metadata":{"annotations":{"holdfast.dev/shutdown":"{\"bootID\":\"b\"}"}}}`,
		`{"metadata":{"annotations":{"holdfast.dev/shutdown":null}}}`, "is shutting down or rebooting")

	f.PatchNode(0, `{"spec":{"unschedulable":true}}`)
	decision = review(t, reviewer, req)
	require.True(t, decision.Allowed, "a cordon alone has no effect: "+decision.Message)
}
