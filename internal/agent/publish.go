package agent

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const (
	// publishInterval is the time between two writes of an entry that does not change. The time
	// in the entry shows that its observer is alive.
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
	clusterUID types.UID
	nonce      string
	nodeUID    types.UID
	member     localMember
	// list is the member list that the local server stores. It is nil until it was read.
	list []v1alpha1.MemberStatus
	// noMember means that a scan proves that the host has no member of the cluster any more.
	noMember bool
}

// clusterProbe is one probe of one cluster, with its result.
type clusterProbe struct {
	cluster v1alpha1.ClusterID
	number  int
	inputs  probeInputs
	turn    writeTurn
	// heartbeat makes the reporter write the entry even if it has not changed.
	heartbeat   bool
	observation v1alpha1.Observation
}

// clusterReport is the state of the node's entry in one EtcdCluster.
type clusterReport struct {
	inputs    probeInputs  // of the latest probe
	number    int          // of the latest probe
	startedAt time.Time    // of the latest probe
	listed    clusterProbe // the latest complete result
	// isRecheck is whether the latest probe was made because of listedOthers.
	isRecheck     bool
	nextHeartbeat time.Time
	retryAt       time.Time   // zero if nothing failed
	publishRetry  *loop.Retry // while the entry cannot be written
	probeRetry    *loop.Retry // while the cluster cannot be observed
	written       clusterProbe
	// waiting is the result that waits for its turn to be written, if there is one.
	waiting *clusterProbe
	logged  loop.LogOnce
}

// A clusterReporter publishes observations of the clusters of the local members, and answers
// the nonces of the webhook. Its state belongs to the goroutine of run. The goroutines of the
// probes only probe, and return their results.
type clusterReporter struct {
	node       string
	observe    func(context.Context, evidence.Server, evidence.Identity, func(v1alpha1.Observation)) v1alpha1.Observation
	publish    func(context.Context, v1alpha1.ClusterID, string, *v1alpha1.Observation) error
	nodes      *store[*corev1.Node]
	clusters   *store[*v1alpha1.EtcdCluster]
	evidence   *latest[evidence.Scan]
	staticPods bool
	log        *slog.Logger
	metrics    *metrics

	wake    loop.Signal
	results chan clusterProbe
	reports map[v1alpha1.ClusterID]*clusterReport
	members map[v1alpha1.ClusterID]localMember
	lists   listWatcher
	// writeTime is how long the last write of an entry took.
	writeTime time.Duration
}

// run probes and publishes until the context ends.
func (r *clusterReporter) run(ctx context.Context) error {
	probes, ctx := errgroup.WithContext(ctx)
	probes.SetLimit(maxProbes)
	timer := time.NewTimer(publishInterval)
	defer timer.Stop()
	for ctx.Err() == nil {
		next := r.startProbes(ctx, probes)
		timer.Reset(min(next, r.publishResults(ctx)))
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		case result := <-r.results:
			r.addResult(result)
		}
	}
	return errors.Join(probes.Wait(), context.Cause(ctx))
}

// startProbes starts the probes that are due, and returns the time until the next one is due.
func (r *clusterReporter) startProbes(ctx context.Context, probes *errgroup.Group) time.Duration {
	scan, scanned := r.evidence.get()
	node, exists, _ := r.nodes.get(r.node)
	if !scanned || !exists {
		return publishInterval
	}
	// The node loop logs and replaces an announcement that cannot be read.
	known, _ := gatherKnown(node, scan, r.clusters, r.staticPods)
	r.members = localMembers(scan, r.members, known)
	r.lists.members.set(r.members)
	lists, _ := r.lists.lists.get()
	if protect.Assess(scan, known).Membership == protect.MemberAbsent {
		r.withdrawEntries(ctx)
		return publishInterval
	}
	r.reportAbsence(ctx, node, scan)
	next := publishInterval
	for id, member := range r.members {
		cluster, exists, _ := r.clusters.get(string(id))
		report := r.report(id)
		if !exists {
			if report.logged.Changed("entry", "no cluster") {
				r.log.InfoContext(ctx, "waiting for the webhook's leader to create the EtcdCluster", "cluster", id)
			}
			continue
		}
		// The nonce must be read before the probe begins. An observation that began earlier does
		// not answer it.
		inputs := probeInputs{
			clusterUID: cluster.UID, nonce: cluster.Spec.Nonce, nodeUID: node.UID, member: member, list: lists[id],
			noMember: protect.HasNoMemberOf(id, scan),
		}
		probe := clusterProbe{cluster: id, inputs: inputs, turn: newWriteTurn(r.node, cluster, r.writeTime)}
		next = min(next, r.startIfDue(ctx, probes, report, probe))
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
	isOutdated := report.listedOthers(p.inputs.list)
	recheckAt := report.startedAt.Add(listInterval)
	if p.heartbeat || isRetry || isOutdated && !now.Before(recheckAt) || !reflect.DeepEqual(p.inputs, report.inputs) {
		p.number = report.number + 1
		if !probes.TryGo(func() error { r.probe(ctx, p); return nil }) {
			return publishInterval // A probe that ends makes room, and wakes the reporter.
		}
		report.inputs, report.number, report.startedAt, report.retryAt = p.inputs, p.number, now, time.Time{}
		report.isRecheck, isOutdated = isOutdated, false // Its result decides.
		if p.heartbeat {
			report.nextHeartbeat = now.Add(jittered(publishInterval))
		}
	}
	next := report.nextHeartbeat.Sub(now)
	if !report.retryAt.IsZero() {
		next = min(next, report.retryAt.Sub(now))
	}
	if isOutdated {
		next = min(next, recheckAt.Sub(now))
	}
	return max(next, 0)
}

// listedOthers reports whether the latest probe has ended, and found other members than the local
// server stores now. A member that joins and leaves between two reads of the stored list does not
// change it, but the probe may have found it. One more probe is enough: the server may be down, and
// its stored list is then an old one.
func (r *clusterReport) listedOthers(stored []v1alpha1.MemberStatus) bool {
	if stored == nil || r.isRecheck || r.listed.number != r.number || len(r.listed.observation.Members) == 0 {
		return false
	}
	isListed := map[v1alpha1.MemberID]bool{}
	for _, m := range r.listed.observation.Members {
		isListed[m.ID] = true
	}
	isOther := func(m v1alpha1.MemberStatus) bool { return !isListed[m.ID] }
	return len(stored) != len(isListed) || slices.ContainsFunc(stored, isOther)
}

// probe observes one cluster and returns the result through the channel, an incomplete one first if
// members are slow to answer.
func (r *clusterReporter) probe(ctx context.Context, p clusterProbe) {
	probeContext, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	began := time.Now()
	send := func(o v1alpha1.Observation) {
		o.Node, o.NodeUID, o.Nonce = r.node, p.inputs.nodeUID, p.inputs.nonce
		o.NoMember, o.Time = p.inputs.noMember, metav1.Now()
		result := p
		result.observation = o
		result.turn.awaitsComplete = !o.Incomplete
		result.turn.deadline = time.Now().Add(time.Duration(len(p.turn.predecessors)) * p.turn.slot)
		select {
		case r.results <- result:
		case <-ctx.Done():
		}
	}
	o := r.observe(probeContext, p.inputs.member.server, p.inputs.member.identity, send)
	r.metrics.observeProbe(time.Since(began))
	send(o)
}

// addResult stores the result until its turn. It replaces an older waiting result and keeps the
// earlier deadline. It drops an incomplete result if the nonce already has an answer, or if the
// last written entry is incomplete: otherwise frequent nonces would publish incomplete results
// only.
func (r *clusterReporter) addResult(p clusterProbe) {
	report := r.report(p.cluster)
	if !p.observation.Incomplete && p.number > report.listed.number {
		report.listed = p
	}
	written := report.written
	isAnswered := p.inputs.clusterUID == written.inputs.clusterUID && p.inputs.nonce == written.inputs.nonce
	if p.observation.Incomplete && (isAnswered || written.observation.Incomplete) {
		return
	}
	if before := report.waiting; before != nil {
		if p.number < before.number {
			return
		}
		p.heartbeat = p.heartbeat || before.heartbeat
		if before.turn.deadline.Before(p.turn.deadline) {
			p.turn.deadline = before.turn.deadline
		}
	}
	report.waiting = &p
}

// publishResults publishes the results whose turn it is, and returns the time until the next one
// is due at the latest.
func (r *clusterReporter) publishResults(ctx context.Context) time.Duration {
	next := publishInterval
	for id, report := range r.reports {
		if report.waiting == nil {
			continue
		}
		if cluster, exists, _ := r.clusters.get(string(id)); exists {
			if remaining := report.waiting.turn.remaining(cluster, time.Now()); remaining > 0 {
				next = min(next, remaining)
				continue
			}
		}
		p := *report.waiting
		report.waiting = nil
		r.publishResult(ctx, p)
		next = 0 // Others may have become due during the write.
	}
	return next
}

// publishResult publishes the result of a probe if it contains anything new. It drops a result
// that is older than the written one.
func (r *clusterReporter) publishResult(ctx context.Context, p clusterProbe) {
	report := r.report(p.cluster)
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
	if !p.heartbeat && p.inputs.clusterUID == report.written.inputs.clusterUID &&
		isSameObservation(p.observation, report.written.observation) {
		return
	}
	began := time.Now()
	err := r.writeEntry(ctx, p.cluster, &p.observation)
	r.writeTime = time.Since(began)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if report.logged.Changed("entry", "published") {
			r.log.InfoContext(ctx, "published an observation of the etcd cluster", "cluster", p.cluster,
				"member", p.observation.LocalMember, "members", len(p.observation.Members), "problem", p.observation.Problem)
		}
		report.written = p
		report.publishRetry.Reset()
		r.metrics.countPublished(resultLabel(p.observation))
	default:
		r.metrics.countPublished(resultFailed)
		report.retryAt = time.Now().Add(report.publishRetry.Next())
		if p.heartbeat {
			report.nextHeartbeat = report.retryAt
		}
		if apierrors.IsNotFound(err) {
			report.retryAt = time.Time{} // The watch wakes the reporter when the object exists again.
		}
		if report.logged.ChangedErrorKind("entry", err) {
			r.log.WarnContext(ctx, "failed to publish an observation of the etcd cluster; retrying", "err", err)
		}
	}
}

// withdrawEntries removes the node's entries from all EtcdClusters, because the node provably
// holds no member any more.
func (r *clusterReporter) withdrawEntries(ctx context.Context) {
	clusters, _ := r.clusters.all()
	for _, c := range clusters {
		if !slices.ContainsFunc(c.Status.Observations, func(o v1alpha1.Observation) bool { return o.Node == r.node }) {
			continue
		}
		id := v1alpha1.ClusterID(c.Name)
		switch err := r.writeEntry(ctx, id, nil); {
		case err == nil || apierrors.IsNotFound(err):
			delete(r.reports, id)
			r.log.InfoContext(ctx, "removed the entry from the EtcdCluster; the node holds no member", "cluster", id)
		case ctx.Err() == nil && r.report(id).logged.ChangedErrorKind("entry", err):
			r.log.WarnContext(ctx, "failed to remove the entry from the EtcdCluster; retrying", "err", err)
		}
	}
}

// reportAbsence reports that the host provably has no member any more of the clusters that bind one
// to this node, and that no server is left through which they could be observed. The entry keeps
// its nonce and its last list: it answers nothing, and its list still shows what ran where.
func (r *clusterReporter) reportAbsence(ctx context.Context, node *corev1.Node, scan evidence.Scan) {
	clusters, _ := r.clusters.all()
	for _, c := range clusters {
		id := v1alpha1.ClusterID(c.Name)
		isBound := slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool {
			return b.Node == node.Name && b.NodeUID == node.UID
		})
		if _, isLocal := r.members[id]; isLocal || !isBound || !protect.HasNoMemberOf(id, scan) {
			continue
		}
		entry := entryOf(node.Name, c)
		if entry.NodeUID != node.UID {
			entry = v1alpha1.Observation{Node: node.Name, NodeUID: node.UID, AlarmsUnknown: true}
		}
		if entry.NoMember {
			continue
		}
		entry.NoMember, entry.Time = true, metav1.Now()
		switch err := r.writeEntry(ctx, id, &entry); {
		case err == nil:
			delete(r.reports, id)
			r.log.InfoContext(ctx, "reported that the member which is bound to the node is gone", "cluster", id)
		case ctx.Err() == nil && r.report(id).logged.ChangedErrorKind("entry", err):
			r.log.WarnContext(ctx, "failed to report that the member is gone; retrying", "err", err)
		}
	}
}

// writeEntry writes the node's entry in a cluster, or removes it if the observation is nil.
func (r *clusterReporter) writeEntry(ctx context.Context, id v1alpha1.ClusterID, o *v1alpha1.Observation) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	return r.publish(ctx, id, r.node, o)
}

// report returns the state of the entry in a cluster. It creates the state on the first use.
func (r *clusterReporter) report(cluster v1alpha1.ClusterID) *clusterReport {
	report, exists := r.reports[cluster]
	if !exists {
		report = &clusterReport{publishRetry: loop.NewRetry(retryBackoff()), probeRetry: loop.NewRetry(identifyBackoff())}
		r.reports[cluster] = report
	}
	return report
}

// resultLabel returns the value of the label "result" for a published observation.
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
