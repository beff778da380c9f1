package admission

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const drainRefusedPrefix = "Warning DrainRefused user alice may not drain this node: "

func cannotDrainMessage(err string) string {
	return strings.Replace(cannotDecideMessage(err), "deleted", "drained", 1)
}

// requireRetriable requires that programs which drain nodes try again: they do so on this status,
// and client-go does not wait inside the request.
func requireRetriable(t *testing.T, got *admissionv1.AdmissionResponse) {
	t.Helper()
	require.False(t, got.Allowed)
	require.EqualValues(t, 429, got.Result.Code)
	require.Equal(t, metav1.StatusReasonTooManyRequests, got.Result.Reason)
	require.Zero(t, got.Result.Details.RetryAfterSeconds, "client-go would wait inside the request")
}

func TestReviewedEvictions(t *testing.T) {
	kept := quorum.Decision{
		Allowed: true, Reason: quorum.QuorumKept, Message: "2 of 3 stay", Warnings: []string{"no further one may be lost"},
	}
	lost := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay\nwait"}
	asDryRun := []byte(`{"metadata":{"name":"holdfast-guard-n1"},"deleteOptions":{"dryRun":["All"]}}`)
	for name, c := range map[string]struct {
		node     func(*corev1.Node)
		pod      func(*corev1.Pod)
		change   func(*admissionv1.AdmissionRequest)
		decision quorum.Decision
		err      error
		message  string
		event    string
		dryRun   bool
		override bool
		user     string
	}{
		"allowed": {decision: kept, event: "Normal DrainAllowed user alice may drain this node: 2 of 3 stay"},
		"refused": {decision: lost, message: lost.Message, event: drainRefusedPrefix + lost.Message},
		"version v1beta1": {
			change:   func(r *admissionv1.AdmissionRequest) { r.Kind.Version = "v1beta1" },
			decision: lost, message: lost.Message, event: drainRefusedPrefix + lost.Message,
		},
		"dry run in the request": {
			change: dryRun, decision: kept, dryRun: true,
		},
		"dry run in the eviction": {
			change:   func(r *admissionv1.AdmissionRequest) { r.Object.Raw = asDryRun },
			decision: lost, message: lost.Message, dryRun: true,
		},
		"reviewer error": {
			err:     errors.New("listing EtcdClusters: timeout"),
			message: cannotDrainMessage("listing EtcdClusters: timeout"),
			event:   drainRefusedPrefix + cannotDrainMessage("listing EtcdClusters: timeout"),
		},
		"reviewer error with an allow": {
			decision: kept, err: errors.New("conflict"),
			message: cannotDrainMessage("conflict"),
			event:   drainRefusedPrefix + cannotDrainMessage("conflict"),
		},
		"break-glass override": {
			node:     func(n *corev1.Node) { n.Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1") },
			decision: quorum.Decision{Allowed: true, Reason: quorum.BreakGlassUsed, Message: "until noon"}, override: true,
			event: "Warning DrainAllowed user alice drains this node with a break-glass override: until noon",
		},
		"terminating guard pod": {
			pod:      func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x"} },
			decision: lost, message: lost.Message, event: drainRefusedPrefix + lost.Message,
		},
		"guard pod with edited labels and owners": {
			pod:      func(p *corev1.Pod) { p.Labels, p.OwnerReferences = nil, nil },
			decision: lost, message: lost.Message, event: drainRefusedPrefix + lost.Message,
		},
		"node without the label": {
			node:     func(n *corev1.Node) { n.Labels = nil },
			decision: lost, message: lost.Message, event: drainRefusedPrefix + lost.Message,
		},
		"F87 Node being deleted": {
			node: func(n *corev1.Node) {
				n.DeletionTimestamp, n.Finalizers = &metav1.Time{Time: time.Now()}, []string{"x"}
			},
			decision: lost, message: lost.Message, event: drainRefusedPrefix + lost.Message,
		},
		"account without a name": {
			change:   func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = "" },
			decision: lost, message: lost.Message, user: "-",
			event: "Warning DrainRefused user  may not drain this node: " + lost.Message,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.decision, f.err = c.decision, c.err
			if c.node != nil {
				c.node(f.live)
			}
			if c.pod != nil {
				c.pod(f.pod)
			}
			got := f.post(EvictionPath, evictionReview(c.change))
			if c.decision.Allowed && c.err == nil {
				require.True(t, got.Allowed)
				if c.dryRun {
					require.Equal(t, "holdfast.dev/QuorumKept: 2 of 3 stay", got.Warnings[0])
					got.Warnings = got.Warnings[1:]
				}
				require.Equal(t, c.decision.Warnings, got.Warnings)
			} else {
				requireRetriable(t, got)
				require.Equal(t, c.message, got.Result.Message)
			}
			require.Equal(t, c.event, f.event())
			require.Len(t, f.requests, 1)
			req := f.requests[0]
			require.Equal(t, quorum.DoorDrain, req.Door)
			require.Equal(t, "n1", req.Node)
			require.EqualValues(t, "uid-1", req.UID)
			require.Empty(t, req.Version, "no version of the Node was reviewed")
			require.Equal(t, c.dryRun, req.DryRun)
			require.Equal(t, c.override, req.BreakGlass != nil)
			require.Equal(t, map[bool]string{true: "", false: "alice"}[c.user == "-"], req.User)
			f.requireTime(8 * time.Second)
		})
	}
}

func TestUnreviewedEvictions(t *testing.T) {
	const notEviction = "this review is not about the eviction of a pod: "
	type request = admissionv1.AdmissionRequest
	for name, c := range map[string]struct {
		review  any
		change  func(*request)
		fixture func(*fixture)
		allowed bool
		code    int32
		message string
	}{
		"another namespace": {change: func(r *request) { r.Namespace = "default" }, allowed: true, code: 200},
		"another pod": {
			change: func(r *request) { r.Name, r.Object.Raw = "holdfast-webhook-0", []byte(`{}`) }, allowed: true, code: 200,
		},
		"copy of a guard pod": {
			change: func(r *request) { r.Name, r.Object.Raw = "holdfast-guard-copy", []byte(`{}`) },
			fixture: func(f *fixture) {
				f.pod.Name, f.pod.Labels = "holdfast-guard-copy", map[string]string{guard.NodeLabel: "n1"}
			},
			allowed: true, code: 200,
		},
		"guard pod of no node": {fixture: func(f *fixture) { f.pod.Spec.NodeName = "" }, allowed: true, code: 200},
		"guard pod is gone": {
			fixture: func(f *fixture) { f.pod = nil }, code: 404,
			message: `pod "holdfast-guard-n1" in namespace holdfast-system does not exist`,
		},
		"node is gone": {fixture: func(f *fixture) { f.live = nil }, allowed: true, code: 200},
		"unreadable pod": {
			fixture: func(f *fixture) { f.podErr = errors.New("etcdserver: no leader") }, code: 429,
			message: `Pod "holdfast-guard-n1" cannot be read: etcdserver: no leader.`,
		},
		"unreadable Node": {
			fixture: func(f *fixture) { f.liveErr = errors.New("etcdserver: no leader") }, code: 429,
			message: `Node "n1" cannot be read: etcdserver: no leader.`,
		},
		"invalid announcement": {
			fixture: func(f *fixture) { f.live.Annotations[observation.AnnouncementAnnotation] = "[" }, code: 429,
			message: `the etcd members that node "n1" announces cannot be read: `,
		},
		"invalid JSON": {review: "{", code: 400, message: "couldn't get version/kind"},
		"no request": {
			review: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, code: 400,
			message: notEviction + `the operation is ""`,
		},
		"deletion of a pod": {
			change: func(r *request) { r.Operation = admissionv1.Delete }, code: 400,
			message: notEviction + `the operation is "DELETE"`,
		},
		"Pod": {
			change: func(r *request) { r.Kind.Kind, r.Kind.Group = "Pod", "" }, code: 400,
			message: notEviction + `the kind is "Pod"`,
		},
		"later version": {
			change: func(r *request) { r.Kind.Version = "v2" }, code: 400, message: notEviction + `the kind is "Eviction"`,
		},
		"another subresource": {
			change: func(r *request) { r.SubResource = "binding" }, code: 400,
			message: notEviction + `it is about the resource "pods", subresource "binding"`,
		},
		"no name":      {change: func(r *request) { r.Name = "" }, code: 400, message: notEviction + "it names no pod"},
		"no namespace": {change: func(r *request) { r.Namespace = "" }, code: 400, message: notEviction + "it names no pod"},
		"without a body": {
			change: func(r *request) { r.Object.Raw = nil }, code: 400, message: notEviction + "it has no object",
		},
		"invalid object": {
			change: func(r *request) { r.Object.Raw = []byte(`{"deleteOptions":7}`) }, code: 400,
			message: notEviction + "parsing the object: ",
		},
		"different names": {
			change: func(r *request) { r.Object.Raw = []byte(`{"metadata":{"name":"other"}}`) }, code: 400,
			message: notEviction + `it names "holdfast-guard-n1", but its object is "other"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.decision = quorum.Decision{Allowed: true, Reason: quorum.QuorumKept}
			if c.fixture != nil {
				c.fixture(f)
			}
			if c.review == nil {
				c.review = evictionReview(c.change)
			}
			got := f.post(EvictionPath, c.review)
			require.Equal(t, c.allowed, got.Allowed)
			require.Equal(t, c.code, got.Result.Code)
			require.True(t, strings.HasPrefix(got.Result.Message, c.message), got.Result.Message)
			require.Empty(t, f.requests, "a review could write a grant")
			if c.code == 429 {
				requireRetriable(t, got)
			}
			if name != "invalid announcement" {
				require.Empty(t, f.event())
			}
		})
	}
}

func TestUndecidedEvictions(t *testing.T) {
	f := newFixture(t)
	f.panics = true
	requireRetriable(t, f.post(EvictionPath, evictionReview(nil)))

	// The Node goes while its drain is decided.
	f = newFixture(t)
	f.decision, f.during = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}, func() { f.live = nil }
	require.True(t, f.post(EvictionPath, evictionReview(nil)).Allowed)
	require.Empty(t, f.event())
}

// TestF68NodeRegistersDuringDrain: the drain of a Node is refused, and meanwhile its kubelet
// registers again. The program that drains would go on with that machine.
func TestF68NodeRegistersDuringDrain(t *testing.T) {
	f := newFixture(t)
	f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}
	f.during = func() {
		f.live = f.live.DeepCopy()
		f.live.UID = "uid-2"
	}
	requireRetriable(t, f.post(EvictionPath, evictionReview(nil)))
}
