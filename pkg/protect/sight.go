package protect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// corruptAlarm is the name of etcd's alarm for a member whose data differ from the others' (etcdserverpb.AlarmType).
// NOSPACE, the other one, stops writes and costs no quorum.
const corruptAlarm, noSpaceAlarm = "CORRUPT", "NOSPACE"

// sight is a View sorted by what may be believed: only bound observers are heard, and of those only the ones that
// answer this question.
type sight struct {
	cluster  *v1alpha1.EtcdCluster
	asked    []string
	nodes    map[string]NodeState
	bindings map[v1alpha1.MemberID]v1alpha1.Binding
	// placed is where members are that have no binding.
	placed []v1alpha1.Binding
	// answers are the observations of bound observers that carry a nonce of this question, by node.
	answers []v1alpha1.Observation
	// lists are those of the answers whose member list was confirmed by a quorum.
	lists []v1alpha1.Observation
	// proven are the members that some answer proves healthy as voters (a learner is asked for a read of its own data only,
	// which says nothing about the voter that it may be by now), corrupt those that some answer says are corrupt.
	proven, corrupt map[v1alpha1.MemberID]bool
	// alarmsRead says that some answer with a confirmed list has read the alarms. Until then nothing is proven: a corrupt
	// member still answers reads.
	alarmsRead bool
}

func newSight(v View) sight {
	s := sight{
		cluster:  v.Cluster,
		asked:    v.Asked,
		nodes:    v.Nodes,
		placed:   v.Placed,
		bindings: map[v1alpha1.MemberID]v1alpha1.Binding{},
		proven:   map[v1alpha1.MemberID]bool{},
		corrupt:  map[v1alpha1.MemberID]bool{},
	}
	if s.cluster == nil {
		s.cluster = &v1alpha1.EtcdCluster{}
	}
	for _, b := range s.cluster.Spec.Members {
		s.bindings[b.MemberID] = b
	}
	s.answers = answersTo(s.cluster, v.Asked)
	s.lists = confirmedOf(s.answers)
	s.alarmsRead = slices.ContainsFunc(s.lists, func(o v1alpha1.Observation) bool { return !o.AlarmsUnknown })
	for _, o := range s.answers {
		for _, m := range o.Members {
			s.proven[m.ID] = s.proven[m.ID] || (m.Healthy && !m.Learner)
			s.corrupt[m.ID] = s.corrupt[m.ID] || slices.Contains(m.Alarms, corruptAlarm)
		}
	}
	return s
}

func clusterID(c *v1alpha1.EtcdCluster) v1alpha1.ClusterID {
	if c == nil {
		return ""
	}
	return v1alpha1.ClusterID(c.Name)
}

// observers returns the observations of bound observers, old ones included, each member once, sorted by node. What cannot
// be a member list is left out (Unheard says what).
func observers(c *v1alpha1.EtcdCluster) []v1alpha1.Observation {
	var found []v1alpha1.Observation
	for _, o := range c.Status.Observations {
		if standingOf(c, o) == "" && sane(o) {
			o.Members = distinct(o.Members)
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.Observation) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// answersTo returns the observations of bound observers that carry one of these nonces. A nonce that is empty was never
// asked.
func answersTo(c *v1alpha1.EtcdCluster, asked []string) []v1alpha1.Observation {
	return slices.DeleteFunc(observers(c), func(o v1alpha1.Observation) bool {
		return o.Nonce == "" || !slices.Contains(asked, o.Nonce)
	})
}

// confirmed says that the observation has a member list that a quorum confirmed.
func confirmed(o v1alpha1.Observation) bool { return o.Linearizable && len(o.Members) > 0 }

func confirmedOf(all []v1alpha1.Observation) []v1alpha1.Observation {
	return slices.DeleteFunc(slices.Clone(all), func(o v1alpha1.Observation) bool { return !confirmed(o) })
}

// conclusive says that what the fresh lists lack has left: more than one Node says so, or nobody who could contradict is
// silent. One Node may have been bound by its own claim alone.
func (s sight) conclusive() bool {
	return len(s.lists) > 1 || (len(s.lists) == 1 && len(s.pending()) == 0)
}

// distinct merges entries of the same member to the worse of both: a voter, never started, not proven, every alarm. The
// API server keeps such lists out; this keeps the arithmetic right without it.
func distinct(members []v1alpha1.MemberStatus) []v1alpha1.MemberStatus {
	var found []v1alpha1.MemberStatus
	for _, m := range members {
		i := slices.IndexFunc(found, func(f v1alpha1.MemberStatus) bool { return f.ID == m.ID })
		if i < 0 {
			found = append(found, m)
			continue
		}
		f := &found[i]
		f.Learner, f.Healthy = f.Learner && m.Learner, f.Healthy && m.Healthy
		f.PeerURLs, f.ClientURLs = slices.Concat(f.PeerURLs, m.PeerURLs), slices.Concat(f.ClientURLs, m.ClientURLs)
		f.Alarms = slices.Concat(f.Alarms, m.Alarms)
		if m.Name == "" {
			f.Name = ""
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.MemberStatus) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.ID), string(b.ID)))
	})
	return found
}

// listed returns the member's entry in a list.
func listed(o v1alpha1.Observation, id v1alpha1.MemberID) (v1alpha1.MemberStatus, bool) {
	for _, m := range o.Members {
		if m.ID == id {
			return m, true
		}
	}
	return v1alpha1.MemberStatus{}, false
}

// listedByAny says that one of the lists has the member.
func listedByAny(lists []v1alpha1.Observation, id v1alpha1.MemberID) bool {
	return slices.ContainsFunc(lists, func(o v1alpha1.Observation) bool {
		_, found := listed(o, id)
		return found
	})
}

// givenUp says why a member counts as lost already, in words that are empty if it does not, and with which Node. One that is
// bound nowhere goes with the Nodes that it is placed at as a bound one goes with its own.
func (s sight) givenUp(id v1alpha1.MemberID) (of cause, node, why string) {
	for _, g := range s.cluster.Spec.Grants {
		if s.granted(id, g) {
			return doomed, s.bindings[id].Node, describe(g)
		}
	}
	for _, h := range s.homes(id) {
		n := s.nodes[h.Node]
		if why := gone(h.Node, h.NodeUID, n); why != "" {
			if n.Known {
				return doomed, h.Node, why
			}
			return nodeUnread, h.Node, why
		}
	}
	return noProof, "", ""
}

// granted says that the grant gives the member up: it names it, or it is for a Node where the member is.
func (s sight) granted(id v1alpha1.MemberID, g v1alpha1.Grant) bool {
	return slices.Contains(g.Members, id) ||
		slices.ContainsFunc(s.homes(id), func(h v1alpha1.Binding) bool { return h.NodeUID == g.NodeUID })
}

// gone says why what ran on the Node of this UID counts as lost, empty if it does not.
func gone(node string, uid types.UID, n NodeState) string {
	switch {
	case !n.Known:
		return fmt.Sprintf("its node %s could not be read", node)
	case n.UID == "":
		return fmt.Sprintf("its node %s is gone", node)
	case n.UID != uid:
		return fmt.Sprintf("its node %s is gone; the Node that has the name now is another", node)
	case n.Deleting:
		return fmt.Sprintf("its node %s is being deleted", node)
	case n.DeletionTaint != "":
		return fmt.Sprintf("its node %s is about to be deleted (taint %s)", node, n.DeletionTaint)
	}
	return ""
}

func describe(g v1alpha1.Grant) string {
	at := g.Time.UTC().Format(time.RFC3339)
	switch {
	case g.User == "":
		return fmt.Sprintf("its node %s vanished without a request to Holdfast (noticed %s)", g.Node, at)
	case g.BreakGlass:
		return fmt.Sprintf("the deletion of its node %s was forced by %s at %s", g.Node, g.User, at)
	}
	return fmt.Sprintf("the deletion of its node %s was allowed to %s at %s", g.Node, g.User, at)
}

// pending returns the Nodes whose observers may still answer: bound, silent, and not known to be gone.
func (s sight) pending() []string {
	var nodes []string
	for _, b := range s.cluster.Spec.Members {
		n := s.nodes[b.Node]
		answered := slices.ContainsFunc(s.answers, func(o v1alpha1.Observation) bool { return o.Node == b.Node && o.NodeUID == b.NodeUID })
		if !answered && (!n.Known || n.UID == b.NodeUID) && !slices.Contains(nodes, b.Node) {
			nodes = append(nodes, b.Node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// doubt says why nobody has proved the member healthy, in the words of its own node's agent if it answered, and whether
// that one has: of a member that listens to its own host alone, nobody else can.
func (s sight) doubt(id v1alpha1.MemberID) string {
	said := s.doubted(id)
	b, bound := s.bindings[id]
	if !bound {
		return said + "; no agent is known on its own host"
	}
	by := func(o v1alpha1.Observation) bool { return o.Node == b.Node && o.NodeUID == b.NodeUID }
	if slices.ContainsFunc(s.answers, by) {
		return said
	}
	heard := slices.IndexFunc(s.cluster.Status.Observations, by)
	if heard < 0 {
		return said + "; its own node's agent has never been heard"
	}
	return fmt.Sprintf("%s; its own node's agent has not answered and was last heard at %s", said, s.cluster.Status.Observations[heard].Time.UTC().Format(time.RFC3339))
}

func (s sight) doubted(id v1alpha1.MemberID) string {
	words := ""
	for _, o := range s.answers {
		m, found := listed(o, id)
		if !found {
			continue
		}
		own := o.LocalMember == id
		if words == "" || own {
			words = fmt.Sprintf("%s (seen from node %s)", cmp.Or(clip(m.Reason), "no reason given"), o.Node)
		}
		if own {
			break
		}
	}
	return cmp.Or(words, "no agent that answered has looked at it")
}

// clip shortens what somebody else wrote to what fits into a line.
func clip(text string) string {
	const most = 160
	line := oneLine(text)
	if runes := []rune(line); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return line
}

// oneLine joins a text that may have line breaks to one line.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
