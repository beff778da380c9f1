package admission

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// etcdMemberReview returns the review about an EtcdMember of k0s, as kube-apiserver sends it.
func etcdMemberReview(operation admissionv1.Operation, old, updated string) admissionv1.AdmissionReview {
	return deletionReview(etcdNode(), func(r *admissionv1.AdmissionRequest) {
		r.Kind = metav1.GroupVersionKind{Group: "etcd.k0sproject.io", Version: "v1beta1", Kind: "EtcdMember"}
		r.Resource = metav1.GroupVersionResource{Group: r.Kind.Group, Version: r.Kind.Version, Resource: "etcdmembers"}
		r.Name, r.Operation = "n1", operation
		r.OldObject = runtime.RawExtension{Raw: []byte(old)}
		if updated != "" {
			r.Object = runtime.RawExtension{Raw: []byte(updated)}
		}
	})
}

// k0sMember returns the JSON form of an EtcdMember with the ID of the member on etcdNode.
func k0sMember(name, address string, leaves bool) string {
	raw, err := json.Marshal(map[string]any{
		"apiVersion": "etcd.k0sproject.io/v1beta1", "kind": "EtcdMember", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"leave": leaves}, "status": map[string]any{"peerAddress": address, "memberID": "3a"},
	})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func TestEtcdMembers(t *testing.T) {
	const update = admissionv1.Update
	stays, leaves := k0sMember("n1", "", false), k0sMember("n1", "", true)
	lost := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 2 would stay"}
	kept := quorum.Decision{Allowed: true, Reason: quorum.QuorumKept, Message: "2 of 2 stay"}
	keptMember := kept
	keptMember.Verdicts = []quorum.Verdict{{Allowed: true, Members: []v1alpha1.MemberID{"3a"}}}
	for name, c := range map[string]struct {
		operation    admissionv1.Operation
		old, updated string
		fixture      func(*fixture)
		decision     quorum.Decision
		code         int32
		message      string
		nodes        []string
	}{
		"refused":  {update, stays, leaves, nil, lost, 403, lost.Message, []string{"n1"}},
		"allowed":  {update, stays, leaves, nil, kept, 200, kept.Message, []string{"n1"}},
		"deletion": {admissionv1.Delete, stays, "", nil, lost, 403, lost.Message, []string{"n1"}},
		"deletion while it leaves": {
			admissionv1.Delete, leaves, "", nil, lost, 403, lost.Message, []string{"n1"},
		},
		"leaves already": {update, leaves, leaves, nil, lost, 200, "", nil},
		"joins again":    {update, leaves, stays, nil, lost, 200, "", nil},
		"Node of another name": {
			update, stays, leaves, func(f *fixture) { f.live.Name = "n9" }, lost, 403, lost.Message, []string{"n9"},
		},
		"another Node announces the member": {
			update, stays, leaves, func(f *fixture) {
				second := *f.live
				second.Name, second.UID = "n2", "uid-2"
				f.cached = []corev1.Node{second, *f.live}
				f.live = nil
				f.decisions = map[string]quorum.Decision{"n1": {Allowed: true, Reason: quorum.NothingToProtect}}
			}, lost, 403, lost.Message, []string{"n1", "n2"},
		},
		"a worker announces what cannot be parsed": {
			update, stays, leaves, func(f *fixture) {
				worker := *f.live.DeepCopy()
				worker.Name, worker.UID = "n2", "uid-2"
				worker.Annotations[observation.AnnouncementAnnotation] = "{"
				f.cached = []corev1.Node{worker, *f.live}
				f.live = nil
				f.decisions = map[string]quorum.Decision{"n1": keptMember}
			}, lost, 200, keptMember.Message, []string{"n1"},
		},
		"controller without a Node": {
			update, stays, leaves, func(f *fixture) { f.cached, f.live = []corev1.Node{}, nil }, lost, 200,
			"no Node has etcd member n1", nil,
		},
		"Node that has registered again": {
			update, stays, leaves, func(f *fixture) {
				f.cached = []corev1.Node{*f.live.DeepCopy()}
				f.cached[0].UID = "uid-0"
			}, kept, 409, `Node "n1" with UID uid-0 no longer exists`, []string{"n1"},
		},
		"Node that cannot be read": {
			update, stays, leaves, func(f *fixture) { f.liveErr = errors.New("timeout") }, kept, 503, "timeout", nil,
		},
		"cache that is not filled": {
			update, stays, leaves, func(f *fixture) { f.cacheErr = errors.New("not filled") }, kept, 503, "not filled", nil,
		},
		"creation":             {admissionv1.Create, stays, leaves, nil, kept, 400, `the operation is "CREATE"`, nil},
		"object of other form": {update, stays, `{"spec":{"leave":1}}`, nil, kept, 400, "parsing the EtcdMember", nil},
		"another name":         {update, k0sMember("n2", "", false), leaves, nil, kept, 400, `it names "n1"`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.decision = c.decision
			if c.fixture != nil {
				c.fixture(f)
			}
			got := f.post(RemovalPath, etcdMemberReview(c.operation, c.old, c.updated))
			require.Equal(t, c.code, got.Result.Code, got.Result.Message)
			require.Equal(t, c.code == 200, got.Allowed)
			require.Contains(t, got.Result.Message, c.message)
			var nodes []string
			for _, r := range f.requests {
				require.True(t, r.Door == quorum.DoorRemove && r.StopsFirst && r.Version == "", "no Node shows the removal")
				nodes = append(nodes, r.Node)
			}
			require.ElementsMatch(t, c.nodes, nodes)
		})
	}
}
