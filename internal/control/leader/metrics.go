package leader

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// metrics is the prometheus.Collector of a Leader. It exports what the last round found. A replica
// that does not lead exports only that it does not, because old numbers would mislead.
type metrics struct {
	leading, openGrants, ignored *prometheus.Desc
	known, voters, healthy       *prometheus.Desc
	quorum, expendable           *prometheus.Desc
	withoutNode, unseen, alarms  *prometheus.Desc
	zoneVoters, zoneHolds        *prometheus.Desc
	grants, oldestGrant          *prometheus.Desc

	mu    sync.Mutex
	round *roundResult // nil while the replica does not lead
}

// A roundResult is what one round found.
type roundResult struct {
	ignored  map[observation.IgnoredReason]int
	clusters []clusterResult
}

// A clusterResult is what one round found about one cluster.
type clusterResult struct {
	name     string
	overview quorum.Overview
	zones    []quorum.ZoneShare
	grants   map[string]grantCount // by the values of the label "reason"
}

// The values of the label "reason": what a grant allowed.
const (
	grantOfDeletion = "Deletion"
	grantOfDrain    = "Drain"
)

// A grantCount is the number of open grants with one reason, and the time of the oldest.
type grantCount struct {
	open   int
	oldest time.Time
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	perCluster := func(name, help string, labels ...string) *prometheus.Desc {
		return desc(name, help, append([]string{"etcd_cluster"}, labels...)...)
	}
	m := &metrics{
		leading: desc("holdfast_webhook_leading",
			"Whether this replica leads (1) or not (0). Only the leader exports the metrics of etcd clusters."),
		openGrants: desc("holdfast_webhook_open_grants", "Grants that are not resolved. Only the leader exports it."),
		ignored: desc("holdfast_webhook_observations_ignored",
			"Ignored observations of agents, by reason. Only the leader exports it.", "reason"),
		known: perCluster("holdfast_etcd_list_known",
			"Whether agents have answered with a member list that a quorum confirmed (1) or not (0). "+
				"Without a list, there are no numbers of voters."),
		voters:  perCluster("holdfast_etcd_voters", "Voters of the etcd cluster, including those that never started."),
		healthy: perCluster("holdfast_etcd_healthy_voters", "Voters that are proven healthy, and neither lost nor away."),
		quorum:  perCluster("holdfast_etcd_quorum_voters", "Healthy voters that the etcd cluster needs."),
		expendable: perCluster("holdfast_etcd_expendable_voters",
			"Healthy voters that the etcd cluster can lose. The tolerance of the webhook is not subtracted."),
		withoutNode: perCluster("holdfast_etcd_members_without_node",
			"Members of the etcd cluster that run on no Node of this Kubernetes cluster, as far as known."),
		unseen: perCluster("holdfast_etcd_members_unseen",
			"Members on a Node whose agent has not answered the last probe request."),
		alarms: perCluster("holdfast_etcd_alarms",
			"Members with an alarm of etcd, by alarm. Absent if no agent could read the alarms.", "alarm"),
		zoneVoters: perCluster("holdfast_etcd_zone_voters", "Voters of the etcd cluster in a zone.", "zone"),
		zoneHolds: perCluster("holdfast_etcd_zone_holds_quorum",
			"Whether fewer voters than quorum are outside of the zone (1) or not (0). It is 0 if the nodes of the "+
				"Kubernetes cluster are in one zone, and for one or two voters.", "zone"),
		grants: perCluster("holdfast_etcd_grants",
			"Grants that are not resolved, by what was allowed: Deletion or Drain.", "reason"),
		oldestGrant: perCluster("holdfast_etcd_oldest_grant_timestamp_seconds",
			"When the oldest open grant was last allowed, in seconds since the epoch. Absent without a grant.", "reason"),
	}
	if err := r.Register(m); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return m, nil
}

// Describe implements prometheus.Collector. It describes nothing, because most metrics come and go.
func (*metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.round == nil {
		send(to, m.leading, 0)
		return
	}
	send(to, m.leading, 1)
	for _, reason := range observation.IgnoredReasons() {
		send(to, m.ignored, float64(m.round.ignored[reason]), string(reason))
	}
	open := 0
	for _, c := range m.round.clusters {
		m.collectCluster(to, c)
		for _, count := range c.grants {
			open += count.open
		}
	}
	send(to, m.openGrants, float64(open))
}

func (m *metrics) collectCluster(to chan<- prometheus.Metric, c clusterResult) {
	o := c.overview
	send(to, m.withoutNode, float64(len(o.WithoutNode)), c.name)
	send(to, m.unseen, float64(len(o.Unseen)), c.name)
	for _, reason := range []string{grantOfDeletion, grantOfDrain} {
		count := c.grants[reason]
		send(to, m.grants, float64(count.open), c.name, reason)
		if count.open > 0 {
			send(to, m.oldestGrant, float64(count.oldest.Unix()), c.name, reason)
		}
	}
	if o.Alarms != nil {
		for _, alarm := range quorum.Alarms() {
			send(to, m.alarms, float64(len(o.Alarms[alarm])), c.name, alarm)
		}
	}
	if !o.Known {
		send(to, m.known, 0, c.name)
		return
	}
	send(to, m.known, 1, c.name)
	send(to, m.voters, float64(o.Voters), c.name)
	send(to, m.healthy, float64(o.Healthy), c.name)
	send(to, m.quorum, float64(o.Quorum), c.name)
	send(to, m.expendable, float64(o.MayLose), c.name)
	for _, z := range c.zones {
		if z.Zone == "" || z.Voters == 0 {
			continue
		}
		holds := 0.0
		if z.HoldsQuorum {
			holds = 1
		}
		send(to, m.zoneVoters, float64(z.Voters), c.name, z.Zone)
		send(to, m.zoneHolds, holds, c.name, z.Zone)
	}
}

func send(to chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// set replaces what is exported. A nil result means that the replica does not lead.
func (m *metrics) set(r *roundResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.round = r
}

// resultOf returns what the round found about a cluster. The overview is from the last version of
// the object that answered the probe request, so the grants are too.
func resultOf(cached *v1alpha1.EtcdCluster, s *clusterState) clusterResult {
	c := cached
	if s.probe != nil {
		c = s.probe.Result().Cluster
	}
	r := clusterResult{name: c.Name, overview: s.overview, zones: s.zones, grants: map[string]grantCount{}}
	for _, g := range c.Spec.Grants {
		reason := grantOfDeletion
		if quorum.IsDrainOnly(g) {
			reason = grantOfDrain
		}
		count := r.grants[reason]
		allowed := s.allowedAt(g)
		if count.open == 0 || allowed.Before(count.oldest) {
			count.oldest = allowed
		}
		count.open++
		r.grants[reason] = count
	}
	return r
}
