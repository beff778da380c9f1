package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
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
