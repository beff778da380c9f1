package agent

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestShutdownAnnouncement checks that the shutdown of a host with etcd is announced, also on a
// node that is not held for it because kured or a person has cordoned it.
func TestShutdownAnnouncement(t *testing.T) {
	member, none := &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}, &evidence.Scan{}
	read := protect.Inputs{ClustersKnown: true}
	for name, c := range map[string]struct {
		evidence *evidence.Scan
		cordoned bool
		want     bool
	}{
		"etcd":            {evidence: member, want: true},
		"etcd, cordoned":  {evidence: member, cordoned: true, want: true},
		"no etcd":         {evidence: none},
		"not yet scanned": {want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := bornHeld("n1")
			n.Annotations, n.Spec.Unschedulable = map[string]string{}, false
			in := nodeInputs{node: n, facts: openNetwork(), evidence: c.evidence, known: read, now: time.Now()}
			_, in.node = mustDecide(t, in) // in service
			in.node.Spec.Unschedulable = c.cordoned
			in.facts.GoingDown = true
			d, after := mustDecide(t, in)
			require.Equal(t, c.want, after.Annotations[departure.ShutdownAnnotation] != "")
			require.Equal(t, !c.cordoned, d.hold.Held)
			require.NotContains(t, d.urgent.Annotations, departure.ShutdownAnnotation)

			in.node, in.facts.GoingDown, in.facts.StaysUp = after, false, true // cancelled
			_, after = mustDecide(t, in)
			require.NotContains(t, after.Annotations, departure.ShutdownAnnotation)
		})
	}
}

// TestDrainOfHeldNode checks that a grant of a drain on the Node keeps its hold, and that an agent
// that has just started waits until it knows the grants.
func TestDrainOfHeldNode(t *testing.T) {
	now := time.Now()
	drained := v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Grants: []v1alpha1.Grant{
		{NodeUID: "other", Drained: &metav1.Time{Time: now.Add(time.Hour)}},
		{NodeUID: "u1", Drained: &metav1.Time{Time: now}},
	}}}
	for name, c := range map[string]struct {
		clusters []v1alpha1.EtcdCluster
		isUnread bool
		bootTime time.Time
		held     bool
	}{
		"drained":         {clusters: []v1alpha1.EtcdCluster{drained}, bootTime: now.Add(-time.Hour), held: true},
		"restarted":       {clusters: []v1alpha1.EtcdCluster{drained}, bootTime: now.Add(time.Minute)},
		"grants not read": {isUnread: true, held: true},
		"no drain":        {},
	} {
		t.Run(name, func(t *testing.T) {
			n, facts := bornHeld("n1"), openNetwork()
			n.UID = "u1"
			d, _ := mustDecide(t, nodeInputs{
				node: n, facts: facts, bootTime: func() time.Time { return c.bootTime }, now: now,
				known: protect.Inputs{UID: "u1", ClustersKnown: !c.isUnread, Clusters: c.clusters},
			})
			require.Equal(t, c.held, d.hold.Held, d.hold.Message)
		})
	}
}

// testUnseenDrain checks that the node stays held for a drain that was allowed a moment ago: the
// watch of the EtcdClusters lacks its grant.
func testUnseenDrain(t *testing.T, s testServer) {
	s.applyCluster(t, "")
	n := s.register(t, bornHeld("etcd-drained"))
	f := start(t, s, n.Name, func(f *fixture) {
		holdsMember(f)
		f.transport.set(func(r *http.Request) int {
			switch {
			case !strings.HasSuffix(r.URL.Path, "/"+v1alpha1.Resource) || r.URL.Query().Get("watch") == "":
				return 0
			case r.URL.Query().Get("sendInitialEvents") != "":
				return http.StatusUnprocessableEntity // The reflector lists instead.
			}
			<-r.Context().Done() // The watch delivers nothing.
			return http.StatusInternalServerError
		})
	})
	s.until(t, f.name, "held", hasReason(readiness.WaitingForCNI))
	require.Eventually(t, func() bool {
		_, isSynced := f.agent.clusters.all()
		return isSynced
	}, soon, time.Millisecond)
	s.patchCluster(t, "", fmt.Sprintf(`{"spec":{"grants":[{"node":%q,"nodeUID":%q,"members":[%q],"user":"alice",
		"reason":"Drain","time":"2126-05-01T12:00:00Z","drained":"2126-05-01T12:00:00Z"}]}}`, n.Name, n.UID, testMember))
	f.host(func(f *fixture) { f.facts = openNetwork() })
	s.until(t, f.name, "held for the drain", hasReason(readiness.WaitingForOthers))
	require.True(t, s.get(t, f.name).Spec.Unschedulable)

	s.patchCluster(t, "", `{"spec":{"grants":null}}`)
	f.events.Notify()
	s.until(t, f.name, "released", isFree)
}
