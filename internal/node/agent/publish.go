package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
)

const (
	// publishInterval is the time between two writes of an observation that does not change. Its
	// time shows that the observer is alive.
	publishInterval = time.Minute
	// maxProbes limits the probes that run side by side. The probe of a member that hangs takes
	// the whole timeout, and must not delay the answer to the next nonce.
	maxProbes = 4
	// probeTimeout limits one probe, whatever Config.Observe does. publishTimeout limits one
	// write.
	probeTimeout   = 6 * time.Second
	publishTimeout = 5 * time.Second
)

// probeInputs is everything that a probe of a cluster depends on. A change makes a new probe
// due.
type probeInputs struct {
	// objectUID is the UID of the node's EtcdObservation.
	objectUID types.UID
	nonce     string
	nodeUID   types.UID
	member    evidence.FoundServer
	// list is the member list that the local server stores. It is nil until it was read.
	list []v1alpha1.MemberStatus
	// noMember means that a scan proves that the host has no member of the cluster any more.
	noMember bool
}

// clusterProbe is one probe of one cluster, with its result.
type clusterProbe struct {
	cluster *v1alpha1.EtcdCluster // the version with the nonce
	number  int
	inputs  probeInputs
	// heartbeat makes the reporter write the observation even if it has not changed.
	heartbeat   bool
	observation v1alpha1.Observation
}

// clusterReport is the state of the node's observation of one cluster.
type clusterReport struct {
	inputs        probeInputs // of the latest probe
	number        int         // of the latest probe
	nextHeartbeat time.Time
	retryAt       time.Time   // zero if nothing failed
	publishRetry  *loop.Retry // while the observation cannot be written
	probeRetry    *loop.Retry // while the cluster cannot be observed
	written       clusterProbe
	// object is the version that the last write has made. The watch may be behind it.
	object *v1alpha1.EtcdObservation
	logged loop.LogOnce
}

// A clusterReporter publishes observations of the clusters of the local members, and answers
// the nonces of the webhook. Its state belongs to the goroutine of run. The goroutines of the
// probes only probe, and return their results.
type clusterReporter struct {
	cfg      Config
	publish  func(context.Context, *v1alpha1.EtcdObservation, metav1.UpdateOptions) (*v1alpha1.EtcdObservation, error)
	nodes    *store[*corev1.Node]
	clusters clusterStores
	evidence *latest[evidence.Scan]
	metrics  *metrics

	wake    loop.Signal
	results chan clusterProbe
	reports map[v1alpha1.ClusterID]*clusterReport
	members map[v1alpha1.ClusterID]evidence.FoundServer
	lists   listWatcher
}

func (r *clusterReporter) run(ctx context.Context) error {
	probes, ctx := errgroup.WithContext(ctx)
	probes.SetLimit(maxProbes)
	timer := time.NewTimer(publishInterval)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(r.startProbes(ctx, probes))
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		case result := <-r.results:
			r.publishResult(ctx, result)
		}
	}
	return errors.Join(probes.Wait(), context.Cause(ctx))
}

// startProbes starts the probes that are due, and returns the time until the next one is due.
func (r *clusterReporter) startProbes(ctx context.Context, probes *errgroup.Group) time.Duration {
	scan, scanned := r.evidence.get()
	node, exists, _ := r.nodes.get(r.cfg.Node)
	if !scanned || !exists {
		return publishInterval
	}
	// The node loop logs and replaces an announcement that cannot be read.
	known, _ := gatherKnown(node, scan, r.clusters, r.cfg.StaticPods)
	r.members = localMembers(scan, r.members, known)
	r.lists.members.set(r.members)
	lists, _ := r.lists.lists.get()
	if presence.Assess(scan, known).Membership == presence.MemberAbsent {
		return publishInterval // The leader deletes the observations.
	}
	r.reportAbsence(ctx, node, scan)
	next := publishInterval
	for id, member := range r.members {
		cluster, exists, _ := r.clusters.clusters.get(string(id))
		report := r.report(id)
		var own *v1alpha1.EtcdObservation
		if exists {
			own = r.own(cluster)
		}
		if own == nil {
			if report.logged.Changed("observation", "no object") {
				r.cfg.Log.InfoContext(ctx, "waiting for the webhook's leader to create the EtcdObservation", "cluster", id)
			}
			continue
		}
		// The nonce must be read before the probe begins. An observation that began earlier does
		// not answer it.
		inputs := probeInputs{
			objectUID: own.UID, nonce: cluster.Spec.Nonce, nodeUID: node.UID, member: member, list: lists[id],
			noMember: presence.HasNoMemberOf(id, scan),
		}
		next = min(next, r.startIfDue(ctx, probes, report, clusterProbe{cluster: cluster, inputs: inputs}))
	}
	return next
}

// startIfDue starts the probe if it is due, and returns the time until the next one is due.
func (r *clusterReporter) startIfDue(
	ctx context.Context, probes *errgroup.Group, report *clusterReport, p clusterProbe,
) time.Duration {
	now := time.Now()
	p.heartbeat = !now.Before(report.nextHeartbeat)
	isRetry := !report.retryAt.IsZero() && !now.Before(report.retryAt)
	if p.heartbeat || isRetry || !reflect.DeepEqual(p.inputs, report.inputs) {
		p.number = report.number + 1
		if !probes.TryGo(func() error { r.probe(ctx, p); return nil }) {
			return publishInterval // A probe that ends makes room, and wakes the reporter.
		}
		report.inputs, report.number, report.retryAt = p.inputs, p.number, time.Time{}
		if p.heartbeat {
			report.nextHeartbeat = now.Add(jittered(publishInterval))
		}
	}
	next := report.nextHeartbeat.Sub(now)
	if !report.retryAt.IsZero() {
		next = min(next, report.retryAt.Sub(now))
	}
	return max(next, 0)
}

func (r *clusterReporter) probe(ctx context.Context, p clusterProbe) {
	probeContext, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	o := r.cfg.Observe(probeContext, p.inputs.member.Server, p.inputs.member.Identity)
	o.Node, o.NodeUID, o.Nonce = r.cfg.Node, p.inputs.nodeUID, p.inputs.nonce
	o.NoMember, o.Time = p.inputs.noMember, metav1.Now()
	p.observation = o
	select {
	case r.results <- p:
	case <-ctx.Done():
	}
}

// publishResult publishes the result of a probe if it contains anything new. It drops a result
// that is older than the written one.
func (r *clusterReporter) publishResult(ctx context.Context, p clusterProbe) {
	id := observation.ClusterIDOf(p.cluster)
	report := r.report(id)
	if p.number < report.written.number {
		return
	}
	if p.observation.Problem == "" {
		report.probeRetry.Reset()
	} else if p.number == report.number {
		// The cause may be the replacement of a certificate, an election, or a server that is
		// starting. It can be over long before the next heartbeat.
		report.retryAt = time.Now().Add(report.probeRetry.Next())
	}
	if !p.heartbeat && p.inputs.objectUID == report.written.inputs.objectUID &&
		isSameObservation(p.observation, report.written.observation) {
		return
	}
	switch err := r.write(ctx, p.cluster, p.observation); {
	case ctx.Err() != nil:
	case err == nil:
		if report.logged.Changed("observation", "published") {
			r.cfg.Log.InfoContext(ctx, "published an observation of the etcd cluster", "cluster", id,
				"member", p.observation.LocalMember, "members", len(p.observation.Members), "problem", p.observation.Problem)
		}
		report.written = p
		report.publishRetry.Reset()
		r.metrics.published.WithLabelValues(resultLabel(p.observation)).Inc()
	default:
		r.metrics.published.WithLabelValues(resultFailed).Inc()
		report.retryAt = time.Now().Add(report.publishRetry.Next())
		if p.heartbeat {
			report.nextHeartbeat = report.retryAt
		}
		if apierrors.IsNotFound(err) || errors.Is(err, errNoObject) {
			report.retryAt = time.Time{} // The watch wakes the reporter when the object exists again.
		}
		if report.logged.ChangedErrorKind("observation", err) {
			r.cfg.Log.WarnContext(ctx, "failed to publish an observation of the etcd cluster; retrying", "err", err)
		}
	}
}

// reportAbsence reports that the host provably has no member any more of the clusters that bind one
// to this node, and that no server is left through which they could be observed. The observation
// keeps its nonce and its last list: it answers nothing, and its list still shows what ran where.
func (r *clusterReporter) reportAbsence(ctx context.Context, node *corev1.Node, scan evidence.Scan) {
	clusters, _ := r.clusters.clusters.objects.get()
	for _, c := range clusters {
		id := v1alpha1.ClusterID(c.Name)
		isBound := slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
			return b.Node == node.Name && b.NodeUID == node.UID
		})
		_, isLocal := r.members[id]
		own := r.own(c)
		if isLocal || !isBound || own == nil || !presence.HasNoMemberOf(id, scan) {
			continue
		}
		o := own.Observation
		if o.NodeUID != node.UID {
			o = v1alpha1.Observation{Node: node.Name, NodeUID: node.UID, AlarmsUnknown: true}
		}
		if o.NoMember {
			continue
		}
		o.NoMember, o.Time = true, metav1.Now()
		switch err := r.write(ctx, c, o); {
		case err == nil:
			written := r.report(id).object
			delete(r.reports, id)
			r.report(id).object = written
			r.cfg.Log.InfoContext(ctx, "reported that the member which is bound to the node is gone", "cluster", id)
		case ctx.Err() == nil && r.report(id).logged.ChangedErrorKind("observation", err):
			r.cfg.Log.WarnContext(ctx, "failed to report that the member is gone; retrying", "err", err)
		}
	}
}

// errNoObject reports that the leader has not created the EtcdObservation, or has deleted it.
var errNoObject = errors.New("there is no EtcdObservation of this node")

// own returns the newest known version of the node's EtcdObservation, or nil if there is none.
func (r *clusterReporter) own(c *v1alpha1.EtcdCluster) *v1alpha1.EtcdObservation {
	id := observation.ClusterIDOf(c)
	own, exists, _ := r.clusters.observations.get(v1alpha1.ObservationName(id, r.cfg.Node))
	if !exists || !observation.BelongsTo(own, c.UID) {
		return nil // the leader has not created it
	}
	if written := r.report(id).object; written != nil && written.UID == own.UID && apiaccess.IsNewer(written, own) {
		return written
	}
	return own
}

func (r *clusterReporter) write(ctx context.Context, c *v1alpha1.EtcdCluster, o v1alpha1.Observation) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	own := r.own(c)
	if own == nil {
		return errNoObject
	}
	next := *own
	next.Observation = o
	made, err := r.publish(ctx, &next, metav1.UpdateOptions{})
	switch report := r.report(v1alpha1.ClusterID(c.Name)); {
	case err == nil:
		report.object = made
		return nil
	case apierrors.IsConflict(err):
		report.object = nil
	}
	return fmt.Errorf("publishing EtcdObservation %s: %w", own.Name, err)
}

// report returns the state of the observation of a cluster. It creates the state on the first use.
func (r *clusterReporter) report(cluster v1alpha1.ClusterID) *clusterReport {
	report, exists := r.reports[cluster]
	if !exists {
		report = &clusterReport{publishRetry: loop.NewRetry(retryBackoff()), probeRetry: loop.NewRetry(identifyBackoff())}
		r.reports[cluster] = report
	}
	return report
}

func resultLabel(o v1alpha1.Observation) string {
	if o.Problem != "" {
		return resultProblem
	}
	return resultPublished
}

// isSameObservation reports whether two observations differ in their time only.
func isSameObservation(a, b v1alpha1.Observation) bool {
	a.Time, b.Time = metav1.Time{}, metav1.Time{}
	return reflect.DeepEqual(a, b)
}
