package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// The default handlers of errors sleep by a clock that began outside of all bubbles.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

// fakeNodeAPI is an API server with one Node that fails, goes away and comes back, in a bubble. An
// outage of a minute takes no time here. cmd/agent stops, kills and restarts a real one.
type fakeNodeAPI struct {
	mu      sync.Mutex
	node    *corev1.Node
	streams []chan watch.Event
	// silent keeps the watches open, but sends no events.
	silent bool
	// away returns the failure of a request. It is nil while the server answers.
	away func(context.Context) error
	// beforeWrite is called before each write. Its error, if any, is the answer. afterWrite is called
	// after each write, with the lock held. Its error replaces the answer.
	beforeWrite func(body string) error
	afterWrite  func(after *corev1.Node) error
	// areEventsHanging makes the server answer no request for an event.
	areEventsHanging bool
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
	ctx context.Context, _ string, kind types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string,
) (*corev1.Node, error) {
	if err := f.request(ctx); err != nil {
		return nil, err
	}
	if f.beforeWrite != nil {
		if err := f.beforeWrite(string(body)); err != nil {
			return nil, err
		}
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
		return nil, refusal(http.StatusConflict)
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
	if f.areEventsHanging {
		<-ctx.Done()
	}
	if err := f.request(ctx); err != nil {
		return nil, err
	}
	f.locked(func() { f.eventReasons = append(f.eventReasons, event.Reason) })
	return event, nil
}

// refusal returns the error of a request that the API server answers with a status.
func refusal(code int) error {
	of := schema.GroupResource{Resource: "nodes"}
	return apierrors.NewGenericServerResponse(code, http.MethodPatch, of, testNode, "", 0, true)
}

// edit changes the Node as another writer does.
func (f *fakeNodeAPI) edit(change func(*corev1.Node)) {
	f.locked(func() {
		n := f.node.DeepCopy()
		change(n)
		f.update(n)
	})
}

// slowTick is the default of --tick. A held node is released within this time, whatever events
// are lost.
const slowTick = 10 * time.Second

type listFunc func(context.Context, metav1.ListOptions) (runtime.Object, error)

// answering lists objects after a second.
func answering(list runtime.Object) listFunc {
	return func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
		return list, pause(ctx, time.Second)
	}
}

// bubbleFixture is an agent in a bubble. Its host causes no events: it has no inotify and no
// D-Bus.
type bubbleFixture struct {
	t     *testing.T
	api   *fakeNodeAPI
	agent *Agent
	logs  func() string
	facts latest[readiness.Facts]
	// servers are the etcd servers of the host. Each of them answers as testMember.
	servers latest[[]evidence.FoundServer]
	// listClusters and listObservations are the answers to requests for these objects.
	listClusters, listObservations listFunc
	// shutdowns are the versions of the Node at which the agent allowed a shutdown.
	shutdowns []*corev1.Node
	// The fields below, and the lists, are set before the agent starts.
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
		log, logs := recordLog(t)
		f := &bubbleFixture{t: t, api: &fakeNodeAPI{node: node}, logs: logs}
		f.facts.set(closedNetwork())
		f.listClusters = answering(&v1alpha1.EtcdClusterList{})
		f.listObservations = answering(&v1alpha1.EtcdObservationList{})
		if prepare != nil {
			prepare(f)
		}
		began := time.Now()
		var err error
		f.agent, err = New(Config{
			Node: node.Name, Nodes: f.api, Events: f.api, Clusters: &apiaccess.Clusters{},
			Network: func(context.Context) readiness.Facts { facts, _ := f.facts.get(); return facts },
			Etcd: func(ctx context.Context) evidence.Scan {
				_ = pause(ctx, f.scanTakes) // A scan that is cut short has the same result.
				isSearching := time.Since(began) < f.searchTakes
				if isSearching {
					return evidence.Scan{Searching: true}
				}
				servers, _ := f.servers.get()
				return evidence.Scan{Found: servers, Unknown: f.unread}
			},
			Identify: func(context.Context, evidence.Server) evidence.Identity { return foundMember(0).Identity },
			ListMembers: func(context.Context, evidence.Server, evidence.Identity) ([]v1alpha1.MemberStatus, error) {
				return nil, errors.New("not read")
			},
			AllowShutdown: func() error { f.shutdowns = append(f.shutdowns, f.node()); return nil },
			SearchData:    func() { f.searches.Add(1) },
			Watch:         func(ctx context.Context, _ func()) error { <-ctx.Done(); return context.Cause(ctx) },
			ProbeGate:     f.probeGate, Policy: f.policy, Tick: slowTick, Log: log,
		})
		require.NoError(t, err)
		stores := f.agent.clusters
		stores.clusters.list, stores.observations.list = f.listClusters, f.listObservations
		unwatched := func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return nil, refusal(http.StatusUnprocessableEntity) // so they are listed
		}
		stores.clusters.watch, stores.observations.watch = unwatched, unwatched
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

// host changes the network of the host, and notifies the agent.
func (f *bubbleFixture) host(facts readiness.Facts) {
	f.facts.set(facts)
	f.agent.onHostChange()
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
