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

type breakGlassRun struct {
	*session
	reason    string
	duration  time.Duration
	andDelete bool
	// stopWebhook consents to stop the webhook if it answers and cannot record the deletion. stop is
	// nil without consent.
	stopWebhook bool
	stop        *webhookStop

	node       *corev1.Node
	permission quorum.BreakGlass
	// value is the permission as the annotation has it.
	value   string
	verdict report.Removal
}

func (s *session) breakGlassCommand() *cobra.Command {
	b := &breakGlassRun{session: s}
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
		ValidArgsFunction: s.completeNodes(true),
		PreRunE:           b.checkFlags,
		RunE:              s.connected(b.run),
	}
	s.addChangeFlags(command)
	command.Flags().StringVar(&b.reason, "reason", "", "why; it is recorded (required)")
	command.Flags().DurationVar(&b.duration, "for", 30*time.Minute, "how long the override is valid, at most 1h")
	command.Flags().BoolVar(&b.andDelete, "and-delete", false, "delete the node as well")
	command.Flags().BoolVar(&b.stopWebhook, "stop-webhook", false,
		"with --and-delete: if the webhook answers and cannot record the deletion, stop it meanwhile without asking")
	return command
}

func (b *breakGlassRun) checkFlags(*cobra.Command, []string) error {
	switch {
	case strings.TrimSpace(b.reason) == "":
		return cli.UsageErrorf("--reason is missing; say why, for example --reason \"the machine is lost\"")
	case b.duration <= 0:
		return cli.UsageErrorf("--for=%s is not above 0", b.duration)
	case b.stopWebhook && !b.andDelete:
		return cli.UsageErrorf("--stop-webhook has no effect without --and-delete")
	}
	return nil
}

func (b *breakGlassRun) run(ctx context.Context, args []string) (err error) {
	if b.node, err = getNode(ctx, b.kube, args[0]); err != nil {
		return err
	}
	now, err := serverTime(ctx, b.kube)
	if err != nil {
		return err
	}
	b.permission = quorum.BreakGlass{
		UID: b.node.UID, Until: now.Add(b.duration).UTC().Truncate(time.Second),
		Reason: strings.TrimSpace(b.reason),
	}
	value, err := json.Marshal(b.permission)
	if err != nil {
		return fmt.Errorf("encoding the override: %w", err)
	}
	b.value = string(value)
	// The webhook parses it in the same way.
	if _, err := quorum.ParseBreakGlass(b.value, b.node.UID, now); err != nil {
		return cli.UsageErrorf("the override would have no effect: %v", err)
	}
	if b.stopWebhook {
		if b.stop, err = b.newWebhookStop(ctx); err != nil {
			return err
		}
	}
	b.verdict = dryRunDeletion(ctx, b.kube, b.node.Name)
	return b.carryOut(ctx, b.plan())
}

// removesLabel reports whether the label must be removed for the deletion, because the API server
// would call the webhook, which does not answer.
func (b *breakGlassRun) removesLabel() bool {
	return b.verdict.Reason == noAnswer && observation.IsLabelled(b.node)
}

func (b *breakGlassRun) plan() plannedChange {
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
		apply: b.write,
	}
	removeLabel, deleteNode := fmt.Sprintf("kubectl label node %s %s-", name, observation.EtcdMemberLabel),
		"kubectl delete node "+name
	if b.removesLabel() {
		change.effects = append(change.effects, fmt.Sprintf("The webhook does not answer, so label %s is removed. "+
			"Without it the API server does not ask the webhook, and no grant records the deletion with your name.",
			observation.EtcdMemberLabel))
		change.commands = append(change.commands, removeLabel)
	}
	if b.andDelete {
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
func (b *breakGlassRun) write(ctx context.Context) error {
	name := b.node.Name
	if err := b.patchMetadata(ctx, b.node, "annotations", quorum.BreakGlassAnnotation, b.value); err != nil {
		return fmt.Errorf("writing the override: %w", err)
	}
	fmt.Fprintf(b.Out, "node %s: override in effect until %s\n", name, b.permission.Until.Format(time.RFC3339))
	if b.removesLabel() {
		if err := b.removeLabel(ctx); err != nil {
			return err
		}
	}
	switch {
	case b.verdict.Reason == quorum.Deleting && !b.andDelete:
		fmt.Fprintln(b.Out, "a drain that waits goes on by itself")
		return nil
	case !b.andDelete:
		fmt.Fprintf(b.Out, "to delete it: %s delete node %s\n", b.kubectl(), name)
		return nil
	}
	err := b.deleteNode(ctx)
	if isUnrecorded(err) {
		err = b.deleteUnrecorded(ctx, err)
	}
	if err != nil {
		return fmt.Errorf("deleting the node: %w\nthe override stays in effect; to delete the node: %s delete node %s",
			err, b.kubectl(), name)
	}
	fmt.Fprintf(b.Out, "node %s: deleted\n", name)
	return nil
}

// deleteNode deletes this Node, and no other of its name.
func (b *breakGlassRun) deleteNode(ctx context.Context) error {
	return client.IgnoreNotFound(b.kube.Delete(ctx, b.node, client.Preconditions{UID: &b.node.UID}))
}

// removeLabel removes the label, so that the API server does not need the webhook.
func (b *breakGlassRun) removeLabel(ctx context.Context) error {
	if err := b.patchMetadata(ctx, b.node, "labels", observation.EtcdMemberLabel, nil); err != nil {
		return fmt.Errorf("removing the label: %w", err)
	}
	fmt.Fprintf(b.Out, "node %s: label %s removed\n", b.node.Name, observation.EtcdMemberLabel)
	return nil
}

// deleteUnrecorded deletes a Node whose deletion the webhook refused because it could not record
// it. It asks, and stops the webhook meanwhile.
func (b *breakGlassRun) deleteUnrecorded(ctx context.Context, refused error) (err error) {
	fmt.Fprintf(b.Out, "node %s: not deleted:\n%s\n", b.node.Name, indented(refused.Error()))
	if b.stop == nil {
		if b.stop, err = b.offerWebhookStop(ctx); err != nil {
			return fmt.Errorf("%w\n%w", refused, err)
		}
	}
	return b.stop.during(ctx, func(ctx context.Context) error {
		if observation.IsLabelled(b.node) {
			if err := b.removeLabel(ctx); err != nil {
				return err
			}
		}
		return b.deleteNode(ctx)
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
