package plugin

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func (s *session) holdCommand() *cobra.Command {
	var reason string
	command := &cobra.Command{
		Use:   "hold NODE",
		Short: "Keep a node closed until `release`, whatever Holdfast finds on it",
		Long: `Keep a node closed for new pods until "kubectl holdfast release" opens it.

Holdfast itself holds a node only until its network works, and an agent that finds a working network
ends such a hold at once. So this command does not begin a hold of that kind: it cordons the node,
and sets the annotation holdfast.dev/keep-cordoned, with which a hold that ends leaves the cordon.
A "kubectl cordon" alone has no effect on a node that Holdfast holds by the cordon.

Running pods stay. A node with etcd that is cordoned can be drained, but is not marked as away.

Needs the permission to patch nodes.`,
		Example: `  kubectl holdfast hold worker-4 --reason "waiting for a new NIC"
  kubectl holdfast hold worker-4 --dry-run   # the kubectl commands`,
		Args:              oneArgument("node"),
		ValidArgsFunction: s.completeNodes(true),
		RunE: s.connected(func(ctx context.Context, args []string) error {
			plan := func(n *corev1.Node) (nodeChange, error) { return planHold(n, reason), nil }
			return s.changeNode(ctx, args[0], plan)
		}),
	}
	s.addChangeFlags(command)
	command.Flags().StringVar(&reason, "reason", "", "why; it becomes the value of the annotation")
	return command
}

// planHold returns what keeps a Node closed.
func planHold(n *corev1.Node, reason string) nodeChange {
	value := cmp.Or(strings.TrimSpace(reason), "true")
	c, err := readiness.ClosedBy(n)
	end := "It stays closed, also after a reboot, until: kubectl holdfast release " + n.Name
	if c.HasForeignCordon() {
		end = fmt.Sprintf("It is cordoned already: %s has cordoned it. The owner of that cordon may remove it, and release "+
			"does not.", c.Cordon)
	}
	if c.Kept && c.Cordon != "" {
		return nodeChange{effects: []string{fmt.Sprintf("Node %s is kept closed already, by annotation %s=%s.",
			n.Name, readiness.KeepCordonedAnnotation, cli.Quoted(n.Annotations[readiness.KeepCordonedAnnotation])), end}}
	}
	change := nodeChange{
		done:    "kept closed",
		desired: nodepatch.Desired{Annotations: map[string]*string{readiness.KeepCordonedAnnotation: &value}},
		commands: []string{fmt.Sprintf("kubectl annotate --overwrite node %s %s=%s",
			n.Name, readiness.KeepCordonedAnnotation, cli.Quoted(value))},
	}
	if err == nil && c.IsHeld() {
		change.effects = append(change.effects, fmt.Sprintf("Holdfast holds node %s%s. When that ends, it stays cordoned.",
			n.Name, heldBecause(n, c.Record)))
	}
	if !n.Spec.Unschedulable {
		change.desired.Unschedulable = new(true)
		// As `kubectl cordon`, but by the name by which release knows the cordon.
		change.commands = append(change.commands, fmt.Sprintf(
			`kubectl patch node %s --field-manager=%s -p '{"spec":{"unschedulable":true}}'`, n.Name, fieldOwner))
		change.effects = append(change.effects, fmt.Sprintf("Node %s is cordoned: it takes no new pods.", n.Name))
	}
	change.effects = append(change.effects, end)
	return change
}
