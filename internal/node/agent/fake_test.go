package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// brokenTransport stands between the agent and the API server. It causes failures that no real
// server causes on demand.
type brokenTransport struct {
	mu     sync.Mutex
	broken func(*http.Request) int // returns the status of the answer, or 0 to forward the request
	next   http.RoundTripper
}

func (b *brokenTransport) set(broken func(*http.Request) int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = broken
}

func (b *brokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	broken := b.broken
	b.mu.Unlock()
	if broken == nil {
		return b.next.RoundTrip(r)
	}
	status := broken(r)
	if status == 0 {
		return b.next.RoundTrip(r)
	}
	reason := map[int]metav1.StatusReason{
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
		http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusConflict: metav1.StatusReasonConflict,
		http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
	}[status]
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"broken by the test",`+
		`"reason":%q,"code":%d}`, reason, status)
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Request: r, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}

// refuse answers writes to the agent's Node that contain a text with a status, as a policy or a
// webhook of the cluster does.
func (b *brokenTransport) refuse(code int, node, text string) {
	b.set(func(req *http.Request) int {
		if req.Method != http.MethodPatch || !strings.HasSuffix(req.URL.Path, "/nodes/"+node) {
			return 0
		}
		body, err := io.ReadAll(req.Body)
		if err != nil || strings.Contains(string(body), text) {
			return code
		}
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		return 0
	})
}

// fakeNodeAPI is an API server with one Node that goes away and comes back, in a bubble. The
// tests testServerAway and those of cmd/agent stop, kill and restart a real one. An outage of a
// minute takes no time here.
type fakeNodeAPI struct {
	mu      sync.Mutex
	node    *corev1.Node
	streams []chan watch.Event
	// silent keeps the watches open, but sends no events.
	silent bool
	// away returns the failure of a request. It is nil while the server answers.
	away func(context.Context) error
	// afterWrite is called after each write, with the lock held. Its error replaces the answer.
	afterWrite func(after *corev1.Node) error
	// answered, failed and conflicts count requests. eventReasons are the reasons of the events.
	answered, failed, conflicts int
	eventReasons                []string
}

// refuses and hangs are the two ways in which a server is away. A request that hangs ends with
// its deadline, or when the connection is found dead (HTTP/2 pings, 30 s and 15 s), even if the
// server came back earlier.
func refuses(context.Context) error { return syscall.ECONNREFUSED }

func hangs(ctx context.Context) error {
	if err := pause(ctx, 45*time.Second); err != nil {
		return err
	}
	return errors.New("http2: client connection lost")
}

// leave takes the server away. Its watches end immediately if it refuses connections. If the
// connections are dead, the watches stay open and send nothing until that is detected. The
// caller holds the lock.
func (f *fakeNodeAPI) leave(away func(context.Context) error, dead bool) {
	f.away = away
	streams := f.streams
	f.streams = nil
	end := func() {
		for _, s := range streams {
			close(s)
		}
	}
	if dead {
		time.AfterFunc(45*time.Second, end)
		return
	}
	end()
}

func (f *fakeNodeAPI) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fakeNodeAPI) request(ctx context.Context) error {
	f.mu.Lock()
	away := f.away
	f.mu.Unlock()
	var err error
	if away != nil {
		err = away(ctx)
	}
	f.locked(func() {
		if err != nil {
			f.failed++
		} else {
			f.answered++
		}
	})
	return err
}

func (f *fakeNodeAPI) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Node, error) {
	if err := f.request(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node.DeepCopy(), nil
}

func (f *fakeNodeAPI) List(ctx context.Context, _ metav1.ListOptions) (*corev1.NodeList, error) {
	n, err := f.Get(ctx, "", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: n.ResourceVersion}, Items: []corev1.Node{*n}}, nil
}

// fakeWatch is one watch.
type fakeWatch struct{ events chan watch.Event }

func (w fakeWatch) Stop()                          {}
func (w fakeWatch) ResultChan() <-chan watch.Event { return w.events }

func (f *fakeNodeAPI) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := f.request(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	events := make(chan watch.Event, 64)
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		events <- watch.Event{Type: watch.Added, Object: f.node.DeepCopy()}
		events <- watch.Event{Type: watch.Bookmark, Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: f.node.ResourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}}
	}
	f.streams = append(f.streams, events)
	return fakeWatch{events}, nil
}

func (f *fakeNodeAPI) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string,
) (*corev1.Node, error) {
	if err := f.request(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var guard struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(body, &guard); err != nil {
		return nil, err
	}
	if v := guard.Metadata.ResourceVersion; v != "" && v != f.node.ResourceVersion {
		f.conflicts++
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("it has moved"))
	}
	before, err := json.Marshal(f.node)
	if err != nil {
		return nil, err
	}
	merge := jsonpatch.MergePatch
	if kind == types.StrategicMergePatchType {
		merge = func(before, body []byte) ([]byte, error) {
			return strategicpatch.StrategicMergePatch(before, body, corev1.Node{})
		}
	}
	after, err := merge(before, body)
	if err != nil {
		return nil, err
	}
	patched := &corev1.Node{}
	if err := json.Unmarshal(after, patched); err != nil {
		return nil, err
	}
	f.update(patched)
	if f.afterWrite != nil {
		if err := f.afterWrite(patched); err != nil {
			return nil, err
		}
	}
	return patched.DeepCopy(), nil
}

// update replaces the Node and notifies the watches. The caller holds the lock.
func (f *fakeNodeAPI) update(n *corev1.Node) {
	version, err := strconv.Atoi(f.node.ResourceVersion)
	if err != nil {
		panic(err)
	}
	n.ResourceVersion = strconv.Itoa(version + 1)
	f.node = n
	if f.silent {
		return
	}
	for _, s := range f.streams {
		s <- watch.Event{Type: watch.Modified, Object: n.DeepCopy()}
	}
}

func (f *fakeNodeAPI) Create(ctx context.Context, event *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	if err := f.request(ctx); err != nil {
		return nil, err
	}
	f.locked(func() { f.eventReasons = append(f.eventReasons, event.Reason) })
	return event, nil
}

// slowTick is the default of --tick. A held node is released within this time, whatever events
// are lost.
const slowTick = 10 * time.Second

// bubbleFixture is an agent in a bubble. Its host causes no events: it has no inotify and no
// D-Bus.
type bubbleFixture struct {
	t     *testing.T
	api   *fakeNodeAPI
	agent *Agent
	facts latest[readiness.Facts]
	// policy, probeGate, scanTakes, searchTakes and unread are set before the agent starts.
	policy    readiness.Policy
	probeGate func(context.Context, readiness.Endpoint) error
	scanTakes time.Duration
	// searchTakes is how long the first search of the local disks takes, and unread what it could not
	// read. searches counts further ones.
	searchTakes time.Duration
	unread      []string
	searches    atomic.Int64
}

// inBubble runs an agent of a node, and then act. The network is closed unless prepare opens it.
func inBubble(t *testing.T, node *corev1.Node, prepare, act func(*bubbleFixture)) {
	synctest.Test(t, func(t *testing.T) {
		node.Name, node.UID, node.ResourceVersion = testNode, "uid-1", "5"
		f := &bubbleFixture{t: t, api: &fakeNodeAPI{node: node}}
		f.facts.set(closedNetwork())
		if prepare != nil {
			prepare(f)
		}
		began := time.Now()
		var err error
		f.agent, err = New(Config{
			Node: node.Name, Nodes: f.api, Events: f.api, Clusters: &Clusters{},
			Network: func(context.Context) readiness.Facts { facts, _ := f.facts.get(); return facts },
			Etcd: func(ctx context.Context) evidence.Findings {
				_ = pause(ctx, f.scanTakes) // A scan that is cut short has the same result.
				isSearching := time.Since(began) < f.searchTakes
				if isSearching {
					return evidence.Findings{Searching: true}
				}
				return evidence.Findings{Unknown: f.unread}
			},
			SearchData: func() { f.searches.Add(1) },
			Watch:      func(ctx context.Context, _ func()) error { <-ctx.Done(); return context.Cause(ctx) },
			ProbeGate:  f.probeGate, Policy: f.policy, Tick: slowTick, Log: discardLog(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- f.agent.Run(ctx) }()
		act(f)
		cancel()
		f.api.locked(func() { f.api.away = refuses })
		require.ErrorIs(t, <-ended, context.Canceled)
		elapse(t, time.Minute) // until requests that hang have ended
	})
}

// whileHeld runs an agent of a node that is held, and then act.
func whileHeld(t *testing.T, policy readiness.Policy, act func(*bubbleFixture)) {
	inBubble(t, bornHeld(testNode), func(f *bubbleFixture) { f.policy = policy }, func(f *bubbleFixture) {
		elapse(f.t, 5*time.Second)
		require.True(f.t, isHeld(f.node()), "the Node explains that it is held")
		act(f)
	})
}

func (f *bubbleFixture) node() (n *corev1.Node) {
	f.api.locked(func() { n = f.api.node.DeepCopy() })
	return n
}

// within waits for the Node to be as wanted, and returns how long that took.
func (f *bubbleFixture) within(limit time.Duration, wanted func(*corev1.Node) bool) time.Duration {
	f.t.Helper()
	began := time.Now()
	for !wanted(f.node()) {
		require.LessOrEqual(f.t, time.Since(began), limit, "%+v", f.node())
		elapse(f.t, 10*time.Millisecond)
	}
	return time.Since(began)
}
