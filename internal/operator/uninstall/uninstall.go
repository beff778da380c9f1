// Package uninstall removes Holdfast from a cluster: its objects, and what it has put on Nodes and
// Machines. It releases the Nodes that Holdfast holds. See docs/upgrade.md.
package uninstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

const (
	// fieldOwner is the name of this program in managedFields.
	fieldOwner = client.FieldOwner("holdfast-uninstall")
	// pollInterval is the interval at which Run checks whether an object is gone.
	pollInterval = time.Second
	// readTimeout limits one read during such a wait.
	readTimeout = 10 * time.Second
	// progressInterval is the interval at which Run prints for what it waits.
	progressInterval = 15 * time.Second
)

// Options configure Run.
type Options struct {
	Client client.Client
	// Out receives a line for each change.
	Out io.Writer
	// KeepCRD keeps the definition of EtcdClusters, and these objects with their grants.
	KeepCRD bool
	// BeforeHelm leaves everything that helm uninstall deletes afterwards, and the EtcdClusters.
	BeforeHelm bool
	// EndWaitingMachines removes the hook also from Machines that are being deleted. Their machines
	// then end without a review.
	EndWaitingMachines bool
	// DryRun prints all changes, and changes nothing.
	DryRun bool
	// Timeout limits the wait for each object that does not go at once.
	Timeout time.Duration
}

// An uninstaller is one run of Run or Rights.
type uninstaller struct {
	Options
	// collectsRights is true in a run of Rights. It goes on without the objects that the user may not
	// list: the right to list them is among the result.
	collectsRights bool
	rights         []authorizationv1.ResourceAttributes
	// programs are the DaemonSets and Deployments that the run has deleted.
	programs []metav1.PartialObjectMetadata
}

// Run removes Holdfast. The order matters. First nodes are not born held and deletions are not
// reviewed any more. Then the webhook and the agents stop, because they would restore what the next
// step removes from Machines and Nodes. Run removes the hooks before it waits for the pods: a pod
// on an unreachable node never ends, and until then the hook would keep that node's machine. The
// roles and the namespace go last. Run can be repeated: what is gone already is no error. If Nodes
// or Machines cannot be cleaned, the error names them, and the objects of the last step stay.
func Run(ctx context.Context, o Options) error {
	return (&uninstaller{Options: o}).run(ctx)
}

// Rights returns what Run needs in this cluster, so that it does not stop halfway. It changes
// nothing.
func Rights(ctx context.Context, o Options) ([]authorizationv1.ResourceAttributes, error) {
	o.DryRun, o.Out = true, io.Discard
	u := &uninstaller{Options: o, collectsRights: true}
	err := u.run(ctx)
	return u.rights, err
}

func (u *uninstaller) run(ctx context.Context) error {
	if _, waiting, err := u.hookedMachines(ctx); err != nil || waiting != nil {
		return errors.Join(err, waiting)
	}
	last, deleteLast := "The rest is deleted.", u.deleteRest
	if u.BeforeHelm {
		last, deleteLast = "The guard pods are deleted. The rest stays for helm uninstall.", u.deleteGuardPods
	}
	for _, step := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"No new node is held from here on.", u.stopHolding},
		{"No deletion is reviewed from here on: NODES WITH ETCD ARE NOT PROTECTED.", u.stopReviews},
		{"The agents and the webhook stop, because they would restore what the next step removes.", u.stopPrograms},
		{"Machines and Nodes lose what Holdfast has put there. Held nodes are opened.", u.clean},
		{last, deleteLast},
	} {
		fmt.Fprintln(u.Out, step.title)
		if err := step.run(ctx); err != nil {
			return err
		}
	}
	u.need(authorizationv1.ResourceAttributes{
		Verb: "list", Group: rbacv1.GroupName, Resource: "clusterrolebindings",
	})
	if u.collectsRights {
		return nil
	}
	return u.reportKept(ctx)
}

const admissionGroup = "admissionregistration.k8s.io"

// stopHolding deletes the policy by which nodes are born held.
func (u *uninstaller) stopHolding(ctx context.Context) error {
	return u.deleteKinds(ctx, admissionGroup, "MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy")
}

// stopReviews deletes the webhook configuration before the webhook, so that no deletion waits for a
// webhook that does not run.
func (u *uninstaller) stopReviews(ctx context.Context) error {
	return u.deleteKinds(ctx, admissionGroup,
		"ValidatingWebhookConfiguration", "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy")
}

// stopPrograms deletes the agents and the webhook, and does not wait for their pods. Before that,
// the webhook loses the right to write Machines, so a replica that still runs restores no hook.
func (u *uninstaller) stopPrograms(ctx context.Context) error {
	bindings, err := u.ownObjects(ctx, schema.GroupKind{Group: rbacv1.GroupName, Kind: "ClusterRoleBinding"})
	if err != nil {
		return err
	}
	bindings = slices.DeleteFunc(bindings, func(m metav1.PartialObjectMetadata) bool { return m.Name != machinesBinding })
	if err := u.deleteObjects(ctx, bindings); err != nil {
		return err
	}
	var failed []error
	withPods := client.PropagationPolicy(metav1.DeletePropagationForeground)
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		found, err := u.ownObjects(ctx, schema.GroupKind{Group: "apps", Kind: kind}, client.InNamespace(guard.Namespace))
		failed = append(failed, err, u.deleteObjects(ctx, found, withPods))
		u.programs = append(u.programs, found...)
	}
	return errors.Join(failed...)
}

func (u *uninstaller) deleteRest(ctx context.Context) error {
	err := u.deleteKinds(ctx, rbacv1.GroupName, "ClusterRoleBinding", "ClusterRole", "RoleBinding", "Role")
	if err != nil {
		return err
	}
	if err := u.deleteKinds(ctx, flowcontrolv1.GroupName, "FlowSchema", "PriorityLevelConfiguration"); err != nil {
		return err
	}
	// The namespace has the guard pods as well. Helm creates it without the label.
	last := []metav1.PartialObjectMetadata{{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: guard.Namespace},
	}}
	if !u.KeepCRD {
		kind := schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
		definitions, err := u.ownObjects(ctx, kind)
		if err != nil {
			return err
		}
		last = append(last, definitions...)
	}
	if err := u.deleteObjects(ctx, last); err != nil {
		return err
	}
	var failed []error
	for i := range last {
		advice := fmt.Sprintf("see its status: kubectl get %s -o yaml", describe(&last[i]))
		failed = append(failed, u.waitGone(ctx, last[i:i+1], advice))
	}
	return errors.Join(failed...)
}

// deleteGuardPods deletes the guard pods. The webhook, which does not run any more, has created
// them, so they belong to no release of Helm.
func (u *uninstaller) deleteGuardPods(ctx context.Context) error {
	pods, err := u.ownObjects(ctx, schema.GroupKind{Kind: "Pod"}, client.InNamespace(guard.Namespace))
	return errors.Join(err, u.deleteObjects(ctx, pods))
}

// deleteKinds deletes Holdfast's objects of these kinds in all namespaces, kind by kind. The
// objects in Holdfast's namespace go with the namespace, and stopPrograms has deleted a binding,
// which a dry run finds again.
func (u *uninstaller) deleteKinds(ctx context.Context, group string, kinds ...string) error {
	for _, kind := range kinds {
		found, err := u.ownObjects(ctx, schema.GroupKind{Group: group, Kind: kind})
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(found, func(m metav1.PartialObjectMetadata) bool {
			return m.Namespace == guard.Namespace || m.Kind == "ClusterRoleBinding" && m.Name == machinesBinding
		})
		if err := u.deleteObjects(ctx, found); err != nil {
			return err
		}
	}
	return nil
}

// ownObjects returns the objects that an installation has created: they have the label and a name
// of Holdfast. A person's object that has only the label is not among them.
func (u *uninstaller) ownObjects(
	ctx context.Context, kind schema.GroupKind, options ...client.ListOption,
) ([]metav1.PartialObjectMetadata, error) {
	labelled := client.MatchingLabels{"app.kubernetes.io/part-of": "holdfast"}
	found, err := u.list(ctx, kind, append(options, labelled)...)
	return slices.DeleteFunc(found, func(m metav1.PartialObjectMetadata) bool {
		return !strings.HasPrefix(m.Name, "holdfast") && !strings.HasSuffix(m.Name, ".holdfast.dev")
	}), err
}

// deleteObjects deletes objects, which may be gone already.
func (u *uninstaller) deleteObjects(
	ctx context.Context, objects []metav1.PartialObjectMetadata, options ...client.DeleteOption,
) error {
	for i := range objects {
		object := &objects[i]
		u.needFor(object, "delete")
		if u.DryRun {
			fmt.Fprintf(u.Out, "%s: would be deleted\n", describe(object))
			continue
		}
		// The answer to the deletion of an object that a finalizer keeps is the object. The client would
		// fail to decode one whose kind is not in its scheme.
		untyped := &unstructured.Unstructured{}
		untyped.SetGroupVersionKind(object.GroupVersionKind())
		untyped.SetNamespace(object.Namespace)
		untyped.SetName(object.Name)
		err := u.Client.Delete(ctx, untyped, options...)
		if err == nil {
			_, err = fmt.Fprintf(u.Out, "%s: deleted\n", describe(object))
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", describe(object), err)
		}
	}
	return nil
}

// describe names an object as kubectl does.
func describe(object *metav1.PartialObjectMetadata) string {
	return strings.ToLower(object.GroupVersionKind().GroupKind().String()) + "/" + object.Name
}

func (u *uninstaller) waitGone(ctx context.Context, objects []metav1.PartialObjectMetadata, advice string) error {
	for i := range objects {
		object := &objects[i]
		u.needFor(object, "get")
		if u.DryRun {
			continue
		}
		begun := time.Now()
		reported := begun
		var failed error // After a failed read, nothing is known of the object.
		err := wait.PollUntilContextTimeout(ctx, pollInterval, u.Timeout, true, func(context.Context) (bool, error) {
			// With the deadline of the wait, the last read would fail and hide that the time is up.
			reading, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			failed = u.Client.Get(reading, client.ObjectKeyFromObject(object), object.DeepCopy())
			switch {
			case apierrors.IsNotFound(failed):
				return true, nil
			case apierrors.IsForbidden(failed), apierrors.IsUnauthorized(failed):
				return false, failed // Another read cannot help.
			}
			if time.Since(reported) >= progressInterval {
				reported = time.Now()
				unread := ""
				if failed != nil {
					unread = ": " + failed.Error()
				}
				fmt.Fprintf(u.Out, "%s: waiting until it is gone (%s)%s\n", describe(object),
					time.Since(begun).Round(time.Second), unread)
			}
			return false, nil
		})
		switch {
		case err == nil:
		case ctx.Err() != nil || failed != nil:
			return fmt.Errorf("waiting until %s is gone: %w", describe(object), cmp.Or(failed, err))
		default:
			return fmt.Errorf("%s is not gone after %s; %s; then run the command again", describe(object), u.Timeout, advice)
		}
	}
	return nil
}

// reportKept names what people have made for Holdfast, which stays.
func (u *uninstaller) reportKept(ctx context.Context) error {
	var kept []string
	bindings := &rbacv1.ClusterRoleBindingList{}
	nodes := &corev1.NodeList{}
	if err := errors.Join(u.Client.List(ctx, bindings), u.Client.List(ctx, nodes)); err != nil {
		return fmt.Errorf("finding what stays: %w", err)
	}
	for i := range bindings.Items {
		if b := &bindings.Items[i]; b.RoleRef.Name == "holdfast-breakglass" {
			kept = append(kept, "clusterrolebinding "+b.Name+" (its ClusterRole holdfast-breakglass is deleted)")
		}
	}
	for i := range nodes.Items {
		kept = append(kept, keptKeys(&nodes.Items[i])...)
	}
	if u.BeforeHelm {
		kept = append(kept, "what helm uninstall deletes, and the EtcdClusters with their grants (--before-helm)")
	}
	if u.KeepCRD {
		kept = append(kept, "the EtcdClusters with their grants, and their definition (--keep-crd)")
	}
	for _, text := range kept {
		fmt.Fprintln(u.Out, "kept: "+printable.Line(text))
	}
	return nil
}

// list returns the objects of a kind, without their content. A kind that the API server does not
// serve has no objects. Neither has one that the user may not list, in a run of Rights.
func (u *uninstaller) list(
	ctx context.Context, kind schema.GroupKind, options ...client.ListOption,
) ([]metav1.PartialObjectMetadata, error) {
	mapping, err := u.mapping(kind)
	if mapping == nil {
		return nil, err
	}
	objects := &metav1.PartialObjectMetadataList{}
	objects.SetGroupVersionKind(mapping.GroupVersionKind)
	u.need(authorizationv1.ResourceAttributes{
		Verb: "list", Group: kind.Group, Resource: mapping.Resource.Resource,
		Namespace: new(client.ListOptions).ApplyOptions(options).Namespace,
	})
	err = u.Client.List(ctx, objects, options...)
	switch {
	case u.collectsRights && apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing %s: %w", mapping.Resource.Resource, err)
	}
	for i := range objects.Items {
		objects.Items[i].SetGroupVersionKind(mapping.GroupVersionKind)
	}
	return objects.Items, nil
}

// mapping returns the API of a kind, nil if the API server does not serve it.
func (u *uninstaller) mapping(kind schema.GroupKind) (*meta.RESTMapping, error) {
	mapping, err := u.Client.RESTMapper().RESTMapping(kind)
	if err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("finding the API of %s: %w", kind, err)
	}
	return mapping, nil
}

// need records that Run needs a right.
func (u *uninstaller) need(right authorizationv1.ResourceAttributes) {
	if !slices.Contains(u.rights, right) {
		u.rights = append(u.rights, right)
	}
}

// needFor records that Run needs a right for one object.
func (u *uninstaller) needFor(object *metav1.PartialObjectMetadata, verb string) {
	// The guess is right for all kinds that Run deletes or patches.
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	u.need(authorizationv1.ResourceAttributes{
		Verb: verb, Group: resource.Group, Resource: resource.Resource, Namespace: object.Namespace, Name: object.Name,
	})
}
