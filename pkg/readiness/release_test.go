package readiness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestReleaseTakesLeftoverTaints(t *testing.T) {
	leftovers := []func(*corev1.Node){
		recorded(Held, thisBoot, NewNode), cordoned, tainted("dedicated"),
		tainted(corev1.TaintNodeUnschedulable), tainted(corev1.TaintNodeNetworkUnavailable), tainted(corev1.TaintNodeNotReady),
	}
	keys := func(n *corev1.Node) (found []string) {
		for _, taint := range Decide(n, ready(), Policy{}, noon()).RemoveTaints {
			found = append(found, taint.Key)
		}
		return found
	}
	unavailable := func(reason string, status corev1.ConditionStatus) func(*corev1.Node) {
		return conditioned(corev1.NodeNetworkUnavailable, status, reason)
	}
	both := []string{corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable}
	require.Equal(t, both, keys(node(append(leftovers, unavailable(HeldByHoldfast, corev1.ConditionTrue))...)))
	require.Equal(t, both, keys(node(append(leftovers, unavailable("FlannelIsUp", corev1.ConditionFalse))...)))
	require.Equal(t, both[:1], keys(node(append(leftovers, unavailable("CalicoIsDown", corev1.ConditionTrue))...)),
		"a taint that somebody else's condition stands for stays")
}

func TestOrderOfWrites(t *testing.T) {
	ours := conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, HeldByHoldfast)
	bornHeld := recorded(Held, thisBoot, NewNode)
	for name, c := range map[string]struct {
		node        *corev1.Node
		facts       Facts
		policy      Policy
		statusFirst bool
	}{
		"hold of a fresh node: never cordoned and Ready": {node(), closed(), Policy{HoldUnrecorded: true}, true},
		"release: never cordoned and Ready":              {node(bornHeld, cordoned, ours), ready(), Policy{}, false},
		"release by label: the same":                     {node(bornHeld, cordoned, ours, exempt), closed(), Policy{}, false},
		"override: the record last":                      {node(bornHeld, ours), closed(), Policy{}, true},
		"hand-over of the cordon: the record last":       {node(bornHeld, cordoned, ours, annotated(KeepCordonedAnnotation, "")), ready(), Policy{}, true},
		"hold after a reboot: the cordon at once":        {node(recorded(Released, otherBoot, NetworkReady)), closed(), Policy{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.statusFirst, Decide(c.node, c.facts, c.policy, noon()).StatusFirst)
		})
	}
}

// TestAReleaseIsTwoWrites: the first is all but the conditions, the second nothing but them, and then nothing is left to say.
// After a crash in between the conditions become word for word what they would have become.
func TestAReleaseIsTwoWrites(t *testing.T) {
	ours := conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, HeldByHoldfast)
	waiting := conditioned(NetworkHeld, corev1.ConditionTrue, WaitingForFlannel)
	giving := patience()
	giving.Release = true
	for name, c := range map[string]struct {
		node *corev1.Node
		ends func(*corev1.Node) Decision
	}{
		"by its network": {
			node(recorded(Held, thisBoot, NewNode), cordoned, ours, waiting),
			func(n *corev1.Node) Decision { return Decide(n, ready(), Policy{}, noon()) },
		},
		"by the label": {
			node(recorded(Held, thisBoot, NewNode), cordoned, ours, waiting, exempt),
			func(n *corev1.Node) Decision { return Decide(n, closed(), Policy{}, noon()) },
		},
		"by a shutdown that was called off": {
			node(recorded(Held, thisBoot, GoingDown), cordoned, ours, conditioned(NetworkHeld, corev1.ConditionTrue, GoingDown)),
			func(n *corev1.Node) Decision {
				return Decide(n, with(func(f *Facts) { f.StaysUp = true }), Policy{}, noon())
			},
		},
		"by the leader": {
			node(recorded(Held, thisBoot, NewNode), booted(thisBoot), cordoned, ours, waiting),
			func(n *corev1.Node) Decision { return Attend(n, time.Hour, giving, noon()).Decision },
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.ends(c.node)
			require.False(t, d.StatusFirst)
			half, whole := write(c.node, d, func(*corev1.Node) {})
			require.False(t, half.Spec.Unschedulable)
			require.Equal(t, c.node.Status, half.Status)
			record, err := ParseRecord(half.Annotations[HoldAnnotation])
			require.NoError(t, err)
			require.NotEqual(t, Held, record.State)
			rest := func(n *corev1.Node, by string) *corev1.Node {
				var d Decision
				if by == "leader" {
					d = Attend(n, time.Hour, patience(), noon()).Decision
				} else {
					d = Decide(n, closed(), Policy{}, noon())
				}
				require.Nil(t, d.Record, by)
				require.Nil(t, d.Event, "it is told once")
				_, after := write(n, d, func(*corev1.Node) {})
				return after
			}
			for _, by := range []string{"agent", "leader"} {
				require.Equal(t, whole, rest(half, by), by)
				require.Equal(t, whole, rest(whole, by), "the %s has nothing to add", by)
			}
		})
	}
}
