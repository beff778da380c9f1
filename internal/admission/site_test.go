package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
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
