package protect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// marked is what the agent of w1 writes on its Node after a look, beginning with what stands there.
func marked(t *testing.T, ev HostEvidence, before []MemberRef, clusters ...v1alpha1.EtcdCluster) Request {
	t.Helper()
	annotations, labels := map[string]string{}, map[string]string{EtcdMemberLabel: EtcdMemberLabelValue}
	if len(before) > 0 {
		annotations[AnnouncementAnnotation] = FormatAnnouncement(before)
	}
	p := Assess(ev, Known{Node: "w1", UID: "u1", ClustersKnown: true, Clusters: clusters, Announced: before, Protected: true})
	setAnnotations, setLabels := Marks(p, annotations, labels, nil)
	annotations, labels = apply(annotations, setAnnotations), apply(labels, setLabels)
	announced, err := ParseAnnouncement(annotations[AnnouncementAnnotation])
	require.NoError(t, err)
	return Request{Node: "w1", UID: "u1", Labelled: labels[EtcdMemberLabel] == EtcdMemberLabelValue, Announced: announced}
}

func TestARemovedMemberWithItsDataLeftBehindCanBeDeleted(t *testing.T) {
	before := []MemberRef{{clusterX, "a"}}
	rejoined := voters(4).removed(0).unbound(0).unbound(3).sick(1)
	for name, c := range map[string]struct {
		world   *world
		found   Found
		allowed bool
	}{
		"its unit is stopped":                   {voters(3).removed(0).unbound(0), unitServer().stopped(yes(true)), true},
		"its unit starts over and over":         {voters(3).removed(0).unbound(0), unitServer().silent(), true},
		"not removed":                           {voters(3).sick(1), unitServer().silent(), false},
		"it may have joined again as d, unseen": {rejoined, unitServer().silent(), false},
	} {
		t.Run(name, func(t *testing.T) {
			r := marked(t, HostEvidence{Found: []Found{c.found}}, before, *c.world.Cluster)
			r = marked(t, HostEvidence{Found: []Found{c.found}}, r.Announced, *c.world.Cluster)
			require.True(t, r.Labelled)
			involved := Involved([]*v1alpha1.EtcdCluster{c.world.Cluster}, r)
			if len(involved) == 0 {
				require.False(t, c.allowed, Unattributed(r).Message)
				return
			}
			v := Decide(c.world.View, r)
			require.Equal(t, c.allowed, v.Allowed, v.Message)
		})
	}
}

func TestARestoredClusterLeavesItsOldIdentityBehind(t *testing.T) {
	before := []MemberRef{{clusterX, "a"}}
	restored := voters(3)
	restored.Cluster.Name = "fff"
	server := unitServer()
	server.Ref = MemberRef{"fff", "a"}
	old, again := voters(3).silent(0, 1, 2).Cluster, voters(3).neverBound().Cluster
	listing, boundOnly := voters(3).unbound(0).Cluster, voters(3).Cluster
	boundOnly.Status.Observations = nil
	for name, c := range map[string]struct {
		ev       HostEvidence
		clusters []v1alpha1.EtcdCluster
		want     []MemberRef
	}{
		"its object is there":                 {HostEvidence{Found: []Found{server}}, []v1alpha1.EtcdCluster{*restored.Cluster, *old}, []MemberRef{{clusterX, "a"}, {"fff", "a"}}},
		"its object was deleted":              {HostEvidence{Found: []Found{server}}, []v1alpha1.EtcdCluster{*restored.Cluster}, []MemberRef{{"fff", "a"}}},
		"its object was made anew":            {HostEvidence{Found: []Found{server}}, []v1alpha1.EtcdCluster{*restored.Cluster, *again}, []MemberRef{{"fff", "a"}}},
		"it is bound, though nobody lists it": {HostEvidence{Found: []Found{server}}, []v1alpha1.EtcdCluster{*restored.Cluster, *boundOnly}, []MemberRef{{clusterX, "a"}, {"fff", "a"}}},
		"somebody still lists the member":     {HostEvidence{Found: []Found{server}}, []v1alpha1.EtcdCluster{*restored.Cluster, *listing}, []MemberRef{{clusterX, "a"}, {"fff", "a"}}},
		"the look is not complete":            {HostEvidence{Found: []Found{server}, Unknown: []string{"x"}}, []v1alpha1.EtcdCluster{*restored.Cluster}, []MemberRef{{clusterX, "a"}, {"fff", "a"}}},
		"another server does not answer":      {HostEvidence{Found: []Found{server, unitServer().silentAs("process 9")}}, []v1alpha1.EtcdCluster{*restored.Cluster}, []MemberRef{{clusterX, "a"}, {"fff", "a"}}},
		"the member itself does":              {HostEvidence{Found: []Found{server, unitServer()}}, []v1alpha1.EtcdCluster{*restored.Cluster}, []MemberRef{{clusterX, "a"}, {"fff", "a"}}},
		"it is there with other data left":    {HostEvidence{Found: []Found{server, unitServer().stopped(nil)}}, []v1alpha1.EtcdCluster{*restored.Cluster}, []MemberRef{{clusterX, "a"}, {"fff", "a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := marked(t, c.ev, before, c.clusters...)
			require.Equal(t, c.want, r.Announced)
			if len(c.want) == 1 {
				require.Empty(t, Missing([]*v1alpha1.EtcdCluster{restored.Cluster}, r))
				require.Equal(t, []*v1alpha1.EtcdCluster{restored.Cluster}, Involved([]*v1alpha1.EtcdCluster{restored.Cluster}, r))
				require.True(t, Decide(restored.View, r).Allowed)
			}
		})
	}
	p := Assess(HostEvidence{Found: []Found{server}}, Known{Node: "w1", UID: "u1", Announced: before})
	require.Equal(t, []MemberRef{{clusterX, "a"}, {"fff", "a"}}, p.Announce, "the clusters are not known")
}
