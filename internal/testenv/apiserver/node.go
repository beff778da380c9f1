package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A NodeSpec describes the Node that a kubelet registers.
type NodeSpec struct {
	Name string
	// OS is the operating system, by default linux.
	OS string
	// InternalIP is the Node's address, if any.
	InternalIP string
	// BootID is the boot ID that the kubelet reports, by default a new one.
	BootID string
	// SystemUUID identifies the machine. By default the kubelet does not report it.
	SystemUUID string
	// Ready is the Ready condition at registration. It is true if the kubelet starts after its
	// CNI.
	Ready bool
	// PodCIDR is the podCIDR of the Node, which kube-controller-manager assigns elsewhere.
	PodCIDR string
	// ProviderID is the cloud provider's ID of the machine.
	ProviderID string
	// Labels, Annotations and Taints are part of the CREATE, like those of the kubelet's
	// --node-labels and --register-with-taints.
	Labels      map[string]string
	Annotations map[string]string
	Taints      []corev1.Taint
}

// RegisterNode creates a Node as the kubelet does (pkg/kubelet/kubelet_node_status.go,
// initialNode): metadata, spec and status in one CREATE. It returns the Node that the API
// server stored. The API server rejects a kubelet that registers another node.
func RegisterNode(ctx context.Context, as *rest.Config, spec NodeSpec) (*corev1.Node, error) {
	client, err := kubernetes.NewForConfig(as)
	if err != nil {
		return nil, err
	}
	node, err := client.CoreV1().Nodes().Create(ctx, initialNode(spec), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("registering node %q: %w", spec.Name, err)
	}
	return node, nil
}

// AddNode registers a Node with the identity of its own kubelet, and returns that identity too.
func (s *Server) AddNode(ctx context.Context, spec NodeSpec) (*corev1.Node, *rest.Config, error) {
	kubelet, err := s.Kubelet(spec.Name)
	if err != nil {
		return nil, nil, err
	}
	node, err := RegisterNode(ctx, kubelet, spec)
	return node, kubelet, err
}

func initialNode(spec NodeSpec) *corev1.Node {
	if spec.OS == "" {
		spec.OS = "linux"
	}
	if spec.BootID == "" {
		spec.BootID = string(uuid.NewUUID())
	}
	labels := map[string]string{
		corev1.LabelHostname: spec.Name, corev1.LabelOSStable: spec.OS, corev1.LabelArchStable: "amd64",
		"beta.kubernetes.io/os": spec.OS, "beta.kubernetes.io/arch": "amd64",
	}
	maps.Copy(labels, spec.Labels)
	annotations := map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
	maps.Copy(annotations, spec.Annotations)
	addresses := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: spec.Name}}
	if spec.InternalIP != "" {
		addresses = append([]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: spec.InternalIP}}, addresses...)
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name, Labels: labels, Annotations: annotations},
		Spec:       corev1.NodeSpec{Taints: spec.Taints, ProviderID: spec.ProviderID, PodCIDR: spec.PodCIDR},
		Status: corev1.NodeStatus{
			Addresses:  addresses,
			Conditions: kubeletConditions(spec.Ready),
			NodeInfo: corev1.NodeSystemInfo{
				BootID: spec.BootID, SystemUUID: spec.SystemUUID, OperatingSystem: spec.OS, Architecture: "amd64",
				KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "containerd://2.2.0",
			},
		},
	}
}

// kubeletConditions returns the four conditions that a kubelet writes.
func kubeletConditions(ready bool) []corev1.NodeCondition {
	now := metav1.NewTime(time.Now())
	conditions := []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
		{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
			Message: "container runtime network not ready: cni plugin not initialized",
		},
	}
	if ready {
		conditions[3].Status, conditions[3].Reason, conditions[3].Message = corev1.ConditionTrue, "KubeletReady", ""
	}
	for i := range conditions {
		conditions[i].LastHeartbeatTime, conditions[i].LastTransitionTime = now, now
	}
	return conditions
}

// Heartbeat writes a kubelet's conditions, as the kubelet does every few minutes and on each
// change: with a strategic merge patch of the status, which keeps all other conditions.
func Heartbeat(ctx context.Context, as *rest.Config, name string, ready bool) error {
	client, err := kubernetes.NewForConfig(as)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": kubeletConditions(ready)}})
	if err != nil {
		return err
	}
	nodes := client.CoreV1().Nodes()
	_, err = nodes.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("writing the heartbeat of node %q: %w", name, err)
	}
	return nil
}
