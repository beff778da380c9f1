package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/operator/uninstall"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func (s *session) releaseCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "release NODE",
		Short: "Open a node that Holdfast holds, or that `hold` has closed",
		Long: `Open a node that Holdfast holds although its network is not known to work, or a node that
"kubectl holdfast hold" has closed.

The cordon or the taint of the hold is removed, and with it the condition NetworkUnavailable where
the hold has set it. Holdfast records an override, and does not hold the node again before its next
boot. A node that "hold" has closed, and that came up from a reboot without its network, is held
then: run the command again. A cordon that Holdfast has not set stays.

Needs the permission to patch nodes, and nodes/status for the condition.`,
		Example: `  kubectl holdfast release worker-4
  kubectl holdfast release worker-4 --dry-run   # the kubectl commands`,
		Args:              oneArgument("node"),
		ValidArgsFunction: s.completeNodes(true),
		RunE: s.connected(func(ctx context.Context, args []string) error {
			return s.changeNode(ctx, args[0], planRelease)
		}),
	}
	s.addChangeFlags(command)
	return command
}

// A nodeChange is what release or hold does to a Node, and what it reports then.
type nodeChange struct {
	effects, commands []string
	desired           nodepatch.Desired
	// done is empty if the Node is as wanted already. Then the effects describe its state.
	done string
	// mark is why another program needs the node closed, which a person has to know.
	mark string
}

// changeNode plans a change of one Node, shows it, and makes it.
func (s *session) changeNode(ctx context.Context, name string, plan func(*corev1.Node) (nodeChange, error)) error {
	node, err := getNode(ctx, s.kube, name)
	if err != nil {
		return err
	}
	shown, err := plan(node)
	if err != nil {
		return err
	}
	if shown.done == "" {
		return s.carryOut(ctx, plannedChange{effects: shown.effects})
	}
	rights := []authorizationv1.ResourceAttributes{{Verb: "patch", Resource: "nodes", Name: name}}
	if len(shown.desired.Conditions) > 0 {
		rights = append(rights, authorizationv1.ResourceAttributes{
			Verb: "patch", Resource: "nodes", Subresource: "status", Name: name,
		})
	}
	return s.carryOut(ctx, plannedChange{
		effects: shown.effects, commands: shown.commands, rights: rights,
		apply: func(ctx context.Context) error {
			if err := writeNode(ctx, s.kube, node, shown, plan); err != nil {
				return err
			}
			_, err := fmt.Fprintf(s.Out, "node %s: %s\n", name, shown.done)
			return err
		},
	})
}

// writeNode makes the change that was shown. If the Node has changed meanwhile, it plans again, and
// makes only the same change.
func writeNode(
	ctx context.Context, c client.Client, node *corev1.Node, shown nodeChange,
	plan func(*corev1.Node) (nodeChange, error),
) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		newest, err := getNode(ctx, c, node.Name)
		if err != nil {
			return err
		}
		now, err := plan(newest)
		if err != nil {
			return err
		}
		if newest.UID != node.UID || now.mark != shown.mark || !slices.Equal(now.commands, shown.commands) {
			return fmt.Errorf("node %s has changed meanwhile; nothing was changed; run the command again", node.Name)
		}
		_, err = nodepatch.NewWriterAs(string(fieldOwner), uninstall.NodePatcher{Client: c}).Apply(ctx, newest, now.desired)
		return err
	})
}

// planRelease returns what opens a Node. The error says why there is nothing to open.
func planRelease(n *corev1.Node) (nodeChange, error) {
	c, err := readiness.ClosedBy(n)
	if err != nil {
		return nodeChange{}, err
	}
	change := nodeChange{
		mark: c.Mark, desired: nodepatch.OfHold(c.Open()), commands: c.Commands(), done: "opened",
	}
	switch {
	case c.IsHeld() && c.Taint == "" && c.HasForeignCordon():
		return nodeChange{}, fmt.Errorf("node %s: %s has cordoned it since Holdfast did; that cordon stays. If the node "+
			"may take pods: kubectl uncordon %s", n.Name, c.Cordon, n.Name)
	case c.IsHeld():
		change.effects = []string{
			fmt.Sprintf("Holdfast holds node %s%s.", n.Name, heldBecause(n, c.Record)),
			"It is opened whether or not its network works: pods may fail there, or start without connections.",
			"Holdfast records an override, and does not hold the node again before its next boot.",
		}
	case c.Taint != "", change.desired.Unschedulable != nil:
		change.effects = effectsOfReopening(n, c)
	case len(change.desired.Conditions) > 0:
		change.effects = []string{fmt.Sprintf("The hold of node %s has ended, but it has left "+
			"condition NetworkUnavailable=True, which keeps pods away. It becomes False.", n.Name)}
	default:
		return nodeChange{}, notHeldError(n, c)
	}
	if c.HasForeignCordon() {
		change.done = "the cordon stays"
		if c.Taint != "" {
			change.done = "the taint is removed, and the cordon stays"
		}
		change.effects = append(change.effects, fmt.Sprintf("The node stays cordoned: %s has cordoned it. "+
			"It takes pods only after: kubectl uncordon %s", c.Cordon, n.Name))
	}
	if c.Mark != "" {
		change.effects = append(change.effects, fmt.Sprintf("Another program is at work on the node (%s).", c.Mark))
	}
	if c.Kept {
		change.effects = append(change.effects, "Annotation "+readiness.KeepCordonedAnnotation+" is removed.")
	}
	return change, nil
}

// effectsOfReopening returns what follows when a node is opened that is closed by
// `kubectl holdfast hold`, or by a cordon or taint that a hold has left. An agent would remove the
// taint later, but may not run. If the cordon is the only reason why Holdfast does not hold the
// node, an agent holds it within a second.
func effectsOfReopening(n *corev1.Node, c readiness.Closed) []string {
	text := fmt.Sprintf("Node %s is closed by `kubectl holdfast hold`, or by a hold that has ended.", n.Name)
	if c.Kept {
		text = fmt.Sprintf("Node %s is kept closed by annotation %s=%s.",
			n.Name, readiness.KeepCordonedAnnotation, cli.Quoted(n.Annotations[readiness.KeepCordonedAnnotation]))
	}
	held := readiness.FindCondition(n, readiness.NetworkHeld)
	switch {
	case c.HasForeignCordon():
		return []string{text}
	case held == nil || held.Reason != readiness.CordonedByOthers:
		return []string{text + " It is opened."}
	}
	return []string{
		text + " It is opened.",
		fmt.Sprintf("Holdfast then holds the node until its gates are open. Condition %s: %s", held.Type, held.Message),
		"To open it although gates are closed, run the command again when Holdfast holds it: kubectl holdfast release " +
			n.Name,
	}
}

func heldBecause(n *corev1.Node, record readiness.Record) string {
	var text string
	if !record.Since.IsZero() {
		text = " since " + record.Since.Format(time.RFC3339)
	}
	if c := readiness.FindCondition(n, readiness.NetworkHeld); c != nil {
		return text + ": " + c.Message
	}
	return text + ", and no agent has read its host yet"
}

func notHeldError(n *corev1.Node, c readiness.Closed) error {
	text := fmt.Sprintf("Holdfast does not hold node %s", n.Name)
	var commands []string
	if c.Cordon != "" {
		text += ", and " + c.Cordon + " has cordoned it"
		commands = append([]string{"kubectl uncordon " + n.Name}, c.Commands()...)
	}
	for _, t := range n.Spec.Taints {
		// Taints with this prefix follow from the state of the node.
		if t.Effect == corev1.TaintEffectNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			commands = append(commands, fmt.Sprintf("kubectl taint node %s %s:%s-", n.Name, t.Key, t.Effect))
		}
	}
	if len(commands) > 0 {
		return fmt.Errorf("%s; if it may take pods: %s", text, strings.Join(commands, "; "))
	}
	return errors.New(text + ", and it is open")
}
