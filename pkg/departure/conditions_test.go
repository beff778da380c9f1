package departure_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
)

// is returns a change that sets a condition to this status at noon.
func is(status corev1.ConditionStatus, kind corev1.NodeConditionType, reason string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason,
			LastTransitionTime: metav1.NewTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)),
		})
	}
}

func TestConditions(t *testing.T) {
	const isTrue, isFalse, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	const maintained, repaired = corev1.NodeMaintenanceInProgress, "example.com/Repair"
	table := departure.Table{}.Add(departure.ForAWhile, "condition:"+repaired).Add(departure.ForAWhile, "DrainPlanned")
	const since = ", since 2026-05-01T12:00:00Z"
	const mayBeAway = "may be away, because the status of its condition is Unknown "
	for name, c := range map[string]struct {
		node         *corev1.Node
		mark, notice string
	}{
		"no condition": {nodeWith(), "", ""},
		"ready":        {nodeWith(is(isTrue, corev1.NodeReady, "KubeletReady")), "", ""},
		"maintenance": {
			nodeWith(is(isTrue, maintained, "KernelUpdate")),
			"is under maintenance (condition MaintenanceInProgress" + since + ", reason KernelUpdate)", "",
		},
		"draining": {
			nodeWith(is(isTrue, "DrainInProgress", "")), "is being drained (condition DrainInProgress" + since + ")", "",
		},
		"drained": {
			nodeWith(is(isFalse, "DrainInProgress", ""), is(isTrue, "Drained", "")),
			"is drained (condition Drained" + since + ")", "",
		},
		"shutting down": {
			nodeWith(is(isTrue, "GracefulNodeShutdownInProgress", "")),
			"is shutting down (condition GracefulNodeShutdownInProgress" + since + ")", "",
		},
		"over": {nodeWith(is(isFalse, maintained, "Done")), "", ""},
		"unknown": {
			nodeWith(is(unknown, "DrainInProgress", "Lost")),
			"", mayBeAway + "(condition DrainInProgress" + since + ", reason Lost)",
		},
		"odd status": {nodeWith(is("true", "DrainInProgress", "")), "", ""},
		"planned": {
			nodeWith(is(isTrue, "MaintenancePlanned", "Firmware")),
			"", "has maintenance planned (condition MaintenancePlanned" + since + ", reason Firmware)",
		},
		"planned, unknown": {nodeWith(is(unknown, "MaintenancePlanned", "")), "", ""},
		"planned and in progress": {
			nodeWith(is(isTrue, "MaintenancePlanned", ""), is(isTrue, maintained, "")),
			"is under maintenance (condition MaintenanceInProgress" + since + ")",
			"has maintenance planned (condition MaintenancePlanned" + since + ")",
		},
		"--away-mark": {
			nodeWith(is(isTrue, repaired, "Disk")),
			"is marked by --away-mark as away (condition example.com/Repair" + since + ", reason Disk)", "",
		},
		"--away-mark, unknown": {
			nodeWith(is(unknown, repaired, "")), "", mayBeAway + "(condition example.com/Repair" + since + ")",
		},
		"condition with the key of a taint": {nodeWith(is(isTrue, "DrainPlanned", "")), "", ""},
		"taint with the key of a condition": {nodeWith(tainted(repaired, "Drained")), "", ""},
		"going for good": {
			nodeWith(is(isTrue, "Drained", ""), tainted("karpenter.sh/disrupted")),
			"is about to be deleted (taint karpenter.sh/disrupted)", "",
		},
		"reason of several lines": {
			nodeWith(is(isTrue, "Drained", "a\nb\x1b[2J")), "is drained (condition Drained" + since + ", reason a b [2J)", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := func(m departure.Mark) string {
				if m.Key == "" {
					require.Equal(t, departure.Mark{}, m)
					return ""
				}
				return m.Says + " (" + m.String() + ")"
			}
			mark, notice := table.Of(c.node), table.Notice(c.node)
			require.Equal(t, c.mark, text(mark))
			require.Equal(t, c.notice, text(notice))
			require.Equal(t, departure.None, notice.Class)
		})
	}
	drained := departure.OfOthers(nodeWith(is(isTrue, "Drained", "")))
	require.Equal(t, departure.ForAWhile, drained.Class)
	require.Equal(t, "kubectl patch node n --subresource=status "+
		`--patch '{"status":{"conditions":[{"type":"Drained","status":"False"}]}}'`, drained.RemoveCommand("n"))
}
