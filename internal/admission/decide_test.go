package admission

import (
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

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestJudgedDeletions(t *testing.T) {
	soon := time.Now().Add(time.Minute).UTC().Truncate(time.Second)
	glass := fmt.Sprintf(`{"uid":"uid-1","until":%q,"reason":"host burnt down"}`, soon.Format(time.RFC3339))
	wrongGlass := strings.Replace(glass, "uid-1", "uid-0", 1)
	with := func(change func(*corev1.Node)) *corev1.Node {
		node := etcdNode()
		change(node)
		return node
	}
	kept := protect.Ruling{Allowed: true, Reason: protect.QuorumKept, Message: "2 of 3 stay", Warnings: []string{"no further one may be lost"}}
	lost := protect.Ruling{Reason: protect.QuorumWouldBeLost, Message: "1 of 3 would stay; remove the member first"}

	for name, c := range map[string]struct {
		path     string
		node     *corev1.Node // in the review and live
		change   func(*admissionv1.AdmissionRequest)
		ruling   protect.Ruling
		err      error
		allowed  bool
		code     int32
		message  string
		warnings []string
		event    string
		glass    bool

		unverified []string
	}{
		"allowed": {
			path: EtcdNodePath, ruling: kept, allowed: true, code: 200, message: "2 of 3 stay", warnings: kept.Warnings,
			event: "Normal DeletionAllowed user alice may delete this node: 2 of 3 stay",
		},
		"refused": {
			path: EtcdNodePath, ruling: lost, code: 403, message: lost.Message,
			event: "Warning DeletionRefused user alice may not delete this node: " + lost.Message,
		},
		"a server there has never said who it is": {
			path: EtcdNodePath, node: with(func(n *corev1.Node) { n.Annotations[protect.UnverifiedAnnotation] = `["process 9"]` }), unverified: []string{"process 9"},
			ruling: lost, code: 403, message: lost.Message, event: "Warning DeletionRefused user alice may not delete this node: " + lost.Message,
		},
		"unlabelled, and a server there has never said who it is": {
			path: NodePath, node: with(func(n *corev1.Node) { n.Annotations[protect.UnverifiedAnnotation] = `["process 9"]` }), unverified: []string{"process 9"},
			ruling: lost, code: 403, message: lost.Message, event: "Warning DeletionRefused user alice may not delete this node: " + lost.Message,
		},
		"deletecollection sends no name": {
			path: EtcdNodePath, change: func(r *admissionv1.AdmissionRequest) { r.Name = "" }, ruling: lost, code: 403, message: lost.Message,
			event: "Warning DeletionRefused user alice may not delete this node: " + lost.Message,
		},
		"dry run makes no event": {
			path: EtcdNodePath, change: func(r *admissionv1.AdmissionRequest) { yes := true; r.DryRun = &yes }, ruling: kept,
			allowed: true, code: 200, message: "2 of 3 stay", warnings: kept.Warnings,
		},
		"the judge fails": {
			path: EtcdNodePath, err: errors.New("listing EtcdClusters: timeout"), code: 503,
			message: `holdfast cannot decide whether node "n1" may be deleted: listing EtcdClusters: timeout. Try again; if this lasts, see the log of the holdfast webhook.`,
			event:   `Warning DeletionRefused user alice may not delete this node: holdfast cannot decide whether node "n1" may be deleted: listing EtcdClusters: timeout. Try again; if this lasts, see the log of the holdfast webhook.`,
		},
		"the judge fails and says allowed": {
			path: EtcdNodePath, ruling: kept, err: errors.New("writing the grant: conflict"), code: 503,
			message: `holdfast cannot decide whether node "n1" may be deleted: writing the grant: conflict. Try again; if this lasts, see the log of the holdfast webhook.`,
			event:   `Warning DeletionRefused user alice may not delete this node: holdfast cannot decide whether node "n1" may be deleted: writing the grant: conflict. Try again; if this lasts, see the log of the holdfast webhook.`,
		},
		"the judge fails with a sentence": {
			path: EtcdNodePath, ruling: protect.Ruling{Reason: protect.CannotDecide, Message: "holdfast cannot decide"}, err: errors.New("no"), code: 503,
			message: "holdfast cannot decide", event: "Warning DeletionRefused user alice may not delete this node: holdfast cannot decide",
		},
		"the glass is broken": {
			path: EtcdNodePath, node: with(func(n *corev1.Node) { n.Annotations[protect.BreakGlassAnnotation] = glass }),
			ruling: protect.Ruling{Allowed: true, Reason: protect.BreakGlassUsed, Message: "until noon"}, allowed: true, code: 200, message: "until noon", glass: true,
			event: "Warning DeletionAllowed user alice deletes this node by breaking the glass: until noon",
		},
		"the glass is broken and the announcement with it": {
			path: EtcdNodePath, node: with(func(n *corev1.Node) {
				n.Annotations = map[string]string{protect.BreakGlassAnnotation: glass, protect.AnnouncementAnnotation: "["}
			}),
			ruling: protect.Ruling{Allowed: true, Reason: protect.BreakGlassUsed, Message: "until noon"}, allowed: true, code: 200, message: "until noon", glass: true,
			event: "Warning DeletionAllowed user alice deletes this node by breaking the glass: until noon",
		},
		"a break-glass of another node is named in the refusal": {
			path: EtcdNodePath, node: with(func(n *corev1.Node) { n.Annotations[protect.BreakGlassAnnotation] = wrongGlass }),
			ruling: lost, code: 403, message: lost.Message + "\nThe break-glass annotation on this node does not count: ", event: "Warning DeletionRefused ",
		},
		"unlabelled, nothing there": {
			path: NodePath, ruling: protect.Ruling{Allowed: true, Reason: protect.NothingToProtect}, allowed: true, code: 200,
		},
		"unlabelled, a member there": {
			path: NodePath, ruling: protect.Ruling{Reason: protect.UnknownMember, Message: "label missing"}, code: 403, message: "label missing",
			event: "Warning DeletionRefused user alice may not delete this node: label missing",
		},
		"unlabelled, cache not read": {
			path: NodePath, err: errors.New("cache not started"), allowed: true, code: 200,
			warnings: []string{"holdfast cannot read what it knows of etcd: cache not started. The node does not carry the label holdfast.dev/etcd-member, so its deletion is allowed."},
		},
		"unlabelled, a member there and the grant not written": {
			path: NodePath, ruling: protect.Ruling{Reason: protect.CannotDecide, Message: "the grant could not be written"}, err: errors.New("no"), code: 503,
			message: "the grant could not be written", event: "Warning DeletionRefused user alice may not delete this node: the grant could not be written",
		},
		"unlabelled, the glass is broken": {
			path: NodePath, node: with(func(n *corev1.Node) { n.Annotations[protect.BreakGlassAnnotation] = glass }),
			ruling: protect.Ruling{Allowed: true, Reason: protect.BreakGlassUsed, Message: "until noon"}, allowed: true, code: 200, message: "until noon", glass: true,
			event: "Warning DeletionAllowed user alice deletes this node by breaking the glass: until noon",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if c.node != nil {
				s.live = c.node
			}
			s.ruling, s.err = c.ruling, c.err
			got := s.post(c.path, deletion(s.live, c.change))
			require.Equal(t, "review-1", string(got.UID))
			require.Equal(t, c.allowed, got.Allowed)
			require.Equal(t, c.code, got.Result.Code)
			require.True(t, strings.HasPrefix(got.Result.Message, c.message), got.Result.Message)
			require.Equal(t, c.warnings, got.Warnings)
			event := s.event()
			require.True(t, event == c.event || strings.HasSuffix(c.event, " ") && strings.HasPrefix(event, c.event), event)

			require.Len(t, s.asked, 1)
			q := s.asked[0]
			require.Equal(t, "alice", q.User)
			require.Equal(t, "n1", q.Request.Node)
			require.Equal(t, "uid-1", string(q.Request.UID))
			require.Equal(t, []string{"10.0.0.1", "n1"}, q.Request.Addresses)
			require.Equal(t, c.glass, q.BreakGlass != nil)
			require.Equal(t, c.unverified, q.Request.Unverified)
			require.Equal(t, name == "dry run makes no event", q.DryRun)
			if _, broken := s.live.Annotations[protect.BreakGlassAnnotation]; !broken {
				require.Equal(t, []protect.MemberRef{{Cluster: "cd", Member: "3a"}}, q.Request.Announced)
			}
			limit := map[string]time.Duration{EtcdNodePath: 8 * time.Second, NodePath: 2 * time.Second}[c.path]
			require.InDelta(t, limit.Seconds(), s.left.Seconds(), 1)
		})
	}
}

// TestEveryReviewOfOneDeletionIsJudged: the API server asks anew whenever the Node was written meanwhile, and under
// preconditions at every try, each time with another request UID. Each answer must write the grant anew.
func TestEveryReviewOfOneDeletionIsJudged(t *testing.T) {
	s := newSite(t)
	s.ruling = protect.Ruling{Allowed: true, Reason: protect.QuorumKept}
	written := etcdNode()
	for i := range 3 {
		written.ResourceVersion = fmt.Sprint(i)
		got := s.post(EtcdNodePath, deletion(written, func(r *admissionv1.AdmissionRequest) {
			r.UID = types.UID(fmt.Sprint("review-", i))
			r.Options.Raw = []byte(`{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","preconditions":{"uid":"uid-1"}}`)
		}))
		require.True(t, got.Allowed)
		require.EqualValues(t, fmt.Sprint("review-", i), got.UID)
	}
	require.Len(t, s.asked, 3)
	for _, q := range s.asked {
		require.EqualValues(t, "uid-1", q.Request.UID, "the key of them all")
	}
	s.ruling = protect.Ruling{Reason: protect.QuorumWouldBeLost, Message: "no"}
	require.False(t, s.post(EtcdNodePath, deletion(written, nil)).Allowed, "what was allowed before is no reason")
}

func TestDeletionsThatAreNotJudged(t *testing.T) {
	deleting := etcdNode()
	deleting.DeletionTimestamp, deleting.Finalizers = &metav1.Time{Time: time.Now()}, []string{"karpenter.sh/termination"}
	reborn := etcdNode()
	reborn.UID = "uid-2"
	garbled, unverified := etcdNode(), etcdNode()
	garbled.Annotations[protect.AnnouncementAnnotation] = `[{"cluster":"0"`
	unverified.Annotations[protect.UnverifiedAnnotation] = `[7]`

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
		"deleted already":                     {path: EtcdNodePath, review: deletion(deleting, nil), live: deleting, allowed: true, code: 200},
		"deleted already, unlabelled":         {path: NodePath, review: deletion(deleting, nil), live: deleting, allowed: true, code: 200},
		"deleted in the meantime":             {path: EtcdNodePath, review: deletion(etcdNode(), nil), live: deleting, allowed: true, code: 200, reads: 1},
		"a Node that is not there":            {path: EtcdNodePath, review: deletion(etcdNode(), nil), code: 409, message: `there is no Node "n1" with UID uid-1 any more.`, reads: 1},
		"a forged UID":                        {path: EtcdNodePath, review: deletion(etcdNode(), nil), live: reborn, code: 409, message: `there is no Node "n1" with UID uid-1 any more.`, reads: 1},
		"the Node cannot be read":             {path: EtcdNodePath, review: deletion(etcdNode(), nil), liveErr: errors.New("etcdserver: no leader"), code: 503, message: `the Node "n1" cannot be read: etcdserver: no leader.`, reads: 1},
		"an announcement that cannot be read": {path: EtcdNodePath, review: deletion(etcdNode(), nil), live: garbled, code: 503, message: `what node "n1" says of its etcd members cannot be read: `, reads: 1},
		"servers that cannot be read":         {path: EtcdNodePath, review: deletion(etcdNode(), nil), live: unverified, code: 503, message: `what node "n1" says of its etcd members cannot be read: parsing annotation holdfast.dev/etcd-unverified`, reads: 1},
		"garbage":                             {path: EtcdNodePath, review: "{", code: 400, message: "couldn't get version/kind"},
		"no request":                          {path: EtcdNodePath, review: `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, code: 400, message: `this review is not about the deletion of a Node: the operation is ""`},
		"an update":                           {path: EtcdNodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), code: 400, message: `this review is not about the deletion of a Node: the operation is "UPDATE"`},
		"a Pod":                               {path: EtcdNodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "Pod" }), code: 400, message: `this review is not about the deletion of a Node: the kind is "Pod"`},
		"a Node of another group":             {path: EtcdNodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "metrics.k8s.io" }), code: 400, message: `this review is not about the deletion of a Node: the kind is "Node" of group "metrics.k8s.io"`},
		"a subresource":                       {path: EtcdNodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }), code: 400, message: `this review is not about the deletion of a Node: it is about the subresource "status"`},
		"no old object":                       {path: EtcdNodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = nil }), code: 400, message: "this review is not about the deletion of a Node: it has no old object"},
		"an old object that is no Node":       {path: EtcdNodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = []byte(`{"spec":7}`) }), code: 400, message: "this review is not about the deletion of a Node: parsing the old object: "},
		"an old object without a name":        {path: EtcdNodePath, review: deletion(&corev1.Node{}, nil), code: 400, message: "this review is not about the deletion of a Node: the old object has no name or no UID"},
		"two names":                           {path: EtcdNodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.Name = "n2" }), code: 400, message: `this review is not about the deletion of a Node: it names "n2", and its old object is "n1"`},
		"an update, unlabelled":               {path: NodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), allowed: true, code: 200, warning: `this review is not about the deletion of a Node: the operation is "UPDATE". `},
		"no old object, unlabelled":           {path: NodePath, review: deletion(etcdNode(), func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = nil }), allowed: true, code: 200, warning: "this review is not about the deletion of a Node: it has no old object. "},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.live, s.liveErr = c.live, c.liveErr
			s.ruling = protect.Ruling{Allowed: true, Reason: protect.NothingToProtect}
			got := s.post(c.path, c.review)
			require.Equal(t, c.allowed, got.Allowed)
			require.Equal(t, c.code, got.Result.Code)
			require.True(t, strings.HasPrefix(got.Result.Message, c.message), got.Result.Message)
			require.Equal(t, c.warning != "", len(got.Warnings) == 1, got.Warnings)
			if c.warning != "" {
				require.True(t, strings.HasPrefix(got.Warnings[0], c.warning), got.Warnings)
			}
			require.Empty(t, s.asked, "nobody may be asked, since a question may write a grant")
			require.Equal(t, c.reads, s.reads)
			if event := s.event(); c.code != http.StatusServiceUnavailable {
				require.Empty(t, event)
			}
		})
	}
}
