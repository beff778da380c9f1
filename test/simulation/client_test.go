package simulation

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// An apiClient is the connection of a replica to the API server: the methods of
// client.Client and client.Reader that the webhook uses. All other methods panic.
type apiClient struct {
	client.Client
	r *simulatedReplica
}

// sendCall makes one call. It copies the answer only if the caller waited for it.
func sendCall[T any](
	ctx context.Context, a apiClient, write bool, what string, do func() (T, error), take func(T),
) error {
	if a.r.isCrashed() {
		return errCrashed
	}
	var answer T
	c := &apiCall{replica: a.r, what: what, write: write}
	c.do = func() (err error) {
		answer, err = do()
		return err
	}
	if err := a.r.sim.gate.wait(ctx, c); err != nil {
		return err
	}
	take(answer)
	return nil
}

func (a apiClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s := a.r.sim.api
	switch into := obj.(type) {
	case *v1alpha1.EtcdCluster:
		return getObject(ctx, a, &s.clusters, key.Name, into)
	case *v1alpha1.EtcdObservation:
		return getObject(ctx, a, &s.observations, key.Name, into)
	case *corev1.Node:
		err := getObject(ctx, a, &s.nodes, key.Name, into)
		if review, _ := ctx.Value(reviewContextKey{}).(*simulatedReview); review != nil && err == nil {
			review.recordNode(into.DeepCopy())
		}
		return err
	}
	return fmt.Errorf("Get of %T is not simulated", obj)
}

// singular names an object of a table in the description of a call.
func singular(r schema.GroupResource) string { return strings.TrimSuffix(r.Resource, "s") }

func getObject[T storedObject[T]](ctx context.Context, a apiClient, t *objectTable[T], name string, into T) error {
	return sendCall(ctx, a, false, "get "+singular(t.resource)+" "+name,
		func() (T, error) { return t.get(name) }, func(found T) { found.DeepCopyInto(into) })
}

// node reads a Node.
func (a apiClient) node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, a.Get(ctx, client.ObjectKey{Name: name}, node)
}

// pod reads a guard pod.
func (a apiClient) pod(ctx context.Context, _, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, sendCall(ctx, a, false, "get pod "+name, func() (*corev1.Pod, error) {
		if found := a.r.sim.api.pods[name]; found != nil {
			return found, nil
		}
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}, func(found *corev1.Pod) { found.DeepCopyInto(pod) })
}

func (a apiClient) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s := a.r.sim.api
	switch into := list.(type) {
	case *v1alpha1.EtcdClusterList:
		return listObjects(ctx, a, &s.clusters, func(o *v1alpha1.EtcdCluster) {
			into.Items = append(into.Items, *o.DeepCopy())
		})
	case *v1alpha1.EtcdObservationList:
		return listObjects(ctx, a, &s.observations, func(o *v1alpha1.EtcdObservation) {
			into.Items = append(into.Items, *o.DeepCopy())
		})
	case *corev1.NodeList:
		return listObjects(ctx, a, &s.nodes, func(o *corev1.Node) { into.Items = append(into.Items, *o.DeepCopy()) })
	}
	return fmt.Errorf("List of %T is not simulated", list)
}

func listObjects[T storedObject[T]](ctx context.Context, a apiClient, t *objectTable[T], add func(T)) error {
	return sendCall(ctx, a, false, "list "+t.resource.Resource, func() (map[string]T, error) {
		if t.resource.Resource == v1alpha1.Resource {
			a.r.sim.forgetEndedLists(a.r)
		}
		return maps.Clone(t.objects), nil
	}, func(found map[string]T) {
		for _, name := range sortedKeys(found) {
			add(found[name])
		}
	})
}

func (a apiClient) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	s := a.r.sim.api
	switch o := obj.(type) {
	case *v1alpha1.EtcdCluster:
		asked := o.DeepCopy()
		return sendCall(ctx, a, true, "create etcdcluster "+o.Name,
			func() (*v1alpha1.EtcdCluster, error) { return s.createCluster(asked) },
			func(made *v1alpha1.EtcdCluster) { made.DeepCopyInto(o) })
	case *v1alpha1.EtcdObservation:
		asked := o.DeepCopy()
		return sendCall(ctx, a, true, "create etcdobservation "+o.Name,
			func() (*v1alpha1.EtcdObservation, error) { return s.observations.create(s, asked) },
			func(made *v1alpha1.EtcdObservation) { made.DeepCopyInto(o) })
	}
	return fmt.Errorf("Create of %T is not simulated", obj)
}

func (a apiClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	if _, ok := obj.(*v1alpha1.EtcdObservation); !ok || options.Preconditions == nil {
		return fmt.Errorf("Delete of %T without a UID is not simulated", obj)
	}
	name, uid := obj.GetName(), *options.Preconditions.UID
	return sendCall(ctx, a, true, "delete etcdobservation "+name,
		func() (any, error) { return nil, a.r.sim.api.deleteObservation(name, uid) }, func(any) {})
}

func (a apiClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	name, sim := obj.GetName(), a.r.sim
	switch into := obj.(type) {
	case *v1alpha1.EtcdCluster:
		review, _ := ctx.Value(reviewContextKey{}).(*simulatedReview)
		return sendCall(ctx, a, true, fmt.Sprintf("patch etcdcluster %s %s", name, patchKind(patch, body)),
			func() (*v1alpha1.EtcdCluster, error) {
				before := sim.api.clusters.objects[name]
				made, err := sim.api.patchCluster(name, patch.Type(), body)
				if err == nil && review != nil {
					review.recordGrants(sim, before, made)
				}
				return made, err
			}, func(made *v1alpha1.EtcdCluster) { made.DeepCopyInto(into) })
	case *corev1.Node:
		return sendCall(ctx, a, true, "patch node "+name,
			func() (*corev1.Node, error) { return sim.api.patchNode(name, patch.Type(), body) },
			func(made *corev1.Node) { made.DeepCopyInto(into) })
	}
	return fmt.Errorf("Patch of %T is not simulated", obj)
}

// The kinds of patches in the description of a call.
const (
	patchWithTests = "(patch with tests)"
	patchOfNonce   = "(new nonce)"
	mergePatch     = "(merge patch)"
)

func patchKind(p client.Patch, body []byte) string {
	switch {
	case bytes.Contains(body, []byte(`"/spec/nonce"`)):
		return patchOfNonce
	case p.Type() == types.JSONPatchType:
		return patchWithTests
	}
	return mergePatch
}

func (a apiClient) Status() client.SubResourceWriter { return statusClient{r: a.r} }

// A statusClient writes the status subresource.
type statusClient struct {
	client.SubResourceWriter
	r *simulatedReplica
}

// Apply accepts the result of client.ApplyConfigurationFromUnstructured, which encodes to
// the JSON of the object.
func (a statusClient) Apply(
	ctx context.Context, configuration runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption,
) error {
	summary, err := summaryOf(configuration)
	if err != nil {
		return err
	}
	return sendCall(ctx, apiClient{r: a.r}, true, "apply the summary of etcdcluster "+summary.Name,
		func() (*v1alpha1.EtcdCluster, error) {
			return a.r.sim.api.applySummary(summary.Name, summary.Status)
		}, func(*v1alpha1.EtcdCluster) {})
}

func summaryOf(configuration runtime.ApplyConfiguration) (*v1alpha1.EtcdCluster, error) {
	content, ok := configuration.(runtime.Unstructured)
	if !ok {
		return nil, fmt.Errorf("Apply of %T is not simulated", configuration)
	}
	c := &v1alpha1.EtcdCluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.UnstructuredContent(), c); err != nil {
		return nil, err
	}
	return c, nil
}

// errCrashed is the error of all calls of a crashed replica.
var errCrashed = errors.New("the replica has crashed")

// An apiCall is one request of a replica to the API server. The caller waits until the
// driver executes and answers it.
type apiCall struct {
	replica *simulatedReplica
	// review is the review that the call belongs to. It is nil for the leader's calls.
	review *simulatedReview
	what   string
	write  bool
	// isInternal is true for a call that is no request to the API server. It never fails.
	isInternal bool
	// do executes the call. The driver may run it after the caller stopped waiting.
	do    func() error
	began time.Time

	// done is true after the call was executed or failed; err is the answer.
	done  bool
	err   error
	reply chan struct{}
	// abandoned is true if the caller stopped waiting. The gate's mutex guards it.
	abandoned bool
	// equals are calls that differ from this one in nothing, for example reads of the same Node for
	// two clusters of one review. The order in which they arrived depends on the scheduler, so they
	// are executed and answered together.
	equals []*apiCall
}

// A simulatedTurn is a goroutine of a replica that woke, and waits until it may go on.
type simulatedTurn struct {
	replica *simulatedReplica
	review  *simulatedReview
	what    string
	begin   chan struct{}
}

// A callGate holds the calls whose callers wait, and the goroutines that wait for their turn.
type callGate struct {
	mu    sync.Mutex
	calls []*apiCall
	turns []*simulatedTurn
	// wake signals to the driver that work may be available.
	wake chan struct{}
}

func newGate() *callGate { return &callGate{wake: make(chan struct{}, 1)} }

func (g *callGate) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// wait adds a call and waits for its answer, or for the end of the context.
func (g *callGate) wait(ctx context.Context, c *apiCall) error {
	if err := ctx.Err(); err != nil {
		return err // client-go sends nothing in this case
	}
	c.review, _ = ctx.Value(reviewContextKey{}).(*simulatedReview)
	c.began, c.reply = time.Now(), make(chan struct{})
	g.mu.Lock()
	g.calls = append(g.calls, c)
	g.mu.Unlock()
	g.signal()
	select {
	case <-c.reply:
		return c.err
	case <-ctx.Done():
		g.mu.Lock()
		c.abandoned = true
		g.mu.Unlock()
		c.replica.takeTurn(ctx, c.what)
		return ctx.Err()
	}
}

// waiting returns the calls whose callers wait, in an order that does not depend on the
// scheduling of goroutines, and equal calls as one. It removes the abandoned calls from the gate.
func (g *callGate) waiting() (waiting, abandoned []*apiCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.calls {
		if c.abandoned {
			abandoned = append(abandoned, c)
		} else {
			waiting = append(waiting, c)
		}
	}
	g.calls = slices.Clone(waiting)
	slices.SortStableFunc(waiting, compareCalls)
	slices.SortStableFunc(abandoned, compareCalls)
	var distinct []*apiCall
	for _, c := range waiting {
		c.equals = nil
		if last := len(distinct) - 1; last >= 0 && compareCalls(distinct[last], c) == 0 {
			distinct[last].equals = append(distinct[last].equals, c)
		} else {
			distinct = append(distinct, c)
		}
	}
	return distinct, abandoned
}

func compareCalls(a, b *apiCall) int {
	isDone := func(c *apiCall) int {
		if c.done {
			return 1
		}
		return 0
	}
	return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.replica.number, b.replica.number),
		cmp.Compare(a.review.sortKey(), b.review.sortKey()), cmp.Compare(a.what, b.what),
		cmp.Compare(isDone(a), isDone(b)))
}

// takeTurn waits until the driver lets this goroutine go on, or until the replica crashes.
func (r *simulatedReplica) takeTurn(ctx context.Context, what string) {
	t := &simulatedTurn{replica: r, what: what, begin: make(chan struct{})}
	t.review, _ = ctx.Value(reviewContextKey{}).(*simulatedReview)
	g := r.sim.gate
	g.mu.Lock()
	g.turns = append(g.turns, t)
	g.mu.Unlock()
	g.signal()
	select {
	case <-t.begin:
	case <-r.ctx.Done():
	}
}

// nextTurns returns the goroutines that wait for their turn, in an order that does not depend on
// the scheduler.
func (g *callGate) nextTurns() []*simulatedTurn {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turns = slices.DeleteFunc(g.turns, func(t *simulatedTurn) bool { return t.replica.isCrashed() })
	slices.SortStableFunc(g.turns, func(a, b *simulatedTurn) int {
		return cmp.Or(cmp.Compare(a.replica.number, b.replica.number),
			cmp.Compare(a.review.sortKey(), b.review.sortKey()), cmp.Compare(a.what, b.what))
	})
	return slices.Clone(g.turns)
}

// settle waits until all goroutines are blocked. It lets one at a time go on of those that woke:
// their order is part of the choices.
func (sim *simulation) settle() {
	for {
		synctest.Wait()
		turns := sim.gate.nextTurns()
		if len(turns) == 0 {
			return
		}
		next := turns[sim.choose(len(turns))]
		sim.gate.mu.Lock()
		sim.gate.turns = slices.DeleteFunc(sim.gate.turns, func(t *simulatedTurn) bool { return t == next })
		sim.gate.mu.Unlock()
		close(next.begin)
	}
}

// answer returns the answers of an executed call, and of those that equal it, to their callers.
func (g *callGate) answer(c *apiCall) {
	g.mu.Lock()
	g.calls = slices.DeleteFunc(g.calls, func(o *apiCall) bool { return o == c || slices.Contains(c.equals, o) })
	g.mu.Unlock()
	close(c.reply)
	for _, e := range c.equals {
		close(e.reply)
	}
}

func (c *apiCall) carryOut() {
	c.err, c.done = c.do(), true
	for _, e := range c.equals {
		e.carryOut()
	}
}

// fail sets the error that answers the call and those that equal it.
func (c *apiCall) fail(err error) {
	c.err, c.done = err, true
	for _, e := range c.equals {
		e.fail(err)
	}
}
