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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// F15: any user could cause a break-glass override.
func TestForgedBreakGlass(t *testing.T) {
	forged := etcdNode()
	forged.Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1")
	for _, path := range []string{EtcdNodePath, NodePath} {
		t.Run(path, func(t *testing.T) {
			f := newFixture(t)
			f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}
			require.False(t, f.post(path, deletionReview(forged, nil)).Allowed)
			require.Len(t, f.requests, 1)
			require.Nil(t, f.requests[0].BreakGlass)
		})
	}
}

func TestPanics(t *testing.T) {
	f := newFixture(t)
	f.panics = true
	refused := f.post(EtcdNodePath, deletionReview(etcdNode(), nil))
	require.False(t, refused.Allowed)
	require.EqualValues(t, 500, refused.Result.Code)
	allowed := f.post(NodePath, deletionReview(etcdNode(), nil))
	require.True(t, allowed.Allowed,
		"the API server applies failurePolicy only without an answer, so the answer must be that of Ignore")
	require.Contains(t, f.log.String(), `"panic":"boom"`)
}

func TestRecordedAnswers(t *testing.T) {
	f := newFixture(t)
	f.decision = quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}
	f.post(NodePath, deletionReview(etcdNode(), nil))
	require.Empty(t, f.log.String(), "the deletion of a worker is not logged")
	f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "remove the member first"}
	for range 2 {
		f.log.Reset()
		f.post(EtcdNodePath, deletionReview(etcdNode(), nil))
		var line map[string]any
		require.NoError(t, json.Unmarshal(f.log.Bytes(), &line), "one line for each refusal")
		require.Subset(t, line, map[string]any{
			"msg": "node deletion refused", "node": "n1", "node_uid": "uid-1", "user": "alice", "request_uid": "review-1",
			"dry_run": false,
			"verdict": "refused", "reason": "QuorumWouldBeLost", "message": "remove the member first", "path": EtcdNodePath,
		})
	}
	families, err := f.registry.Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Equal(t, map[string]float64{
		"path=/validate-etcd-node reason=QuorumWouldBeLost verdict=refused": 2,
		"path=/validate-node reason=NothingToProtect verdict=allowed":       1,
	}, f.counts())
}

// TestCountedRefusals checks that the counter behind the alert about refusals has its series from
// the start, counts refusals that the Reviewer did not make, and counts no dry run.
func TestCountedRefusals(t *testing.T) {
	f := newFixture(t)
	families, err := f.registry.Gather()
	require.NoError(t, err)
	series := fmt.Sprint(families)
	for _, reason := range append(quorum.RefusingReasons(), panicked) {
		require.Contains(t, series, `value:"`+string(reason)+`"`)
	}
	f.liveErr = errors.New("etcdserver: request timed out")
	f.post(EtcdNodePath, deletionReview(etcdNode(), dryRun))
	require.Empty(t, f.counts())
	f.post(EtcdNodePath, deletionReview(etcdNode(), nil))
	f.podErr = errors.New("forbidden")
	f.post(EvictionPath, evictionReview(nil))
	require.Equal(t, map[string]float64{
		"path=/validate-etcd-node reason=CannotDecide verdict=refused": 1,
		"path=/validate-eviction reason=CannotDecide verdict=refused":  1,
	}, f.counts())
}

// counts returns the counted answers, by their labels.
func (f *fixture) counts() map[string]float64 {
	families, err := f.registry.Gather()
	require.NoError(f.t, err)
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
			if n := m.GetCounter().GetValue(); n > 0 {
				counts[strings.Join(labels, " ")] = n
			}
		}
	}
	return counts
}

// FuzzReviews searches for a review that crashes the process, or that an entry answers
// differently from the Reviewer.
func FuzzReviews(f *testing.F) {
	deleting := etcdNode()
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for node, change := range map[*corev1.Node]func(*admissionv1.AdmissionRequest){
		etcdNode(): nil, deleting: nil,
		etcdNode(): func(r *admissionv1.AdmissionRequest) { r.Name = "" },
		etcdNode(): func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = []byte("null") },
		etcdNode(): func(r *admissionv1.AdmissionRequest) { *r.DryRun, r.Operation = true, admissionv1.Update },
	} {
		raw, err := json.Marshal(deletionReview(node, change))
		require.NoError(f, err)
		for bits := range 4 {
			f.Add(raw, byte(bits))
		}
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`), byte(1))
	f.Add([]byte(`{"apiVersion":"a/b/c","kind":"AdmissionReview",`+
		`"request":{"operation":"DELETE","oldObject":{"metadata":{"name":"n1"}}}}`), byte(2))
	var requests []quorum.Request
	var decision quorum.Decision
	var live *corev1.Node
	review := func(_ context.Context, q quorum.Request) (quorum.Decision, error) {
		requests = append(requests, q)
		return decision, nil
	}
	handler := New(Options{
		Reviewer: fakeReviewer{labelled: review, unlabelled: review},
		Node: func(_ context.Context, name string) (*corev1.Node, error) {
			if name != live.Name {
				return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
			}
			return live, nil
		},
		Events: &record.FakeRecorder{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	mux := http.NewServeMux()
	require.NoError(f, handler.Mount(mux))
	f.Fuzz(func(t *testing.T, body []byte, bits byte) {
		decision.Allowed, live = bits&1 == 1, etcdNode()
		if bits&2 == 2 {
			live = deleting
		}
		about := nodeOf(body)
		for _, path := range []string{EtcdNodePath, NodePath} {
			requests = nil
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
			request.Header.Set("Content-Type", "application/json")
			recorder := httptest.NewRecorder()
			mux.ServeHTTP(recorder, request)
			var answer admissionv1.AdmissionReview
			require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &answer))
			require.NotNil(t, answer.Response)
			isReviewed := len(requests) == 1 && requests[0].Node == about.Name && requests[0].UID == about.UID
			isDeleting := about.DeletionTimestamp != nil || (path == EtcdNodePath && bits&2 == 2 && about.UID == live.UID)
			switch {
			case path == EtcdNodePath && answer.Response.Allowed:
				require.True(t, isDeleting || (isReviewed && decision.Allowed), "allowed without a review")
			case path == NodePath && !answer.Response.Allowed && about.Name != "":
				require.True(t, isReviewed && !decision.Allowed, "refused without a review: %s", recorder.Body)
			}
			require.LessOrEqual(t, len(requests), 1)
		}
	})
}

// nodeOf returns the Node of a review, parsed without the checks of the Handler. It returns
// an empty Node if no API server could have sent the review: the webhook library refuses
// such reviews before the Handler runs.
func nodeOf(body []byte) (node corev1.Node) {
	var review admissionv1.AdmissionReview
	if json.Unmarshal(body, &review) != nil || review.Request == nil {
		return node
	}
	if _, err := schema.ParseGroupVersion(review.APIVersion); err != nil {
		return node
	}
	_ = json.Unmarshal(review.Request.OldObject.Raw, &node)
	return node
}
