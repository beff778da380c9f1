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

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

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

// FuzzReviews looks for a review that brings the process down, or that either entry answers otherwise than the Judge does.
func FuzzReviews(f *testing.F) {
	deleting := etcdNode()
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	dry := true
	for node, change := range map[*corev1.Node]func(*admissionv1.AdmissionRequest){
		etcdNode(): nil, deleting: nil,
		etcdNode(): func(r *admissionv1.AdmissionRequest) { r.Name = "" },
		etcdNode(): func(r *admissionv1.AdmissionRequest) { r.OldObject.Raw = []byte("null") },
		etcdNode(): func(r *admissionv1.AdmissionRequest) { r.DryRun, r.Operation = &dry, admissionv1.Update },
	} {
		raw, err := json.Marshal(deletion(node, change))
		require.NoError(f, err)
		for says := range 4 {
			f.Add(raw, byte(says))
		}
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`), byte(1))
	f.Add([]byte(`{"apiVersion":"a/b/c","kind":"AdmissionReview","request":{"operation":"DELETE","oldObject":{"metadata":{"name":"n1"}}}}`), byte(2))
	var asked []protect.Question
	var ruling protect.Ruling
	var live *corev1.Node
	ask := func(_ context.Context, q protect.Question) (protect.Ruling, error) {
		asked = append(asked, q)
		return ruling, nil
	}
	gate, err := New(Options{
		Judge: judge{labelled: ask, unlabelled: ask},
		Node: func(_ context.Context, name string) (*corev1.Node, error) {
			if name != live.Name {
				return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
			}
			return live, nil
		},
		Events: &record.FakeRecorder{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(f, err)
	mux := http.NewServeMux()
	require.NoError(f, gate.Mount(mux))
	f.Fuzz(func(t *testing.T, body []byte, says byte) {
		ruling.Allowed, live = says&1 == 1, etcdNode()
		if says&2 == 2 {
			live = deleting
		}
		about := aboutNode(body)
		for _, path := range []string{EtcdNodePath, NodePath} {
			asked = nil
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
			request.Header.Set("Content-Type", "application/json")
			recorder := httptest.NewRecorder()
			mux.ServeHTTP(recorder, request)
			var review admissionv1.AdmissionReview
			require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), &review))
			require.NotNil(t, review.Response)
			judged := len(asked) == 1 && asked[0].Request.Node == about.Name && asked[0].Request.UID == about.UID
			isDeleting := about.DeletionTimestamp != nil || (path == EtcdNodePath && says&2 == 2 && about.UID == live.UID)
			switch {
			case path == EtcdNodePath && review.Response.Allowed:
				require.True(t, isDeleting || (judged && ruling.Allowed), "nobody judged")
			case path == NodePath && !review.Response.Allowed && about.Name != "":
				require.True(t, judged && !ruling.Allowed, "an ordinary node depends on us: %s", recorder.Body)
			}
			require.LessOrEqual(t, len(asked), 1)
		}
	})
}

// aboutNode is the Node that a review is about, read without any of the Gate's care; none if no API server could have sent
// the review, since the webhook's library refuses those before they reach the Gate.
func aboutNode(body []byte) (node corev1.Node) {
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
