package agent

import (
	"log/slog"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

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
	clusters, areClustersKnown := s.clusters.objects.get()
	observations, areObservationsKnown := s.observations.objects.get()
	for _, c := range clusters {
		joined = append(joined, observation.Join(c, observations))
	}
	return joined, areClustersKnown && areObservationsKnown
}
