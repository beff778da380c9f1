package simulation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/admission"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/leader"
	"github.com/holdfast-dev/holdfast/internal/control/machinehook"
	"github.com/holdfast-dev/holdfast/internal/control/review"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// A simulatedReplica is one process of the webhook: the real Handler, Reviewer and controllers,
// whose calls wait at the gate.
type simulatedReplica struct {
	sim    *simulation
	number int
	caches replicaCaches
	mux    *http.ServeMux
	// handler reviews, and hooks keeps the hooks of Machines; hooks is nil if there are none.
	handler      *admission.Handler
	hooks        *machinehook.Controller
	machineWatch *machineWatch
	// controllers run in the leader.
	controllers []world.Runnable
	// machineWatchStalled is true while the watch of machine objects delivers nothing.
	machineWatchStalled bool
	// skew is the time by which the replica's clock is ahead.
	skew atomic.Int64
	// isLeading is true if the leader's loop runs here.
	isLeading bool

	dead       atomic.Bool
	cancel     context.CancelFunc
	ctx        context.Context //nolint:containedctx // the lifetime of a simulated process, ended by crash
	goroutines sync.WaitGroup
}

func (r *simulatedReplica) isCrashed() bool { return r.dead.Load() }

// startReplica starts a process whose caches have just listed.
func (sim *simulation) startReplica(number int) *simulatedReplica {
	r := &simulatedReplica{sim: sim, number: number, mux: http.NewServeMux()}
	r.caches = replicaCaches{
		clusters: newSimulatedCache(sim, &sim.api.clusters), observations: newSimulatedCache(sim, &sim.api.observations),
		nodes: newSimulatedCache(sim, &sim.api.nodes),
	}
	r.ctx, r.cancel = context.WithCancel(loop.WithTurns(sim.ctx, r.takeTurn))
	connection, registry, log := apiClient{r: r}, prometheus.NewRegistry(), sim.logger(number)
	store, err := clusterstore.New(r.ctx, clusterstore.Options{
		Client: connection, Reader: connection, Cache: r.caches,
		Registerer: registry,
	})
	if err != nil {
		sim.fail("starting a replica: %v", err)
		return r
	}
	r.goroutines.Go(func() { _ = store.WatchAges(r.ctx) })
	now := func() time.Time { return time.Now().Add(time.Duration(r.skew.Load())) }
	options := leader.Options{Store: store, Log: log, Registerer: registry, Now: now}
	if r.hooks = r.newController(connection, store); r.hooks != nil {
		options.MachineEnding = r.hooks.Ending
	}
	controllers := []world.Controller{leader.New(options)}
	if r.hooks != nil && sim.machines.kind == machine.KindMachine {
		controllers = append(controllers, r.hooks.Controller())
	}
	r.controllers, err = world.Loop{Store: store, Log: log}.Runnables(controllers...)
	if err != nil {
		sim.fail("creating the controllers: %v", err)
		return r
	}
	r.handler = admission.New(admission.Options{
		Reviewer: review.New(review.Options{Store: store, Now: now}),
		Node:     connection.node, Pod: connection.pod,
		Nodes: store.CachedNodes, Events: &record.FakeRecorder{}, Log: log, Registerer: registry,
	})
	if err := r.handler.Mount(r.mux); err != nil {
		sim.fail("mounting the handler: %v", err)
	}
	return r
}

// trimNode returns what the cache of a replica keeps of a Node.
func trimNode(n *corev1.Node) *corev1.Node {
	kept, err := clusterstore.Trimmer{}.Trim(n.DeepCopy())
	if err != nil {
		panic(err)
	}
	return kept.(*corev1.Node) //nolint:forcetypeassert // Trim returns an object of the same type.
}

// logger returns a logger that writes to the log of a verbose history.
func (sim *simulation) logger(number int) *slog.Logger {
	if !sim.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(lineWriter(func(line string) { sim.log("    webhook %d: %s", number, line) }),
		&slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		}))
}

// A lineWriter passes on whole lines.
type lineWriter func(string)

func (l lineWriter) Write(p []byte) (int, error) {
	l(string(bytes.TrimSuffix(p, []byte("\n"))))
	return len(p), nil
}

// startLeading runs the leader's controllers until the process ends.
func (r *simulatedReplica) startLeading() {
	r.isLeading = true
	for _, c := range r.controllers {
		r.goroutines.Go(func() {
			take := func(ctx context.Context, what string) { r.takeTurn(ctx, c.Name+": "+what) }
			if err := c.Start(loop.WithTurns(r.ctx, take)); err != nil {
				r.sim.fail("the controller %q ended: %v", c.Name, err)
			}
		})
	}
}

// crash ends the process between two steps. Its later calls have no effect.
func (r *simulatedReplica) crash() {
	r.dead.Store(true)
	r.cancel()
	r.goroutines.Wait()
}

// reviewContextKey is the context key of the review that a call belongs to.
type reviewContextKey struct{}

// A simulatedReview is one call of the webhook by the API server.
type simulatedReview struct {
	deletion *simulatedDeletion
	number   int
	replica  *simulatedReplica
	node     *corev1.Node
	labelled bool
	// firstSnapshot is the index of the snapshot at the start of the review.
	firstSnapshot int
	// wasCached is true if the cache of the replica had the Node at the start of the review.
	wasCached bool
	// before is what Holdfast could know at the start of the review.
	before deletionKnowledge
	// hasNode is true if the review has read the Node. recording guards it, and what recordNode
	// writes: a review reads the Nodes of several clusters at the same time.
	hasNode   bool
	recording sync.Mutex
	// order has, by cluster, the position of the review's last grant in the order of all
	// grants.
	order map[v1alpha1.ClusterID]int
	// forgiven are the clusters whose EtcdCluster was deleted during the review.
	forgiven map[v1alpha1.ClusterID]bool

	cancel  context.CancelFunc
	done    atomic.Bool
	answer  *admissionv1.AdmissionResponse
	problem string
}

// sortKey returns a number by which calls are sorted.
func (r *simulatedReview) sortKey() int {
	if r == nil {
		return 0
	}
	return r.number
}

// recordGrants records the grants that a write of the review has added or renewed. One review
// writes the grants of all reviews of its replica that wait.
func (r *simulatedReview) recordGrants(sim *simulation, before, after *v1alpha1.EtcdCluster) {
	id := v1alpha1.ClusterID(after.Name)
	if sim.lastGrant[id] == nil {
		sim.lastGrant[id] = map[types.UID]int{}
	}
	for _, g := range after.Spec.Grants {
		if slices.ContainsFunc(before.Spec.Grants, func(o v1alpha1.Grant) bool { return equality.Semantic.DeepEqual(o, g) }) {
			continue
		}
		sim.grantCount++
		sim.lastGrant[id][g.NodeUID] = sim.grantCount
		reviews := sim.reviewsOf(r.replica, g.NodeUID)
		if r.node.UID == g.NodeUID && !slices.Contains(reviews, r) {
			reviews = append(reviews, r) // its caller no longer waits, and the write was late
		}
		for _, o := range reviews {
			o.order[id] = sim.grantCount
		}
		if r.deletion.dryRun {
			sim.fail("a dry run wrote a grant")
		}
	}
}

// reviewsOf returns the reviews of a Node that one replica answers and that are no dry runs.
func (sim *simulation) reviewsOf(replica *simulatedReplica, uid types.UID) []*simulatedReview {
	var found []*simulatedReview
	for _, d := range sim.deletions {
		if r := d.review; r != nil && r.replica == replica && r.node.UID == uid && !d.dryRun {
			found = append(found, r)
		}
	}
	return found
}

// send sends the review to its replica.
func (r *simulatedReview) send(sim *simulation) {
	path, asked := r.request(sim)
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: asked,
	})
	if err != nil {
		sim.fail("encoding a review: %v", err)
	}
	ctx, end := context.WithCancel(context.WithValue(r.replica.ctx, reviewContextKey{}, r))
	r.cancel = end
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	r.replica.goroutines.Go(func() {
		defer sim.gate.signal()
		defer r.done.Store(true)
		r.replica.takeTurn(ctx, "begin")
		recorder, answer := httptest.NewRecorder(), admissionv1.AdmissionReview{}
		r.replica.mux.ServeHTTP(recorder, request)
		if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || answer.Response == nil {
			r.problem = cmp.Or(recorder.Body.String(), "nothing")
			return
		}
		r.answer = answer.Response
	})
}

// request returns what the API server sends, and where.
func (r *simulatedReview) request(sim *simulation) (string, *admissionv1.AdmissionRequest) {
	asked := &admissionv1.AdmissionRequest{
		UID: types.UID(fmt.Sprintf("r%d", r.number)), Name: r.node.Name, Operation: admissionv1.Delete,
		Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Node"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "nodes"},
		UserInfo: authenticationv1.UserInfo{Username: "alice"}, DryRun: &r.deletion.dryRun,
	}
	if r.deletion.machine != nil {
		return admission.MachinePath, r.deletion.machine.deletionRequest(sim, asked)
	}
	if r.deletion.drain != nil {
		return admission.EvictionPath, r.deletion.drain.evictionRequest(asked)
	}
	if r.deletion.collection {
		asked.Name = ""
	}
	raw, err := json.Marshal(r.node)
	if err != nil {
		sim.fail("encoding a Node: %v", err)
	}
	asked.OldObject = runtime.RawExtension{Raw: raw}
	if !r.labelled {
		return admission.NodePath, asked
	}
	return admission.EtcdNodePath, asked
}

// A deletionKnowledge is what Holdfast can know about the members of a Node at one moment.
type deletionKnowledge struct {
	// bound are the members that are bound to Nodes, by Node UID.
	bound map[types.UID][]evidence.MemberRef
	// announced are the members that the Node of the review announces.
	announced []evidence.MemberRef
	// withdrawn are those among them that the Node did not announce when the review read it. A
	// compromised node may announce others meanwhile.
	withdrawn []evidence.MemberRef
	// listed are the members on the machine of the Node that the lists of two observers have at one
	// of its addresses.
	listed []evidence.MemberRef
	// tombstones are the clusters that have or had a tombstone for a Node, by the UID of the Node.
	tombstones map[types.UID]map[v1alpha1.ClusterID]bool
	// losses are the pending losses that only the state of a Node shows, and no grant.
	losses []*pendingLoss
	// reboot is the reboot that a Node announces.
	reboot rebootMark
}
