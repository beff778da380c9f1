package readiness

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestClosedBy(t *testing.T) {
	const open, fieldOwner = "kubectl uncordon n1", PluginFieldManager
	words := map[string]string{
		"uncordon": open, "status": "kubectl patch node n1 --subresource=status ",
		"untaint": "kubectl taint node n1 readiness.k8s.io/holdfast:NoSchedule-",
		"unkeep":  "kubectl annotate node n1 holdfast.dev/keep-cordoned-",
	}
	stays := map[string]string{
		"held, kept": "annotation " + KeepCordonedAnnotation, "taint, kept": "annotation " + KeepCordonedAnnotation,
		"held, by another": "cordoned by kubectl", "held, by hold": "cordoned by kubectl-holdfast",
		"held, deleting": "the Node is being deleted",
	}
	cordonedAs := func(manager string) nodeOption {
		return func(n *corev1.Node) {
			cordoned(n)
			owned(manager, "", `{"f:spec":{"f:unschedulable":{}}}`)(n)
		}
	}
	born, raised := recorded(Held, thisBoot, NewNode), unavailable(HeldByHoldfast)
	rebooted, ended := recorded(Held, thisBoot, Rebooted), recorded(Released, thisBoot, NetworkReady)
	left, kept := recorded(Released, thisBoot, KeptCordoned), annotated(KeepCordonedAnnotation, "")
	byTaint, ownTaint := heldByTaint(holdTaint), tainted(holdTaint)
	for name, c := range map[string]struct {
		node     *corev1.Node
		cordon   string
		held     bool
		commands string
	}{
		"no record, open":          {node(), "", false, ""},
		"no record, cordoned":      {node(cordoned), byUnknown, false, ""},
		"born held":                {node(born, cordoned, raised), ByHold, true, "uncordon status"},
		"born held, cleared early": {node(born, cordoned, available("FlannelIsUp")), ByHold, true, "uncordon status"},
		"condition by another":     {node(born, cordoned, unavailable("NoRouteCreated")), ByHold, true, "uncordon"},
		"held, kept":               {node(rebooted, cordoned, kept), ByHold, true, "uncordon unkeep"},
		"held, by another":         {node(born, cordonedAs("kubectl"), raised), "kubectl", true, "status"},
		"held, by hold":            {node(rebooted, cordonedAs(fieldOwner)), fieldOwner, true, "uncordon"},
		"held, deleting":           {node(rebooted, cordoned, deleting), ByHold, true, "uncordon"},
		"held, uncordoned":         {node(born, raised), "", false, "status"},
		"ended":                    {node(ended, cordoned), byUnknown, false, ""},
		"ended, cordon left":       {node(left, cordoned), ByHold, false, "uncordon"},
		"taint":                    {node(byTaint, ownTaint), "", true, "untaint"},
		"taint, deleting":          {node(byTaint, ownTaint, deleting), "", true, "untaint"},
		"taint, cordoned":          {node(byTaint, ownTaint, cordoned), byUnknown, true, "untaint"},
		"taint, kept":              {node(byTaint, ownTaint, kept), "", true, "untaint unkeep"},
		"taint not on the node":    {node(heldByTaint("x; reboot"), cordoned), byUnknown, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			closed, err := ClosedBy(c.node)
			require.NoError(t, err)
			require.Equal(t, c.cordon, closed.Cordon)
			require.Equal(t, c.held, closed.IsHeld())
			require.Equal(t, c.held && c.cordon == ByHold && !hasKeepCordoned(c.node), IsCordonOfHold(c.node))
			if closed.IsHeld() {
				require.Equal(t, stays[name], closed.StaysBecause())
			}
			commands := closed.Commands()
			require.Len(t, commands, len(strings.Fields(c.commands)))
			for i, word := range strings.Fields(c.commands) {
				require.True(t, strings.HasPrefix(commands[i], words[word]), commands)
				require.True(t, word == "status" || commands[i] == words[word], commands)
			}
			want := ""
			if c.held && !strings.HasPrefix(stays[name], "cordoned by") {
				want = strings.Join(commands, " && ")
			}
			require.Equal(t, want, ReleaseCommand(c.node))
			opened := writeAll(c.node, closed.Open())
			require.False(t, isUnavailableByHoldfast(opened))
			require.Equal(t, closed.HasForeignCordon(), opened.Spec.Unschedulable)
			require.False(t, hasTaint(opened, holdTaint) || hasKeepCordoned(opened))
		})
	}
	unreadable := node(annotated(HoldAnnotation, "x"), cordoned)
	closed, err := ClosedBy(unreadable)
	require.ErrorContains(t, err, open+"; then: kubectl annotate node n1 holdfast.dev/hold-")
	require.True(t, closed.HasForeignCordon())
	require.Empty(t, ReleaseCommand(unreadable))
}
