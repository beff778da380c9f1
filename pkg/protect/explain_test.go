package protect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestRefusalReadsWell shows whole refusals, as a person gets them.
func TestRefusalReadsWell(t *testing.T) {
	glass := `  - last of all, against the verdict (needs the verb breakglass on etcdclusters; recorded with your name):
    kubectl annotate --overwrite node w1 holdfast.dev/break-glass='{"uid":"u1","until":"'$(date -u -d +30min +%FT%TZ)'","reason":"say why"}'`
	for name, c := range map[string]struct {
		world *world
		want  string
	}{
		"one dead, one given up": {
			voters(5).dead(1, 2).granted(3),
			`deleting node w1 would cost etcd cluster cdf818194e3a8c32 its quorum: of 5 voters 3 must live, and only 1 would be left that is proven healthy
  etcd1 (a): on this node
  etcd2 (b): not proven healthy: connection refused (seen from node w1)
  etcd3 (c): not proven healthy: connection refused (seen from node w1)
  etcd4 (d): given up: the deletion of its node w4 was allowed to alice at 2026-05-01T12:00:00Z
  etcd5 (e): healthy
what to do, the safest first:
  - start etcd2 (b) again if it is down; if it is gone for good: etcdctl member remove b, then let a new member join
  - start etcd3 (c) again if it is down; if it is gone for good: etcdctl member remove c, then let a new member join
  - once etcd4 (d) is gone for good: etcdctl member remove d, then let a new member join
  - only if the machine of node w4 stays and its etcd with it: kubectl annotate --overwrite etcdcluster cdf818194e3a8c32 holdfast.dev/settle=u4
` + glass,
		},
		"four voters, one dead": {
			voters(4).dead(1),
			`deleting node w1 would cost etcd cluster cdf818194e3a8c32 its quorum: of 4 voters 3 must live, and only 2 would be left that are proven healthy
  etcd1 (a): on this node
  etcd2 (b): not proven healthy: connection refused (seen from node w1)
  etcd3 (c): healthy
  etcd4 (d): healthy
what to do, the safest first:
  - start etcd2 (b) again if it is down; if it is gone for good: etcdctl member remove b
    (with etcd2 (b) out of the list, this deletion is allowed)
  - or, if this node is to go for good, take its member out first (etcd checks that it can): etcdctl member remove a
` + glass,
		},
		"one voter": {
			voters(1),
			`deleting node w1 would cost etcd cluster cdf818194e3a8c32 its quorum: of 1 voter 1 must live, and none would be left that is proven healthy
  etcd1 (a): on this node
what to do, the safest first:
  - let more members join first and become voters, until the cluster can lose what is on this node
` + glass,
		},
		"nobody sees": {
			voters(3).blind(0, 1).silent(2),
			`cannot see etcd cluster cdf818194e3a8c32, of which node w1 holds member a: no agent that was asked gave a member list that a quorum confirmed; whether quorum would be lost is not known
  node w1: its agent answered: tls: certificate has expired
  node w2: its agent answered: tls: certificate has expired
  node w3: its agent has not answered; it was last heard at 2026-05-01T12:00:00Z
what to do, the safest first:
  - see what the agents say: kubectl describe node w1 (condition EtcdMember), and their logs; then delete the node again
    (if this etcd is kube-apiserver's own, your request came through it, so it has quorum: suspect the agents' certificates and the network)
  - only if this etcd cluster exists no more anywhere: kubectl delete etcdcluster cdf818194e3a8c32
` + glass,
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Decide(c.world.View, deletion(0)).Message) })
	}
}

func TestStepsThatAreSaidToHelpDo(t *testing.T) {
	w := voters(4).dead(1)
	require.False(t, Decide(w.View, deletion(0)).Allowed)
	require.True(t, Decide(voters(4).dead(1).removed(1).View, deletion(0)).Allowed)
	require.True(t, Decide(voters(4).dead(1).removed(0).View, deletion(0)).Allowed)
	two := Decide(voters(2).View, deletion(0)).Message
	require.Contains(t, two, "take its member out first")
	require.NotContains(t, Decide(voters(3).dead(1).View, deletion(0)).Message, "this deletion is allowed)", "two would be left of two")
}

func TestLongReasonsAreClipped(t *testing.T) {
	w := voters(3).everywhere(1, func(m *v1alpha1.MemberStatus) {
		m.Healthy, m.Reason = false, strings.Repeat("dial tcp:\n refused ", 50)
	})
	for line := range strings.SplitSeq(Decide(w.View, deletion(0)).Message, "\n") {
		require.Less(t, len(line), 300)
	}
}
