package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Clusters is a client for EtcdClusters and EtcdObservations. It reads both, and writes the
// observations of one node.
type Clusters struct {
	rest rest.Interface
	// parameters encodes the options of list and watch requests.
	parameters runtime.ParameterCodec
}

// NewClusters returns a client that uses an existing HTTP client.
func NewClusters(config *rest.Config, client *http.Client) (*Clusters, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering %s: %w", v1alpha1.GroupVersion(), err)
	}
	own, version := rest.CopyConfig(config), v1alpha1.GroupVersion()
	own.GroupVersion, own.APIPath = &version, "/apis"
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	restClient, err := rest.RESTClientForConfigAndClient(own, client)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", version, err)
	}
	return &Clusters{rest: restClient, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// List lists EtcdClusters, without their observations.
func (c *Clusters) List(ctx context.Context, o metav1.ListOptions) (*v1alpha1.EtcdClusterList, error) {
	list := &v1alpha1.EtcdClusterList{}
	return list, c.list(ctx, v1alpha1.Resource, o, list)
}

// Watch watches EtcdClusters.
func (c *Clusters) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, v1alpha1.Resource, o)
}

// ListObservations lists EtcdObservations.
func (c *Clusters) ListObservations(
	ctx context.Context, o metav1.ListOptions,
) (*v1alpha1.EtcdObservationList, error) {
	list := &v1alpha1.EtcdObservationList{}
	return list, c.list(ctx, v1alpha1.ObservationResource, o, list)
}

// WatchObservations watches EtcdObservations.
func (c *Clusters) WatchObservations(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, v1alpha1.ObservationResource, o)
}

func (c *Clusters) list(ctx context.Context, resource string, o metav1.ListOptions, into runtime.Object) error {
	return c.rest.Get().Resource(resource).VersionedParams(&o, c.parameters).Do(ctx).Into(into)
}

func (c *Clusters) watch(ctx context.Context, resource string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.rest.Get().Resource(resource).VersionedParams(&o, c.parameters).Watch(ctx)
}

// Publish writes an EtcdObservation, and returns the version that it made. The node's agent is its
// only writer.
func (c *Clusters) Publish(ctx context.Context, o *v1alpha1.EtcdObservation) (*v1alpha1.EtcdObservation, error) {
	made := &v1alpha1.EtcdObservation{}
	err := c.rest.Put().Resource(v1alpha1.ObservationResource).Name(o.Name).Body(o).Do(ctx).Into(made)
	if err != nil {
		return nil, fmt.Errorf("publishing EtcdObservation %s: %w", o.Name, err)
	}
	return made, nil
}

// clusterStores are the agent's copies of the EtcdClusters and their observations. Each has a watch
// of its own, so a version of an EtcdCluster may meet older observations. The agent's decisions
// end the protection of its node only on the word of observations, never for want of them.
type clusterStores struct {
	clusters     *store[*v1alpha1.EtcdCluster]
	observations *store[*v1alpha1.EtcdObservation]
}

func newClusterStores(log *slog.Logger, changed func()) clusterStores {
	return clusterStores{
		clusters: newStore[*v1alpha1.EtcdCluster](log.With("resource", v1alpha1.Resource), changed),
		observations: newStore[*v1alpha1.EtcdObservation](
			log.With("resource", v1alpha1.ObservationResource), changed),
	}
}

// want starts the watches, if they have not started.
func (s clusterStores) want() {
	s.clusters.wanted.Notify()
	s.observations.wanted.Notify()
}

// all returns the EtcdClusters with their observations, and whether both are known.
func (s clusterStores) all() (joined []*v1alpha1.EtcdCluster, synced bool) {
	clusters, areClustersKnown := s.clusters.all()
	observations, areObservationsKnown := s.observations.all()
	for i, c := range clusters {
		clusters[i] = observation.Join(c, observations)
	}
	return clusters, areClustersKnown && areObservationsKnown
}

// own returns the EtcdObservation of a node in a cluster, or nil if the leader has not created it.
func (s clusterStores) own(c *v1alpha1.EtcdCluster, node string) *v1alpha1.EtcdObservation {
	o, exists, _ := s.observations.get(v1alpha1.ObservationName(observation.ClusterIDOf(c), node))
	if !exists || !observation.BelongsTo(o, c.UID) {
		return nil
	}
	return o
}
