package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// FieldManager is the name under which the webhook writes EtcdClusters and labels.
const FieldManager = "holdfast-webhook"

const (
	defaultWait = 3 * time.Second
	defaultPace = 500 * time.Millisecond
)

// Options are what a Book needs. Client, Reader, Cache, Log and Registerer must be set.
type Options struct {
	// Client writes. Its requests should not be throttled on the client's side: client-go's default of five a second
	// would use up the time that the API server gives the webhook.
	Client client.Client
	// Reader reads from the API server itself and never from a cache: a stalled watch must not hide a deletion.
	Reader client.Reader
	// Cache holds EtcdClusters and Nodes, and tells of changes.
	Cache cache.Cache
	// Wait is how long a verdict waits for observers at most. Default 3 s.
	Wait time.Duration
	// Pace is the time between two questions to the agents of one cluster, when more than two come at once. Default 500 ms:
	// two a second. Requests that wait for the next question share it.
	Pace time.Duration
	// MinRemainingTolerance is how many more voters must be expendable after a deletion. Default 0.
	MinRemainingTolerance int
	Log                   *slog.Logger
	Registerer            prometheus.Registerer
}

// Book judges deletions of Nodes and keeps the grants.
type Book struct {
	client    client.Client
	reader    client.Reader
	cache     cache.Cache
	wait      time.Duration
	tolerance int
	log       *slog.Logger
	asker     *asker
	metrics   *metrics
}

// New returns a Book that follows the cache's EtcdClusters. The cache may be started later.
func New(ctx context.Context, o Options) (*Book, error) {
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.Pace == 0 {
		o.Pace = defaultPace
	}
	b := &Book{
		client: o.Client, reader: o.Reader, cache: o.Cache, wait: o.Wait, tolerance: o.MinRemainingTolerance,
		log: o.Log, metrics: m,
		asker: &asker{client: o.Client, pace: o.Pace, asks: m.asks, queues: map[types.UID]*queue{}},
	}
	if err := follow(ctx, o.Cache, &v1alpha1.EtcdCluster{}, b.asker.seen); err != nil {
		return nil, err
	}
	return b, nil
}

// follow calls seen with every version of the kind's objects that the cache learns of.
func follow[T client.Object](ctx context.Context, c cache.Cache, kind T, seen func(T)) error {
	informer, err := c.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("opening the informer for %T: %w", kind, err)
	}
	tell := func(obj any) {
		if o, ok := obj.(T); ok {
			seen(o)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, obj any) { tell(obj) },
		DeleteFunc: tell,
	})
	if err != nil {
		return fmt.Errorf("following %T: %w", kind, err)
	}
	return nil
}

// clusters lists all EtcdClusters.
func clusters(ctx context.Context, from client.Reader) ([]*v1alpha1.EtcdCluster, error) {
	list := &v1alpha1.EtcdClusterList{}
	if err := from.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing EtcdClusters: %w", err)
	}
	found := make([]*v1alpha1.EtcdCluster, len(list.Items))
	for i := range list.Items {
		found[i] = &list.Items[i]
	}
	return found, nil
}

// view brings a View of one version of the object together with the live states of all Nodes that matter to it.
func (b *Book) view(ctx context.Context, c *v1alpha1.EtcdCluster, asked []string, also ...string) (protect.View, error) {
	placed, err := b.placed(ctx, c)
	if err != nil {
		return protect.View{}, err
	}
	names := slices.Concat(nodesOf(c), nodesAt(placed), also)
	return protect.View{
		Cluster: c, Asked: asked, Nodes: b.states(ctx, names), Placed: placed, MinRemainingTolerance: b.tolerance,
	}, nil
}

// placed says at which Nodes' addresses the members are that are bound to none. The addresses may be the cache's, since
// they stay with a Node for its life; what becomes of such a Node is then read live like any other's.
func (b *Book) placed(ctx context.Context, c *v1alpha1.EtcdCluster) ([]v1alpha1.Binding, error) {
	if len(protect.Unbound(c)) == 0 {
		return nil, nil // Most often so, which spares comparing the addresses of all nodes.
	}
	nodes := &corev1.NodeList{}
	err := b.cache.List(ctx, nodes, client.UnsafeDisableDeepCopy) // They are only read.
	if err != nil {
		*nodes = corev1.NodeList{}
		err = b.reader.List(ctx, nodes)
	}
	if err != nil {
		return nil, fmt.Errorf("listing nodes for the addresses of members that are bound to none: %w", err)
	}
	claims := make([]protect.NodeClaim, len(nodes.Items))
	for i := range nodes.Items {
		claims[i] = addressesOf(&nodes.Items[i])
	}
	return protect.Placed(c, claims), nil
}
