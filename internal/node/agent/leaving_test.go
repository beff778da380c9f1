package agent

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestShutdownAnnouncement checks that the shutdown of a host with etcd is announced, also on a
// node that is not held for it because kured or a person has cordoned it.
func TestShutdownAnnouncement(t *testing.T) {
	member, none := &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}, &evidence.Scan{}
	read := presence.Inputs{ClustersKnown: true}
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

// testDrainOfHeldNode: the webhook records a drain on the held Node at the moment of the release.
// The node stays held until its machine has restarted.
func testDrainOfHeldNode(t *testing.T, s testServer) {
	s.applyCluster(t, "")
	n := s.register(t, bornHeld("etcd-drained"))
	// The cordon of the born-held policy has no owner.
	_, err := s.Kubectl(t.Context(), "patch", "node", n.Name, "--type=merge", "-p", `{"metadata":{"managedFields":[{}]}}`)
	require.NoError(t, err)
	f := start(t, s, n.Name, holdsMember)
	s.until(t, f.name, "held", hasReason(readiness.WaitingForCNI))
	var drained sync.Once
	f.transport.set(func(r *http.Request) int {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/nodes/"+n.Name) {
			drained.Do(func() {
				value, err := readiness.WithDrain(s.get(t, n.Name), time.Now())
				assert.NoError(t, err) //nolint:testifylint // FailNow may not be called here.
				_, err = s.Kubectl(t.Context(), "annotate", "--overwrite", "node", n.Name,
					readiness.HoldAnnotation+"="+value)
				assert.NoError(t, err)
			})
		}
		return 0
	})
	f.host(func(f *fixture) { f.facts = openNetwork() })
	s.until(t, f.name, "held for the drain", hasReason(readiness.WaitingForOthers))
	require.True(t, s.get(t, f.name).Spec.Unschedulable)

	f.host(func(f *fixture) { f.facts.BootID = "the next boot" })
	s.until(t, f.name, "released", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
}
