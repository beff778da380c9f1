package admission

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// The objects as the API server has them.
const (
	registeredMachine = `{"metadata":{"namespace":"capi","name":"m1","uid":"u"},
		"spec":{"providerID":"cloud:///1"},"status":{"nodeRef":{"name":"n1"}}}`
	unregisteredClaim = `{"metadata":{"name":"c1","uid":"u"},"status":{"providerID":"cloud:///1",
		"conditions":[{"type":"Registered","status":"False"}]}}`
)

// machineReview returns the review of the deletion of a Machine or of a NodeClaim.
func machineReview(kind, object string, change func(*admissionv1.AdmissionRequest)) admissionv1.AdmissionReview {
	return deletionReview(etcdNode(), func(r *admissionv1.AdmissionRequest) {
		r.Kind = metav1.GroupVersionKind{Group: machine.ClusterAPIGroup, Version: "v1beta2", Kind: kind}
		r.Namespace, r.Name = "capi", "m1"
		if kind == machine.KindNodeClaim {
			r.Kind.Group, r.Kind.Version, r.Namespace, r.Name = machine.KarpenterGroup, "v1", "", "c1"
		}
		r.OldObject = runtime.RawExtension{Raw: []byte(object)}
	}, change)
}

// machineNode returns an etcd node with a provider ID.
func machineNode(name, providerID string) corev1.Node {
	node := etcdNode()
	node.Name, node.Spec.ProviderID = name, providerID
	return *node
}

func TestMachines(t *testing.T) {
	lost := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay"}
	kept := quorum.Decision{Allowed: true, Reason: quorum.QuorumKept, Message: "2 of 3 stay"}
	nothing := quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}
	const (
		standsLine = "\nMachine capi/m1 stands for node n1: both have the provider ID cloud:///1."

		stands  = "1 of 3 would stay" + standsLine
		warning = "Warning DeletionRefused user alice may not delete Machine capi/m1 of this node: " + stands
		unknown = "Holdfast does not know whether this machine has a node with etcd, so its deletion is allowed."
	)
	unlabelled := machineNode("n1", "cloud:///1")
	unlabelled.Labels = nil
	overridden := machineNode("n1", "cloud:///1")
	overridden.Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1")
	deleting := machineNode("n1", "cloud:///1")
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Now()}

	for name, c := range map[string]struct {
		kind, object string // the Machine m1 by default
		change       func(*admissionv1.AdmissionRequest)
		nodes        []corev1.Node // n1 by default
		live         *corev1.Node  // as in the cache by default
		liveErr      error
		cacheErr     error
		decision     quorum.Decision
		decisions    map[string]quorum.Decision
		err          error
		panics       bool

		allowed  bool
		code     int32 // 200 by default
		message  string
		warning  string
		event    string
		reviewed []string
	}{
		"refused": {
			decision: lost, code: 403, message: stands, event: warning, reviewed: []string{"n1"},
		},
		"allowed": {
			decision: kept, allowed: true, message: "2 of 3 stay", reviewed: []string{"n1"},
			event: "Normal DeletionAllowed user alice may delete Machine capi/m1 of this node: 2 of 3 stay",
		},
		"v1beta1": {
			change: func(r *admissionv1.AdmissionRequest) { r.Kind.Version = "v1beta1" },
			object: `{"metadata":{"namespace":"capi","name":"m1","uid":"u"},
				"status":{"nodeRef":{"kind":"Node","name":"n1","uid":"uid-1"}}}`,
			decision: lost, code: 403, reviewed: []string{"n1"},
			message: "1 of 3 would stay\nMachine capi/m1 stands for node n1: it names the Node in status.nodeRef.",
		},
		// F41: Karpenter ended the machine of an unregistered NodeClaim without a request for the Node.
		"F41 NodeClaim that is not registered": {
			kind: machine.KindNodeClaim, object: unregisteredClaim, decision: lost, code: 403, reviewed: []string{"n1"},
			message: "1 of 3 would stay\nNodeClaim c1 stands for node n1: both have the provider ID cloud:///1.",
		},
		"NodeClaim with a Node": {
			kind: machine.KindNodeClaim, object: `{"metadata":{"name":"c1","uid":"u"},"status":{"nodeName":"n1"}}`,
			decision: lost, code: 403, reviewed: []string{"n1"},
			message: "1 of 3 would stay\nNodeClaim c1 stands for node n1: it names the Node in status.nodeName.",
		},
		"F42 Node of another cluster": {
			nodes: []corev1.Node{machineNode("n1", "cloud:///9")}, decision: lost, allowed: true,
			message: "Machine capi/m1 stands for no node with etcd",
		},
		"F42 Node replaced after the cache": {
			nodes: []corev1.Node{machineNode("n1", "cloud:///1")}, live: new(machineNode("n1", "cloud:///9")),
			decision: lost, allowed: true, message: "Machine capi/m1 stands for no node with etcd",
		},
		"no Node": {
			nodes: []corev1.Node{}, decision: lost, allowed: true, message: "Machine capi/m1 stands for no node with etcd",
		},
		"F90 Node is not in the cache": {
			object: `{"metadata":{"namespace":"capi","name":"m1","uid":"u"},"spec":{"providerID":"cloud:///1"},
				"status":{"nodeRef":{"kind":"Node","name":"n1","uid":"uid-1"}}}`,
			nodes: []corev1.Node{}, live: new(machineNode("n1", "cloud:///1")), decision: lost, code: 403, message: stands,
			event: warning, reviewed: []string{"n1"},
		},
		"F90 other Node of that name in the cache": {
			object: `{"metadata":{"namespace":"capi","name":"m1","uid":"u"},"spec":{"providerID":"cloud:///1"},
				"status":{"nodeRef":{"kind":"Node","name":"n1","uid":"uid-1"}}}`,
			nodes: []corev1.Node{machineNode("n1", "cloud:///9")}, live: new(machineNode("n1", "cloud:///1")),
			decision: lost, code: 403, message: stands, event: warning, reviewed: []string{"n1"},
		},
		// F92: the watch of Nodes hung, and the cache had only an earlier Node of the Machine.
		"F92 Node is not in the cache, an earlier Node of the machine is": {
			object: `{"metadata":{"namespace":"capi","name":"m1","uid":"u"},"spec":{"providerID":"cloud:///1"},
				"status":{"nodeRef":{"kind":"Node","name":"n1","uid":"uid-1"}}}`,
			nodes: []corev1.Node{machineNode("n0", "cloud:///1")}, live: new(machineNode("n1", "cloud:///1")),
			decision: lost, code: 403, message: stands, event: warning, reviewed: []string{"n1"},
		},
		"no provider ID and no Node": {
			object:   `{"metadata":{"namespace":"capi","name":"m1","uid":"u"}}`,
			nodes:    []corev1.Node{machineNode("n1", "")},
			decision: lost, allowed: true, message: "Machine capi/m1 stands for no node with etcd",
		},
		"two Nodes, second refused": {
			nodes:     []corev1.Node{machineNode("n0", "cloud:///1"), machineNode("n1", "cloud:///1")},
			decisions: map[string]quorum.Decision{"n0": kept, "n1": lost}, code: 403, message: stands, event: warning,
			reviewed: []string{"n0", "n1"},
		},
		"two Nodes, one without etcd": {
			nodes: []corev1.Node{
				{ObjectMeta: metav1.ObjectMeta{Name: "n0", UID: "0"}, Spec: corev1.NodeSpec{ProviderID: "cloud:///1"}},
				machineNode("n1", "cloud:///1"),
			},
			decisions: map[string]quorum.Decision{"n0": nothing, "n1": lost}, code: 403, message: stands, event: warning,
			reviewed: []string{"n0", "n1"},
		},
		"Node without the label": {
			nodes: []corev1.Node{unlabelled}, decision: nothing, allowed: true, reviewed: []string{"n1"},
			message: "Machine capi/m1 stands for no node with etcd",
		},
		"Node without the label, bound": {
			nodes: []corev1.Node{unlabelled}, decision: lost, code: 403, message: stands, event: warning,
			reviewed: []string{"n1"},
		},
		"new label": { // The entry for other nodes would allow after the error.
			nodes: []corev1.Node{unlabelled}, live: new(machineNode("n1", "cloud:///1")), err: errors.New("timeout"),
			code: 503, message: cannotDecideMessage("timeout") + standsLine, reviewed: []string{"n1"},
			event: "Warning DeletionRefused user alice may not delete Machine capi/m1 of this node: " +
				cannotDecideMessage("timeout") + standsLine,
		},
		"Node being deleted, Machine with the hook": {
			object: `{"metadata":{"namespace":"capi","name":"m1","uid":"u",
				"annotations":{"` + machine.HookAnnotation + `":""}},"spec":{"providerID":"cloud:///1"}}`,
			nodes: []corev1.Node{deleting}, decision: lost, allowed: true,
			message: "Machine capi/m1 stands for no node with etcd",
		},
		"F72 Node being deleted, Machine without the hook": {
			nodes: []corev1.Node{deleting}, decision: lost, code: 403, message: stands, event: warning,
			reviewed: []string{"n1"},
		},
		"F72 Node being deleted, NodeClaim": {
			kind: machine.KindNodeClaim, object: `{"metadata":{"name":"c1","uid":"u"},"status":{"providerID":"cloud:///1"}}`,
			nodes: []corev1.Node{deleting}, decision: lost, code: 403, reviewed: []string{"n1"},
			message: "1 of 3 would stay\nNodeClaim c1 stands for node n1: both have the provider ID cloud:///1.",
			event: "Warning DeletionRefused user alice may not delete NodeClaim c1 of this node: 1 of 3 would stay" +
				"\nNodeClaim c1 stands for node n1: both have the provider ID cloud:///1.",
		},
		"Machine being deleted": {
			object: `{"metadata":{"namespace":"capi","name":"m1","uid":"u","deletionTimestamp":"2026-11-22T00:00:00Z"},
				"spec":{"providerID":"cloud:///1"}}`,
			decision: lost, allowed: true,
		},
		"break-glass override": {
			nodes:    []corev1.Node{overridden},
			decision: quorum.Decision{Allowed: true, Reason: quorum.BreakGlassUsed, Message: "until noon"},
			allowed:  true, message: "until noon", reviewed: []string{"n1"},
			event: "Warning DeletionAllowed user alice deletes Machine capi/m1 of this node with a break-glass override: " +
				"until noon",
		},
		"dry run": {
			change:   func(r *admissionv1.AdmissionRequest) { r.DryRun = new(true) },
			decision: lost, code: 403, message: stands, reviewed: []string{"n1"},
		},
		"reviewer error": {
			err: errors.New("timeout"), code: 503, reviewed: []string{"n1"},
			message: cannotDecideMessage("timeout") + standsLine,
			event: "Warning DeletionRefused user alice may not delete Machine capi/m1 of this node: " +
				cannotDecideMessage("timeout") + standsLine,
		},
		"Node that cannot be read": {
			nodes: []corev1.Node{machineNode("n1", "cloud:///1")}, liveErr: errors.New("timeout"), decision: kept, code: 503,
			message: `Node "n1" cannot be read: timeout. ` +
				"Try again; if the problem persists, check that the API server answers." + standsLine,
		},
		"Node without etcd that cannot be read": {
			nodes: []corev1.Node{unlabelled}, liveErr: errors.New("timeout"), decision: nothing, allowed: true,
			message: "Machine capi/m1 stands for no node with etcd", reviewed: []string{"n1"},
		},
		"panic": {
			panics: true, code: 500, reviewed: []string{"n1"},
			message: "holdfast failed with an internal error; see the log of the Holdfast webhook, and report the error. " +
				"Until this is resolved, deletions of nodes with the label holdfast.dev/etcd-member are refused." +
				standsLine,
		},
		"no cache": {
			cacheErr: errors.New("not synced"), decision: lost, allowed: true,
			warning: "holdfast cannot list the nodes. " + unknown,
		},
		"F90 no cache, Machine that names its Node": {
			object: `{"metadata":{"namespace":"capi","name":"m1","uid":"u"},"spec":{"providerID":"cloud:///1"},
				"status":{"nodeRef":{"kind":"Node","name":"n1","uid":"uid-1"}}}`,
			nodes: []corev1.Node{}, cacheErr: errors.New("not synced"), live: new(machineNode("n1", "cloud:///1")),
			decision: lost, allowed: true,
			warning: "holdfast cannot list the nodes. " + unknown,
		},
		"other kind": {
			kind: "MachinePool", decision: lost, allowed: true,
			warning: `this review is not about the deletion of a Machine or NodeClaim: the kind is "MachinePool" of group ` +
				`"cluster.x-k8s.io", version "v1beta2". ` + unknown,
		},
		"other old object": {
			change:   func(r *admissionv1.AdmissionRequest) { r.Name = "m2" },
			decision: lost, allowed: true,
			warning: `this review is not about the deletion of a Machine or NodeClaim: it names "m2" in namespace "capi", ` +
				`but its old object is Machine capi/m1. ` + unknown,
		},
		"account without a name": {
			change:   func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = "" },
			decision: lost, code: 403, message: stands, reviewed: []string{"n1"},
			event: "Warning DeletionRefused user  may not delete Machine capi/m1 of this node: " + stands,
		},
		"deletecollection": {
			change:   func(r *admissionv1.AdmissionRequest) { r.Name = "" },
			decision: lost, code: 403, message: stands, event: warning, reviewed: []string{"n1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.cached, f.live, f.liveErr, f.cacheErr = c.nodes, c.live, c.liveErr, c.cacheErr
			if c.nodes == nil {
				f.cached = []corev1.Node{machineNode("n1", "cloud:///1")}
			}
			f.decision, f.decisions, f.err, f.panics = c.decision, c.decisions, c.err, c.panics
			kind, object := c.kind, c.object
			if kind == "" {
				kind = machine.KindMachine
			}
			if object == "" {
				object = registeredMachine
			}
			response := f.post(MachinePath, machineReview(kind, object, c.change))
			require.Equal(t, c.allowed, response.Allowed)
			require.Equal(t, max(c.code, 200), response.Result.Code)
			require.Equal(t, c.message, response.Result.Message)
			if c.warning != "" {
				require.Equal(t, []string{c.warning}, response.Warnings)
			}
			if c.event != "" || c.allowed {
				require.Equal(t, c.event, f.event())
			}
			var reviewed []string
			for _, request := range f.requests {
				reviewed = append(reviewed, request.Node)
				require.Equal(t, response.Allowed && name == "break-glass override", request.BreakGlass != nil)
			}
			require.Equal(t, c.reviewed, reviewed)
		})
	}
}

// TestF80MachineReviewHasNoVersion: a grant for one version of a Node ends when the Node is
// written. The machine of a NodeClaim ends nevertheless, so its review is about no version.
func TestF80MachineReviewHasNoVersion(t *testing.T) {
	for kind, object := range map[string]string{
		machine.KindMachine: registeredMachine, machine.KindNodeClaim: unregisteredClaim,
	} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t)
			f.live.Spec.ProviderID, f.live.ResourceVersion = "cloud:///1", "7"
			f.decision = quorum.Decision{Allowed: true, Reason: quorum.QuorumKept}
			require.True(t, f.post(MachinePath, machineReview(kind, object, nil)).Allowed)
			require.Len(t, f.requests, 1)
			require.Empty(t, f.requests[0].Version)
		})
	}
}
