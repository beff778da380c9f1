package leader

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// metrics is the prometheus.Collector of a Leader. It exports what the last round found. A replica
// that does not lead exports only that it does not. One that no longer leads ends its process.
type metrics struct {
	mu    sync.Mutex
	round *roundResult // nil before the first round
}

type roundResult struct {
	ignored  map[observation.IgnoredReason]int
	clusters []clusterResult
}

type clusterResult struct {
	name    string
	summary quorum.Summary
	zones   []quorum.ZoneShare
	// grants has when each open grant was allowed, by the values of the label "reason".
	grants map[string][]time.Time
}

// The values of the label "reason": what a grant allowed.
const (
	grantOfDeletion = "Deletion"
	grantOfDrain    = "Drain"
)

// Describe implements prometheus.Collector. It describes nothing, because most metrics come and go.
func (*metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := samples{to: to}
	all.send("holdfast_webhook_leading",
		"Whether this replica leads (1) or not (0). Only the leader exports the metrics of etcd clusters.",
		one(m.round != nil))
	if m.round == nil {
		return
	}
	for _, reason := range observation.IgnoredReasons() {
		all.with("reason", string(reason)).send("holdfast_webhook_observations_ignored",
			"Ignored observations of agents, by reason. Only the leader exports it.", m.round.ignored[reason])
	}
	open := 0
	for _, c := range m.round.clusters {
		c.collect(all.with("etcd_cluster", c.name))
		for _, times := range c.grants {
			open += len(times)
		}
	}
	all.send("holdfast_webhook_open_grants", "Grants that are not resolved. Only the leader exports it.", open)
}

func (c clusterResult) collect(s samples) {
	o := c.summary
	s.send("holdfast_etcd_members_without_node",
		"Members of the etcd cluster that run on no Node of this Kubernetes cluster, as far as known.", len(o.WithoutNode))
	s.send("holdfast_etcd_members_unseen",
		"Members on a Node whose agent has not answered the last probe request.", len(o.Unseen))
	for _, reason := range []string{grantOfDeletion, grantOfDrain} {
		times, s := c.grants[reason], s.with("reason", reason)
		s.send("holdfast_etcd_grants",
			"Grants that are not resolved, by what was allowed: Deletion or Drain.", len(times))
		if len(times) > 0 {
			s.send("holdfast_etcd_oldest_grant_timestamp_seconds",
				"When the oldest open grant was last allowed, in seconds since the epoch. Absent without a grant.",
				int(slices.MinFunc(times, time.Time.Compare).Unix()))
		}
	}
	if o.Alarms != nil {
		for _, alarm := range quorum.Alarms() {
			s.with("alarm", alarm).send("holdfast_etcd_alarms",
				"Members with an alarm of etcd, by alarm. Absent if no agent could read the alarms.", len(o.Alarms[alarm]))
		}
	}
	s.send("holdfast_etcd_list_known",
		"Whether agents have answered with a member list that a quorum confirmed (1) or not (0). "+
			"Without a list, there are no numbers of voters.", one(o.Known))
	if o.Known {
		c.collectVoters(s)
	}
}

func (c clusterResult) collectVoters(s samples) {
	o := c.summary
	s.send("holdfast_etcd_voters", "Voters of the etcd cluster, including those that never started.", o.Voters)
	s.send("holdfast_etcd_healthy_voters", "Voters that are proven healthy, and neither lost nor away.", o.Healthy)
	s.send("holdfast_etcd_quorum_voters", "Healthy voters that the etcd cluster needs.", o.Quorum)
	s.send("holdfast_etcd_expendable_voters",
		"Healthy voters that the etcd cluster can lose. The tolerance of the webhook is not subtracted.", o.MayLose)
	for _, z := range c.zones {
		if z.Zone == "" || z.Voters == 0 {
			continue
		}
		s := s.with("zone", z.Zone)
		s.send("holdfast_etcd_zone_voters", "Voters of the etcd cluster in a zone.", z.Voters)
		s.send("holdfast_etcd_zone_holds_quorum",
			"Whether fewer voters than quorum are outside of the zone (1) or not (0). It is 0 if the nodes of the "+
				"Kubernetes cluster are in one zone, and for one or two voters.", one(z.HoldsQuorum))
	}
}

// samples sends gauges with the same labels.
type samples struct {
	to     chan<- prometheus.Metric
	labels prometheus.Labels
}

func (s samples) with(label, value string) samples {
	labels := prometheus.Labels{label: value}
	maps.Copy(labels, s.labels)
	return samples{s.to, labels}
}

func (s samples) send(name, help string, value int) {
	desc := prometheus.NewDesc(name, help, nil, s.labels)
	s.to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value))
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// set replaces what is exported.
func (m *metrics) set(r *roundResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.round = r
}

// resultOf returns what the round found about a cluster. The summary is from the last version of
// the object that answered the probe request, so the grants are too.
func resultOf(cached *v1alpha1.EtcdCluster, s *clusterState) clusterResult {
	c := cached
	if s.probe != nil {
		c = s.probe.Result().Cluster
	}
	r := clusterResult{name: c.Name, summary: s.summary, zones: s.zones, grants: map[string][]time.Time{}}
	for _, g := range c.Spec.Grants {
		reason := grantOfDeletion
		if quorum.IsDrainOnly(g) {
			reason = grantOfDrain
		}
		r.grants[reason] = append(r.grants[reason], s.allowedAt(g))
	}
	return r
}
