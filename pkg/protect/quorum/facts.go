package quorum

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// A Finding is what a verdict is about. It selects the sentences, and the fields of Facts that are
// set.
type Finding int

// The findings. The zero value is that of a verdict without facts.
const (
	NoFinding Finding = iota
	// FoundNothing: no member is on the node. FoundNothingKnown means the same without a probe.
	FoundNothing
	FoundNothingKnown
	// FoundTally: the arithmetic of one list decides. Tally.IsSafe tells how.
	FoundTally
	// FoundOnlyMember: the only member of its cluster is drained.
	FoundOnlyMember
	// FoundNoList: no list is confirmed. Members may be on the node.
	FoundNoList
	// FoundRejoin: the Assigned members left the list, and one of Members may be on the node.
	FoundRejoin
	// FoundContested: the node announces Members that are bound to the Holders.
	FoundContested
	FoundOpenNode
	// FoundNoCluster: the cluster of the announced Members has no EtcdCluster.
	FoundNoCluster
	FoundUnverified
	FoundUnattributed
	// FoundUnparsable: the announcement cannot be read because of Problem.
	FoundUnparsable
	// FoundUnlabelled: the label is missing. Only the node's name or address assigns Members to it.
	FoundUnlabelled
	// FoundUnreported: Members may be on a node whose agent has not reported.
	FoundUnreported
)

// Facts are what the sentences about a verdict need.
type Facts struct {
	Finding  Finding
	Request  Request
	Members  []v1alpha1.MemberID
	Assigned []v1alpha1.MemberID
	Holders  []Holder
	Problem  error
	Silence  Silence
	// Together means that the verdict is about the Nodes of several requests.
	Together bool
	Nodes    []string

	Tally Tally
	// Host is where people can run etcdctl.
	Host EtcdctlHost
	// Steps are what helps, the safest first. Removable are the dead members whose removal from the
	// list is enough, if it is.
	Steps     []Step
	Removable []MemberState

	// WasThere means that an earlier Node of the same name had the members. Otherwise the lists of the
	// Listers have them at the address of the node, and those of the Others do not.
	WasThere        bool
	Listers, Others []string
}

// A Holder is the Node that a contested member is bound to.
type Holder struct {
	Member      v1alpha1.MemberID
	Node        string
	HasAnswered bool
}

// A Problem is why a member does not count as healthy.
type Problem int

// The problems of unproven members, of lost ones, and of those that are away.
const (
	NoProblem Problem = iota
	NotProven
	Corrupt
	NeverStarted
	AlarmsUnread
	AlarmDisputed
	NodeUnread
	NodeGone
	NodeReplaced
	NodeDeleting
	NodeLeaving
	// Granted: a grant names the member, or is for a Node where it may run. GrantedElsewhere means the
	// grant of another cluster.
	Granted
	GrantedElsewhere
	// Rejoined: the member joined again on the machine of a grant. It is on a Node that this machine
	// has registered under another name, or on a younger Node of the same name. Or it is at an address
	// of the machine, and no binding shows that it runs elsewhere: etcd may start before the kubelet
	// registers. The claim of another Node alone does not show that.
	Rejoined
	// PerhapsRejoined: the addresses of the machine are not known, because the Node was gone and no
	// list had its members when the grant was written. Then every member may be there that no binding
	// shows elsewhere, except one that is known to be another server than those of the grant.
	PerhapsRejoined
	NodeAway
)

// isAboutAlarms reports whether the problem is with the alarms, and not with the member itself.
func (p Problem) isAboutAlarms() bool { return p == AlarmsUnread || p == AlarmDisputed }

// A Cause is why a member does not count as healthy, with what explains it: the Node and its mark,
// the grant and its cluster, or the missing proof.
type Cause struct {
	Problem Problem
	Node    string
	Mark    departure.Mark
	Grant   *v1alpha1.Grant
	Cluster v1alpha1.ClusterID
	Proof   Proof
}

// A Proof is what is known about a member that is not proven healthy.
type Proof struct {
	// Error is what the Node By reports. By is empty if no agent that answered has probed the member.
	Error, By string
	// OnlyBy is the only Node that reports the member healthy.
	OnlyBy string
	// Agent is the agent on the member's own node.
	Agent AgentState
}

// An AgentAnswer is how an agent answered the probe request.
type AgentAnswer int

// The answers of agents. The zero value is that of a member without a binding.
const (
	AgentUnknown AgentAnswer = iota
	AgentGone
	AgentWithoutRole
	AgentUnconfirmed
	AgentNeverReported
	AgentSilent
	AgentListsAlone
	AgentWithoutList
	AgentFailed
)

// An AgentState is the state of the agent on the Node of a binding, with its last report.
type AgentState struct {
	v1alpha1.Binding
	Answer AgentAnswer
	Last   v1alpha1.Observation
}

// A MissingList is why no member list counts.
type MissingList int

// Why no member list counts.
const (
	NoConfirmedList MissingList = iota
	NoEqualLists
	NoObserverLeft
)

// A Silence is why no member list counts, with the state of each observer.
type Silence struct {
	Missing MissingList
	Agents  []AgentState
	// Unbound is the leader's message about claims that are not bound.
	Unbound string
	// IsEachNodeGone reports whether members are bound, and none of them to a Node that may exist.
	// Then no list can count, so no member can be bound.
	IsEachNodeGone bool
}

// silence returns why no member list counts.
func (s Snapshot) silence() Silence {
	silence := Silence{Missing: s.missingLists(), Unbound: unboundMessage(s.Cluster)}
	for _, b := range distinctNodes(s.Cluster.Spec.Members) {
		silence.Agents = append(silence.Agents, s.agentOf(b))
	}
	silence.IsEachNodeGone = len(silence.Agents) > 0 && !slices.ContainsFunc(s.Cluster.Spec.Members, s.mayExist)
	return silence
}

func (s Snapshot) missingLists() MissingList {
	switch {
	case len(s.Answers) == 0 && len(s.Pending()) == 0 && s.Cluster.Spec.Observers == v1alpha1.NodesWithRole:
		return NoObserverLeft
	case len(observation.Confirmed(s.Answers)) == 0:
		return NoConfirmedList
	}
	return NoEqualLists
}

// agentOf returns how the agent on the Node of a binding answered the probe request.
func (s Snapshot) agentOf(b v1alpha1.Binding) AgentState {
	state := AgentState{Binding: b}
	isObserver := func(other v1alpha1.Binding) bool {
		return other.NodeUID == b.NodeUID && observation.IsObserver(other)
	}
	accepted := observation.Accepted(s.Cluster)
	last := slices.IndexFunc(accepted, isFrom(b))
	if last >= 0 {
		state.Last = accepted[last]
	}
	switch {
	case !s.mayExist(b):
		state.Answer = AgentGone
	case !slices.ContainsFunc(s.Cluster.Spec.Members, isObserver):
		state.Answer = AgentUnconfirmed
		if s.Cluster.Spec.Observers == v1alpha1.NodesWithRole {
			state.Answer = AgentWithoutRole
		}
	case last < 0:
		state.Answer = AgentNeverReported
	case !s.hasAnswered(b):
		state.Answer = AgentSilent
	case observation.IsConfirmed(state.Last):
		state.Answer = AgentListsAlone
	case state.Last.Problem == "":
		state.Answer = AgentWithoutList
	default:
		state.Answer = AgentFailed
	}
	return state
}

// BoundCondition is the type of the condition of an EtcdCluster that reports whether every claim to
// a member is bound.
const BoundCondition = "Bound"

// unboundMessage returns the leader's message about claims that are not bound, empty if there is
// none.
func unboundMessage(c *v1alpha1.EtcdCluster) string {
	for _, condition := range c.Status.Conditions {
		if condition.Type == BoundCondition && condition.Status == metav1.ConditionFalse {
			return condition.Message
		}
	}
	return ""
}

// distinctNodes returns one binding for each Node, sorted by name.
func distinctNodes(bindings []v1alpha1.Binding) []v1alpha1.Binding {
	found := slices.SortedStableFunc(slices.Values(bindings), func(a, b v1alpha1.Binding) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.NodeUID, b.NodeUID))
	})
	return slices.CompactFunc(found, func(a, b v1alpha1.Binding) bool { return a.NodeUID == b.NodeUID })
}

// An EtcdctlHost is a node on which people can run etcdctl, and how its local member is reached.
type EtcdctlHost struct {
	Node   string
	Access v1alpha1.Access
}

// etcdctlHost returns the node for etcdctl commands: an observer that answered the probe request
// with a confirmed list, and whose own member is healthy and stays. Without one, the result is
// zero. Each value comes from an observer, which may lie, so evidence.SafeAccess decides what may
// be part of a command.
func (t requestTarget) etcdctlHost() EtcdctlHost {
	for _, o := range t.Lists {
		a := evidence.SafeAccess(o.Access)
		if a == nil || a.Endpoint == "" || o.Node == t.Node || !t.proven[o.LocalMember] || t.Corrupt[o.LocalMember] ||
			t.lossOf(o.LocalMember).Problem != NoProblem {
			continue
		}
		return EtcdctlHost{o.Node, *a}
	}
	return EtcdctlHost{}
}

// distributionOf returns the distribution that manages a member, by the agent of its own node, or
// else by the agent whose etcdctl command is shown.
func (t requestTarget) distributionOf(id v1alpha1.MemberID, host EtcdctlHost) v1alpha1.Distribution {
	for _, o := range observation.Accepted(t.Cluster) {
		isOwn := observation.IsFrom(o, t.Bindings[id])
		if a := evidence.SafeAccess(o.Access); isOwn && a != nil {
			return a.Distribution
		}
	}
	return host.Access.Distribution
}

// factsOf returns the facts of a verdict that the tally decides, with the steps if it refuses.
func (t requestTarget) factsOf(tally Tally) Facts {
	f := Facts{Finding: FoundTally, Request: t.Request, Host: t.etcdctlHost()}
	for i := range tally.Members {
		m := &tally.Members[i]
		m.Distribution, m.FoundOn = t.distributionOf(m.ID, f.Host), t.finderOf(m.ID)
		if m.Count == CountsHealthy {
			m.Notice = t.Nodes[m.Node].Notice
		}
	}
	f.Tally = tally
	if !tally.IsSafe() {
		if dead := tally.removableMembers(); tally.isSafeWithout(dead) {
			f.Removable = dead
		}
		f.Steps = slices.Concat(t.waitSteps(tally), repairSteps(tally), t.replaceSteps(tally), t.resolveSteps(tally))
	}
	return f
}

// A StepKind is what a Step asks for.
type StepKind int

// The kinds of steps, the safest first.
const (
	StepReadNodes StepKind = iota
	StepReadAlarms
	StepCompareLists
	StepAwaitDrained
	StepAwaitNode
	StepAwaitMachine
	StepAwaitRemoval
	StepAwaitEnd
	StepAwaitReturn
	StepRepair
	StepAddVoters
	StepRemoveFirst
	StepResolve
)

// A Step is one thing that helps.
type Step struct {
	Kind StepKind
	// Members are those that the step is about, and Nodes the Nodes.
	Members []MemberState
	Nodes   []string
	// State is that of the drained node, and Mark that of the node whose member is to be removed.
	State observation.NodeState
	Mark  departure.Mark
	// At is when the step applies. It is zero if that has passed or is not known.
	At time.Time
	// Voters is how many voters to add.
	Voters int
	Grant  v1alpha1.Grant
}
