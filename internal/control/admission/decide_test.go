package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// The beginnings of the events on Nodes.
const (
	refusedPrefix  = "Warning DeletionRefused user alice may not delete this node: "
	overridePrefix = "Warning DeletionAllowed user alice deletes this node with a break-glass override: "
)

func cannotDecideMessage(err string) string {
	return `holdfast cannot decide whether node "n1" may be deleted: ` + err +
		". This says nothing about its etcd. Try again; if the problem persists, see the log of the Holdfast webhook."
}

// F16: a DELETE had no name or object, made several calls, or was a dry run.
func TestReviewedDeletions(t *testing.T) {
	with := func(change func(*corev1.Node)) *corev1.Node {
		node := etcdNode()
		change(node)
		return node
	}
	overriding := func(uid string) *corev1.Node {
		return with(func(n *corev1.Node) { n.Annotations[quorum.BreakGlassAnnotation] = breakGlassOf(uid) })
	}
	kept := quorum.Decision{
		Allowed: true, Reason: quorum.QuorumKept, Message: "2 of 3 stay",
		Warnings: []string{"no further one may be lost"},
	}
	lost := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay; remove the member first"}

	for name, c := range map[string]struct {
		path     string
		node     *corev1.Node // in the review and in the API server
		change   func(*admissionv1.AdmissionRequest)
		decision quorum.Decision
		err      error
		allowed  bool
		code     int32
		message  string
		warnings []string
		event    string
		override bool

		unverified []string
	}{
		"allowed": {
			path: EtcdNodePath, decision: kept, allowed: true, code: 200, message: "2 of 3 stay", warnings: kept.Warnings,
			event: "Normal DeletionAllowed user alice may delete this node: 2 of 3 stay",
		},
		"refused": {
			path: EtcdNodePath, decision: lost, code: 403, message: lost.Message,
			event: refusedPrefix + lost.Message,
		},
		"unverified server": {
			path:       EtcdNodePath,
			node:       with(func(n *corev1.Node) { n.Annotations[observation.UnverifiedAnnotation] = `["process 9"]` }),
			unverified: []string{"process 9"},
			decision:   lost, code: 403, message: lost.Message, event: refusedPrefix + lost.Message,
		},
		"unlabelled, unverified server": {
			path:       NodePath,
			node:       with(func(n *corev1.Node) { n.Annotations[observation.UnverifiedAnnotation] = `["process 9"]` }),
			unverified: []string{"process 9"},
			decision:   lost, code: 403, message: lost.Message, event: refusedPrefix + lost.Message,
		},
		"deletecollection": {
			path: EtcdNodePath, change: func(r *admissionv1.AdmissionRequest) { r.Name = "" }, decision: lost, code: 403,
			message: lost.Message,
			event:   refusedPrefix + lost.Message,
		},
		"dry run": {
			path: EtcdNodePath, change: dryRun, decision: kept,
			allowed: true, code: 200, message: "2 of 3 stay",
			warnings: append([]string{"holdfast.dev/QuorumKept: 2 of 3 stay"}, kept.Warnings...),
		},
		"unlabelled, dry run": {
			path: NodePath, change: dryRun,
			decision: quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}, allowed: true, code: 200,
			warnings: []string{"holdfast.dev/NothingToProtect"},
		},
		"unlabelled, unreadable cache, dry run": {
			path: NodePath, change: dryRun,
			err: errors.New("cache not started"), allowed: true, code: 200,
			warnings: []string{"holdfast.dev/NotKnown", "holdfast cannot read its EtcdClusters: cache not started. " +
				"The node does not have the label holdfast.dev/etcd-member, so its deletion is allowed."},
		},
		"reviewer error": {
			path: EtcdNodePath, err: errors.New("listing EtcdClusters: timeout"), code: 503,
			message: cannotDecideMessage("listing EtcdClusters: timeout"),
			event:   refusedPrefix + cannotDecideMessage("listing EtcdClusters: timeout"),
		},
		"reviewer error with an allow": {
			path: EtcdNodePath, decision: kept, err: errors.New("writing the grant: conflict"), code: 503,
			message: cannotDecideMessage("writing the grant: conflict"),
			event:   refusedPrefix + cannotDecideMessage("writing the grant: conflict"),
		},
		"break-glass override": {
			path: EtcdNodePath, node: overriding("uid-1"),
			decision: quorum.Decision{Allowed: true, Reason: quorum.BreakGlassUsed, Message: "until noon"}, allowed: true,
			code: 200, message: "until noon", override: true,
			event: overridePrefix + "until noon",
		},
		"break-glass override, invalid announcement": {
			path: EtcdNodePath, node: with(func(n *corev1.Node) {
				n.Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1")
				n.Annotations[observation.AnnouncementAnnotation] = "["
			}),
			decision: quorum.Decision{Allowed: true, Reason: quorum.BreakGlassUsed, Message: "until noon"}, allowed: true,
			code: 200, message: "until noon", override: true,
			event: overridePrefix + "until noon",
		},
		"break-glass override of another node": {
			path:     EtcdNodePath,
			node:     overriding("uid-0"),
			decision: lost, code: 403, message: lost.Message + "\nThe break-glass annotation on this node is ignored: ",
			event: refusedPrefix,
		},
		"unlabelled": {
			path: NodePath, decision: quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}, allowed: true, code: 200,
		},
		"unlabelled with a member": {
			path: NodePath, decision: quorum.Decision{Reason: quorum.UnknownMember, Message: "label missing"}, code: 403,
			message: "label missing",
			event:   refusedPrefix + "label missing",
		},
		"unlabelled, unreadable cache": {
			path: NodePath, err: errors.New("cache not started"), allowed: true, code: 200,
			warnings: []string{"holdfast cannot read its EtcdClusters: cache not started. " +
				"The node does not have the label holdfast.dev/etcd-member, so its deletion is allowed."},
		},
		"unlabelled with a member, failed grant": {
			path: NodePath, decision: lost, err: errors.New("no"), code: 503,
			message: cannotDecideMessage("no"), event: refusedPrefix + cannotDecideMessage("no"),
		},
		"unlabelled, break-glass override": {
			path: NodePath, node: overriding("uid-1"),
			decision: quorum.Decision{Allowed: true, Reason: quorum.BreakGlassUsed, Message: "until noon"}, allowed: true,
			code: 200, message: "until noon", override: true,
			event: overridePrefix + "until noon",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if c.node != nil {
				f.live = c.node
			}
			f.decision, f.err = c.decision, c.err
			got := f.post(c.path, deletionReview(f.live, c.change))
			require.Equal(t, "review-1", string(got.UID))
			require.Equal(t, c.allowed, got.Allowed)
			require.Equal(t, c.code, got.Result.Code)
			require.True(t, strings.HasPrefix(got.Result.Message, c.message), got.Result.Message)
			require.Equal(t, c.warnings, got.Warnings)
			event := f.event()
			require.True(t, event == c.event || c.event == refusedPrefix && strings.HasPrefix(event, refusedPrefix), event)

			require.Len(t, f.requests, 1)
			req := f.requests[0]
			require.Equal(t, "alice", req.User)
			require.Equal(t, "n1", req.Node)
			require.Equal(t, "uid-1", string(req.UID))
			require.Equal(t, []string{"10.0.0.1", "n1"}, req.Addresses)
			require.Equal(t, c.override, req.BreakGlass != nil)
			require.Equal(t, c.unverified, req.Unverified)
			require.Equal(t, strings.Contains(name, "dry run"), req.DryRun)
			if !c.allowed {
				reason, isReason := quorum.ReasonOf(got.Result.Details)
				require.True(t, isReason)
				require.Equal(t, got.AuditAnnotations["reason"], string(reason))
			}
			if _, broken := f.live.Annotations[quorum.BreakGlassAnnotation]; !broken {
				require.Equal(t, []evidence.MemberRef{{Cluster: "cd", Member: "3a"}}, req.Announced)
			}
			limit := map[string]time.Duration{EtcdNodePath: 8 * time.Second, NodePath: 2 * time.Second}[c.path]
			f.requireTime(limit)
		})
	}
}

// The API server calls the webhook again if the Node changed in the meantime, and for every
// attempt under preconditions, each time with a new request UID. The reviewer gets every review,
// with the same Node UID, and the version of the Node that may be deleted.
func TestRepeatedReviews(t *testing.T) {
	f := newFixture(t)
	f.decision = quorum.Decision{Allowed: true, Reason: quorum.QuorumKept}
	written := etcdNode()
	for i := range 3 {
		written.ResourceVersion = fmt.Sprint(i)
		got := f.post(EtcdNodePath, deletionReview(written, func(r *admissionv1.AdmissionRequest) {
			r.UID = types.UID(fmt.Sprint("review-", i))
			r.Options.Raw = []byte(`{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","preconditions":{"uid":"uid-1"}}`)
		}))
		require.True(t, got.Allowed)
		require.EqualValues(t, fmt.Sprint("review-", i), got.UID)
		require.True(t, strings.HasPrefix(f.event(), "Normal DeletionAllowed"))
	}
	require.Len(t, f.requests, 3)
	for _, req := range f.requests {
		require.EqualValues(t, "uid-1", req.UID, "all reviews have the same Node UID")
		require.Equal(t, "alice", req.User)
	}
	require.Equal(t, []string{"0", "1", "2"},
		[]string{f.requests[0].Version, f.requests[1].Version, f.requests[2].Version},
		"the versions that the API server is about to delete, not the live one")
	f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}
	require.False(t, f.post(EtcdNodePath, deletionReview(written, nil)).Allowed, "an earlier allow does not count")
}

// TestPausedReview refuses after a pause of the process, in which the Node may have gone.
func TestPausedReview(t *testing.T) {
	lost := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay"}
	again := etcdNode()
	again.UID = "uid-2"
	for name, c := range map[string]struct {
		after    *corev1.Node // the pause
		afterErr error
		code     int32
		event    string
	}{
		"the Node is gone":          {code: 409},
		"another Node has its name": {after: again, code: 409},
		"the Node exists":           {after: etcdNode(), code: 403, event: refusedPrefix + lost.Message},
		"the Node cannot be read":   {afterErr: errors.New("timeout"), code: 403, event: refusedPrefix + lost.Message},
	} {
		for _, path := range []string{EtcdNodePath, NodePath} {
			t.Run(name+", "+path, func(t *testing.T) {
				f := newFixture(t)
				f.decision, f.during = lost, func() { f.live, f.liveErr = c.after, c.afterErr }
				got := f.post(path, deletionReview(etcdNode(), nil))
				require.False(t, got.Allowed)
				require.Equal(t, c.code, got.Result.Code)
				require.Equal(t, c.event, f.event())
			})
		}
	}
	// The deadline of the entry has passed during the pause.
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.live = nil
	e := entry{deadline: time.Minute, decide: f.handler.decideEtcdNode}
	a := f.handler.decideInTime(ctx, e, &review{node: etcdNode()})
	require.Equal(t, nodeGone, a.Reason)
}

func TestUnreviewedDeletions(t *testing.T) {
	deleting := etcdNode()
	deleting.DeletionTimestamp, deleting.Finalizers = &metav1.Time{Time: time.Now()}, []string{"karpenter.sh/termination"}
	replaced := etcdNode()
	replaced.UID = "uid-2"
	invalid, unverified := etcdNode(), etcdNode()
	invalid.Annotations[observation.AnnouncementAnnotation] = `[{"cluster":"0"`
	unverified.Annotations[observation.UnverifiedAnnotation] = `[7]`

	const notNodeDeletion = "this review is not about the deletion of a Node: "
	plain := deletionReview(etcdNode(), nil)
	changedReview := func(change func(*admissionv1.AdmissionRequest)) admissionv1.AdmissionReview {
		return deletionReview(etcdNode(), change)
	}
	for name, c := range map[string]struct {
		path    string
		review  any
		live    *corev1.Node
		liveErr error
		allowed bool
		code    int32
		message string
		warning string
		reads   int
	}{
		"already deleting": {
			path: EtcdNodePath, review: deletionReview(deleting, nil), live: deleting,
			allowed: true, code: 200,
		},
		"already deleting, unlabelled": {
			path: NodePath, review: deletionReview(deleting, nil), live: deleting,
			allowed: true, code: 200,
		},
		"deleting in the meantime": {
			path: EtcdNodePath, review: plain, live: deleting, allowed: true, code: 200,
			reads: 1,
		},
		"missing Node": {
			path: EtcdNodePath, review: plain, code: 409,
			message: `Node "n1" with UID uid-1 no longer exists.`, reads: 1,
		},
		"forged UID": {
			path: EtcdNodePath, review: plain, live: replaced, code: 409,
			message: `Node "n1" with UID uid-1 no longer exists.`, reads: 1,
		},
		"unreadable Node": {
			path: EtcdNodePath, review: plain, liveErr: errors.New("etcdserver: no leader"),
			code: 503, message: `Node "n1" cannot be read: etcdserver: no leader.`, reads: 2,
		},
		"invalid announcement": {
			path: EtcdNodePath, review: plain, live: invalid, code: 503,
			message: `the etcd members that node "n1" announces cannot be read: `, reads: 2,
		},
		"invalid list of servers": {
			path: EtcdNodePath, review: plain, live: unverified, code: 503,
			message: `the etcd members that node "n1" announces cannot be read: parsing annotation holdfast.dev/etcd-unverified`,
			reads:   2,
		},
		"invalid JSON": {path: EtcdNodePath, review: "{", code: 400, message: "couldn't get version/kind"},
		"no request": {
			path:   EtcdNodePath,
			review: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, code: 400,
			message: notNodeDeletion + `the operation is ""`,
		},
		"update": {
			path:   EtcdNodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), code: 400,
			message: notNodeDeletion + `the operation is "UPDATE"`,
		},
		"Pod": {
			path:   EtcdNodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "Pod" }), code: 400,
			message: notNodeDeletion + `the kind is "Pod"`,
		},
		"Node of another group": {
			path:   EtcdNodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "metrics.k8s.io" }), code: 400,
			message: notNodeDeletion + `the kind is "Node" of group "metrics.k8s.io"`,
		},
		"subresource": {
			path:   EtcdNodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }), code: 400,
			message: notNodeDeletion + `it is about the subresource "status"`,
		},
		"no old object": {
			path:   EtcdNodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = nil }), code: 400,
			message: notNodeDeletion + "it has no old object",
		},
		"invalid old object": {
			path:   EtcdNodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = []byte(`{"spec":7}`) }), code: 400,
			message: notNodeDeletion + "parsing the old object: ",
		},
		"old object without a name": {
			path: EtcdNodePath, review: deletionReview(&corev1.Node{}, nil), code: 400,
			message: notNodeDeletion + "the old object has no name or no UID",
		},
		"different names": {
			path:   EtcdNodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.Name = "n2" }), code: 400,
			message: notNodeDeletion + `it names "n2", but its old object is "n1"`,
		},
		"update, unlabelled": {
			path:   NodePath,
			review: changedReview(func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), allowed: true,
			code: 200, warning: notNodeDeletion + `the operation is "UPDATE". `,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.live, f.liveErr = c.live, c.liveErr
			f.decision = quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}
			got := f.post(c.path, c.review)
			require.Equal(t, c.allowed, got.Allowed)
			require.Equal(t, c.code, got.Result.Code)
			require.True(t, strings.HasPrefix(got.Result.Message, c.message), got.Result.Message)
			require.Equal(t, c.warning != "", len(got.Warnings) == 1, got.Warnings)
			if c.warning != "" {
				require.True(t, strings.HasPrefix(got.Warnings[0], c.warning), got.Warnings)
			}
			require.Empty(t, f.requests, "a review could write a grant")
			require.EqualValues(t, c.reads, f.reads.Load())
			if event := f.event(); c.code != http.StatusServiceUnavailable {
				require.Empty(t, event)
			}
		})
	}
}
