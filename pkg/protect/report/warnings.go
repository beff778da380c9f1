package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

const (
	// oldGrantAfter is the age of a grant after which it needs attention.
	oldGrantAfter = time.Hour
	// defaultStuckHoldAfter is the default of the webhook's flag --stuck-hold-after.
	defaultStuckHoldAfter = 10 * time.Minute
)

// A WarningKind classifies a Warning. The set is closed.
type WarningKind string

// The kinds.
const (
	WarnCannotSee     WarningKind = "CannotSee"
	WarnNoTolerance   WarningKind = "NoTolerance"
	WarnZone          WarningKind = "ZoneHoldsQuorum"
	WarnGhostMember   WarningKind = "GhostMember"
	WarnNodeGone      WarningKind = "NodeGone"
	WarnListsDiffer   WarningKind = "ListsDiffer"
	WarnSilentAgent   WarningKind = "SilentAgent"
	WarnIgnored       WarningKind = "IgnoredObservation"
	WarnUnbound       WarningKind = "UnboundClaims"
	WarnNoRole        WarningKind = "NoRole"
	WarnAlarm         WarningKind = "Alarm"
	WarnOldGrant      WarningKind = "OldGrant"
	WarnLongHold      WarningKind = "LongHold"
	WarnUnknownMember WarningKind = "UnknownMember"
	WarnNoCluster     WarningKind = "NoEtcdCluster"
	WarnFlagsUnknown  WarningKind = "FlagsUnknown"
)

// A Warning is something that needs attention.
type Warning struct {
	Kind WarningKind `json:"kind"`
	// About is the etcd cluster or the Node that the warning is about.
	About string `json:"about"`
	Text  string `json:"text"`
}

func warningf(kind WarningKind, about, format string, args ...any) Warning {
	return Warning{Kind: kind, About: about, Text: printable.Line(fmt.Sprintf(format, args...))}
}

// warnings returns the warnings about a status.
func (s State) warnings(status Status) []Warning {
	var all []Warning
	if s.FlagsProblem != "" {
		all = append(all, warningf(WarnFlagsUnknown, "holdfast-webhook", "%s", s.FlagsProblem))
	}
	for i := range s.Clusters {
		all = append(all, s.clusterWarnings(&s.Clusters[i], status.Clusters[i])...)
	}
	all = append(all, s.missingClusters()...)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if !observation.IsLabelled(n) || slices.ContainsFunc(s.Clusters, func(c v1alpha1.EtcdCluster) bool {
			return slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.Node == n.Name })
		}) {
			continue
		}
		all = append(all, warningf(WarnUnknownMember, n.Name,
			"node %s has the label %s, but no member is bound to it: kubectl holdfast why %s",
			n.Name, observation.EtcdMemberLabel, n.Name))
	}
	for _, h := range status.Holds {
		if h.Since != nil && s.Now.Sub(*h.Since) > cmp.Or(s.StuckHoldAfter, defaultStuckHoldAfter) {
			all = append(all, warningf(WarnLongHold, h.Node, "node %s has been held for %s: kubectl holdfast why %s",
				h.Node, Age(*h.Since, s.Now), h.Node))
		}
	}
	return all
}

// missingClusters returns the warnings about announced clusters without an EtcdCluster.
func (s State) missingClusters() []Warning {
	announcers := map[v1alpha1.ClusterID][]string{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		refs, _ := observation.AnnouncedOn(n) // If no cluster can be named, the warning is UnknownMember.
		for _, ref := range refs {
			exists := slices.ContainsFunc(s.Clusters, func(c v1alpha1.EtcdCluster) bool { return c.Name == string(ref.Cluster) })
			if !exists && !slices.Contains(announcers[ref.Cluster], n.Name) {
				announcers[ref.Cluster] = append(announcers[ref.Cluster], n.Name)
			}
		}
	}
	var all []Warning
	for _, id := range slices.Sorted(maps.Keys(announcers)) {
		all = append(all, warningf(WarnNoCluster, string(id), "etcd cluster %s, announced by %s, has no EtcdCluster, so its "+
			"nodes cannot be deleted; if that lasts, %d exist: delete those of etcd clusters that no longer exist, or raise "+
			"the webhook's flag --max-etcd-clusters", id, strings.Join(announcers[id], ", "), len(s.Clusters)))
	}
	return all
}

// clusterWarnings returns the warnings about one cluster. It also looks at old observations.
func (s State) clusterWarnings(c *v1alpha1.EtcdCluster, status ClusterStatus) []Warning {
	id := string(status.ID)
	var all []Warning
	switch {
	case !status.Known:
		all = append(all, warningf(WarnCannotSee, id, "cannot see etcd cluster %s: %s", id, status.Message))
	case status.Healthy < status.Quorum:
		all = append(all, warningf(WarnNoTolerance, id, "etcd cluster %s has fewer healthy voters than quorum: %s",
			id, status.Message))
	case status.MayLose == 0:
		all = append(all, warningf(WarnNoTolerance, id, "etcd cluster %s cannot lose another voter", id))
	}
	all = append(all, zoneWarnings(status)...)
	for _, m := range status.Members {
		if m.Node == "" {
			advice := "if it is permanently gone: etcdctl member remove " + string(m.ID)
			finders := slices.DeleteFunc(observation.Recent(c, s.Now).Observations, func(o v1alpha1.Observation) bool {
				return !observation.Finds(o, m.ID)
			})
			switch {
			case m.Counts == quorum.CountsHealthy:
				advice = "it answers, so keep it, and run an agent on its host"
			case len(finders) > 0:
				advice = fmt.Sprintf("keep it: the agent of node %s finds its server or its data", finders[0].Node)
			}
			all = append(all, warningf(WarnGhostMember, id, "member %s of etcd cluster %s is on no known Node: %s; %s",
				memberTitle(m), id, m.Description, advice))
		}
	}
	for _, b := range c.Spec.Members {
		if n := s.node(b.Node); n == nil || n.UID != b.NodeUID {
			all = append(all, warningf(WarnNodeGone, id, "node %s of member %s of etcd cluster %s is gone, but the member "+
				"is still in its cluster, or may be", b.Node, b.MemberID, id))
		}
	}
	if c.Spec.Observers == v1alpha1.AllNodes {
		all = append(all, warningf(WarnNoRole, id, "etcd cluster %s: %s", id, observation.DescribeObservers(c)))
	}
	all = append(all, s.observationWarnings(c)...)
	for _, g := range status.Grants {
		if s.Now.Sub(g.Since) > oldGrantAfter {
			all = append(all, warningf(WarnOldGrant, id, "the grant for node %s in etcd cluster %s is %s old; "+
				"its members count as lost until %s", g.Node, id, Age(g.Since, s.Now), g.Doors[len(g.Doors)-1].ShutWhen))
		}
	}
	for _, condition := range c.Status.Conditions {
		if condition.Type == quorum.BoundCondition && condition.Status == metav1.ConditionFalse {
			all = append(all, warningf(WarnUnbound, id, "%s", printable.Line(condition.Message)))
		}
	}
	return all
}

// observationWarnings returns the warnings about what the agents of a cluster report.
func (s State) observationWarnings(c *v1alpha1.EtcdCluster) []Warning {
	id := c.Name
	var all []Warning
	recent := observation.Recent(c, s.Now)
	lists, alarms := map[string][]string{}, map[string]bool{}
	for _, o := range observation.Confirmed(observation.Accepted(recent)) {
		var ids []v1alpha1.MemberID
		for _, m := range o.Members {
			ids = append(ids, m.ID)
			for _, alarm := range m.Alarms {
				alarms[fmt.Sprintf("member %s of etcd cluster %s has the alarm %s", m.ID, id, alarm)] = true
			}
		}
		slices.Sort(ids)
		list := observation.JoinIDs(ids, ", ")
		lists[list] = append(lists[list], o.Node)
	}
	for text := range alarms {
		all = append(all, warningf(WarnAlarm, id, "%s", text))
	}
	if len(lists) > 1 {
		var texts []string
		for list, nodes := range lists {
			texts = append(texts, fmt.Sprintf("%s list %s", strings.Join(nodes, ", "), list))
		}
		slices.Sort(texts)
		all = append(all, warningf(WarnListsDiffer, id, "the member lists of etcd cluster %s differ: the agents of %s",
			id, strings.Join(texts, "; those of ")))
	}
	slices.SortFunc(all, func(a, b Warning) int { return strings.Compare(a.Text, b.Text) })
	for _, i := range observation.Ignored(recent, s.Now) {
		all = append(all, warningf(WarnIgnored, i.Node,
			"a part of the observation of node %s about etcd cluster %s is ignored: %s", i.Node, id, i.Reason))
	}
	return append(all, s.silentAgents(c)...)
}

// silentAgents returns a warning for each existing Node with a member whose agent is silent.
func (s State) silentAgents(c *v1alpha1.EtcdCluster) []Warning {
	var all []Warning
	warned := map[string]bool{}
	for _, b := range c.Spec.Members {
		n := s.node(b.Node)
		if n == nil || n.UID != b.NodeUID || warned[b.Node] {
			continue
		}
		warned[b.Node] = true
		at := slices.IndexFunc(c.Observations, func(o v1alpha1.Observation) bool {
			return observation.IsFrom(o, b)
		})
		if at < 0 {
			all = append(all, warningf(WarnSilentAgent, b.Node, "the agent of node %s has never reported about etcd cluster %s",
				b.Node, c.Name))
			continue
		}
		if o := c.Observations[at]; s.Now.Sub(o.Time.Time) > observation.SilentAfter {
			all = append(all, warningf(WarnSilentAgent, b.Node,
				"the agent of node %s has not reported about etcd cluster %s for %s", b.Node, c.Name, Age(o.Time.Time, s.Now)))
		}
	}
	return all
}

func memberTitle(m MemberStatus) string {
	if m.Name == "" {
		return string(m.ID)
	}
	return fmt.Sprintf("%s (%s)", m.Name, m.ID)
}

// Age returns the time since then, as kubectl prints it; a time in the future is 0s.
func Age(since, now time.Time) string { return duration.HumanDuration(max(0, now.Sub(since))) }
