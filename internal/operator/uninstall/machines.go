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
			fmt.Fprintf(u.Out, "Machine %s/%s: hook would be removed\n", m.Namespace, m.Name)
			continue
		}
		switch err := u.Client.Patch(ctx, m, patch, fieldOwner); {
		case err == nil:
			fmt.Fprintf(u.Out, "Machine %s/%s: hook removed\n", m.Namespace, m.Name)
		case !apierrors.IsNotFound(err):
			failed = append(failed, fmt.Errorf("patching Machine %s/%s: %w", m.Namespace, m.Name, err))
		}
	}
	return errors.Join(failed...)
}

// hookedMachines returns the Machines with the hook that lose it. waiting names those whose end
// waits for a review, which are not among them without --end-waiting-machines. Without its hook,
// such a machine ends at once, although the review may have refused it because of the quorum of
// etcd.
func (u *uninstaller) hookedMachines(
	ctx context.Context,
) (hooked []metav1.PartialObjectMetadata, waiting, err error) {
	list, err := u.list(ctx, schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine})
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
	return hooked, errors.Join(waits...), err
}
