package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
)

func TestLocalMembers(t *testing.T) {
	type (
		found   []evidence.FoundServer
		refs    []evidence.MemberRef
		known   map[v1alpha1.ClusterID]evidence.FoundServer
		members map[v1alpha1.ClusterID]v1alpha1.MemberID
	)
	const events = v1alpha1.ClusterID("e1")
	main := evidence.MemberRef{Cluster: testCluster, Member: testMember}
	other := evidence.MemberRef{Cluster: events, Member: "b"}
	answered := func(where string, ref evidence.MemberRef) evidence.FoundServer {
		return evidence.FoundServer{Server: evidence.Server{Where: where}, Identity: evidence.Identity{Ref: ref}}
	}
	silent := func(where string) evidence.FoundServer {
		return evidence.FoundServer{Server: evidence.Server{Where: where}, Identity: evidence.Identity{Problem: "no answer"}}
	}
	bound := v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(testCluster)}}
	bound.Spec.Members = []v1alpha1.Binding{{MemberID: testMember}}
	removed, staticPod, data := answered("etcd", main), answered("pod", main), silent("data")
	removed.Removed, staticPod.InCluster = true, true
	data.Config.DataDir = "/var/lib/etcd"
	process := evidence.FoundServer{
		Server:   evidence.Server{Where: "etcd", PID: 5, Config: evidence.Config{DataDir: "/var/lib/etcd"}},
		Identity: evidence.Identity{Ref: main},
	}
	before := known{testCluster: answered("etcd", main)}
	one, two := members{testCluster: testMember}, members{testCluster: testMember, events: "b"}
	for name, c := range map[string]struct {
		found      found
		before     known
		announced  refs
		staticPods bool
		clusters   []v1alpha1.EtcdCluster
		want       members
	}{
		"nothing":                          {announced: refs{main}},
		"answered":                         {found: found{answered("etcd", main)}, want: one},
		"two clusters":                     {found: found{answered("etcd", main), answered("etcd-events", other)}, want: two},
		"silent, unknown":                  {found: found{silent("etcd")}},
		"silent, known":                    {found: found{silent("etcd")}, before: before, want: one},
		"silent, another server was known": {found: found{silent("etcd-events")}, before: before},
		"stopped, only data left":          {found: found{data}, before: known{testCluster: process}, want: one},
		"silent, announced, after restart": {found: found{silent("etcd")}, announced: refs{main}, want: one},
		"one silent, one answered": {
			found: found{silent("etcd"), answered("etcd-events", other)}, announced: refs{main, other}, want: two,
		},
		"two silent, two announced": {found: found{silent("a"), silent("b")}, announced: refs{main, other}},
		"removed":                   {found: found{removed}, announced: refs{main}},
		"static pod, not protected": {found: found{staticPod}},
		"H18 static pod, not protected, bound": {
			found: found{staticPod}, clusters: []v1alpha1.EtcdCluster{bound}, want: one,
		},
		"static pod, protected": {found: found{staticPod}, staticPods: true, want: one},
	} {
		t.Run(name, func(t *testing.T) {
			got := members{}
			in := presence.Inputs{Announced: c.announced, StaticPods: c.staticPods, Clusters: c.clusters}
			for cluster, m := range localMembers(evidence.Scan{Found: c.found}, c.before, in) {
				got[cluster] = m.Ref.Member
			}
			if c.want == nil {
				c.want = members{}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// TestCanBeMember checks that the EtcdClusters are read before anything is concluded about a
// Node that one of them can concern.
func TestCanBeMember(t *testing.T) {
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		evidence            evidence.Scan
		want                bool
	}{
		"worker":                  {want: false},
		"annotations of others":   {annotations: map[string]string{autoscaler.ClusterAutoscaler: "true"}, want: false},
		"unreadable place":        {evidence: evidence.Scan{Unknown: []string{"the process table"}}, want: false},
		"etcd on the host":        {evidence: evidence.Scan{Found: []evidence.FoundServer{{}}}, want: true},
		"label":                   {labels: map[string]string{observation.EtcdMemberLabel: "true"}, want: true},
		"announcement":            {annotations: map[string]string{observation.AnnouncementAnnotation: "["}, want: true},
		"server without identity": {annotations: map[string]string{observation.UnverifiedAnnotation: ""}, want: true},
		"marks":                   {annotations: map[string]string{presence.MarksAnnotation: ""}, want: true},
		"explanation":             {annotations: map[string]string{presence.BecauseAnnotation: ""}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, Annotations: c.annotations}}
			require.Equal(t, c.want, canBeMember(n, c.evidence))
			clusters := newClusterStores(discardLog(), func() {})
			known, _ := gatherKnown(n, c.evidence, clusters, true)
			require.Equal(t, !c.want, known.ClustersKnown)
			wanted := map[bool]int{true: 1}[c.want]
			require.Len(t, clusters.clusters.wanted, wanted, "the clusters are read if they can concern the Node")
			require.Len(t, clusters.observations.wanted, wanted)
		})
	}
}

// TestKnownIsSorted checks that the decision about a node always has the same input.
func TestKnownIsSorted(t *testing.T) {
	clusters := newClusterStores(discardLog(), func() {})
	var objects []any
	for i := range 20 {
		objects = append(objects, &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%02d", i)}})
	}
	require.NoError(t, clusters.clusters.writer.Replace(objects, ""))
	known, err := gatherKnown(&corev1.Node{}, evidence.Scan{}, clusters, true)
	require.NoError(t, err)
	require.Len(t, known.Clusters, len(objects))
	require.True(t, slices.IsSortedFunc(known.Clusters, func(a, b v1alpha1.EtcdCluster) int {
		return strings.Compare(a.Name, b.Name)
	}))
}
