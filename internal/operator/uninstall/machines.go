package uninstall

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// machinesBinding is the name of the ClusterRoleBinding with which the webhook writes Machines.
const machinesBinding = "holdfast-webhook-machines"

// removeHooks removes the hook of Holdfast from the Machines of Cluster API. Without Holdfast, a
// Machine with the hook is never deleted. A cluster without Machines is no error.
func (u *uninstaller) removeHooks(ctx context.Context) error {
	hooked, waiting, err := u.hookedMachines(ctx)
	if err != nil {
		return err
	}
	patch := client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, machine.HookAnnotation))
	failed := []error{waiting}
	for i := range hooked {
		m := &hooked[i]
		u.needFor(m, "patch")
		if u.DryRun {
			continue // The script removes it from all Machines, also from later ones.
		}
		switch err := u.Client.Patch(ctx, m, patch, fieldOwner); {
		case err == nil:
			fmt.Fprintf(u.Out, "Machine %s/%s: hook removed\n", m.Namespace, m.Name)
		case !apierrors.IsNotFound(err):
			failed = append(failed, fmt.Errorf("patching Machine %s/%s: %w", m.Namespace, m.Name, err))
		}
	}
	if u.DryRun {
		failed = append(failed, u.printForMachines("%[1]s annotate %[2]s --all --all-namespaces %[3]s-\n"))
	}
	return errors.Join(failed...)
}

func machines() schema.GroupKind {
	return schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine}
}

// hookedMachines returns the Machines with the hook that lose it. waiting names those whose end
// waits for a review, which are not among them without --end-waiting-machines. Without its hook,
// such a machine ends at once, although the review may have refused it because of the quorum of
// etcd. A script looks for them as well: it runs later.
func (u *uninstaller) hookedMachines(
	ctx context.Context,
) (hooked []metav1.PartialObjectMetadata, waiting, err error) {
	list, err := u.list(ctx, machines())
	var waits []error
	for _, m := range list {
		_, isHooked := m.Annotations[machine.HookAnnotation]
		switch {
		case !isHooked:
		case m.DeletionTimestamp != nil && !u.EndWaitingMachines:
			waits = append(waits, fmt.Errorf("machine %s/%s is being deleted and has the hook of Holdfast: without the hook "+
				"it ends at once, even if etcd then loses quorum. While the webhook runs, wait until it is gone. Otherwise "+
				"check its etcd cluster, and repeat with --end-waiting-machines",
				m.Namespace, m.Name))
		default:
			hooked = append(hooked, m)
		}
	}
	if u.DryRun && !u.EndWaitingMachines {
		err = errors.Join(err, u.printForMachines("waiting=$(%[1]s get %[2]s --all-namespaces "+
			"-o jsonpath='{.items[?(@.metadata.deletionTimestamp)].metadata.annotations}')\ncase $waiting in *'%[3]s'*) "+
			"echo 'a Machine with the hook of Holdfast is being deleted: print the script again' >&2; exit 1;; esac\n"))
	}
	return hooked, errors.Join(waits...), err
}

// printForMachines prints commands with kubectl, the resource and the hook, if there are Machines.
func (u *uninstaller) printForMachines(commands string) error {
	mapping, err := u.mapping(machines())
	if mapping == nil {
		return err
	}
	_, err = fmt.Fprintf(u.Out, commands, u.Kubectl, machine.Resource+"."+machine.ClusterAPIGroup, machine.HookAnnotation)
	return err
}
