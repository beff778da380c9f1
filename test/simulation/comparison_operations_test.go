package simulation

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func (p *serverPair) patchGrants(now clusterSides[v1alpha1.EtcdCluster]) (string, error, error) {
	grants := []v1alpha1.Grant{}
	for i := range p.choices.pick(3) {
		grants = append(grants, v1alpha1.Grant{
			NodeUID: types.UID(fmt.Sprint("u", i)), Node: fmt.Sprint("n", i), Members: []v1alpha1.MemberID{"a"},
			Drain: &v1alpha1.Door{Time: metav1.NewTime(time.Unix(1e9, 0)), User: []string{"", "alice"}[p.choices.pick(2)]},
		})
	}
	ledger := now.simulated.Spec.Ledger - int64(p.choices.pick(2))
	return p.patch("grants", now, types.JSONPatchType, func(uid types.UID) any {
		return []patchOperation{
			{"test", "/metadata/uid", uid},
			{"test", "/spec/ledger", ledger},
			{"replace", "/spec/ledger", ledger + 1},
			{"add", "/spec/grants", grants},
		}
	})
}

func (p *serverPair) patchBindings(now clusterSides[v1alpha1.EtcdCluster]) (string, error, error) {
	test := patchOperation{Op: "test", Path: "/spec/members"}
	if have := now.simulated.Spec.Members; len(have) > 0 != p.choices.oneIn(5) {
		test.Value = have
	}
	write := patchOperation{
		"add", "/spec/members",
		[]v1alpha1.Binding{{MemberID: "b", Node: "n2", NodeUID: types.UID(fmt.Sprint("u", p.choices.pick(3)))}},
	}
	if p.choices.pick(3) == 1 {
		write = patchOperation{Op: "remove", Path: "/spec/members"}
	}
	return p.patch("bindings", now, types.JSONPatchType, func(uid types.UID) any {
		return []patchOperation{{"test", "/metadata/uid", uid}, test, write}
	})
}

func (p *serverPair) patchNonce(now clusterSides[v1alpha1.EtcdCluster]) (string, error, error) {
	nonce := fmt.Sprint("w", p.choices.pick(3))
	return p.patch("nonce", now, types.MergePatchType, func(uid types.UID) any {
		return map[string]any{"metadata": map[string]any{"uid": uid}, "spec": map[string]any{"nonce": nonce}}
	})
}

// patchAnnotation sets the settle annotation, or removes it with a test of its value.
func (p *serverPair) patchAnnotation(now clusterSides[v1alpha1.EtcdCluster]) (string, error, error) {
	if p.choices.pick(2) == 0 {
		value := fmt.Sprint("u", p.choices.pick(2))
		return p.patch("annotate", now, types.MergePatchType, func(types.UID) any {
			return map[string]any{"metadata": map[string]any{"annotations": map[string]any{quorum.ResolveAnnotation: value}}}
		})
	}
	test := patchOperation{
		Op: "test", Path: "/metadata/annotations/holdfast.dev~1settle",
		Value: fmt.Sprint("u", p.choices.pick(2)),
	}
	return p.patch("remove the annotation", now, types.JSONPatchType, func(types.UID) any {
		return []patchOperation{test, {Op: "remove", Path: test.Path}}
	})
}

// createObservation creates the EtcdObservation of a node, or writes it if it exists.
func (p *serverPair) createObservation(now clusterSides[v1alpha1.EtcdCluster]) (string, error, error) {
	node := fmt.Sprint("n", p.choices.pick(3))
	o := &v1alpha1.EtcdObservation{Cluster: v1alpha1.ClusterID(p.name), Observation: v1alpha1.Observation{Node: node}}
	o.Name = v1alpha1.ObservationName(o.Cluster, node)
	found := &v1alpha1.EtcdObservation{}
	err := p.real.Get(p.t.Context(), client.ObjectKey{Name: o.Name}, found)
	if apierrors.IsNotFound(err) || p.choices.oneIn(6) {
		real, simulated := o.DeepCopy(), o.DeepCopy()
		real.OwnerReferences, simulated.OwnerReferences = ownedBy(now.real), ownedBy(now.simulated)
		_, simulatedErr := p.simulated.observations.create(p.simulated, simulated)
		return "create the EtcdObservation of " + node, p.real.Create(p.t.Context(), real), simulatedErr
	}
	if err != nil {
		return "read the EtcdObservation of " + node, err, nil
	}
	o.Observation = v1alpha1.Observation{
		Node: node, NodeUID: "u1", Nonce: fmt.Sprint("w", p.choices.pick(3)),
		Time: metav1.NewTime(time.Unix(1e9+int64(p.choices.pick(2)), 0)), LocalMember: "a",
		Linearizable: p.choices.pick(2) == 0, Problem: []string{"", "no answer"}[p.choices.pick(2)],
	}
	for i := range p.choices.pick(3) {
		o.Members = append(o.Members, v1alpha1.MemberStatus{
			ID: v1alpha1.MemberID([]string{"a", "b", "c"}[i]), Name: "etcd", Healthy: p.choices.pick(2) == 0,
			PeerURLs: []string{"https://10.0.0.1:2380"},
		})
	}
	found.Observation = o.Observation
	stored, err := p.simulated.observations.get(o.Name)
	if err == nil {
		err = p.simulated.publish(o.Cluster, stored.OwnerReferences[0].UID, o.Observation)
	}
	return fmt.Sprintf("observation of %s: %v", node, o.Observation), p.real.Update(p.t.Context(), found), err
}

func ownedBy(c *v1alpha1.EtcdCluster) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdCluster", Name: c.Name, UID: c.UID,
	}}
}

// deleteObservation deletes an EtcdObservation, with its UID or a wrong one.
func (p *serverPair) deleteObservation() (string, error, error) {
	name := v1alpha1.ObservationName(v1alpha1.ClusterID(p.name), fmt.Sprint("n", p.choices.pick(3)))
	real, simulated := &v1alpha1.EtcdObservation{}, p.simulated.observations.objects[name]
	err := p.real.Get(p.t.Context(), client.ObjectKey{Name: name}, real)
	require.NoError(p.t, client.IgnoreNotFound(err))
	real.Name = name
	uid, simulatedUID := real.UID, types.UID("none")
	if simulated != nil {
		simulatedUID = simulated.UID
	}
	if p.choices.oneIn(4) || err != nil {
		uid, simulatedUID = "wrong", "wrong"
	}
	return "delete EtcdObservation " + name, p.real.Delete(p.t.Context(), real, client.Preconditions{UID: &uid}),
		p.simulated.deleteObservation(name, simulatedUID)
}

func (p *serverPair) applyStatus(manager string, status map[string]any) error {
	apply := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	apply.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind("EtcdCluster"))
	apply.SetName(p.name)
	return p.real.Status().Apply(p.t.Context(), client.ApplyConfigurationFromUnstructured(apply),
		client.FieldOwner(manager), client.ForceOwnership)
}

// applySummary is the leader's apply, with and without numbers.
func (p *serverPair) applySummary() (string, error, error) {
	var status v1alpha1.EtcdClusterStatus
	if p.choices.pick(2) == 1 {
		n := int32(p.choices.pick(3))
		status.Voters, status.MayLose = &n, &n
	}
	status.Conditions = []metav1.Condition{{
		Type: "Visible", Status: metav1.ConditionTrue, Reason: "MemberListConfirmed",
		Message: fmt.Sprint(p.choices.pick(2)), LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0)),
	}}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.EtcdCluster{Status: status})
	require.NoError(p.t, err)
	applied, _ := raw["status"].(map[string]any)
	_, simulated := p.simulated.applySummary(p.name, status)
	return "summary", p.applyStatus("w", applied), simulated
}

// changeObjects creates, labels, edits or deletes the Node, or deletes the EtcdCluster.
func (p *serverPair) changeObjects() (string, error, error) {
	n := p.simulated.nodes.objects[p.node]
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.node, Labels: map[string]string{"a": "b"}}}
	if p.choices.pick(2) == 1 {
		made.Finalizers = []string{"holdfast.dev/test"}
	}
	switch p.choices.pick(5) {
	case 0:
		_, simulated := p.simulated.createNode(made)
		return "create the Node", p.real.Create(p.t.Context(), made.DeepCopy()), simulated
	case 1:
		return "delete the Node", p.real.Delete(p.t.Context(), made), p.simulated.deleteNode(p.node)
	case 2:
		body := []byte(`{"metadata":{"finalizers":null}}`)
		_, simulated := p.simulated.editNode(p.node, func(n *corev1.Node) { n.Finalizers = nil })
		real := p.real.Patch(p.t.Context(), made, client.RawPatch(types.MergePatchType, body))
		return "remove the finalizers", real, simulated
	case 3:
		if p.choices.oneIn(4) {
			c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
			return "delete the EtcdCluster", p.real.Delete(p.t.Context(), c), p.simulated.deleteCluster(p.name)
		}
	}
	found := &corev1.Node{}
	if err := p.real.Get(p.t.Context(), client.ObjectKey{Name: p.node}, found); n == nil || err != nil {
		return "no Node to label", client.IgnoreNotFound(err), nil
	}
	wrong := p.choices.oneIn(3)
	body := func(uid types.UID) []byte {
		if wrong {
			uid = "wrong"
		}
		return fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:"true"}}}`, uid, observation.EtcdMemberLabel)
	}
	real := p.real.Patch(p.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.node}},
		client.RawPatch(types.MergePatchType, body(found.UID)))
	_, simulated := p.simulated.patchNode(p.node, types.MergePatchType, body(n.UID))
	return fmt.Sprintf("label the Node (wrong UID %t)", wrong), real, simulated
}
