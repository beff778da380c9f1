package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

func TestFoldRefusals(t *testing.T) {
	refusals := func(c *quorumtest.Cluster, nodes ...int) (all []report.Removal) {
		for _, i := range nodes {
			message := words.Message(quorum.Decide(c.View, quorumtest.Deletion(i)))
			all = append(all, report.Removal{Node: quorumtest.Node(i), Message: message})
		}
		return all
	}
	dead := quorumtest.Voters(3).Dead(2)

	own, common := foldRefusals(refusals(dead, 0, 1))
	require.Contains(t, common, "\nthe same for w1, w2:\n  etcd3 (c) on node w3: not confirmed healthy")
	require.Contains(t, common, "\nwhat to do, safest first:\n  - start etcd3 (c) on node w3")
	require.NotContains(t, common, "break-glass", "its command names one node")
	for i, r := range own {
		require.Contains(t, r.Message, "deleting node "+r.Node)
		require.Contains(t, r.Message, "): on this node\n")
		require.Contains(t, r.Message, ": healthy\n", "this is another member for each node")
		require.NotContains(t, r.Message, "etcd3")
		require.Contains(t, r.Message, "\n  - as a last resort", i)
	}

	// Steps that differ stay with their node, in their order.
	own, common = foldRefusals(refusals(quorumtest.Voters(2), 0, 1))
	require.Contains(t, common+own[0].Message, "first add 1 more member")

	for name, answers := range map[string][]report.Removal{
		"one refusal":           append(refusals(dead, 0), report.Removal{Node: "w3", Message: "kept"}),
		"nothing in common":     append(refusals(dead, 0), refusals(quorumtest.Voters(3).Drained(1), 2)...),
		"answers without steps": {{Node: "w1", Message: "no answer"}, {Node: "w2", Message: "no answer"}},
	} {
		own, common := foldRefusals(answers)
		require.Equal(t, answers, own, name)
		require.Empty(t, common, name)
	}
}
