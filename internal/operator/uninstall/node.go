package uninstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// clean removes the hooks from Machines, and then everything of Holdfast from Nodes. An agent or a
// webhook that still runs then may restore something. A pod on an unreachable node never ends, and
// must not keep the other nodes closed: the Nodes are cleaned, and the error asks for another run.
//
// A machine that is kept by a hook costs money and blocks others: a failure with Nodes does not
// keep the hooks. When the pods are gone, clean looks for hooks again: the last requests of the
// webhook may have restored one before every API server knew that its right is gone.
func (u *uninstaller) clean(ctx context.Context) error {
	hooks := u.removeHooks(ctx)
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "list"}, {Verb: "get"}, {Verb: "patch"}, {Verb: "patch", Subresource: "status"},
	} {
		right.Resource = "nodes"
		u.need(right)
	}
	waiting := u.waitGone(ctx, u.programs, "a pod may be on a node that does not report: "+
		"kubectl -n "+guard.Namespace+" get pods -o wide; if its machine is gone, delete the node")
	if u.collectsRights {
		return errors.Join(hooks, waiting)
	}
	if !u.DryRun { // The second run repeats what failed in the first, so its error replaces that one.
		hooks = u.removeHooks(ctx)
	}
	failed := []error{waiting, hooks}
	nodes := &corev1.NodeList{}
	if err := u.Client.List(ctx, nodes); err != nil {
		return errors.Join(append(failed, fmt.Errorf("listing nodes: %w", err))...)
	}
	for i := range nodes.Items {
		if err := ctx.Err(); err != nil { // The error need not name every Node.
			failed = append(failed, err)
			break
		}
		if err := u.cleanNode(ctx, nodes.Items[i].Name); client.IgnoreNotFound(err) != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// cleanNode cleans one Node. It retries if the Node changes in the meantime, and if another API
// server has not yet seen that the policies are deleted.
func (u *uninstaller) cleanNode(ctx context.Context, name string) error {
	var closed *closedNode
	var changed bool
	clean := func() error {
		node := new(corev1.Node)
		if err := u.Client.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
			return fmt.Errorf("reading node %s: %w", name, err)
		}
		wanted, stays, err := planCleanup(node)
		if err != nil {
			return err
		}
		// The first write removes the hold record. A retry finds no hold, so keep the first reason.
		if stays != nil {
			closed = stays
		}
		if u.DryRun {
			patches, err := nodepatch.Plan(node, wanted, time.Now())
			changed = len(patches) > 0
			return err
		}
		newest, err := nodepatch.NewWriterAs(string(fieldOwner), NodePatcher{u.Client}).Apply(ctx, node, wanted)
		changed = changed || newest != node
		return err
	}
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 9} // about 26 s
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(context.Context) (bool, error) {
		if last = clean(); last != nil && !isTransient(last) {
			return false, last
		}
		return last == nil, nil
	})
	done := map[bool]string{true: "would be cleaned", false: "cleaned"}[u.DryRun]
	switch {
	case err != nil:
		return cmp.Or(last, err)
	case closed != nil:
		_, err = fmt.Fprintf(u.Out, "node %s: %s; it was held and stays closed (%s); to open it: %s\n",
			name, done, closed.by, closed.open)
	case changed:
		_, err = fmt.Fprintf(u.Out, "node %s: %s\n", name, done)
	}
	return err
}

// isTransient reports whether an error of a write ends by itself.
func isTransient(err error) bool {
	return apierrors.IsConflict(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'holdfast-")
}

// keptKeys describes the keys on a Node that people have written for Holdfast.
func keptKeys(node *corev1.Node) []string {
	var kept []string
	for _, key := range []string{readiness.HoldLabel, guard.NodeLabel} {
		if value, isSet := node.Labels[key]; isSet {
			kept = append(kept, fmt.Sprintf("node %s: label %s=%s", node.Name, key, value))
		}
	}
	for _, key := range []string{readiness.KeepCordonedAnnotation, quorum.BreakGlassAnnotation} {
		if _, isSet := node.Annotations[key]; isSet {
			kept = append(kept, fmt.Sprintf("node %s: annotation %s", node.Name, key))
		}
	}
	return kept
}

// A closedNode describes a Node that stays closed: why, and the commands that open it.
type closedNode struct{ by, open string }

// planCleanup returns a Node without what Holdfast has put there. If Holdfast holds the Node, it is
// open. closed is nil unless the Node was held and stays closed.
//
// Keys that people write for Holdfast stay: the label that exempts a node from holds, keep-cordoned
// and break-glass. If a record is unreadable, the error contains the commands for an operator.
func planCleanup(node *corev1.Node) (d nodepatch.Desired, closed *closedNode, err error) {
	d = nodepatch.Desired{Labels: map[string]*string{observation.EtcdMemberLabel: nil}, Annotations: map[string]*string{}}
	for _, key := range []string{
		readiness.HoldAnnotation, observation.AnnouncementAnnotation, observation.UnverifiedAnnotation,
		presence.BecauseAnnotation, departure.ShutdownAnnotation,
		presence.MarksAnnotation, spc.NodeAnnotation, spc.ProblemAnnotation, openstack.Annotation,
	} {
		d.Annotations[key] = nil
	}
	d.RemoveConditions = []corev1.NodeConditionType{readiness.NetworkHeld, observation.EtcdMemberCondition}
	if c := readiness.FindCondition(node, corev1.NodeNetworkUnavailable); c != nil && readiness.IsByHoldfast(c) {
		d.RemoveConditions = append(d.RemoveConditions, c.Type)
	}
	// A hold that has ended can have left autoscaler annotations.
	marks := append(readiness.OwnedAutoscalerAnnotations(node.Annotations),
		strings.Split(node.Annotations[presence.MarksAnnotation], ",")...)
	for _, key := range autoscaler.Keys() {
		if slices.Contains(marks, key) {
			d.Annotations[key] = nil
		}
	}
	if closed, err = addRelease(node, &d); err != nil {
		return d, nil, err
	}
	err = removeSPCLabels(node, &d)
	return d, closed, err
}

// addRelease opens a Node that Holdfast holds according to its record, unless someone else wants it
// closed. The record of a hold by taint that has ended still names a taint that was kept. A Node
// that a person has opened is not held any more.
func addRelease(node *corev1.Node, d *nodepatch.Desired) (*closedNode, error) {
	c, err := readiness.ClosedBy(node)
	if err != nil {
		return nil, err
	}
	if c.Taint == "" && !c.IsHeld() {
		return nil, nil
	}
	if by := c.StaysBecause(); by != "" {
		return &closedNode{by: by, open: openCommands(node, c.Taint)}, nil
	}
	if d.RemoveTaints = c.Open().RemoveTaints; len(d.RemoveTaints) == 0 {
		d.Unschedulable = new(false)
	}
	return nil, nil
}

// openCommands returns the commands that open a Node. The taint must be on the Node: its key was
// validated by the API server, and is safe in a shell. A record may contain any text.
func openCommands(node *corev1.Node, taint string) string {
	var commands []string
	if taint != "" {
		commands = append(commands,
			fmt.Sprintf("kubectl taint node %s %s:%s-", node.Name, taint, corev1.TaintEffectNoSchedule))
	}
	if node.Spec.Unschedulable {
		commands = append(commands, "kubectl uncordon "+node.Name)
	}
	return strings.Join(commands, "; ")
}

// removeSPCLabels removes the labels that the agent wrote for SPC.
func removeSPCLabels(node *corev1.Node, d *nodepatch.Desired) error {
	owned, err := spc.OwnedLabels(node)
	if err != nil {
		return fmt.Errorf("node %s: %w, which lists the labels to remove; remove the labels of stackpoint.io/ that are "+
			"not yours, then: kubectl annotate node %s %s-", node.Name, err, node.Name, spc.NodeAnnotation)
	}
	for key := range owned {
		d.Labels[key] = nil
	}
	return nil
}

// A NodePatcher is the client of a nodepatch.Writer in the commands for people.
type NodePatcher struct{ Client client.Client }

// Patch sends one patch.
func (p NodePatcher) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	node, patch := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, client.RawPatch(kind, body)
	owner := client.FieldOwner(o.FieldManager)
	if len(subresources) == 0 {
		return node, p.Client.Patch(ctx, node, patch, owner)
	}
	return node, p.Client.SubResource(subresources[0]).Patch(ctx, node, patch, owner)
}
