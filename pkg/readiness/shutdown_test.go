package readiness

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestDecideWhileTheHostGoesDown: what is open is closed, what is closed stays so, and nobody else's affairs are touched.
func TestDecideWhileTheHostGoesDown(t *testing.T) {
	for name, c := range map[string]struct {
		node   *corev1.Node
		facts  Facts
		policy Policy
		// cordon is "on", "off", or empty if it is left; record is its reason, empty if it is left.
		cordon, record string
		held           bool
	}{
		"in service":               {node: node(recorded(Released, thisBoot, NetworkReady)), facts: ready(), cordon: "on", record: GoingDown, held: true},
		"opened by hand before":    {node: node(recorded(Overridden, thisBoot, EndedByHand)), facts: ready(), cordon: "on", record: GoingDown, held: true},
		"held, network just there": {node: node(recorded(Held, thisBoot, NewNode), cordoned), facts: ready(), held: true},
		"held, network not there":  {node: node(recorded(Held, thisBoot, NewNode), cordoned), facts: closed(), held: true},
		"held for this":            {node: node(recorded(Held, thisBoot, GoingDown), cordoned), facts: ready(), held: true},
		"opened by hand since":     {node: node(recorded(Held, thisBoot, GoingDown)), facts: ready(), record: EndedByHand},
		"cordoned by another":      {node: node(recorded(Released, thisBoot, NetworkReady), cordoned), facts: ready()},
		"exempt":                   {node: node(recorded(Released, thisBoot, Exempt), exempt), facts: ready()},
		"held, exempt since":       {node: node(recorded(Held, thisBoot, GoingDown), cordoned, exempt), facts: ready(), cordon: "off", record: NetworkReady},
		"being deleted":            {node: node(recorded(Released, thisBoot, NetworkReady), deleting), facts: ready()},
		"the gates do not fit":     {node: node(recorded(Released, thisBoot, GatesDoNotFit)), facts: closed()},
		"never seen":               {node: node(), facts: ready(), policy: Policy{HoldUnrecorded: true}, record: FirstSeen},
		"boot unknown":             {node: node(recorded(Released, thisBoot, NetworkReady)), facts: with(func(f *Facts) { f.BootID = "" })},
		"another boot, open":       {node: node(recorded(Released, otherBoot, NetworkReady)), facts: ready(), record: NetworkReady},
	} {
		t.Run(name, func(t *testing.T) {
			c.facts.GoingDown = true
			d := Decide(c.node, c.facts, c.policy, noon())
			require.Equal(t, c.held, d.Held, d.Message)
			cordon, record := "", ""
			if d.Unschedulable != nil {
				cordon = map[bool]string{true: "on", false: "off"}[*d.Unschedulable]
			}
			if d.Record != nil {
				record = d.Record.Reason
			}
			require.Equal(t, c.cordon, cordon, d.Message)
			require.Equal(t, c.record, record, d.Message)
			fresh := strings.Contains(c.node.Annotations[HoldAnnotation], NewNode)
			for _, condition := range d.Conditions {
				require.True(t, fresh || condition.Reason != HeldByHoldfast, "an old node that looks unready alarms autoscalers")
			}
		})
	}
}

// TestAHoldOnTheWayDown follows one through a shutdown that is called off, and one through the next boot.
func TestAHoldOnTheWayDown(t *testing.T) {
	for name, c := range map[string]struct {
		after Facts
		held  bool
	}{
		"called off":                       {after: with(func(f *Facts) { f.StaysUp = true })},
		"called off, gates closed":         {after: with(func(f *Facts) { f.StaysUp, f.Subnet.Presence = true, Absent })},
		"the agent starts in the middle":   {after: with(func(f *Facts) { f.AwaitsWord = true }), held: true},
		"nobody will say, gates open":      {after: ready()},
		"nobody will say, gates closed":    {after: closed(), held: true},
		"next boot, network not there yet": {after: with(func(f *Facts) { f.BootID, f.Subnet.Presence = otherBoot, Absent }), held: true},
		"next boot, network there":         {after: with(func(f *Facts) { f.BootID = otherBoot })},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(recorded(Released, thisBoot, NetworkReady))
			d := Decide(n, with(func(f *Facts) { f.GoingDown = true }), Policy{}, noon())
			require.Equal(t, GoingDown, d.Reason)
			require.Contains(t, d.Message, "going down")
			require.Equal(t, EventHeld, d.Event.Reason)
			n.Annotations[HoldAnnotation] = d.Record.Format()
			n.Spec.Unschedulable = *d.Unschedulable

			d = Decide(n, c.after, Policy{}, noon())
			require.Equal(t, c.held, d.Held, d.Message)
			require.Equal(t, c.held, d.Unschedulable == nil, "released in one pass")
		})
	}
}
