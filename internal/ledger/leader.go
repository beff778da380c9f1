package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// clustersAtOnce bounds how many clusters a round tends in parallel: each may wait for silent observers.
const clustersAtOnce = 4

// LeaderOptions are the leader's times and limits. The zero value takes the defaults.
type LeaderOptions struct {
	// Tick is the time between two rounds that nothing wakes, and between two looks at a cluster with open grants.
	// Default 15 s.
	Tick time.Duration
	// CalmTick is the time between two looks at a cluster that nothing happens to. Default 1 min.
	CalmTick time.Duration
	// Pause is the least time between two rounds. Default 1 s.
	Pause time.Duration
	// SettleAfter is for how long the reason to end a grant must hold. Default 30 s.
	SettleAfter time.Duration
	// MaxClusters is how many EtcdClusters there may be for one more to be made from an announcement. Default 16.
	MaxClusters int
	// MaxClustersPerNode is how many of them are made at the word of one Node. Default 2: kOps runs two etcd clusters.
	MaxClustersPerNode int
	// Tell makes an event of what was settled or bound; nil makes none. It is called from several goroutines.
	Tell func(c *v1alpha1.EtcdCluster, reason, message string)
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o LeaderOptions) withDefaults() LeaderOptions {
	setDefault(&o.Tick, 15*time.Second)
	setDefault(&o.CalmTick, time.Minute)
	setDefault(&o.Pause, time.Second)
	setDefault(&o.SettleAfter, 30*time.Second)
	setDefault(&o.MaxClusters, 16)
	setDefault(&o.MaxClustersPerNode, 2)
	if o.Tell == nil {
		o.Tell = func(*v1alpha1.EtcdCluster, string, string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Leader does the slow work: it makes EtcdClusters from announcements, binds members to Nodes, grants what was deleted
// without a question, settles grants, puts labels back and sums up. It must run in one replica at a time; two at once
// could not harm, since every write tests what it was decided from, but would ask twice as often.
type Leader struct {
	book *Book
	o    LeaderOptions
	log  *slog.Logger
	wake chan struct{}
	said changes
	// memories are by the object's UID: an object made anew is remembered nothing.
	memories map[types.UID]*memory
}

// memory is what the leader remembers of one cluster between rounds. It is lost with the leadership; what rests on it
// then starts anew, and takes longer.
type memory struct {
	// ask is the last question, kept open so that every later nonce counts as an answer to it too.
	ask      *ask
	lookedAt time.Time
	// scene is what the last look was about: another one is a reason to look at once.
	scene string
	// proven is since when each bound member is proven healthy by its own agent.
	proven map[v1alpha1.MemberID]proof
	// noticed are the sightings of the open grants, by Node UID.
	noticed map[types.UID]sighting
	// ending are the grants that the last look found a reason to end.
	ending map[types.UID]ending
	said   changes
}

// changes tells whether a thing worth logging is new.
type changes map[string]string

// new says whether the text under this key differs from the last one; an empty text takes it off.
func (c changes) new(key, text string) bool {
	if c[key] == text {
		return false
	}
	if text == "" {
		delete(c, key)
		return false
	}
	c[key] = text
	return true
}

// NewLeader returns a Leader that works with the Book's clients and cache.
func NewLeader(ctx context.Context, b *Book, o LeaderOptions) (*Leader, error) {
	l := &Leader{
		book: b, o: o.withDefaults(), log: b.log, wake: make(chan struct{}, 1),
		said: changes{}, memories: map[types.UID]*memory{},
	}
	if err := follow(ctx, b.cache, &v1alpha1.EtcdCluster{}, func(*v1alpha1.EtcdCluster) { l.rouse() }); err != nil {
		return nil, err
	}
	return l, l.followNodes(ctx)
}

// followNodes wakes the leader by those changes of Nodes that it would act on. Heartbeats of a thousand nodes are none.
func (l *Leader) followNodes(ctx context.Context) error {
	informer, err := l.book.cache.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("opening the informer for Nodes: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { l.rouse() },
		UpdateFunc: func(before, after any) {
			was, ok := before.(*corev1.Node)
			is, also := after.(*corev1.Node)
			if ok && also && traitsOf(was) != traitsOf(is) {
				l.rouse()
			}
		},
		DeleteFunc: func(any) { l.rouse() },
	})
	if err != nil {
		return fmt.Errorf("following Nodes: %w", err)
	}
	return nil
}

func (l *Leader) rouse() {
	select {
	case l.wake <- struct{}{}:
	default: // It is awake already.
	}
}

// Run works until ctx ends, and then returns nil as the manager's runnables do.
func (l *Leader) Run(ctx context.Context) error {
	defer l.forget(nil)
	if !l.book.cache.WaitForCacheSync(ctx) {
		return nil
	}
	for ctx.Err() == nil {
		text := ""
		if err := l.round(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if l.said.new("round", text) {
			l.log.Error("the leader's round is incomplete, the next one tries again", "err", text)
		}
		l.rest(ctx)
	}
	return nil
}

// rest waits for a reason to go on, and for Pause at least.
func (l *Leader) rest(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(l.o.Pause):
	}
	select {
	case <-ctx.Done():
	case <-l.wake:
	case <-time.After(max(0, l.o.Tick-l.o.Pause)):
	}
}

// round looks at everything once. What fails in one cluster stops no other.
func (l *Leader) round(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	if err := l.book.cache.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	cached, err := clusters(ctx, l.book.cache)
	if err != nil {
		return err
	}
	residents := l.census(nodes.Items)
	errs := []error{l.create(ctx, cached, residents)}

	l.forget(cached)
	l.heed(cached)
	failed := make([]error, len(cached))
	var g errgroup.Group
	g.SetLimit(clustersAtOnce)
	open := 0
	for i, c := range cached {
		open += len(c.Spec.Grants)
		m := l.memories[c.UID]
		g.Go(func() error {
			failed[i] = caught(func() error { return l.tend(ctx, c, residents, m) })
			return nil
		})
	}
	_ = g.Wait() // Nothing above returns an error.
	l.book.metrics.openGrants.Set(float64(open))
	return errors.Join(append(errs, failed...)...)
}

// forget drops the memories of all objects but these, and begins one for each that has none.
func (l *Leader) forget(but []*v1alpha1.EtcdCluster) {
	kept := map[types.UID]*memory{}
	for _, c := range but {
		kept[c.UID] = l.memories[c.UID]
		if kept[c.UID] == nil {
			kept[c.UID] = &memory{said: changes{}, proven: map[v1alpha1.MemberID]proof{}, ending: map[types.UID]ending{}}
		}
	}
	for uid, m := range l.memories {
		if kept[uid] == nil && m.ask != nil {
			l.book.asker.release(uid, m.ask)
		}
	}
	l.memories = kept
}

// tend does for one cluster what is due.
func (l *Leader) tend(ctx context.Context, c *v1alpha1.EtcdCluster, n census, m *memory) error {
	var errs []error
	if _, asked := c.Annotations[protect.SettleAnnotation]; asked {
		errs = append(errs, l.settleByHand(ctx, c, m))
	}
	scene := sceneOf(c, n, l.seenBy(m))
	if l.due(c, scene, m) {
		errs = append(errs, l.look(ctx, c, n, scene, m))
	}
	return errors.Join(append(errs, l.restoreLabels(ctx, c, n, m), l.sweep(ctx, c, n), l.summarise(ctx, c, n, m))...)
}

// due says whether it is time to ask the agents again.
func (l *Leader) due(c *v1alpha1.EtcdCluster, scene string, m *memory) bool {
	if m.ask == nil || scene != m.scene {
		return true
	}
	every := l.o.CalmTick
	if len(c.Spec.Grants) > 0 || someoneLeft(c, l.seenBy(m)) {
		every = l.o.Tick
	}
	return l.o.Now().Sub(m.lookedAt) >= every
}

// seenBy returns the nonces that answer the last question.
func (l *Leader) seenBy(m *memory) []string {
	if m.ask == nil {
		return nil
	}
	return l.book.asker.sight(m.ask).asked
}
