package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// readTimeout limits one read while settle waits.
const readTimeout = 10 * time.Second

func (s *session) settleCommand() *cobra.Command {
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "settle CLUSTER|NODE",
		Short: "End a grant by hand: the members of a node count again",
		Long: `End the grant of a node by hand.

When Holdfast allows to delete or drain a node with etcd, it records a grant, and the members on the
node count as lost. A grant ends by itself when the members are gone or healthy again. End it by
hand only if you know that these members keep running on a machine that stays, or that the machine
is gone for good and they were removed from etcd. Otherwise Holdfast allows deletions that cost the
quorum.

A grant that is younger than three minutes cannot be ended, because the deletion may still be in
progress. The command waits until the webhook has ended the grant.

Needs the permission to patch etcdclusters.holdfast.dev.`,
		Example: `  kubectl holdfast settle etcd-2             # the grants of this node
  kubectl holdfast settle f34e16a18ef9276d   # the only grant of this etcd cluster
  kubectl holdfast settle UID                # the grants of the Node with this UID, which may be gone
  kubectl holdfast settle etcd-2 --dry-run   # the kubectl commands`,
		Args:              oneArgument("cluster or node"),
		ValidArgsFunction: s.completeNodes(true),
		RunE: s.connected(func(ctx context.Context, args []string) error {
			return s.settle(ctx, args[0], timeout)
		}),
	}
	s.addChangeFlags(command)
	command.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the webhook")
	return command
}

// A clusterGrant is a grant of an EtcdCluster, and the Node of its name, without a UID if that is
// gone.
type clusterGrant struct {
	v1alpha1.Grant
	cluster *v1alpha1.EtcdCluster
	node    corev1.Node
}

func (s *session) settle(ctx context.Context, name string, timeout time.Duration) error {
	list := &v1alpha1.EtcdClusterList{}
	if err := s.kube.List(ctx, list); err != nil {
		return readError("etcdclusters.holdfast.dev", err)
	}
	grants, err := selectGrants(list.Items, name)
	if err != nil {
		return err
	}
	for i := range grants {
		err := s.kube.Get(ctx, client.ObjectKey{Name: grants[i].Node}, &grants[i].node)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading node %s: %w", grants[i].Node, err)
		}
	}
	now, err := serverTime(ctx, s.kube)
	if err != nil {
		return err
	}
	table := formatGrants(grants, now)
	if err := checkCanSettle(grants, name, now); err != nil {
		return fmt.Errorf("%w\n%s", err, table)
	}
	change := plannedChange{
		effects: []string{strings.TrimRight(table, "\n")},
		rights: []authorizationv1.ResourceAttributes{
			{Verb: "patch", Group: v1alpha1.Group, Resource: v1alpha1.Resource},
		},
		apply: func(ctx context.Context) error {
			for _, g := range grants {
				if err := s.settleGrant(ctx, g, timeout); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for _, g := range grants {
		change.effects = append(change.effects, g.effect())
		change.commands = append(change.commands, fmt.Sprintf("kubectl annotate --overwrite etcdcluster %s %s=%s",
			g.cluster.Name, quorum.ResolveAnnotation, cli.Quoted(string(g.NodeUID))))
	}
	return s.carryOut(ctx, change)
}

// selectGrants returns the grants of an EtcdCluster, or those for a Node of this name or UID.
func selectGrants(clusters []v1alpha1.EtcdCluster, name string) ([]clusterGrant, error) {
	var found []clusterGrant
	isCluster := slices.ContainsFunc(clusters, func(c v1alpha1.EtcdCluster) bool { return c.Name == name })
	var open []string
	for i := range clusters {
		c := &clusters[i]
		for _, g := range c.Spec.Grants {
			open = append(open, g.Node)
			if isCluster && c.Name == name || !isCluster && (g.Node == name || string(g.NodeUID) == name) {
				found = append(found, clusterGrant{Grant: g, cluster: c})
			}
		}
	}
	slices.Sort(open)
	switch open = slices.Compact(open); {
	case len(found) > 0:
		return found, nil
	case len(open) == 0:
		return nil, errors.New("there is no open grant in this cluster, so there is nothing to settle")
	}
	return nil, fmt.Errorf("there is no open grant for %q; nodes with an open grant: %s", name, strings.Join(open, ", "))
}

// checkCanSettle returns what the webhook would refuse: a grant that is too young, and an
// annotation that names two grants of one cluster.
func checkCanSettle(grants []clusterGrant, name string, now time.Time) error {
	for i, g := range grants {
		if at := quorum.LastOpened(g.Grant).Add(quorum.ResolveByHandAfter); now.Before(at) {
			return fmt.Errorf("the grant for node %s is too young: its deletion may still be in progress; "+
				"check the node, and settle the grant after %s (in %s)", g.Node, at.UTC().Format(time.RFC3339),
				duration.HumanDuration(at.Sub(now)+time.Second))
		}
		if other := g.cluster.Annotations[quorum.ResolveAnnotation]; other != "" && other != string(g.NodeUID) {
			return fmt.Errorf("the webhook still has to settle another grant of etcd cluster %s (node UID %s); "+
				"try again in a few seconds", g.cluster.Name, other)
		}
		isSame := func(o clusterGrant) bool { return o.cluster.Name == g.cluster.Name }
		if slices.ContainsFunc(grants[i+1:], isSame) {
			return fmt.Errorf("%q has several open grants; settle them one by one, by the node or its UID", name)
		}
	}
	return nil
}

func formatGrants(grants []clusterGrant, now time.Time) string {
	rows := [][]string{{"CLUSTER", "NODE", "UID", "MEMBERS", "OPEN DOORS", "AGE", "THE NODE NOW"}}
	for _, g := range grants {
		rows = append(rows, []string{
			g.cluster.Name, g.Node, string(g.NodeUID), observation.JoinIDs(g.Members, ","), g.openDoors(),
			report.Age(quorum.LastOpened(g.Grant).Time, now), g.nodeNow(),
		})
	}
	return formatTable(rows)
}

func (g clusterGrant) openDoors() string {
	return printable.Join(quorum.Doors(g.Grant), ", ", func(d quorum.OpenDoor) string {
		text := fmt.Sprintf("%s by %s", d.Kind, cmp.Or(printable.Line(d.User), "no request"))
		if d.BreakGlass {
			text += " (break-glass)"
		}
		return text
	})
}

func (g clusterGrant) nodeNow() string {
	switch {
	case g.node.UID == "":
		return "gone"
	case g.node.UID != g.NodeUID:
		return "gone; a new Node has the name"
	case g.node.DeletionTimestamp != nil:
		return "being deleted"
	case g.node.Spec.Unschedulable:
		return "there, cordoned"
	}
	return "there"
}

// effect describes what follows if the grant ends.
func (g clusterGrant) effect() string {
	text := fmt.Sprintf("The grant for node %s ends, and these members of etcd cluster %s count as healthy again if they "+
		"answer: %s.", g.Node, g.cluster.Name, observation.JoinIDs(g.Members, ", "))
	if g.node.UID != g.NodeUID {
		text += " Their bindings to the Node that is gone end as well."
	}
	return text + " Continue only if they keep running on a machine that stays, or if the machine is gone for good " +
		"and they were removed from etcd."
}

// settleGrant writes the annotation, and waits until the leader has acted on it.
func (s *session) settleGrant(ctx context.Context, g clusterGrant, timeout time.Duration) error {
	target := g.cluster
	if err := s.patchMetadata(ctx, target, "annotations", quorum.ResolveAnnotation, g.NodeUID); err != nil {
		return fmt.Errorf("writing the annotation: %w", err)
	}
	isOpen := func(o v1alpha1.Grant) bool { return o.NodeUID == g.NodeUID }
	var failed error // After a failed read, nothing is known of the annotation.
	err := wait.PollUntilContextTimeout(ctx, time.Second, timeout, true, func(context.Context) (bool, error) {
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		failed = s.kube.Get(reading, client.ObjectKeyFromObject(target), target)
		return failed == nil && target.Annotations[quorum.ResolveAnnotation] != string(g.NodeUID), nil
	})
	if failed == nil && ctx.Err() == nil && err != nil {
		err = fmt.Errorf("the time is up (%s)", timeout)
	}
	switch err = cmp.Or(failed, err); {
	case err != nil:
		return fmt.Errorf("the webhook has not settled the grant for node %s: %w\nit does so when it runs (kubectl -n "+
			"holdfast-system get pods); to prevent that: %s annotate etcdcluster %s %s-",
			g.Node, err, s.kubectl(), target.Name, quorum.ResolveAnnotation)
	case slices.ContainsFunc(target.Spec.Grants, isOpen):
		return fmt.Errorf("the webhook has not settled the grant for node %s: it has known it for less than %s, or the "+
			"deletion was allowed again; see kubectl get events -A --field-selector reason=GrantTooYoung; check the node, "+
			"and run the command again", g.Node, quorum.ResolveByHandAfter)
	}
	_, err = fmt.Fprintf(s.Out, "node %s: the grant has ended\n", g.Node)
	return err
}
