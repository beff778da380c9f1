package machinehook

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

type etcdNodes []*corev1.Node

// holdersOf returns the Nodes that have the label or a member (place.Keep): the label may be
// missing for a moment.
func holdersOf(nodes []*corev1.Node, clusters []*v1alpha1.EtcdCluster) (found etcdNodes) {
	isNamed := map[string]bool{} // by a binding or a grant
	for _, c := range clusters {
		for _, name := range clusterstore.NodeNames(c) {
			isNamed[name] = true
		}
	}
	for _, n := range nodes {
		isPlaced := func(p place.Place) bool { return p.By&place.Keep(n) != 0 }
		hasMember := func(c *v1alpha1.EtcdCluster) bool { return slices.ContainsFunc(place.On(c, n), isPlaced) }
		if observation.IsLabelled(n) || (isNamed[n.Name] && slices.ContainsFunc(clusters, hasMember)) {
			found = append(found, n)
		}
	}
	return found
}

func (nodes etcdNodes) has(m machine.Object) bool {
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return standsFor(m, n) })
}

func standsFor(m machine.Object, n *corev1.Node) bool {
	return m.Match(n.Name, n.Spec.ProviderID) != ""
}

// A round makes the steps that are due at one time.
type round struct {
	*Controller
	steps []step
	live  liveRead
}

// A step is what is to be done about one Machine.
type step struct {
	kind    machine.HookStep
	machine machine.Object
	// hasEtcd means that the Machine stands for a node with etcd, according to the cache.
	hasEtcd bool
	// basis is that of a review.
	basis string
}

// A liveRead has the Nodes of the API server for which the Machines of a round stand.
type liveRead struct {
	nodes []*corev1.Node
	// etcd are those of them that hold etcd.
	etcd  etcdNodes
	began time.Time
	err   error
}

// newRound plans the steps. Reviews come last, because they take seconds, and among them those that
// wait longest come first.
func (c *Controller) newRound(w world.World, machines []machine.Object) *round {
	r, etcd := &round{Controller: c}, holdersOf(w.Nodes, w.Clusters)
	for _, m := range machines {
		s := step{machine: m, hasEtcd: etcd.has(m)}
		s.kind = machine.PlanHook(m, s.hasEtcd)
		if s.kind == machine.HookReview {
			s.basis = basisOf(m, w)
		}
		isDue := s.kind != machine.HookReview || c.reviewed[m.UID].isFollowedBy(s.basis, c.Tick)
		if s.kind != machine.HookKeep && isDue {
			r.steps = append(r.steps, s)
		}
	}
	slices.SortStableFunc(r.steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), c.reviewed[a.machine.UID].at.Compare(c.reviewed[b.machine.UID].at))
	})
	return r
}

func (r *round) do(ctx context.Context, s step) (err error) {
	switch s.kind {
	case machine.HookKeep:
	case machine.HookAdd:
		_, err = r.patch(ctx, s.machine, machine.HookValue)
	case machine.HookRemove:
		live := r.readLive(ctx) // The cache may lack a Node with etcd for which the Machine stands.
		if live.err != nil || live.etcd.has(s.machine) {
			return live.err
		}
		_, err = r.patch(ctx, s.machine, nil)
	case machine.HookReview:
		err = r.review(ctx, s)
	}
	return err
}

// readLive reads the Nodes of the API server for which the Machines of the round stand, and then
// the EtcdClusters: a member that is bound in between counts. All steps share one read, also if it
// fails.
func (r *round) readLive(ctx context.Context) liveRead {
	if !r.live.began.IsZero() {
		return r.live
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r.live.began = time.Now()
	r.live.nodes, r.live.err = r.LiveNodes(ctx, func(n *corev1.Node) bool {
		return slices.ContainsFunc(r.steps, func(s step) bool { return standsFor(s.machine, n) })
	})
	var clusters []*v1alpha1.EtcdCluster
	if r.live.err == nil {
		clusters, r.live.err = r.LiveClusters(ctx)
	}
	r.live.etcd = holdersOf(r.live.nodes, clusters)
	return r.live
}

// maxBackoff limits the time between two reviews of one Machine, as a multiple of a tick.
const maxBackoff = 8

type pastReview struct {
	at    time.Time
	basis string
	// refusal is the message of the last refusal.
	refusal string
	// wait is the time until the next review if the basis stays the same.
	wait time.Duration
}

// isFollowedBy reports whether the next review is due. A review that is late keeps the hook longer,
// and can do no other harm.
func (p pastReview) isFollowedBy(basis string, tick time.Duration) bool {
	age := time.Since(p.at)
	return age >= p.wait || age >= tick && basis != p.basis
}

// refused returns the review after p, which refuses.
func (p pastReview) refused(next pastReview, message string) pastReview {
	if next.refusal = message; next.basis == p.basis && message == p.refusal {
		next.wait = max(next.wait, min(2*p.wait, maxBackoff*next.wait))
	}
	return next
}

// basisOf returns a text that changes with what a refusal depends on, as far as the cache knows it:
// the Machine, its Nodes, and the bindings, grants and summaries of the EtcdClusters. Observations
// are not part of it, because agents write them all the time; the leader summarizes what is new in
// them.
func basisOf(m machine.Object, w world.World) string {
	m.ResourceVersion = ""
	parts := []string{textOf(m)}
	for _, n := range w.Nodes {
		if standsFor(m, n) {
			parts = append(parts, string(n.UID)+" "+n.ResourceVersion)
		}
	}
	for _, c := range w.Clusters {
		s := c.Status
		parts = append(parts, textOf(
			c.UID, c.Annotations, c.Spec.Ledger, c.Spec.Members, s.Voters, s.Healthy, s.Quorum, s.MayLose))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

func textOf(values ...any) string {
	text, _ := json.Marshal(values) // Values of the API can be encoded.
	return string(text)
}
