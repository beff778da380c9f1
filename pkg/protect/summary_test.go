package protect

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSummarise(t *testing.T) {
	for name, c := range map[string]struct {
		world *world
		want  Summary
	}{
		"well":    {voters(3), Summary{3, 3, 2, 1, true, "3 voters, 3 healthy, quorum 2"}},
		"one out": {voters(3).sick(1), Summary{3, 2, 2, 0, true, "3 voters, 2 healthy, quorum 2; etcd2 (b) not proven healthy: connection refused (seen from node w2)"}},
		"below":   {voters(3).sick(1, 2).blind(1, 2), Summary{3, 1, 2, 0, true, "3 voters, 1 healthy, quorum 2; etcd2 (b) not proven healthy: connection refused (seen from node w1); etcd3 (c) not proven healthy: connection refused (seen from node w1)"}},
		"granted": {voters(5).granted(4), Summary{5, 4, 3, 1, true, "5 voters, 4 healthy, quorum 3; etcd5 (e) given up: the deletion of its node w5 was allowed to alice at 2026-05-01T12:00:00Z; it still answers, so its etcd runs on"}},
		"a learner": {
			voters(4).learner(3), Summary{3, 3, 2, 1, true, "3 voters, 3 healthy, quorum 2"},
		},
		"the worst list": {voters(5).removedFrom(2, 4), Summary{4, 4, 3, 1, true, "4 voters, 4 healthy, quorum 3"}},
		"nobody sees":    {voters(2).blind(0).silent(1), Summary{Message: "no agent gave a member list that a quorum confirmed; node w1 its agent answered: tls: certificate has expired, node w2 its agent has not answered; it was last heard at 2026-05-01T12:00:00Z"}},
		"nobody bound":   {voters(1).neverBound(), Summary{Message: "no member is bound to a Node yet, so that nobody can be asked"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Summarise(c.world.View)) })
	}
	require.False(t, Summarise(View{}).Known)
}
