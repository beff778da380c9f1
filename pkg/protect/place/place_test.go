package place_test

import (
	"os"
	"strings"
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
		cluster *quorumtest.Cluster
		node    observation.AnnouncingNode
		want    place.Source
	}{
		"bound": {
			probed(3), quorumtest.Nodes(3)[1],
			place.Bound | place.Announced | place.Own | place.WeakList | place.LocatedTwoLists,
		},
		"another Node":                 {probed(3), bare, 0},
		"name":                         {probed(3), again, place.Name},
		"name, granted":                {probed(3).Granted(1), again, place.NameGivenUp},
		"name, granted, in no list":    {probed(3).Granted(1).Removed(1), again, place.Left},
		"F84 no list confirmed":        {probed(3).Granted(1).Unconfirmed(0, 1, 2), again, place.NameGivenUp},
		"own agent":                    {probed(3).Unbound(1).Unconfirmed(0, 1, 2), w2, place.Own},
		"own agent finds none now":     {own(probed(3).Unbound(1), empty), w2, place.OwnLeft},
		"own agent, left":              {left(), w2, place.OwnLeft},
		"granted":                      {own(probed(3).Unbound(1).Granted(1), unnamed), w2, place.Granted},
		"F58 granted, left":            {own(left().Granted(1), unnamed), w2, place.Left},
		"granted, left, agent has it":  {left().Granted(1), w2, place.Granted | place.OwnLeft},
		"at address, located":          {probed(3), at, place.WeakList | place.LocatedTwoLists},
		"at address":                   {probed(3).Unbound(1), at, twoLists | place.AnyList},
		"at address in one list":       {probed(3).Unbound(1).WithoutList(0), at, place.OneList | place.AnyList},
		"F89 no list confirmed":        {probed(3).Unbound(1).Unconfirmed(0, 1, 2), at, twoLists},
		"at address, sole host's list": {alone, at, place.WeakList | place.AnyList},
		"at address in old lists": {
			probed(4).Unbound(1).RemovedFrom(0, 1).RemovedFrom(2, 1).Silent(1, 3), at, place.AnyList,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want []place.Place
			if c.want != 0 {
				want = append(want, place.Place{
					Member: "b", Node: c.node.Node, UID: c.node.UID, By: c.want,
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
	require.Equal(t, []place.Place{{Member: "b", Node: "w9", UID: "u9", By: place.Announced}}, found)
	n.Labels = nil
	require.Empty(t, place.On(probed(3).Cluster, n))
}

// TestTableInDocs: docs/verdict.md has the sources on which each part acts.
func TestTableInDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/verdict.md")
	require.NoError(t, err)
	silent := &corev1.Node{}
	reported := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: observation.EtcdMemberCondition, Status: corev1.ConditionFalse},
	}}}
	for what, by := range map[string]struct{ always, silent place.Source }{
		"its cluster is part of the review":  {always: place.Review},
		"the same, with break-glass":         {always: place.Override},
		"on the node of the request":         {always: place.Target},
		"explains an unidentified server":    {always: place.Verified},
		"kept without the label":             {place.Unlabelled, place.UnlabelledSilent},
		"gets the label back":                {always: place.Label},
		"needs a guard pod":                  {always: place.GuardPod},
		"keeps its guard pod and hook":       {place.Keep(reported), place.Keep(silent)},
		"lost with the Node, if not located": {always: place.Lost},
	} {
		row := "\n| " + what + " | " + describe(by.always) + " | " + describe(by.silent&^by.always) + " | `"
		require.Contains(t, string(text), row)
	}
}

// describe names the sources as docs/verdict.md does.
func describe(by place.Source) string {
	var found []string
	for i, name := range []string{
		"binding", "name", "name given up", "announcement", "own report", "grant", "left", "own left",
		"two lists", "one list", "located two lists", "weak list", "any list",
	} {
		if by&(1<<i) != 0 {
			found = append(found, name)
		}
	}
	return strings.Join(found, ", ")
}
