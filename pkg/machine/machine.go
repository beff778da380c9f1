// Package machine reads the objects by which Cluster API and Karpenter manage machines and k0s its
// etcd members, and tells for which Nodes they stand. The programs end the machine of a Node, or
// remove its member, because of such an object.
package machine

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kinds of objects, and their groups.
const (
	// ClusterAPIGroup has the kind Machine.
	ClusterAPIGroup = "cluster.x-k8s.io"
	KindMachine     = "Machine"
	// Resource is the plural of Machine.
	Resource = "machines"
	// KarpenterGroup has the kind NodeClaim.
	KarpenterGroup = "karpenter.sh"
	KindNodeClaim  = "NodeClaim"
)

// HookAnnotation on a Machine of Cluster API keeps its controller from ending the machine. Cluster
// API defines the prefix (api/core/v1beta2, PreTerminateDeleteHookAnnotationPrefix). The name after
// the slash is that of the owner.
const HookAnnotation = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/holdfast"

// HookValue is the value of HookAnnotation. Cluster API expects the owner of the hook there.
const HookValue = "holdfast"

// An Object is a Machine or a NodeClaim.
type Object struct {
	Kind string
	// Namespace is empty for a NodeClaim.
	Namespace string
	Name      string
	UID       types.UID
	// ResourceVersion identifies this version of the object.
	ResourceVersion string
	// Node is the name of its Node according to its controller, empty before there is one.
	Node string
	// ProviderID is the identity of the machine in its cloud, empty before there is one.
	ProviderID string
	// Deleting means that the object has a deletion timestamp.
	Deleting bool
	// IsHooked means that a Machine has the HookAnnotation.
	IsHooked bool
	// AwaitsHook means that the controller has finished everything else before it ends the machine:
	// the drain, and the detachment of volumes.
	AwaitsHook bool
	// IsRegistered means that the controller of a NodeClaim knows its Node. It deletes the Node
	// first, and ends the machine when the Node is gone. Without it, it ends the machine at once.
	IsRegistered bool
}

// content has the fields of a Machine and a NodeClaim that Holdfast reads.
type content struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		// cluster-api, api/core/v1beta1 and v1beta2, MachineSpec.
		ProviderID string `json:"providerID"`
	} `json:"spec"`
	Status struct {
		// cluster-api, api/core/v1beta1 and v1beta2, MachineStatus. In v1beta1 it is an ObjectReference,
		// in v1beta2 a MachineNodeReference.
		NodeRef struct {
			Name string `json:"name"`
		} `json:"nodeRef"`
		// cluster-api, api/core/v1beta1 and v1beta2, MachineDeletionStatus. Earlier releases have only a
		// condition.
		Deletion struct {
			WaitForPreTerminateHookStartTime metav1.Time `json:"waitForPreTerminateHookStartTime"`
		} `json:"deletion"`
		// karpenter, pkg/apis/v1, NodeClaimStatus.
		NodeName   string `json:"nodeName"`
		ProviderID string `json:"providerID"`
		// karpenter, pkg/apis/v1, ConditionTypeRegistered; cluster-api, api/core/v1beta1,
		// PreTerminateDeleteHookSucceededCondition, and api/core/v1beta2, MachineDeletingCondition with
		// MachineDeletingWaitingForPreTerminateHookReason.
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// Parse parses the JSON form of an object. It reads every kind except NodeClaim as a Machine.
func Parse(kind string, raw []byte) (Object, error) {
	var c content
	if err := json.Unmarshal(raw, &c); err != nil {
		return Object{}, fmt.Errorf("parsing the %s: %w", kind, err)
	}
	o := Object{
		Kind: kind, Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
		Deleting: c.DeletionTimestamp != nil,
	}
	if kind == KindNodeClaim {
		o.Node, o.ProviderID = c.Status.NodeName, c.Status.ProviderID
		o.IsRegistered = c.condition("Registered").Status == metav1.ConditionTrue
		return o, nil
	}
	o.Node, o.ProviderID = c.Status.NodeRef.Name, c.Spec.ProviderID
	_, o.IsHooked = c.Annotations[HookAnnotation]
	o.AwaitsHook = !c.Status.Deletion.WaitForPreTerminateHookStartTime.IsZero() ||
		c.condition("PreTerminateDeleteHookSucceeded").Status == metav1.ConditionFalse ||
		c.condition("Deleting").Reason == "WaitingForPreTerminateHook"
	return o, nil
}

// condition returns the condition of this type, or the zero value.
func (c content) condition(kind string) metav1.Condition {
	for _, found := range c.Status.Conditions {
		if found.Type == kind {
			return found
		}
	}
	return metav1.Condition{}
}

// String returns the kind and the name of the object.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
}

// Match returns why the object stands for the Node with this name and provider ID, or an empty
// string.
//
// The provider ID is the identity of the machine, so an equal one suffices: the controller may not
// know its Node yet. A name is weaker. A management cluster of Cluster API has Machines of other
// clusters, whose Nodes may have the names of our Nodes, and a name may pass to another machine.
// So the name does not count if both provider IDs are known and differ.
func (o Object) Match(node, providerID string) string {
	switch {
	case o.ProviderID != "" && o.ProviderID == providerID:
		return "both have the provider ID " + providerID
	case o.Node == "" || o.Node != node || (o.ProviderID != "" && providerID != ""):
		return ""
	case o.Kind == KindNodeClaim:
		return "it names the Node in status.nodeName"
	}
	return "it names the Node in status.nodeRef"
}

// A HookStep is what is to be done about the HookAnnotation of a Machine.
type HookStep int

// The steps.
const (
	// HookKeep leaves the Machine as it is.
	HookKeep HookStep = iota
	// HookAdd sets the annotation.
	HookAdd
	// HookRemove removes the annotation, because the Machine stands for no node with etcd.
	HookRemove
	// HookReview asks for a review: the annotation is all that keeps Cluster API from ending the
	// machine.
	HookReview
)

// PlanHook returns the step for a Machine. hasEtcd reports whether the Machine stands for a node
// with etcd.
//
// A Machine that is being deleted without the annotation does not get it: its machine may be about
// to end already, or the end was allowed. One that has the annotation keeps it until its end is
// reviewed, even if no node with etcd is known: the review knows best, and it is the last one.
func PlanHook(o Object, hasEtcd bool) HookStep {
	switch {
	case o.Kind != KindMachine:
		return HookKeep
	case !o.IsHooked && hasEtcd && !o.Deleting:
		return HookAdd
	case o.IsHooked && o.Deleting && o.AwaitsHook:
		return HookReview
	case o.IsHooked && !o.Deleting && !hasEtcd:
		return HookRemove
	}
	return HookKeep
}
