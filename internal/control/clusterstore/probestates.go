package clusterstore

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Result returns the newest version of the object, with the nonces that count for it and the Nodes
// that have answered.
func (p *ProbeRequest) Result() ProbeResult {
	p.requester.mu.Lock()
	defer p.requester.mu.Unlock()
	result := ProbeResult{
		Cluster: p.latest, Nonces: slices.Clone(p.nonces), Answers: map[string]types.UID{}, Changed: p.queue.changed,
	}
	for node, o := range p.requester.observed[p.uid] {
		if observation.IsAnswer(o.Observation, p.nonces) {
			result.Answers[node] = o.NodeUID
		}
	}
	return result
}

// IsBehind reports whether a bound Node has published an answer to a nonce that is not known yet:
// the watch of the EtcdClusters is behind that of the observations.
func (r ProbeResult) IsBehind(observations []*v1alpha1.EtcdObservation) bool {
	return slices.ContainsFunc(observations, func(o *v1alpha1.EtcdObservation) bool {
		return isBoundNode(r.Cluster, o.Node) && apiaccess.IsNewer(o, r.Cluster) &&
			!observation.IsAnswer(o.Observation, r.Nonces)
	})
}

// addObservation records an observation, and wakes the requests that it answers. The first answer
// of each Node wakes them. After that only those of Nodes to which a member is bound do: an agent
// of another node may write as often as it likes.
func (r *ProbeRequester) addObservation(o *v1alpha1.EtcdObservation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, owner := range o.OwnerReferences {
		if r.observed[owner.UID] == nil {
			r.observed[owner.UID] = map[string]*v1alpha1.EtcdObservation{}
		}
		r.observed[owner.UID][o.Node] = o
		q := r.queues[owner.UID]
		if q == nil {
			continue
		}
		isNews := q.latest != nil && q.latest.Spec.Nonce == o.Nonce && isBoundNode(q.latest, o.Node)
		for _, p := range q.open {
			isAnswer := p.first != nil && observation.IsAnswer(o.Observation, p.nonces)
			if isAnswer && (!p.answered[o.Node] || isBoundNode(p.latest, o.Node)) {
				p.answered[o.Node], isNews = true, true
			}
		}
		if isNews {
			q.notify()
		}
	}
}

// removeObservation forgets a deleted observation.
func (r *ProbeRequester) removeObservation(o *v1alpha1.EtcdObservation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, owner := range o.OwnerReferences {
		if now := r.observed[owner.UID][o.Node]; now != nil && now.UID == o.UID {
			delete(r.observed[owner.UID], o.Node)
		}
		if len(r.observed[owner.UID]) == 0 {
			delete(r.observed, owner.UID)
		}
	}
}

// observationsOf returns the EtcdObservations of the cluster, by the watch.
func (r *ProbeRequester) observationsOf(cluster types.UID) []*v1alpha1.EtcdObservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.observed[cluster]))
}

func isBoundNode(c *v1alpha1.EtcdCluster, node string) bool {
	return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.Node == node })
}
