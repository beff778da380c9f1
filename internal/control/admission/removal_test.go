package admission

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const k3sMarker, rke2Marker = "etcd.k3s.cattle.io/remove", "etcd.rke2.cattle.io/remove"

// removalReview returns the review of an update of a Node, as kube-apiserver sends it, that sets an
// annotation.
func removalReview(
	node *corev1.Node, key, value string, change func(*admissionv1.AdmissionRequest),
) admissionv1.AdmissionReview {
	return deletionReview(node, func(r *admissionv1.AdmissionRequest) {
		updated := node.DeepCopy()
		updated.Annotations[key] = value
		raw, err := json.Marshal(updated)
		if err != nil {
			panic(err)
		}
		r.Operation, r.Object = admissionv1.Update, runtime.RawExtension{Raw: raw}
	}, change)
}

func TestReviewedRemovals(t *testing.T) {
	kept := quorum.Decision{
		Allowed: true, Reason: quorum.QuorumKept, Message: "2 of 2 stay", Warnings: []string{"wait until it has left"},
	}
	lost := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 2 would stay"}
	const refusedEvent = "Warning RemovalRefused user alice may not remove the member of this node: "
	cannotDecide := strings.Replace(cannotDecideMessage("timeout"), "deleted", "marked for the removal of its member", 1)
	for name, c := range map[string]struct {
		node         func(*corev1.Node)
		key          string
		change       func(*admissionv1.AdmissionRequest)
		decision     quorum.Decision
		err          error
		message      string
		code         int32
		event        string
		isUnlabelled bool
		check        func(*testing.T, quorum.Request)
	}{
		"allowed": {
			node:     func(n *corev1.Node) { n.ResourceVersion = "7" },
			decision: kept, code: 200, message: kept.Message,
			event: "Normal RemovalAllowed user alice may remove the member of this node: 2 of 2 stay",
			check: func(t *testing.T, r quorum.Request) { require.Equal(t, "7", r.Version) },
		},
		"refused": {decision: lost, code: 403, message: lost.Message, event: refusedEvent + lost.Message},
		"RKE2": {
			key: rke2Marker, decision: lost, code: 403, message: lost.Message, event: refusedEvent + lost.Message,
			check: func(t *testing.T, r quorum.Request) { require.True(t, r.StopsFirst) },
		},
		"by a write to the status": {
			change:   func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" },
			decision: lost, code: 403, message: lost.Message, event: refusedEvent + lost.Message,
		},
		"dry run": {
			change:   dryRun,
			decision: lost, code: 403, message: lost.Message,
			check: func(t *testing.T, r quorum.Request) { require.True(t, r.DryRun) },
		},
		"Node being deleted": {
			node:     func(n *corev1.Node) { n.DeletionTimestamp, n.Finalizers = new(metav1.Now()), []string{"a/b"} },
			decision: lost, code: 403, message: lost.Message, event: refusedEvent + lost.Message,
		},
		"break-glass": {
			node:     func(n *corev1.Node) { n.Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1") },
			decision: quorum.Decision{Allowed: true, Reason: quorum.BreakGlassUsed, Message: "override"},
			code:     200, message: "override",
			event: "Warning RemovalAllowed user alice removes the member of this node with a break-glass override: override",
			check: func(t *testing.T, r quorum.Request) { require.NotNil(t, r.BreakGlass) },
		},
		"error": {err: errors.New("timeout"), code: 503, message: cannotDecide, event: refusedEvent + cannotDecide},
		"without the label": {
			node:         func(n *corev1.Node) { delete(n.Labels, observation.EtcdMemberLabel) },
			isUnlabelled: true, decision: lost, code: 403, message: lost.Message, event: refusedEvent + lost.Message,
		},
		"without the label, Node being deleted": {
			node: func(n *corev1.Node) {
				n.DeletionTimestamp, n.Finalizers = new(metav1.Now()), []string{"a/b"}
				delete(n.Labels, observation.EtcdMemberLabel)
			},
			isUnlabelled: true, decision: lost, code: 403, message: lost.Message, event: refusedEvent + lost.Message,
		},
		"without the label, no member": {
			node:         func(n *corev1.Node) { delete(n.Labels, observation.EtcdMemberLabel) },
			isUnlabelled: true, decision: quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}, code: 200,
		},
		"without the label, unknown": {
			node:         func(n *corev1.Node) { delete(n.Labels, observation.EtcdMemberLabel) },
			isUnlabelled: true, err: errors.New("timeout"), code: 503,
			message: `Holdfast does not know whether node "n1" has etcd`,
			event:   refusedEvent + `Holdfast does not know whether node "n1" has etcd`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if c.node != nil {
				c.node(f.live)
			}
			f.decision, f.err = c.decision, c.err
			if c.key == "" {
				c.key = k3sMarker
			}
			got := f.post(RemovalPath, removalReview(f.live, c.key, "true", c.change))
			require.Equal(t, c.code, got.Result.Code, got.Result.Message)
			require.Equal(t, c.code == 200, got.Allowed)
			require.True(t, strings.HasPrefix(got.Result.Message, c.message), got.Result.Message)
			if event := f.event(); c.event == "" {
				require.Empty(t, event)
			} else {
				require.True(t, strings.HasPrefix(event, c.event), event)
			}
			require.Len(t, f.requests, 1)
			r := f.requests[0]
			require.Equal(t, !c.isUnlabelled, r.Labelled)
			require.Equal(t, quorum.DoorRemove, r.Door)
			if c.check != nil {
				c.check(t, r)
			}
		})
	}
}

// Updates that need no decision, and requests that are no such updates. Nothing may reach the
// Reviewer: a review could write a grant.
func TestOtherUpdates(t *testing.T) {
	type request = admissionv1.AdmissionRequest
	const notUpdate = "this review is not about the removal of an etcd member: "
	for name, c := range map[string]struct {
		value   string
		change  func(*request)
		fixture func(*fixture)
		code    int32
		message string
	}{
		"marker cancelled": {value: "false", code: 200},
		"odd value":        {value: "yes", code: 200},
		"already set": {
			code: 200, fixture: func(f *fixture) { f.live.Annotations[k3sMarker] = "true" },
		},
		"k3s has removed the member": {
			code: 200, fixture: func(f *fixture) { f.live.Annotations[k3sMarker] = "true" },
			change: func(r *request) {
				r.Object.Raw = []byte(strings.Replace(string(r.Object.Raw), `"annotations":{`,
					`"annotations":{"etcd.k3s.cattle.io/removed-node-name":"m",`, 1))
			},
		},
		"Node gone": {
			fixture: func(f *fixture) { f.live.UID = "uid-2" }, code: 409,
			change: func(r *request) {
				r.OldObject.Raw = []byte(strings.Replace(string(r.OldObject.Raw), "uid-2", "uid-1", 1))
				r.Object.Raw = []byte(strings.Replace(string(r.Object.Raw), "uid-2", "uid-1", 1))
			},
			message: `Node "n1" with UID uid-1 no longer exists`,
		},
		"Node unreadable": {
			fixture: func(f *fixture) { f.liveErr = errors.New("timeout") }, code: 503,
			message: `Node "n1" cannot be read: timeout`,
		},
		"deletion": {
			change: func(r *request) { r.Operation = admissionv1.Delete }, code: 400,
			message: notUpdate + `the operation is "DELETE"`,
		},
		"other kind": {
			change: func(r *request) { r.Kind.Kind = "Pod" }, code: 400, message: notUpdate + `the kind is "Pod"`,
		},
		"other subresource": {
			change: func(r *request) { r.SubResource = "proxy" }, code: 400,
			message: notUpdate + `it is about the subresource "proxy"`,
		},
		"no old object": {
			change: func(r *request) { r.OldObject.Raw = nil }, code: 400, message: notUpdate + "parsing the objects",
		},
		"no object": {
			change: func(r *request) { r.Object.Raw = []byte(`{}`) }, code: 400, message: notUpdate + `it names "n1", but its`,
		},
		"another Node": {
			change: func(r *request) { r.Name = "n2" }, code: 400, message: notUpdate + `it names "n2", but its`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.decision = quorum.Decision{Allowed: true, Reason: quorum.QuorumKept}
			if c.fixture != nil {
				c.fixture(f)
			}
			if c.value == "" {
				c.value = "true"
			}
			got := f.post(RemovalPath, removalReview(f.live, k3sMarker, c.value, c.change))
			require.Equal(t, c.code, got.Result.Code, got.Result.Message)
			require.Equal(t, c.code == 200, got.Allowed)
			require.Contains(t, got.Result.Message, c.message)
			require.Empty(t, f.requests)
		})
	}
	f := newFixture(t)
	f.panics = true
	got := f.post(RemovalPath, removalReview(f.live, k3sMarker, "true", nil))
	require.False(t, got.Allowed)
	require.Contains(t, got.Result.Message, "Until this is resolved, no etcd member can be removed in this way")
}
