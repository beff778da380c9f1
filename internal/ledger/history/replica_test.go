package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/ledger"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// replica is one process of the webhook: the real entries, Book and Leader behind a gate.
type replica struct {
	world  *world
	number int
	caches caches
	mux    *http.ServeMux
	leader *ledger.Leader
	// deafToNodes and deafToClusters say that a watch hears nothing, skew by how much its clock is ahead.
	deafToNodes, deafToClusters bool
	skew                        atomic.Int64
	// leading says that the leader's loop runs here.
	leading bool

	dead   atomic.Bool
	end    context.CancelFunc
	ctx    context.Context //nolint:containedctx // the life of a process that is played, ended by crash
	living sync.WaitGroup
}

func (r *replica) crashed() bool { return r.dead.Load() }

// start starts a process, whose caches have just listed.
func (w *world) start(number int) *replica {
	r := &replica{world: w, number: number, mux: http.NewServeMux()}
	r.caches = caches{clusters: newMirror(&w.api.clusters), nodes: newMirror(&w.api.nodes)}
	r.ctx, r.end = context.WithCancel(w.ctx)
	way, registry, log := api{r: r}, prometheus.NewRegistry(), w.logger(number)
	book, err := ledger.New(r.ctx, ledger.Options{Client: way, Reader: way, Cache: r.caches, Log: log, Registerer: registry})
	if err != nil {
		w.fail("a replica does not start: %v", err)
		return r
	}
	now := func() time.Time { return time.Now().Add(time.Duration(r.skew.Load())) }
	if r.leader, err = ledger.NewLeader(r.ctx, book, ledger.LeaderOptions{Now: now}); err != nil {
		w.fail("a leader cannot be made: %v", err)
		return r
	}
	gate, err := admission.New(admission.Options{
		Judge: book,
		Node: func(ctx context.Context, name string) (*corev1.Node, error) {
			node := &corev1.Node{}
			return node, way.Get(ctx, client.ObjectKey{Name: name}, node)
		},
		Events: &record.FakeRecorder{}, Log: log, Registerer: registry,
	})
	if err == nil {
		err = gate.Mount(r.mux)
	}
	if err != nil {
		w.fail("the entries cannot be mounted: %v", err)
	}
	return r
}

// logger writes into the history when it is told in full.
func (w *world) logger(number int) *slog.Logger {
	if !w.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(lines(func(line string) { w.say("    webhook %d: %s", number, line) }), &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// lines is a writer of whole lines.
type lines func(string)

func (l lines) Write(p []byte) (int, error) {
	l(string(bytes.TrimSuffix(p, []byte("\n"))))
	return len(p), nil
}

// lead runs the leader's loop until the process ends.
func (r *replica) lead() {
	r.leading = true
	r.living.Go(func() {
		if err := r.leader.Run(r.ctx); err != nil {
			r.world.fail("the leader's loop ended: %v", err)
		}
	})
}

// crash ends the process between two steps; nothing that it does from here on reaches anybody.
func (r *replica) crash() {
	r.dead.Store(true)
	r.end()
	r.living.Wait()
}

// reviewKey is the context's key for the review on whose behalf a call is made.
type reviewKey struct{}

// review is one call of the webhook by the API server.
type review struct {
	deletion *deletion
	number   int
	replica  *replica
	node     *corev1.Node
	labelled bool
	// from is the index of the moment in which it arrived.
	from int
	// before is what was known when it arrived.
	before knowledge
	// turn is, by cluster, the place in the order of all grants at which the last grant on its behalf was written.
	turn map[v1alpha1.ClusterID]int

	end     context.CancelFunc
	over    atomic.Bool
	answer  *admissionv1.AdmissionResponse
	problem string
}

// order makes calls comparable.
func (r *review) order() int {
	if r == nil {
		return 0
	}
	return r.number
}

func (r *review) granted(w *world, c v1alpha1.ClusterID) {
	w.turns++
	r.turn[c] = w.turns
	if w.written[c] == nil {
		w.written[c] = map[types.UID]int{}
	}
	w.written[c][r.node.UID] = w.turns
	if r.deletion.dryRun {
		w.fail("a dry run wrote a grant")
	}
}

// ask sends the review to a replica.
func (r *review) ask(w *world) {
	path := admission.NodePath
	if r.labelled {
		path = admission.EtcdNodePath
	}
	name := r.node.Name
	if r.deletion.collection {
		name = ""
	}
	raw, err := json.Marshal(r.node)
	if err != nil {
		w.fail("encoding a Node: %v", err)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: types.UID(fmt.Sprintf("r%d", r.number)), Name: name, Operation: admissionv1.Delete,
			Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Node"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "nodes"},
			UserInfo: authenticationv1.UserInfo{Username: "alice"}, OldObject: runtime.RawExtension{Raw: raw}, DryRun: &r.deletion.dryRun,
		},
	})
	if err != nil {
		w.fail("encoding a review: %v", err)
	}
	ctx, end := context.WithCancel(context.WithValue(r.replica.ctx, reviewKey{}, r))
	r.end = end
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	r.replica.living.Go(func() {
		defer w.gate.ring()
		defer r.over.Store(true)
		recorder, answer := httptest.NewRecorder(), admissionv1.AdmissionReview{}
		r.replica.mux.ServeHTTP(recorder, request)
		if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || answer.Response == nil {
			r.problem = cmp.Or(recorder.Body.String(), "nothing")
			return
		}
		r.answer = answer.Response
	})
}

// knowledge is what Holdfast has been told of a node's members at one moment.
type knowledge struct {
	// bound are the members that are bound to Nodes, by Node UID.
	bound map[types.UID][]protect.MemberRef
	// announced are the members that the Node in question announces.
	announced []protect.MemberRef
	// doomed are the dooms of which no grant tells, known by their Nodes' state alone.
	doomed []*doom
}
