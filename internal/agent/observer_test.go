package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestSubjects(t *testing.T) {
	const events = v1alpha1.ClusterID("e1")
	main, other := protect.MemberRef{Cluster: testCluster, Member: testMember}, protect.MemberRef{Cluster: events, Member: "b"}
	seen := func(where string, ref protect.MemberRef) protect.Found {
		return protect.Found{Sighting: protect.Sighting{Where: where}, Answer: protect.Answer{Ref: ref}}
	}
	silent := func(where string) protect.Found {
		return protect.Found{Sighting: protect.Sighting{Where: where}, Answer: protect.Answer{Problem: "no answer"}}
	}
	before := map[v1alpha1.ClusterID]subject{testCluster: {protect.Sighting{Where: "etcd"}, protect.Answer{Ref: main}}}
	tests := []struct {
		name      string
		found     []protect.Found
		before    map[v1alpha1.ClusterID]subject
		announced []protect.MemberRef
		pods      bool
		want      map[v1alpha1.ClusterID]v1alpha1.MemberID
	}{
		{name: "nothing there", announced: []protect.MemberRef{main}},
		{name: "answered", found: []protect.Found{seen("etcd", main)}, want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember}},
		{
			name: "two clusters", found: []protect.Found{seen("etcd", main), seen("etcd-events", other)},
			want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember, events: "b"},
		},
		{name: "silent and never known", found: []protect.Found{silent("etcd")}},
		{
			name: "silent, known from before", found: []protect.Found{silent("etcd")}, before: before,
			want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
		{
			name: "stopped, only its data is seen now", before: map[v1alpha1.ClusterID]subject{testCluster: {
				protect.Sighting{Where: "etcd", PID: 5, Config: protect.Config{DataDir: "/var/lib/etcd"}}, protect.Answer{Ref: main},
			}},
			found: []protect.Found{{Sighting: protect.Sighting{Where: "data", Config: protect.Config{DataDir: "/var/lib/etcd"}}}},
			want:  map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
		{name: "another server than the one before is silent", found: []protect.Found{silent("etcd-events")}, before: before},
		{
			name: "silent, the agent is new, the node announces one", found: []protect.Found{silent("etcd")},
			announced: []protect.MemberRef{main}, want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
		{
			name: "one silent, one announced besides the other", found: []protect.Found{silent("etcd"), seen("etcd-events", other)},
			announced: []protect.MemberRef{main, other}, want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember, events: "b"},
		},
		{name: "two silent, two announced: nobody knows which is which", found: []protect.Found{silent("a"), silent("b")}, announced: []protect.MemberRef{main, other}},
		{
			name:  "removed",
			found: []protect.Found{{Sighting: protect.Sighting{Where: "etcd"}, Answer: protect.Answer{Ref: main, Removed: true}}}, announced: []protect.MemberRef{main},
		},
		{name: "static pod, not wanted", found: []protect.Found{{Sighting: protect.Sighting{InCluster: true}, Answer: protect.Answer{Ref: main}}}},
		{
			name: "static pod, wanted", pods: true, found: []protect.Found{{Sighting: protect.Sighting{InCluster: true}, Answer: protect.Answer{Ref: main}}},
			want: map[v1alpha1.ClusterID]v1alpha1.MemberID{testCluster: testMember},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := map[v1alpha1.ClusterID]v1alpha1.MemberID{}
			for cluster, s := range subjects(protect.HostEvidence{Found: test.found}, test.before, test.announced, test.pods) {
				got[cluster] = s.answer.Ref.Member
			}
			if test.want == nil {
				test.want = map[v1alpha1.ClusterID]v1alpha1.MemberID{}
			}
			require.Equal(t, test.want, got)
		})
	}
}

// TestWhoIsConcernedByEtcdClusters: whoever may have to do with one reads them before anything is said of its membership.
func TestWhoIsConcernedByEtcdClusters(t *testing.T) {
	found := protect.HostEvidence{Found: []protect.Found{{}}}
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		seen                protect.HostEvidence
		want                bool
	}{
		"an ordinary worker":                  {want: false},
		"a worker with annotations of others": {annotations: map[string]string{protect.ClusterAutoscalerAnnotation: "true"}, want: false},
		"a place could not be looked at":      {seen: protect.HostEvidence{Unknown: []string{"the process table"}}, want: false},
		"the host shows etcd":                 {seen: found, want: true},
		"the label":                           {labels: map[string]string{protect.EtcdMemberLabel: protect.EtcdMemberLabelValue}, want: true},
		"the announcement":                    {annotations: map[string]string{protect.AnnouncementAnnotation: "["}, want: true},
		"a server that never answered":        {annotations: map[string]string{protect.UnverifiedAnnotation: ""}, want: true},
		"marks":                               {annotations: map[string]string{protect.MarksAnnotation: ""}, want: true},
		"the sentence":                        {annotations: map[string]string{protect.BecauseAnnotation: ""}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, Annotations: c.annotations}}
			require.Equal(t, c.want, concerned(n, c.seen))
			clusters := &mirror[*v1alpha1.EtcdCluster]{wanted: newBell()}
			k, _ := known(n, c.seen, clusters, true)
			require.Equal(t, !c.want, k.ClustersKnown, "until they are read, nothing is concluded")
			require.Len(t, clusters.wanted, map[bool]int{true: 1}[c.want], "and then they are read")
		})
	}
}
