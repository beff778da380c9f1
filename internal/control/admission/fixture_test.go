package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A fakeReviewer returns what the test sets.
type fakeReviewer struct {
	labelled, unlabelled func(ctx context.Context, req quorum.Request) (quorum.Decision, error)
	together             func(ctx context.Context, requests []quorum.Request) (quorum.Decision, error)
}

func (r fakeReviewer) Review(ctx context.Context, req quorum.Request) (quorum.Decision, error) {
	return r.labelled(ctx, req)
}

func (r fakeReviewer) ReviewUnlabelled(ctx context.Context, req quorum.Request) (quorum.Decision, error) {
	return r.unlabelled(ctx, req)
}

func (r fakeReviewer) ReviewTogether(ctx context.Context, requests []quorum.Request) (quorum.Decision, error) {
	return r.together(ctx, requests)
}

// A fixture is a Handler behind HTTP, with one live Node.
type fixture struct {
	t        *testing.T
	url      string
	events   *record.FakeRecorder
	log      *bytes.Buffer
	registry *prometheus.Registry
	handler  *Handler

	live *corev1.Node // nil if there is none
	// pod is the live pod, nil if there is none. podErr is the error of reading it.
	pod    *corev1.Pod
	podErr error
	// liveErr is the error of reading the Node.
	liveErr error
	// cached are the Nodes of the cache, nil for the live one.
	cached   []corev1.Node
	cacheErr error
	reads    atomic.Int64
	// onRead is called before each read of a Node.
	onRead   func()
	decision quorum.Decision
	// decisions are those about single Nodes, by name. The others get the one above.
	decisions map[string]quorum.Decision
	err       error
	// panics makes the Reviewer panic.
	panics bool
	// during is called while the Reviewer decides.
	during   func()
	requests []quorum.Request
	// sent is when the last review was sent, asked when the Reviewer got it, and deadline is its
	// deadline.
	sent, asked, deadline time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, events: record.NewFakeRecorder(10), log: &bytes.Buffer{}, registry: prometheus.NewRegistry(),
		live: etcdNode(), pod: guardPod(),
	}
	answer := func(labelled bool) func(context.Context, quorum.Request) (quorum.Decision, error) {
		return func(ctx context.Context, req quorum.Request) (quorum.Decision, error) {
			require.Equal(t, labelled, req.Labelled || req.Door == quorum.DoorDrain)
			f.requests, f.asked = append(f.requests, req), time.Now()
			f.deadline, _ = ctx.Deadline()
			if f.panics {
				panic("boom")
			}
			if f.during != nil {
				f.during()
			}
			if d, ok := f.decisions[req.Node]; ok {
				return d, f.err
			}
			return f.decision, f.err
		}
	}
	f.handler = New(Options{
		Reviewer: fakeReviewer{labelled: answer(true), unlabelled: answer(false)},
		Node: func(ctx context.Context, name string) (*corev1.Node, error) {
			require.NotEmpty(t, name)
			f.reads.Add(1)
			if f.onRead != nil {
				f.onRead()
			}
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case f.liveErr != nil:
				return nil, f.liveErr
			case f.cached != nil && f.live == nil:
				return f.cachedNode(name)
			case f.live == nil || f.live.Name != name:
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
			}
			return f.live.DeepCopy(), nil
		},
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case f.podErr != nil:
				return nil, f.podErr
			case f.pod == nil || f.pod.Namespace != namespace || f.pod.Name != name:
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
			}
			return f.pod.DeepCopy(), nil
		},
		Nodes: func(context.Context) ([]*corev1.Node, error) {
			if f.cached == nil && f.live != nil {
				return []*corev1.Node{f.live}, f.cacheErr
			}
			var nodes []*corev1.Node
			for i := range f.cached {
				nodes = append(nodes, &f.cached[i])
			}
			return nodes, f.cacheErr
		},
		Events: f.events, Log: slog.New(slog.NewJSONHandler(f.log, nil)), Registerer: f.registry,
	})
	mux := http.NewServeMux()
	require.NoError(t, f.handler.Mount(mux))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// liveNodes is the list of a review of a machine.
func (f *fixture) liveNodes(context.Context) ([]*corev1.Node, error) {
	return []*corev1.Node{f.live}, f.cacheErr
}

// cachedNode returns a Node of the cache, for tests without a live Node of their own.
func (f *fixture) cachedNode(name string) (*corev1.Node, error) {
	for i := range f.cached {
		if f.cached[i].Name == name {
			return f.cached[i].DeepCopy(), nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
}

func etcdNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "uid-1",
			Labels:      map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue},
			Annotations: map[string]string{observation.AnnouncementAnnotation: `[{"cluster":"cd","member":"3a"}]`},
		},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
			{Type: corev1.NodeHostName, Address: "n1"},
		}},
	}
}

// guardPod returns the guard pod of the Node.
func guardPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: guard.Namespace, Name: guard.Name("n1")},
		Spec:       corev1.PodSpec{NodeName: "n1"},
	}
}

// evictionReview returns the review of an eviction of the guard pod as kube-apiserver sends it.
func evictionReview(change func(*admissionv1.AdmissionRequest)) admissionv1.AdmissionReview {
	return deletionReview(etcdNode(), func(r *admissionv1.AdmissionRequest) {
		r.Kind = metav1.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}
		r.Resource, r.SubResource = metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, "eviction"
		r.Namespace, r.Name, r.Operation = guard.Namespace, guard.Name("n1"), admissionv1.Create
		r.OldObject = runtime.RawExtension{}
		r.Object.Raw = []byte(`{"apiVersion":"policy/v1","kind":"Eviction",` +
			`"metadata":{"name":"holdfast-guard-n1","namespace":"holdfast-system"},"deleteOptions":{}}`)
	}, change)
}

// deletionReview returns the review of a DELETE as kube-apiserver sends it, with these changes. A
// nil change is none.
func deletionReview(node *corev1.Node, changes ...func(*admissionv1.AdmissionRequest)) admissionv1.AdmissionReview {
	raw, err := json.Marshal(node)
	if err != nil {
		panic(err)
	}
	request := &admissionv1.AdmissionRequest{
		UID: "review-1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Node"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "nodes"}, Name: node.Name,
		Operation: admissionv1.Delete, DryRun: new(false),
		UserInfo: authenticationv1.UserInfo{Username: "alice"}, OldObject: runtime.RawExtension{Raw: raw},
	}
	for _, change := range changes {
		if change != nil {
			change(request)
		}
	}
	return admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	}
}

// dryRun makes a request a dry run.
func dryRun(r *admissionv1.AdmissionRequest) { *r.DryRun = true }

// breakGlassOf returns a valid break-glass annotation of the Node with this UID.
func breakGlassOf(uid string) string {
	soon := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
	return fmt.Sprintf(`{"uid":%q,"until":%q,"reason":"host is gone"}`, uid, soon)
}

func (f *fixture) post(path string, body any) *admissionv1.AdmissionResponse {
	f.t.Helper()
	text, isText := body.(string)
	if !isText {
		raw, err := json.Marshal(body)
		require.NoError(f.t, err)
		text = string(raw)
	}
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+path, strings.NewReader(text))
	require.NoError(f.t, err)
	request.Header.Set("Content-Type", "application/json")
	f.sent = time.Now()
	response, err := http.DefaultClient.Do(request)
	require.NoError(f.t, err)
	defer func() { require.NoError(f.t, response.Body.Close()) }()
	require.Equal(f.t, http.StatusOK, response.StatusCode)
	var review admissionv1.AdmissionReview
	require.NoError(f.t, json.NewDecoder(response.Body).Decode(&review))
	require.NotNil(f.t, review.Response)
	return review.Response
}

// requireTime requires that the Reviewer had this time, from a moment between the request and its
// arrival at the Reviewer.
func (f *fixture) requireTime(limit time.Duration) {
	f.t.Helper()
	begun := f.deadline.Add(-limit)
	require.False(f.t, begun.Before(f.sent) || begun.After(f.asked), "%s from %s to %s", begun, f.sent, f.asked)
}

func (f *fixture) event() string {
	select {
	case e := <-f.events.Events:
		return e
	default:
		return ""
	}
}
