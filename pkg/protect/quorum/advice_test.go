package quorum_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// TestNoAdviceAgainstData has members whose own agents find their servers or their data, and Nodes
// that announce members of other Nodes: no step of a refusal would cost such a member. Three steps
// have another purpose: to remove the requested node for good, to replace corrupt data, and to go
// on once a machine that may leave is gone.
func TestNoAdviceAgainstData(t *testing.T) {
	states := map[string]func(*quorumtest.Cluster){
		"healthy":         func(*quorumtest.Cluster) {},
		"another stopped": func(c *quorumtest.Cluster) { c.Unhealthy(1) },
		"two stopped":     func(c *quorumtest.Cluster) { c.Unhealthy(1, 2) },
		"own stopped":     func(c *quorumtest.Cluster) { c.Unhealthy(0, 1) },
		"corrupt":         func(c *quorumtest.Cluster) { c.Everywhere(1, alarmed) },
		"no list":         func(c *quorumtest.Cluster) { c.WithoutList(1, 2).Silent(0) },
		"no role":         func(c *quorumtest.Cluster) { c.WithoutRoles().Unhealthy(1) },
		"drained":         func(c *quorumtest.Cluster) { c.Drained(1).Unhealthy(1) },
		"rebooted":        func(c *quorumtest.Cluster) { c.State(1, quorumtest.Rebooting).Unhealthy(1) },
	}
	const w1, w2 = 0, 1
	contested := quorumtest.Deletion(w1)
	contested.Announced = []evidence.MemberRef{{Cluster: quorumtest.ClusterID, Member: quorumtest.ID(w2)}}
	requests := map[string]quorum.Request{
		"delete": quorumtest.Deletion(w1), "drain": quorumtest.Drain(w1), "remove": quorumtest.Removal(w1),
		"contested": contested,
	}
	advice := regexp.MustCompile(`member remove|etcd leave|remove=true|remove-node\.yml|[Dd]elete (that|the) Node|` +
		`kubectl delete node`)
	isOther := regexp.MustCompile(`^  - (or, if this node is to be removed|replace |once .* is permanently gone)`)
	for state, change := range states {
		for name, r := range requests {
			for _, d := range []v1alpha1.Distribution{"", "k0s", "k3s", "kubespray", "rke2"} {
				c := withAccess(quorumtest.Voters(3), d, "/x/")
				change(c)
				c.State(w1, quorumtest.Cordoned)
				unlabelled := r
				unlabelled.Labelled = false
				for _, v := range []quorum.Verdict{
					quorum.Decide(c.View, r), quorum.DecideUnlabelled([]*v1alpha1.EtcdCluster{c.Cluster}, unlabelled),
				} {
					for line := range strings.Lines(words.Message(v)) {
						if !isOther.MatchString(line) {
							require.NotRegexp(t, advice, line, "%s, %s, %q", state, name, d)
						}
					}
				}
			}
		}
	}
	gone := words.Message(quorum.Decide(quorumtest.Voters(3).Unhealthy(w2).Emptied(w2).View, requests["delete"]))
	require.Contains(t, gone, "etcdctl member remove b")
}

// TestSettlesEffectiveGrants: a refusal names only the grants by which members are lost, each with
// its members.
func TestSettlesEffectiveGrants(t *testing.T) {
	w := quorumtest.Voters(3).Granted(1).State(2, quorumtest.Gone)
	w.Cluster.Spec.Grants = append(w.Cluster.Spec.Grants, v1alpha1.Grant{
		NodeUID: "u9", Node: "w9", Members: quorumtest.IDs("f"), Addresses: []string{"10.0.0.9"},
		Delete: &v1alpha1.Door{Time: metav1.NewTime(quorumtest.Noon())},
	})
	var found []string
	for _, s := range quorum.Decide(w.View, quorumtest.Deletion(0)).Facts.Steps {
		if s.Kind == quorum.StepResolve {
			require.Len(t, s.Members, 1)
			found = append(found, string(s.Grant.NodeUID)+" "+string(s.Members[0].ID))
		}
	}
	require.Equal(t, []string{"u2 b"}, found)
}

// TestStepsAboutUnknown: a member on a Node that could not be read is not to be removed, and each
// member that one of the lists lacks is named.
func TestStepsAboutUnknown(t *testing.T) {
	f := quorum.Decide(quorumtest.Voters(3).Dead(2).State(2, unread).View, quorumtest.Deletion(0)).Facts
	require.Empty(t, f.Removable)
	require.False(t, slices.ContainsFunc(f.Steps, func(s quorum.Step) bool { return s.Kind == quorum.StepRepair }))

	w := quorumtest.Voters(4).Unhealthy(1).RemovedFrom(1, 3).RemovedFrom(2, 2).Silent(3)
	f = quorum.Decide(w.View, quorumtest.Deletion(0)).Facts
	at := slices.IndexFunc(f.Steps, func(s quorum.Step) bool { return s.Kind == quorum.StepCompareLists })
	var ids []v1alpha1.MemberID
	for _, m := range f.Steps[at].Members {
		ids = append(ids, m.ID)
	}
	require.Equal(t, quorumtest.IDs("c", "d"), ids)
}
