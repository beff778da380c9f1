package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// A learner answers a read of its own data without a quorum. While the members learn of its
// promotion one after the other, one observer may still list it as a healthy learner.
func TestPromotedLearnerIsUnproven(t *testing.T) {
	cluster := quorumtest.Voters(4).Unhealthy(3)
	cluster.InList(1, 3, func(m *v1alpha1.MemberStatus) { m.Learner, m.Healthy = true, true })
	v := quorum.Decide(cluster.View, quorumtest.Deletion(0))
	require.False(t, v.Allowed, words.Message(v))
	require.Equal(t, quorum.QuorumWouldBeLost, v.Reason)
}

func TestFinal(t *testing.T) {
	three := func() *quorumtest.Cluster { return quorumtest.Voters(3) }
	five := func() *quorumtest.Cluster { return quorumtest.Voters(5) }
	gone := quorumtest.Gone
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		final   bool
	}{
		"allowed, others silent":               {three().Silent(1, 2), true},
		"refused, silent agent may help":       {five().Unhealthy(1, 2).Silent(2), false},
		"refused, silent agent gone":           {five().Unhealthy(1, 2).Silent(1).State(1, quorumtest.Gone), true},
		"refused, silent agent cannot help":    {quorumtest.Voters(2).Silent(1), true},
		"refused by grants, others silent":     {three().Granted(1).Silent(1, 2), true},
		"refused, all answered":                {three().Unhealthy(1), true},
		"left the only list":                   {three().Removed(0).Silent(1, 2), false},
		"left two lists":                       {three().Removed(0).Silent(2), true},
		"left the only list, silent ones gone": {three().Removed(0).Silent(0, 1).State(0, gone).State(1, gone), true},
		"left the list of the only observer":   {quorumtest.Voters(2).Removed(0).Unbound(0), true},
		"alarms unread, others silent":         {three().AlarmsUnknown(0).Silent(1, 2), false},
		"no answer":                            {three().Silent(0, 1, 2), false},
		"all answered without a list":          {three().WithoutList(0, 1, 2), true},
		"one without a list, others silent":    {three().WithoutList(0).Silent(1, 2), false},
		"silent agent on unread node":          {three().WithoutList(0, 2).Silent(1).State(1, unread), false},
		"silent agent on missing node":         {three().WithoutList(0, 2).Silent(1).State(1, quorumtest.Gone), true},
		"corrupt member stays corrupt":         {three().InList(0, 2, alarmed).Silent(1), true},
		"unstarted member stays unstarted":     {three().Everywhere(2, unstarted).Silent(1), true},
	} {
		t.Run(name, func(t *testing.T) {
			v := quorum.Decide(c.cluster.View, quorumtest.Deletion(0))
			require.Equal(t, c.final, v.Final, words.Message(v))
		})
	}
}
