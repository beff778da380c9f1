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

	"github.com/holdfast-dev/holdfast/internal/operator/uninstall"
	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// releaseCommand returns the command that opens a node.
func (s *session) releaseCommand() *cobra.Command {
	var flags changeFlags
	command := &cobra.Command{
		Use:   "release NODE",
		Short: "Open a node that Holdfast holds, or that `hold` has closed",
		Long: `Open a node that Holdfast holds although its network is not known to work, or a node that
"kubectl holdfast hold" has closed.

The cordon or the taint of the hold is removed, and with it the condition NetworkUnavailable where
the hold has set it. Holdfast records an override, and does not hold the node again before its next
boot. A cordon that Holdfast has not set stays.

Needs the permission to patch nodes, and nodes/status for the condition.`,
		Example: `  kubectl holdfast release worker-4
  kubectl holdfast release worker-4 --dry-run   # the kubectl commands`,
		Args:              oneArgument("node"),
		ValidArgsFunction: s.completeNode,
		RunE: func(command *cobra.Command, args []string) error {
			return s.changeNode(command.Context(), args[0], flags, planRelease)
		},
	}
	flags.addTo(command)
	return command
}

// opened is what release reports.
const opened = "opened"

// A nodeChange is what release or hold does to a Node, and what it reports then.
type nodeChange struct {
	effects, commands []string
	desired           nodepatch.Desired
	done              string
	// isDone means that the Node is as wanted already. Then the effects describe its state.
	isDone bool
}

// changeNode plans a change of one Node, shows it, and makes it.
func (s *session) changeNode(
	ctx context.Context, name string, flags changeFlags, plan func(*corev1.Node) (nodeChange, error),
) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	node, err := getNode(ctx, c, name)
	if err != nil {
		return err
	}
	shown, err := plan(node)
	if err != nil {
		return err
	}
	switch {
	case shown.isDone && flags.dryRun:
		s.printScript(shown.effects, nil)
		return nil
	case shown.isDone:
		fmt.Fprintln(s.Out, strings.Join(shown.effects, "\n"))
		return nil
	}
	rights := []authorizationv1.ResourceAttributes{{Verb: "patch", Resource: "nodes", Name: name}}
	if len(shown.desired.Conditions) > 0 {
		rights = append(rights, authorizationv1.ResourceAttributes{
			Verb: "patch", Resource: "nodes", Subresource: "status", Name: name,
		})
	}
	return s.carryOut(ctx, c, flags, plannedChange{
		effects: shown.effects, commands: shown.commands, rights: rights,
		apply: func(ctx context.Context) error {
			if err := writeNode(ctx, c, node, shown, plan); err != nil {
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
		if newest.UID != node.UID || !slices.Equal(now.commands, shown.commands) {
			return fmt.Errorf("node %s has changed meanwhile; nothing was changed; run the command again", node.Name)
		}
		patches, err := nodepatch.Plan(newest, now.desired, time.Now())
		if err != nil {
			return err
		}
		return nodepatch.Send(node.Name, patches, uninstall.NodeWriter(ctx, c, node.Name, fieldOwner))
	})
}

// planRelease returns what opens a Node. The error says why there is nothing to open.
func planRelease(n *corev1.Node) (nodeChange, error) {
	text, isRecorded := n.Annotations[readiness.HoldAnnotation]
	record, err := readiness.ParseRecord(text)
	if isRecorded && err != nil {
		return nodeChange{}, fmt.Errorf("node %s: %w; it is not known who closed the node. To open it: "+
			"kubectl uncordon %s; then: kubectl annotate node %s %s-", n.Name, err, n.Name, n.Name, readiness.HoldAnnotation)
	}
	release := readiness.PlanManualRelease(n)
	isHeld := isRecorded && record.State == readiness.Held &&
		(release.Taint != "" || !release.TaintGone && n.Spec.Unschedulable)
	others := foreignCordon(n, record)
	switch {
	case isHeld && release.Taint == "" && others != "":
		return nodeChange{}, fmt.Errorf("node %s: %s since Holdfast did; that cordon stays. If the node "+
			"may take pods: kubectl uncordon %s", n.Name, others, n.Name)
	case isHeld:
		return planEndOfHold(n, record, release, others), nil
	case n.Spec.Unschedulable && others == "", release.Taint != "":
		return reopen(n, release, others), nil
	case release.NetworkAvailable:
		change := nodeChange{done: opened, effects: []string{fmt.Sprintf("The hold of node %s has ended, but it has left "+
			"condition NetworkUnavailable=True, which keeps pods away. It becomes False.", n.Name)}}
		return withCondition(change, n, release), nil
	}
	return nodeChange{}, notHeldError(n, others)
}

// planEndOfHold ends a hold as a person does.
func planEndOfHold(n *corev1.Node, record readiness.Record, release readiness.ManualRelease, others string) nodeChange {
	change := nodeChange{effects: []string{
		fmt.Sprintf("Holdfast holds node %s%s.", n.Name, heldBecause(n, record)),
		"It is opened whether or not its network works: pods may fail there, or start without connections.",
		"Holdfast records an override, and does not hold the node again before its next boot.",
	}}
	return open(change, n, release, others)
}

// reopen opens a node that is closed by `kubectl holdfast hold`, or by a cordon or taint that a
// hold has left. An agent would remove the taint later, but may not run.
func reopen(n *corev1.Node, release readiness.ManualRelease, others string) nodeChange {
	text := fmt.Sprintf("Node %s is closed by `kubectl holdfast hold`, or by a hold that has ended.", n.Name)
	if isKept(n) {
		text = fmt.Sprintf("Node %s is kept closed by annotation %s=%s.",
			n.Name, readiness.KeepCordonedAnnotation, quoted(n.Annotations[readiness.KeepCordonedAnnotation]))
	}
	change := nodeChange{effects: []string{text}}
	if others == "" {
		change.effects = append([]string{text + " It is opened."}, effectsOfClosedGates(n)...)
	}
	return open(change, n, release, others)
}

// effectsOfClosedGates returns what follows when a node is opened although its cordon is the only
// reason why Holdfast does not hold it: an agent holds it within a second.
func effectsOfClosedGates(n *corev1.Node) []string {
	c := readiness.FindCondition(n, readiness.NetworkHeld)
	if c == nil || c.Reason != readiness.CordonedByOthers {
		return nil
	}
	return []string{
		fmt.Sprintf("Holdfast then holds the node until its gates are open. Condition %s: %s", c.Type, c.Message),
		"To open it although gates are closed, run the command again when Holdfast holds it: kubectl holdfast release " +
			n.Name,
	}
}

// open removes what closes a node: the taint of the hold, the cordon, the condition, and the
// annotation that keeps the node closed. A cordon of others stays.
func open(change nodeChange, n *corev1.Node, release readiness.ManualRelease, others string) nodeChange {
	change.done = opened
	if release.Taint != "" {
		change.desired.RemoveTaints = []corev1.Taint{{Key: release.Taint, Effect: corev1.TaintEffectNoSchedule}}
		change.commands = append(change.commands, release.OpenCommand(n.Name))
	}
	switch {
	case others != "":
		change.done = "the taint is removed, and the cordon stays"
		change.effects = append(change.effects, fmt.Sprintf("The node stays cordoned: %s. "+
			"It takes pods only after: kubectl uncordon %s", others, n.Name))
	case n.Spec.Unschedulable:
		change.desired.Unschedulable = new(false)
		change.commands = append(change.commands, "kubectl uncordon "+n.Name)
	}
	if mark := departure.OfOthers(n); mark.Class != departure.None {
		change.effects = append(change.effects, fmt.Sprintf("Another program is at work on the node (%s).", mark))
	}
	return withoutKeep(withCondition(change, n, release), n)
}

// withCondition adds the condition that a release by hand writes.
func withCondition(change nodeChange, n *corev1.Node, release readiness.ManualRelease) nodeChange {
	if !release.NetworkAvailable {
		return change
	}
	change.commands = append(change.commands, release.ConditionCommand(n.Name))
	change.desired.Conditions = []corev1.NodeCondition{release.Condition()}
	return change
}

// withoutKeep adds the removal of annotation KeepCordonedAnnotation.
func withoutKeep(change nodeChange, n *corev1.Node) nodeChange {
	if !isKept(n) {
		return change
	}
	change.desired.Annotations = map[string]*string{readiness.KeepCordonedAnnotation: nil}
	change.effects = append(change.effects, "Annotation "+readiness.KeepCordonedAnnotation+" is removed.")
	change.commands = append(change.commands, removeKeepCommand(n))
	return change
}

func removeKeepCommand(n *corev1.Node) string {
	return fmt.Sprintf("kubectl annotate node %s %s-", n.Name, readiness.KeepCordonedAnnotation)
}

// foreignCordon describes the cordon of a Node if neither a hold nor `kubectl holdfast hold` is
// known to have set it. The cordon of a hold has no owner: the record of the hold, or of its end
// with reason KeptCordoned, shows whose it is.
func foreignCordon(n *corev1.Node, record readiness.Record) string {
	owner := readiness.CordonOwner(n)
	isHolds := record.Taint == "" && (record.State == readiness.Held || record.Reason == readiness.KeptCordoned)
	switch {
	case !n.Spec.Unschedulable, owner == string(fieldOwner), owner == "" && isHolds:
		return ""
	case owner == "":
		return "an unknown client has cordoned it"
	}
	return owner + " has cordoned it"
}

func isKept(n *corev1.Node) bool {
	_, found := n.Annotations[readiness.KeepCordonedAnnotation]
	return found
}

// heldBecause returns what is known about a hold.
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

// notHeldError says why there is nothing to release.
func notHeldError(n *corev1.Node, others string) error {
	text := fmt.Sprintf("Holdfast does not hold node %s", n.Name)
	var commands []string
	if others != "" {
		text += ", and " + others
		commands = append(commands, "kubectl uncordon "+n.Name)
		if isKept(n) {
			commands = append(commands, removeKeepCommand(n))
		}
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
