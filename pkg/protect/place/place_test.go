package place_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// probed returns a cluster whose observations answer the last probe request.
func probed(n int) *quorumtest.Cluster {
	c := quorumtest.Voters(n)
	c.Cluster.Spec.Nonce = quorumtest.Nonce
	return c
}

// TestOf: the sources of member b on a Node. It is the Node of member b unless the case has another
// one.
func TestOf(t *testing.T) {
	own := func(c *quorumtest.Cluster, change func(*v1alpha1.Observation)) *quorumtest.Cluster {
		change(c.Observer(1))
		return c
	}
	empty := func(o *v1alpha1.Observation) { o.NoMember = true }
	unnamed := func(o *v1alpha1.Observation) { o.LocalMember = "" }
	left := func() *quorumtest.Cluster { return probed(3).Removed(1).Unbound(1) }
	w2 := observation.AnnouncingNode{Node: "w2", UID: "u2"}
	const twoLists = place.OneList | place.TwoLists
	again := observation.AnnouncingNode{Node: "w2", UID: "u2-again"}
	bare := observation.AnnouncingNode{Node: "w9", UID: "u9"}
	at := observation.AnnouncingNode{Node: "w9", UID: "u9", Addresses: []string{quorumtest.Address(1)}}
	alone := probed(2).Unbound(1)
	alone.Cluster.Observations = alone.Cluster.Observations[:1]
	for name, c := range map[string]struct {
		cluster   *quorumtest.Cluster
		node      observation.AnnouncingNode
		want      place.Source
		isLocated bool
	}{
		"bound": {
			probed(3), quorumtest.Nodes(3)[1], place.Bound | place.Announced | place.Own | twoLists, true,
		},
		"another Node":                 {probed(3), bare, 0, false},
		"name":                         {probed(3), again, place.Name, true},
		"name, granted":                {probed(3).Granted(1), again, place.NameGivenUp, true},
		"name, granted, in no list":    {probed(3).Granted(1).Removed(1), again, place.NameLeft, true},
		"F84 no list confirmed":        {probed(3).Granted(1).Unconfirmed(0, 1, 2), again, place.NameGivenUp, true},
		"own agent":                    {probed(3).Unbound(1).Unconfirmed(0, 1, 2), w2, place.Own, false},
		"own agent finds none now":     {own(probed(3).Unbound(1), empty), w2, place.OwnEarlier, false},
		"own agent, left":              {left(), w2, place.OwnEarlier, false},
		"granted":                      {own(probed(3).Unbound(1).Granted(1), unnamed), w2, place.Granted, false},
		"F58 granted, left":            {own(left().Granted(1), unnamed), w2, place.GrantedLeft, false},
		"granted, left, agent has it":  {left().Granted(1), w2, place.Granted | place.Own, false},
		"at address, located":          {probed(3), at, twoLists, true},
		"at address":                   {probed(3).Unbound(1), at, twoLists | place.AnyList, false},
		"at address in one list":       {probed(3).Unbound(1).WithoutList(0), at, place.OneList | place.AnyList, false},
		"F89 no list confirmed":        {probed(3).Unbound(1).Unconfirmed(0, 1, 2), at, twoLists, false},
		"at address, sole host's list": {alone, at, place.SoleList | place.AnyList, false},
		"at address in old lists": {
			probed(4).Unbound(1).RemovedFrom(0, 1).RemovedFrom(2, 1).Silent(1, 3), at, place.AnyList, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want []place.Place
			if c.want != 0 {
				want = append(want, place.Place{
					Member: "b", Node: c.node.Node, UID: c.node.UID, By: c.want, IsLocated: c.isLocated,
				})
			}
			var found []place.Place
			for _, p := range place.Of(c.cluster.Cluster, []observation.AnnouncingNode{c.node}) {
				if p.Member == "b" {
					found = append(found, p)
				}
			}
			require.Equal(t, want, found)
		})
	}
}

// TestOn: a Node without the label announces nothing.
func TestOn(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "w9", UID: "u9", Labels: map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue},
		Annotations: map[string]string{
			observation.AnnouncementAnnotation: `[{"cluster":"` + quorumtest.ClusterID + `","member":"b"}]`,
		},
	}}
	found := place.On(probed(3).Cluster, n)
	require.Equal(t, []place.Place{{Member: "b", Node: "w9", UID: "u9", By: place.Announced, IsLocated: true}}, found)
	n.Labels = nil
	require.Empty(t, place.On(probed(3).Cluster, n))
}
