package admission

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// paddedReview returns the review of a deletion with a length in bytes.
func paddedReview(t *testing.T, length int) []byte {
	t.Helper()
	raw, err := json.Marshal(deletionReview(etcdNode(), nil))
	require.NoError(t, err)
	return append(raw, bytes.Repeat([]byte{' '}, length-len(raw))...)
}

// A reply is a response of the server without a review.
type reply struct {
	status  int
	header  http.Header
	isClose bool // the server closes the connection
	text    string
}

// send posts a body and returns the reply. Without a declared length the body is chunked.
func (f *fixture) send(path string, body []byte, isDeclared bool) reply {
	f.t.Helper()
	reader := io.Reader(bytes.NewReader(body))
	if !isDeclared {
		reader = io.MultiReader(reader)
	}
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+path, reader)
	require.NoError(f.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(f.t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	require.NoError(f.t, response.Body.Close())
	return reply{
		status: response.StatusCode, header: response.Header, isClose: response.Close, text: string(text),
	}
}

func (f *fixture) rejected(reason string) int {
	f.t.Helper()
	families, err := f.registry.Gather()
	require.NoError(f.t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "holdfast_webhook_requests_rejected_total" && m.GetLabel()[0].GetValue() == reason {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func TestBodyLimit(t *testing.T) {
	for _, isDeclared := range []bool{true, false} {
		f := newFixture(t)
		f.decision = quorum.Decision{Allowed: true, Reason: quorum.NothingToProtect}
		require.Equal(t, http.StatusOK, f.send(NodePath, paddedReview(t, 3<<20), isDeclared).status)
		require.Len(t, f.requests, 1)
		rejected := f.send(NodePath, paddedReview(t, 3<<20+1), isDeclared)
		require.Equal(t, http.StatusRequestEntityTooLarge, rejected.status)
		require.Contains(t, rejected.text, "larger than 3145728 bytes")
		require.Len(t, f.requests, 1)
		require.Equal(t, 1, f.rejected("TooLarge"))
	}
}

// TestBusyEntry fills one entry with reviews that do not end. The entry must answer the next
// review at once, and the other entry must review as usual.
func TestBusyEntry(t *testing.T) {
	decision := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}
	for _, path := range []string{EtcdNodePath, NodePath, EvictionPath} {
		t.Run(path, func(t *testing.T) {
			f := newFixture(t)
			sent := func(int) admissionv1.AdmissionReview { return deletionReview(etcdNode(), dryRun) }
			if path == EvictionPath {
				sent = func(i int) admissionv1.AdmissionReview { return evictionOf(guard.Name(fmt.Sprint("n", i))) }
				f.haveAll()
			}
			began, finish := make(chan struct{}), make(chan struct{})
			var running errgroup.Group
			defer func() {
				close(finish)
				require.NoError(t, running.Wait())
			}()
			blocked := func(context.Context, quorum.Request) (quorum.Decision, error) {
				began <- struct{}{}
				<-finish
				return decision, nil
			}
			atOnce := func(context.Context, quorum.Request) (quorum.Decision, error) { return decision, nil }
			f.handler.Reviewer = fakeReviewer{labelled: blocked, unlabelled: atOnce} // a drain is labelled
			other := NodePath
			if path == NodePath {
				f.handler.Reviewer, other = fakeReviewer{labelled: atOnce, unlabelled: blocked}, EtcdNodePath
			}
			const most = maxReviewBytes / minReviewCost
			for i := range most {
				running.Go(func() error {
					answer := f.post(path, sent(i))
					if answer.Allowed || answer.Result.Message != "no" {
						return fmt.Errorf("the answer is %v", answer)
					}
					return nil
				})
				<-began
			}
			require.Equal(t, "no", f.post(other, deletionReview(etcdNode(), dryRun)).Result.Message)

			rejected := f.send(path, paddedReview(t, 10<<10), true)
			if path != NodePath {
				var review admissionv1.AdmissionReview
				require.NoError(t, json.Unmarshal([]byte(rejected.text), &review))
				require.EqualValues(t, "review-1", review.Response.UID)
				require.Contains(t, review.Response.Result.Message, "Try again")
				if path == EtcdNodePath {
					require.EqualValues(t, 1, review.Response.Result.Details.RetryAfterSeconds)
					review.Response.Result.Details.RetryAfterSeconds = 0
				}
				requireRetriable(t, review.Response)
			} else {
				require.Equal(t, http.StatusTooManyRequests, rejected.status)
				require.Equal(t, "1", rejected.header.Get("Retry-After"))
				require.True(t, rejected.isClose, "the API server would try the same replica again")
			}
			require.Equal(t, 1, f.rejected("Busy"))
		})
	}
}

// evictionOf returns a dry run of the eviction of the pod with this name.
func evictionOf(pod string) admissionv1.AdmissionReview {
	return evictionReview(func(r *admissionv1.AdmissionRequest) {
		*r.DryRun, r.Name = true, pod
		r.Object.Raw = []byte(`{"apiVersion":"policy/v1","kind":"Eviction"}`)
	})
}

// haveAll makes every Node exist, with its guard pod.
func (f *fixture) haveAll() {
	f.handler.Node = func(_ context.Context, name string) (*corev1.Node, error) {
		n := etcdNode()
		n.Name = name
		return n, nil
	}
	f.handler.Pod = func(_ context.Context, _, name string) (*corev1.Pod, error) {
		p := guardPod()
		p.Name, p.Spec.NodeName = name, strings.TrimPrefix(name, guard.NamePrefix)
		return p, nil
	}
}

// TestFloodOfKubelet: root on a node has the token of its kubelet, and sends as many requests about
// its own Node or pod as it can. Those about others are reviewed as usual.
func TestFloodOfKubelet(t *testing.T) {
	marker := func(node string) admissionv1.AdmissionReview {
		n := etcdNode()
		n.Name = node
		return removalReview(n, k3sMarker, "true", func(r *admissionv1.AdmissionRequest) { *r.DryRun, r.Name = true, node })
	}
	for path, about := range map[string]func(name string) admissionv1.AdmissionReview{
		RemovalPath:  marker,
		EvictionPath: func(node string) admissionv1.AdmissionReview { return evictionOf(guard.Name(node)) },
	} {
		t.Run(path, func(t *testing.T) {
			f := newFixture(t)
			f.haveAll()
			began, finish := make(chan struct{}), make(chan struct{})
			f.handler.Reviewer = fakeReviewer{labelled: func(context.Context, quorum.Request) (quorum.Decision, error) {
				began <- struct{}{}
				<-finish
				return quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}, nil
			}}
			var running errgroup.Group
			review := func(name string) {
				running.Go(func() error {
					if answer := f.post(path, about(name)); answer.Result.Message != "no" {
						return fmt.Errorf("the answer is %v", answer)
					}
					return nil
				})
				<-began
			}
			for range maxObjectReviews {
				review("evil")
			}
			rejected := f.post(path, about("evil"))
			require.Contains(t, rejected.Result.Message, "Try again")
			requireRetriable(t, rejected)
			require.Equal(t, 1, f.rejected("Busy"))
			review("etcd-2")
			close(finish)
			require.NoError(t, running.Wait())
			require.Empty(t, f.handler.underReview.count)
		})
	}
}

// TestLargeReviewsAreBusy has fewer reviews than an entry reviews at once. Their size counts too.
func TestLargeReviewsAreBusy(t *testing.T) {
	f := newFixture(t)
	began, finish := make(chan struct{}), make(chan struct{})
	var running errgroup.Group
	defer func() {
		close(finish)
		require.NoError(t, running.Wait())
	}()
	f.handler.Reviewer = fakeReviewer{labelled: func(context.Context, quorum.Request) (quorum.Decision, error) {
		began <- struct{}{}
		<-finish
		return quorum.Decision{}, nil
	}}
	for range 2 {
		running.Go(func() error {
			f.send(EtcdNodePath, paddedReview(t, maxBody), true)
			return nil
		})
		<-began
	}
	require.Contains(t, f.send(EtcdNodePath, paddedReview(t, maxBody), true).text, "Try again")
}

// startPost sends a request without its body.
func (f *fixture) startPost(header string) net.Conn {
	f.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() }) // the test or the server may have closed it
	_, err = io.WriteString(conn, "POST "+EtcdNodePath+" HTTP/1.1\r\nHost: x\r\n"+header+"\r\n\r\n")
	require.NoError(f.t, err)
	return conn
}

// TestLargeBodies has clients that never end a large body. The server must reject the next large
// one at once, and review as usual what has the size of a Node.
func TestLargeBodies(t *testing.T) {
	f := newFixture(t)
	f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "no"}
	var slow []net.Conn
	for range maxLargeBodies {
		conn := f.startPost("Transfer-Encoding: chunked\r\nExpect: 100-continue")
		status, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, status, "100 Continue", "the server reads the body")
		slow = append(slow, conn)
	}
	large := paddedReview(t, usualBody+1)
	rejected := f.send(EtcdNodePath, large, true)
	require.Equal(t, http.StatusTooManyRequests, rejected.status)
	require.Equal(t, "1", rejected.header.Get("Retry-After"))
	require.True(t, rejected.isClose, "the API server would try the same replica again")
	require.Equal(t, 1, f.rejected("Busy"))
	require.Equal(t, http.StatusTooManyRequests, f.send(NodePath, paddedReview(t, 10<<10), false).status, "no size")
	require.Equal(t, http.StatusOK, f.send(EtcdNodePath, paddedReview(t, usualBody), true).status)

	for _, conn := range slow {
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool { return f.send(EtcdNodePath, large, true).status == http.StatusOK },
		10*time.Second, time.Millisecond)
}

// TestSlowBody sends no body. The server must not wait for it.
func TestSlowBody(t *testing.T) {
	f := newFixture(t)
	mux := http.NewServeMux()
	require.NoError(t, f.handler.Mount(mux))
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout = time.Second
	server.Start()
	t.Cleanup(server.Close)
	f.url = server.URL
	conn := f.startPost("Content-Length: 100")
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(answer), "HTTP/1.1 408 Request Timeout")
	require.Equal(t, 1, f.rejected("TooSlow"))
}
