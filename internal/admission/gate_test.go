package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// judge answers as it is told to.
type judge struct {
	labelled, unlabelled func(ctx context.Context, q protect.Question) (protect.Ruling, error)
}

func (j judge) Judge(ctx context.Context, q protect.Question) (protect.Ruling, error) {
	return j.labelled(ctx, q)
}

func (j judge) JudgeUnlabelled(ctx context.Context, q protect.Question) (protect.Ruling, error) {
	return j.unlabelled(ctx, q)
}

// site is a Gate behind HTTP, with one live Node.
type site struct {
	t      *testing.T
	url    string
	events *record.FakeRecorder
	log    *bytes.Buffer
	meters *prometheus.Registry
	gate   *Gate

	live *corev1.Node // nil: there is none
	// liveErr is what reading it gives instead.
	liveErr error
	reads   int
	ruling  protect.Ruling
	err     error
	// boom panics in the judge.
	boom  bool
	asked []protect.Question
	left  time.Duration // the time that the judge was given
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, events: record.NewFakeRecorder(10), log: &bytes.Buffer{}, meters: prometheus.NewRegistry(), live: etcdNode()}
	answer := func(labelled bool) func(context.Context, protect.Question) (protect.Ruling, error) {
		return func(ctx context.Context, q protect.Question) (protect.Ruling, error) {
			require.Equal(t, labelled, q.Request.Labelled)
			deadline, _ := ctx.Deadline()
			s.asked, s.left = append(s.asked, q), time.Until(deadline)
			if s.boom {
				panic("boom")
			}
			return s.ruling, s.err
		}
	}
	var err error
	s.gate, err = New(Options{
		Judge: judge{labelled: answer(true), unlabelled: answer(false)},
		Node: func(_ context.Context, name string) (*corev1.Node, error) {
			s.reads++
			switch {
			case s.liveErr != nil:
				return nil, s.liveErr
			case s.live == nil || s.live.Name != name:
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
			}
			return s.live.DeepCopy(), nil
		},
		Events: s.events, Log: slog.New(slog.NewJSONHandler(s.log, nil)), Registerer: s.meters,
	})
	require.NoError(t, err)
	mux := http.NewServeMux()
	require.NoError(t, s.gate.Mount(mux))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func etcdNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "uid-1",
			Labels:      map[string]string{protect.EtcdMemberLabel: protect.EtcdMemberLabelValue},
			Annotations: map[string]string{protect.AnnouncementAnnotation: `[{"cluster":"cd","member":"3a"}]`},
		},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "n1"}}},
	}
}

// deletion is the review of a DELETE as kube-apiserver sends it.
func deletion(node *corev1.Node, change func(*admissionv1.AdmissionRequest)) admissionv1.AdmissionReview {
	raw, err := json.Marshal(node)
	if err != nil {
		panic(err)
	}
	no := false
	request := &admissionv1.AdmissionRequest{
		UID: "review-1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Node"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "nodes"}, Name: node.Name, Operation: admissionv1.Delete,
		UserInfo: authenticationv1.UserInfo{Username: "alice"}, OldObject: runtime.RawExtension{Raw: raw}, DryRun: &no,
	}
	if change != nil {
		change(request)
	}
	return admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request}
}

func (s *site) post(path string, body any) *admissionv1.AdmissionResponse {
	s.t.Helper()
	text, isText := body.(string)
	if !isText {
		raw, err := json.Marshal(body)
		require.NoError(s.t, err)
		text = string(raw)
	}
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, strings.NewReader(text))
	require.NoError(s.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, response.Body.Close()) }()
	require.Equal(s.t, http.StatusOK, response.StatusCode)
	var review admissionv1.AdmissionReview
	require.NoError(s.t, json.NewDecoder(response.Body).Decode(&review))
	require.NotNil(s.t, review.Response)
	return review.Response
}

func (s *site) event() string {
	select {
	case e := <-s.events.Events:
		return e
	default:
		return ""
	}
}

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
	}{
		"allowed": {
			path: EtcdNodePath, ruling: kept, allowed: true, code: 200, message: "2 of 3 stay", warnings: kept.Warnings,
			event: "Normal DeletionAllowed user alice may delete this node: 2 of 3 stay",
		},
		"refused": {
			path: EtcdNodePath, ruling: lost, code: 403, message: lost.Message,
			event: "Warning DeletionRefused user alice may not delete this node: " + lost.Message,
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
			if _, broken := s.live.Annotations[protect.BreakGlassAnnotation]; !broken {
				require.Equal(t, []protect.MemberRef{{Cluster: "cd", Member: "3a"}}, q.Request.Announced)
			}
			limit := map[string]time.Duration{EtcdNodePath: 8 * time.Second, NodePath: 2 * time.Second}[c.path]
			require.InDelta(t, limit.Seconds(), s.left.Seconds(), 1)
		})
	}
}

func TestDeletionsThatAreNotJudged(t *testing.T) {
	deleting := etcdNode()
	deleting.DeletionTimestamp, deleting.Finalizers = &metav1.Time{Time: time.Now()}, []string{"karpenter.sh/termination"}
	reborn := etcdNode()
	reborn.UID = "uid-2"
	garbled := etcdNode()
	garbled.Annotations[protect.AnnouncementAnnotation] = `[{"cluster":"0"`

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

func TestOnlyTheLiveNodeBreaksTheGlass(t *testing.T) {
	forged := etcdNode()
	forged.Annotations[protect.BreakGlassAnnotation] = fmt.Sprintf(`{"uid":"uid-1","until":%q,"reason":"x"}`, time.Now().Add(time.Minute).Format(time.RFC3339))
	for _, path := range []string{EtcdNodePath, NodePath} {
		t.Run(path, func(t *testing.T) {
			s := newSite(t)
			s.ruling = protect.Ruling{Reason: protect.QuorumWouldBeLost, Message: "no"}
			require.False(t, s.post(path, deletion(forged, nil)).Allowed)
			require.Len(t, s.asked, 1)
			require.Nil(t, s.asked[0].BreakGlass)
		})
	}
}

func TestPanics(t *testing.T) {
	s := newSite(t)
	s.boom = true
	refused := s.post(EtcdNodePath, deletion(etcdNode(), nil))
	require.False(t, refused.Allowed)
	require.EqualValues(t, 500, refused.Result.Code)
	allowed := s.post(NodePath, deletion(etcdNode(), nil))
	require.True(t, allowed.Allowed, "an answer of ours is never ignored, so it must be the one that Ignore would give")
	require.Contains(t, s.log.String(), `"panic":"boom"`)
}

func TestWhatIsToldOfAnswers(t *testing.T) {
	s := newSite(t)
	s.ruling = protect.Ruling{Allowed: true, Reason: protect.NothingToProtect}
	s.post(NodePath, deletion(etcdNode(), nil))
	require.Empty(t, s.log.String(), "a worker that goes is no news")
	s.ruling = protect.Ruling{Reason: protect.QuorumWouldBeLost, Message: "remove the member first"}
	for range 2 {
		s.log.Reset()
		s.post(EtcdNodePath, deletion(etcdNode(), nil))
		var line map[string]any
		require.NoError(t, json.Unmarshal(s.log.Bytes(), &line), "each refusal is one line")
		require.Subset(t, line, map[string]any{
			"msg": "node deletion refused", "node": "n1", "node_uid": "uid-1", "user": "alice", "request_uid": "review-1", "dry_run": false,
			"verdict": "refused", "reason": "QuorumWouldBeLost", "message": "remove the member first", "path": EtcdNodePath,
		})
	}
	families, err := s.meters.Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "holdfast_webhook_admissions_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			counts[strings.Join(labels, " ")] = m.GetCounter().GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"path=/validate-etcd-node reason=QuorumWouldBeLost verdict=refused": 2,
		"path=/validate-node reason=NothingToProtect verdict=allowed":       1,
	}, counts)
}

// FuzzReviews looks for a review that brings the process down, or that the fail-closed entry lets pass without a ruling.
func FuzzReviews(f *testing.F) {
	for _, change := range []func(*admissionv1.AdmissionRequest){
		nil, func(r *admissionv1.AdmissionRequest) { r.Name = "" }, func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = []byte("null") },
	} {
		raw, err := json.Marshal(deletion(etcdNode(), change))
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`))
	gate, err := New(Options{
		Judge: judge{
			labelled: func(_ context.Context, q protect.Question) (protect.Ruling, error) {
				if q.Request.Node == "" || q.Request.UID == "" {
					return protect.Ruling{Allowed: true}, nil
				}
				return protect.Ruling{}, nil
			},
			unlabelled: func(context.Context, protect.Question) (protect.Ruling, error) { return protect.Ruling{}, nil },
		},
		Node:   func(context.Context, string) (*corev1.Node, error) { return etcdNode(), nil },
		Events: &record.FakeRecorder{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(f, err)
	mux := http.NewServeMux()
	require.NoError(f, gate.Mount(mux))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{EtcdNodePath, NodePath} {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
			request.Header.Set("Content-Type", "application/json")
			recorder := httptest.NewRecorder()
			mux.ServeHTTP(recorder, request)
			var review admissionv1.AdmissionReview
			require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &review))
			if path == EtcdNodePath && review.Response.Allowed {
				require.Contains(t, string(body), "deletionTimestamp")
			}
		}
	})
}
