package departure_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
)

// withCondition sets a condition that began at noon.
func withCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason,
			LastTransitionTime: metav1.NewTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)),
		})
	}
}

func TestConditions(t *testing.T) {
	const isTrue, isFalse, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	table := departure.Table{}.Add(departure.ForAWhile, "condition:example.com/Repair").
		Add(departure.ForAWhile, "DrainPlanned")
	const since = ", since 2026-05-01T12:00:00Z"
	const mayBeAway = "may be away, because the status of its condition is Unknown "
	for name, c := range map[string]struct {
		node         *corev1.Node
		mark, notice string
	}{
		"no condition": {nodeWith(), "", ""},
		"ready":        {nodeWith(withCondition(corev1.NodeReady, isTrue, "KubeletReady")), "", ""},
		"maintenance": {
			nodeWith(withCondition(corev1.NodeMaintenanceInProgress, isTrue, "KernelUpdate")),
			"is under maintenance (condition MaintenanceInProgress" + since + ", reason KernelUpdate)", "",
		},
		"draining": {
			nodeWith(withCondition(corev1.NodeDrainInProgress, isTrue, "")),
			"is being drained (condition DrainInProgress" + since + ")", "",
		},
		"drained": {
			nodeWith(withCondition(corev1.NodeDrainInProgress, isFalse, ""), withCondition(corev1.NodeDrained, isTrue, "")),
			"is drained (condition Drained" + since + ")", "",
		},
		"shutting down": {
			nodeWith(withCondition(corev1.NodeGracefulNodeShutdownInProgress, isTrue, "")),
			"is shutting down (condition GracefulNodeShutdownInProgress" + since + ")", "",
		},
		"over": {nodeWith(withCondition(corev1.NodeMaintenanceInProgress, isFalse, "Done")), "", ""},
		"unknown": {
			nodeWith(withCondition(corev1.NodeDrainInProgress, unknown, "Lost")),
			"", mayBeAway + "(condition DrainInProgress" + since + ", reason Lost)",
		},
		"odd status": {nodeWith(withCondition(corev1.NodeDrainInProgress, "true", "")), "", ""},
		"planned": {
			nodeWith(withCondition(corev1.NodeMaintenancePlanned, isTrue, "Firmware")),
			"", "has maintenance planned (condition MaintenancePlanned" + since + ", reason Firmware)",
		},
		"planned, unknown": {nodeWith(withCondition(corev1.NodeMaintenancePlanned, unknown, "")), "", ""},
		"planned and in progress": {
			nodeWith(withCondition(corev1.NodeMaintenancePlanned, isTrue, ""),
				withCondition(corev1.NodeMaintenanceInProgress, isTrue, "")),
			"is under maintenance (condition MaintenanceInProgress" + since + ")",
			"has maintenance planned (condition MaintenancePlanned" + since + ")",
		},
		"--away-mark": {
			nodeWith(withCondition("example.com/Repair", isTrue, "Disk")),
			"is marked by --away-mark as away (condition example.com/Repair" + since + ", reason Disk)", "",
		},
		"--away-mark, unknown": {
			nodeWith(withCondition("example.com/Repair", unknown, "")),
			"", mayBeAway + "(condition example.com/Repair" + since + ")",
		},
		"condition with the key of a taint": {nodeWith(withCondition("DrainPlanned", isTrue, "")), "", ""},
		"taint with the key of a condition": {nodeWith(tainted("example.com/Repair", "Drained")), "", ""},
		"going for good": {
			nodeWith(withCondition("Drained", isTrue, ""), tainted("karpenter.sh/disrupted")),
			"is about to be deleted (taint karpenter.sh/disrupted)", "",
		},
		"reason of several lines": {
			nodeWith(withCondition(corev1.NodeDrained, isTrue, "a\nb\x1b[2J")),
			"is drained (condition Drained" + since + ", reason a b [2J)", "",
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
	drained := departure.OfOthers(nodeWith(withCondition(corev1.NodeDrained, isTrue, "")))
	require.Equal(t, departure.ForAWhile, drained.Class)
	require.Equal(t, "kubectl patch node n --subresource=status "+
		`--patch '{"status":{"conditions":[{"type":"Drained","status":"False"}]}}'`, drained.RemoveCommand("n"))
}
