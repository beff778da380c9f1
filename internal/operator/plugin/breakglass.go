package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// verbBreakGlass on etcdclusters permits break-glass overrides.
const verbBreakGlass = "breakglass"

// breakGlassFlags are the flags of break-glass.
type breakGlassFlags struct {
	changeFlags
	reason    string
	duration  time.Duration
	andDelete bool
	// stopWebhook consents to stop the webhook if it answers and cannot record the deletion.
	stopWebhook bool
}

// breakGlassCommand returns the command that overrides the verdict on one Node.
func (s *session) breakGlassCommand() *cobra.Command {
	var flags breakGlassFlags
	command := &cobra.Command{
		Use:   "break-glass NODE --reason TEXT",
		Short: "Allow to delete or drain a node against the verdict, for a while",
		Long: `Allow to delete or drain one node although Holdfast refuses that.

This is the last resort: you answer for the quorum of etcd yourself. The command shows what the
webhook says about the deletion now, and asks before it writes the annotation
holdfast.dev/break-glass. The deletion is recorded with your name and the reason. If etcd still
answers, take a snapshot first: etcdctl snapshot save FILE.

With --and-delete, the webhook may answer that it cannot record the deletion: its EtcdClusters are
gone, or a policy of others refuses its writes. The command then offers to stop the webhook for the
deletion. That needs get and patch on deployments/scale and list on pods in holdfast-system.

Needs the verb breakglass on etcdclusters.holdfast.dev (ClusterRole holdfast-breakglass), and the
permission to patch nodes.`,
		Example: `  kubectl holdfast break-glass etcd-2 --reason "the disk of etcd-1 is lost, restoring"
  kubectl holdfast break-glass etcd-2 --reason "machine burnt" --and-delete
  kubectl holdfast break-glass etcd-2 --reason "machine burnt" --dry-run   # the kubectl commands`,
		Args:              oneArgument("node"),
		ValidArgsFunction: s.complete(nodeNames, true),
		RunE: func(command *cobra.Command, args []string) error {
			return s.breakGlass(command.Context(), args[0], flags)
		},
	}
	flags.addTo(command)
	command.Flags().StringVar(&flags.reason, "reason", "", "why; it is recorded (required)")
	command.Flags().DurationVar(&flags.duration, "for", 30*time.Minute, "how long the override is valid, at most 1h")
	command.Flags().BoolVar(&flags.andDelete, "and-delete", false, "delete the node as well")
	command.Flags().BoolVar(&flags.stopWebhook, "stop-webhook", false,
		"with --and-delete: if the webhook answers and cannot record the deletion, stop it meanwhile without asking")
	return command
}

// breakGlass runs the command.
func (s *session) breakGlass(ctx context.Context, name string, flags breakGlassFlags) error {
	switch {
	case strings.TrimSpace(flags.reason) == "":
		return cli.UsageErrorf("--reason is missing; say why, for example --reason \"the machine is lost\"")
	case flags.duration <= 0:
		return cli.UsageErrorf("--for=%s is not above 0", flags.duration)
	case flags.stopWebhook && !flags.andDelete:
		return cli.UsageErrorf("--stop-webhook has no effect without --and-delete")
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	node, err := getNode(ctx, c, name)
	if err != nil {
		return err
	}
	permission := quorum.BreakGlass{
		UID: node.UID, Until: time.Now().Add(flags.duration).UTC().Truncate(time.Second),
		Reason: strings.TrimSpace(flags.reason),
	}
	value, err := json.Marshal(permission)
	if err != nil {
		return fmt.Errorf("encoding the override: %w", err)
	}
	// The webhook parses it in the same way.
	if _, err := quorum.ParseBreakGlass(string(value), node.UID, time.Now()); err != nil {
		return cli.UsageErrorf("the override would have no effect: %v", err)
	}
	var stop *webhookStop
	if flags.stopWebhook {
		if stop, err = s.newWebhookStop(ctx, c); err != nil {
			return err
		}
	}
	change := breakGlassChange{
		stop: stop, node: node, permission: permission, value: string(value), flags: flags,
		verdict: dryRunDeletion(ctx, c, node.Name),
	}
	return s.carryOut(ctx, c, flags.changeFlags, change.plan(s, c))
}

// A breakGlassChange is a break-glass permission that is about to be written.
type breakGlassChange struct {
	node       *corev1.Node
	permission quorum.BreakGlass
	value      string
	verdict    report.Removal
	flags      breakGlassFlags
	// stop is nil unless the user has consented to stop the webhook.
	stop *webhookStop
}

// removesLabel reports whether the label must be removed for the deletion, because the API server
// would call the webhook, which does not answer.
func (b breakGlassChange) removesLabel() bool {
	return b.verdict.Reason == noAnswer && observation.IsLabelled(b.node)
}

// plan returns what is written and shown.
func (b breakGlassChange) plan(s *session, c client.Client) plannedChange {
	name := b.node.Name
	change := plannedChange{
		effects: []string{
			describeRemoval(b.verdict),
			fmt.Sprintf("Until %s, node %s may be deleted and drained without a check of the quorum.",
				b.permission.Until.Format(time.RFC3339), name),
			"Its members count as lost from then on. Your name and the reason are recorded: " + b.permission.Reason,
		},
		commands: []string{fmt.Sprintf("kubectl annotate --overwrite node %s %s=%s",
			name, quorum.BreakGlassAnnotation, cli.Quoted(b.value))},
		rights: []authorizationv1.ResourceAttributes{
			{Verb: verbBreakGlass, Group: v1alpha1.Group, Resource: v1alpha1.Resource},
			{Verb: "patch", Resource: "nodes", Name: name},
		},
		apply: func(ctx context.Context) error { return b.write(ctx, s, c) },
	}
	removeLabel, deleteNode := fmt.Sprintf("kubectl label node %s %s-", name, observation.EtcdMemberLabel),
		"kubectl delete node "+name
	if b.removesLabel() {
		change.effects = append(change.effects, fmt.Sprintf("The webhook does not answer, so label %s is removed. "+
			"Without it the API server does not ask the webhook, and no grant records the deletion with your name.",
			observation.EtcdMemberLabel))
		change.commands = append(change.commands, removeLabel)
	}
	if b.flags.andDelete {
		change.effects = append(change.effects, fmt.Sprintf("Then node %s is deleted.", name))
		if b.stop == nil {
			change.commands = append(change.commands, deleteNode)
		} else {
			change.effects = append(change.effects, b.stop.effects()...)
			change.commands = append(change.commands, b.stop.commands(removeLabel, deleteNode)...)
		}
		change.rights = append(change.rights, authorizationv1.ResourceAttributes{
			Verb: "delete", Resource: "nodes", Name: name,
		})
	}
	return change
}

// write writes the permission, and deletes the Node if that was requested.
func (b breakGlassChange) write(ctx context.Context, s *session, c client.Client) error {
	name := b.node.Name
	annotation := map[string]any{"annotations": map[string]any{quorum.BreakGlassAnnotation: b.value}}
	if err := patchMetadata(ctx, c, b.node, annotation); err != nil {
		return fmt.Errorf("writing the override: %w", err)
	}
	fmt.Fprintf(s.Out, "node %s: override in effect until %s\n", name, b.permission.Until.Format(time.RFC3339))
	if b.removesLabel() {
		if err := b.removeLabel(ctx, s, c); err != nil {
			return err
		}
	}
	switch {
	case b.verdict.Reason == quorum.Deleting && !b.flags.andDelete:
		fmt.Fprintln(s.Out, "a drain that waits goes on by itself")
		return nil
	case !b.flags.andDelete:
		fmt.Fprintf(s.Out, "to delete it: kubectl delete node %s\n", name)
		return nil
	}
	err := b.deleteNode(ctx, c)
	if isUnrecorded(err) {
		err = b.deleteUnrecorded(ctx, s, c, err)
	}
	if err != nil {
		return fmt.Errorf("deleting the node: %w\nthe override stays in effect; to delete the node: kubectl delete node %s",
			err, name)
	}
	fmt.Fprintf(s.Out, "node %s: deleted\n", name)
	return nil
}

// deleteNode deletes this Node, and no other of its name.
func (b breakGlassChange) deleteNode(ctx context.Context, c client.Client) error {
	return client.IgnoreNotFound(c.Delete(ctx, b.node, client.Preconditions{UID: &b.node.UID}))
}

// removeLabel removes the label, so that the API server does not need the webhook.
func (b breakGlassChange) removeLabel(ctx context.Context, s *session, c client.Client) error {
	label := map[string]any{"labels": map[string]any{observation.EtcdMemberLabel: nil}}
	if err := patchMetadata(ctx, c, b.node, label); err != nil {
		return fmt.Errorf("removing the label: %w", err)
	}
	fmt.Fprintf(s.Out, "node %s: label %s removed\n", b.node.Name, observation.EtcdMemberLabel)
	return nil
}

// deleteUnrecorded deletes a Node whose deletion the webhook refused because it could not record
// it. It asks, and stops the webhook meanwhile.
func (b breakGlassChange) deleteUnrecorded(ctx context.Context, s *session, c client.Client, refused error) error {
	fmt.Fprintf(s.Out, "node %s: not deleted:\n%s\n", b.node.Name, indented(refused.Error()))
	stop := b.stop
	if stop == nil {
		var err error
		if stop, err = s.offerWebhookStop(ctx, c, b.flags.yes); err != nil {
			return fmt.Errorf("%w\n%w", refused, err)
		}
	}
	return stop.during(ctx, func(ctx context.Context) error {
		if observation.IsLabelled(b.node) {
			if err := b.removeLabel(ctx, s, c); err != nil {
				return err
			}
		}
		return b.deleteNode(ctx, c)
	})
}

// describeRemoval describes what a dry run of a deletion showed.
func describeRemoval(r report.Removal) string {
	switch {
	case r.Reason == quorum.Deleting:
		return fmt.Sprintf("Node %s is being deleted already, which needs no override. Its drain is decided on its own: "+
			"if it waits, the event DrainRefused of the Node tells why.", r.Node)
	case r.Answer == quorum.Yes:
		return fmt.Sprintf("The deletion of node %s is allowed now: it needs no override.", r.Node)
	case r.Reason == noAnswer:
		return fmt.Sprintf("The webhook gives no answer about the deletion of node %s, so nothing is known about etcd. "+
			"Repair the webhook if you can (kubectl -n holdfast-system get pods):\n%s", r.Node, indented(r.Message))
	case r.Reason == failed, r.Reason == notPermitted, r.Reason == notFound:
		return fmt.Sprintf("What Holdfast says about the deletion of node %s is not known:\n%s", r.Node, indented(r.Message))
	}
	return fmt.Sprintf("The deletion of node %s is refused now:\n%s", r.Node, indented(r.Message))
}
