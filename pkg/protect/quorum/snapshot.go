package quorum

import (
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// The names of etcd's alarms (etcdserverpb.AlarmType).
const (
	// CorruptAlarm is for a member whose data differ from the data of the other members.
	CorruptAlarm = "CORRUPT"
	// NoSpaceAlarm stops writes, but does not affect quorum.
	NoSpaceAlarm = "NOSPACE"
)

// A Snapshot is the trusted part of a View: the observations of observers only, and of those only
// the observations that answer the probe request. Counts decides which statements of these
// observations count.
type Snapshot struct {
	// View has a Cluster without the grants that are void.
	View
	Bindings map[v1alpha1.MemberID]v1alpha1.Binding
	// nodesOf has, by member, the Node that it is bound to, and those where it may run if it is not
	// located.
	nodesOf map[v1alpha1.MemberID][]v1alpha1.Binding
	// unlocatedHosts are the hosts of the peer URLs of members that are not located.
	unlocatedHosts map[v1alpha1.MemberID][]string
	// needed is from how many Nodes a statement must come, so that it counts.
	needed int
	// Answers are the observations of observers that answer the probe request, and that are from a
	// live Node that may speak.
	Answers []v1alpha1.Observation
	// Lists are the member lists that count, all confirmed by a quorum.
	Lists []v1alpha1.Observation
	// proven contains the members that the answers prove healthy as voters. A learner reads only its
	// own data, so its health proves nothing about the voter that it may be by now. Corrupt contains
	// the members that the answers report as corrupt.
	proven, Corrupt map[v1alpha1.MemberID]bool
	// AlarmsRead reports whether the answers with a list contain the alarms. Without them
	// no member is proven healthy, because a corrupt member still answers reads. IsClean reports it
	// for one member.
	AlarmsRead bool
}

// NewSnapshot returns the Snapshot of a View. The Nodes named, which need not be bound, have
// members too: see observation.WordsNeeded.
func NewSnapshot(v View, nodes ...string) Snapshot {
	v.Cluster = withoutVoid(v.Cluster, v.Nodes)
	s := Snapshot{
		View: v, Bindings: map[v1alpha1.MemberID]v1alpha1.Binding{}, unlocatedHosts: unlocatedHosts(v.Cluster),
		proven: map[v1alpha1.MemberID]bool{}, Corrupt: map[v1alpha1.MemberID]bool{},
		nodesOf: map[v1alpha1.MemberID][]v1alpha1.Binding{},
	}
	for _, b := range s.Cluster.Spec.Members {
		s.Bindings[b.MemberID], s.nodesOf[b.MemberID] = b, []v1alpha1.Binding{b}
	}
	for _, b := range v.PossibleNodes {
		s.nodesOf[b.MemberID] = append(s.nodesOf[b.MemberID], b)
	}
	s.needed = observation.WordsNeeded(s.Cluster, s.mayExist, nodes...)
	for _, o := range observation.AcceptedWithNonce(s.Cluster, v.Nonces) {
		if n := s.Nodes[o.Node]; n.Known && n.UID == o.NodeUID && s.maySpeak(n) {
			s.Answers = append(s.Answers, o)
		}
	}
	s.Lists = s.selectLists()
	s.AlarmsRead = s.Counts(slices.DeleteFunc(slices.Clone(s.Lists),
		func(o v1alpha1.Observation) bool { return o.AlarmsUnknown }))
	for _, o := range s.Answers {
		for _, m := range o.Members {
			if _, known := s.proven[m.ID]; known {
				continue
			}
			s.proven[m.ID] = s.Proves(m.ID, func(m v1alpha1.MemberStatus) bool { return m.Healthy && !m.Learner })
			s.Corrupt[m.ID] = s.Counts(s.answersWith(m.ID, isCorrupt))
		}
	}
	return s
}

// snapshotFor returns the Snapshot for requests. The word of one observer does not count about
// another Node, which announces a member.
func snapshotFor(v View, requests ...Request) Snapshot {
	var nodes []string
	for _, r := range requests {
		if r.AnnouncesMemberOf(observation.ClusterIDOf(v.Cluster)) {
			nodes = append(nodes, r.Node)
		}
	}
	return NewSnapshot(v, nodes...)
}

// maySpeak reports whether the observations of an observer's live Node count: it has the role still
// that it needs.
func (s Snapshot) maySpeak(n observation.NodeState) bool {
	return n.HasRole || s.Cluster.Spec.Observers != v1alpha1.NodesWithRole
}

func isCorrupt(m v1alpha1.MemberStatus) bool { return slices.Contains(m.Alarms, CorruptAlarm) }

// Pending returns the sorted Nodes whose observers may still answer: they are bound, have not
// answered, and are not known to be gone or to have lost their role.
func (s Snapshot) Pending() []string {
	var nodes []string
	for _, b := range s.Cluster.Spec.Members {
		isCandidate := observation.IsObserver(b) && !s.hasAnswered(b) && s.mayExist(b)
		if n := s.Nodes[b.Node]; isCandidate && (!n.Known || s.maySpeak(n)) {
			nodes = append(nodes, b.Node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// mayExist reports whether the Node of the binding is not known to be gone.
func (s Snapshot) mayExist(b v1alpha1.Binding) bool {
	n := s.Nodes[b.Node]
	return !n.Known || n.UID == b.NodeUID
}

// hasAnswered reports whether the observer of the binding has answered the probe request.
func (s Snapshot) hasAnswered(b v1alpha1.Binding) bool {
	return slices.ContainsFunc(s.Answers, isFrom(b))
}

// isFrom returns a function that reports whether the Node of the binding published an observation.
func isFrom(b v1alpha1.Binding) func(v1alpha1.Observation) bool {
	return func(o v1alpha1.Observation) bool { return observation.IsFrom(o, b) }
}

// OwnAnswer returns the answer of the agent on the binding's Node, whether or not it is an
// observer.
func (s Snapshot) OwnAnswer(b v1alpha1.Binding) (answer v1alpha1.Observation, isAnswered bool) {
	for _, o := range s.Cluster.Observations {
		if observation.IsFrom(o, b) && observation.IsValid(o) && observation.IsAnswer(o, s.Nonces) {
			return o, true
		}
	}
	return v1alpha1.Observation{}, false
}

// finderOf returns the Node whose agent has answered that it finds the member's server or its data,
// or "". It need not be an observer, because this decides nothing.
func (s Snapshot) finderOf(id v1alpha1.MemberID) string {
	for _, o := range s.Cluster.Observations {
		if observation.Finds(o, id) && observation.IsAnswer(o, s.Nonces) {
			return o.Node
		}
	}
	return ""
}

// proofOf returns what is known about the health of a member that no answer proves healthy. It also
// has the state of the agent on the member's own node, because only that agent can reach a member
// that listens on the loopback address.
func (s Snapshot) proofOf(id v1alpha1.MemberID) Proof {
	p := s.probeError(id)
	isProof := func(m v1alpha1.MemberStatus) bool { return m.Healthy && !m.Learner }
	if proofs := s.answersWith(id, isProof); len(proofs) > 0 {
		p.OnlyBy = proofs[0].Node
	}
	if b, bound := s.Bindings[id]; bound {
		p.Agent = s.agentOf(b)
	}
	return p
}

// probeError returns the error that an observer reports for the member. The error from the
// member's own node takes precedence.
func (s Snapshot) probeError(id v1alpha1.MemberID) (p Proof) {
	for _, o := range s.Answers {
		m, found := observation.FindMember(o, id)
		if own := o.LocalMember == id; found && (p.By == "" || own) {
			p.Error, p.By = m.Reason, o.Node
			if own {
				break
			}
		}
	}
	return p
}

// Counts reports whether a statement counts. The argument is all observations of observers that
// make it. Lists, proofs of health, alarms and the report that a member has left all count by this
// rule.
func (s Snapshot) Counts(statements []v1alpha1.Observation) bool {
	return observation.Counts(statements, s.needed)
}

// Proves reports whether the answers prove that the member's entry satisfies the condition. Besides
// Counts, the agent on the member's own Node is enough if another observer confirms that no other
// agent can reach the member. It must be located there: a worker may have claimed it first.
func (s Snapshot) Proves(id v1alpha1.MemberID, condition func(v1alpha1.MemberStatus) bool) bool {
	statements := s.answersWith(id, condition)
	if s.Counts(statements) {
		return true
	}
	b := s.Bindings[id]
	return observation.IsLocated(s.Cluster, id) && slices.ContainsFunc(statements, isFrom(b)) &&
		slices.ContainsFunc(s.Lists, func(o v1alpha1.Observation) bool {
			m, _ := observation.FindMember(o, id)
			return !observation.IsFrom(o, b) && observation.IsLocalOnly(m)
		})
}

// IsClean reports whether the answers with a list show that the member has no alarm CORRUPT. The
// report of one of two observers does not count alone, but it does not show the contrary either.
// Enough others must have read the alarms without it (docs/verdict.md, F78).
func (s Snapshot) IsClean(id v1alpha1.MemberID) bool {
	return s.Counts(slices.DeleteFunc(slices.Clone(s.Lists), func(o v1alpha1.Observation) bool {
		m, _ := observation.FindMember(o, id)
		return o.AlarmsUnknown || isCorrupt(m)
	}))
}

// answersWith returns the answers in which the member's entry satisfies the condition.
func (s Snapshot) answersWith(
	id v1alpha1.MemberID, condition func(v1alpha1.MemberStatus) bool,
) []v1alpha1.Observation {
	return slices.DeleteFunc(slices.Clone(s.Answers), func(o v1alpha1.Observation) bool {
		m, isListed := observation.FindMember(o, id)
		return !isListed || !condition(m)
	})
}

// selectLists returns the member lists that count. So where two words are needed, no observer can
// veto deletions with a list of its own.
func (s Snapshot) selectLists() []v1alpha1.Observation {
	all, same := observation.Confirmed(s.Answers), map[string][]v1alpha1.Observation{}
	for _, o := range all {
		same[ListKey(o)] = append(same[ListKey(o)], o)
	}
	return slices.DeleteFunc(all, func(o v1alpha1.Observation) bool { return !s.Counts(same[ListKey(o)]) })
}

// ListKey describes the members of a list, and is the form in which lists are compared: two lists
// with the same key have the same arithmetic.
func ListKey(o v1alpha1.Observation) string {
	members := make([]string, len(o.Members))
	for i, m := range o.Members {
		members[i] = string(m.ID)
		switch {
		case m.Learner:
			members[i] += " (learner)"
		case m.Name == "":
			members[i] += " (never started)"
		}
	}
	slices.Sort(members)
	return strings.Join(members, ", ")
}
