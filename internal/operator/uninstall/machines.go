package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	kind := schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine}
	list, err := u.list(ctx, kind)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{machine.HookAnnotation: nil},
	}})
	if err != nil {
		return fmt.Errorf("encoding the patch: %w", err)
	}
	var failed []error
	for i := range list {
		m := &list[i]
		if !isHooked(m) {
			continue
		}
		if isWaiting(m) && !u.EndWaitingMachines {
			failed = append(failed, waitingError(m))
			continue
		}
		if err := u.needFor(m, "patch"); err != nil {
			return err
		}
		command := fmt.Sprintf("%s annotate %s.%s %s %s-",
			u.kubectl(m), machine.Resource, machine.ClusterAPIGroup, m.Name, machine.HookAnnotation)
		err := u.do(command, fmt.Sprintf("Machine %s/%s: hook removed", m.Namespace, m.Name), func() error {
			return u.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, patch), fieldOwner)
		})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("patching Machine %s/%s: %w", m.Namespace, m.Name, err))
		}
	}
	return errors.Join(failed...)
}

// checkMachines returns an error if the end of a Machine waits for a review. Without its hook, that
// machine ends at once, although the review may have refused it because of the quorum of etcd.
func (u *uninstaller) checkMachines(ctx context.Context) error {
	if u.EndWaitingMachines {
		return nil
	}
	list, err := u.list(ctx, schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine})
	if err != nil {
		return err
	}
	var waiting []error
	for i := range list {
		if isHooked(&list[i]) && isWaiting(&list[i]) {
			waiting = append(waiting, waitingError(&list[i]))
		}
	}
	return errors.Join(waiting...)
}

func isHooked(m *metav1.PartialObjectMetadata) bool {
	_, isHooked := m.Annotations[machine.HookAnnotation]
	return isHooked
}

// isWaiting reports whether Cluster API ends the machine of a hooked Machine without the hook.
func isWaiting(m *metav1.PartialObjectMetadata) bool { return m.DeletionTimestamp != nil }

func waitingError(m *metav1.PartialObjectMetadata) error {
	return fmt.Errorf("machine %s/%s is being deleted and has the hook of Holdfast: without the hook it ends at once, "+
		"even if etcd then loses quorum. Wait until it is gone, or repeat with --end-waiting-machines", m.Namespace, m.Name)
}

// printHooksSince prints the command that removes the hook from Machines that have got it since the
// script was printed.
func (u *uninstaller) printHooksSince() error {
	kind := schema.GroupKind{Group: machine.ClusterAPIGroup, Kind: machine.KindMachine}
	_, err := u.Client.RESTMapper().RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding the API of %s: %w", kind, err)
	}
	_, err = fmt.Fprintf(u.Out, "%s annotate %s.%s --all --all-namespaces %s-\n",
		u.Kubectl, machine.Resource, machine.ClusterAPIGroup, machine.HookAnnotation)
	return err
}
