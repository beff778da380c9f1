package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A Plan is a safe order in which Nodes can go.
type Plan struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	// Answer is yes if the plan has a step for every Node, no if a Node must stay, and unknown if it
	// is not known whether the Nodes without a step may go.
	Answer quorum.Answer `json:"answer"`
	// Replaced reports whether the plan assumes that each Node is replaced before the next one goes.
	Replaced bool   `json:"replaced"`
	Steps    []Step `json:"steps"`
	// Stopped are the Nodes without a step, and why they may not go after the steps.
	Stopped []Removal `json:"stopped"`
}

// A Step is the removal of one Node.
type Step struct {
	Removal
	// Members are the members that go with the Node.
	Members []v1alpha1.MemberID `json:"members,omitempty"`
	// Then must happen before the next step.
	Then []string `json:"then"`
}

// NewPlan returns a plan for these Nodes. The decision about each step is that of the webhook, in
// the state after the steps before it. Their members have left the member list then. If the Nodes
// are replaced, a new voter on another Node has joined for each and is healthy.
//
// Nodes without a member go first, then those whose members are not healthy. Nodes with the leader
// of a cluster go last. No other order allows more. The removal of a member that is not healthy
// never makes another removal worse, and healthy members count the same. If no Node is replaced,
// the Nodes of the zone with the most voters go before others, so that the voters stay spread.
func NewPlan(s State, nodes []string, isReplaced bool) (Plan, error) {
	s = s.sorted()
	left, err := s.uniqueNodes(nodes)
	if err != nil {
		return Plan{}, err
	}
	for i := range s.Clusters {
		s.Clusters[i] = *observation.Recent(&s.Clusters[i], s.Now).DeepCopy()
	}
	p := Plan{
		Version: Version, Kind: "Plan", Replaced: isReplaced, Steps: []Step{}, Stopped: []Removal{},
	}
	for len(left) > 0 {
		s.sortByCost(left, isReplaced)
		at := slices.IndexFunc(left, func(name string) bool { return s.removal(s.node(name)).Answer == quorum.Yes })
		if at < 0 {
			for _, name := range left {
				p.Stopped = append(p.Stopped, s.removal(s.node(name)))
			}
			break
		}
		name := left[at]
		left = slices.Delete(left, at, at+1)
		step, earlier := s.step(name, isReplaced), s.quorumZones()
		s = s.after(name, isReplaced)
		isOld := func(zone string) bool { return slices.Contains(earlier, zone) }
		step.Warnings = append(step.Warnings, slices.DeleteFunc(s.quorumZones(), isOld)...)
		p.Steps = append(p.Steps, step)
	}
	p.Answer = Combined(p.Stopped)
	return p, nil
}

// uniqueNodes returns the distinct names, or an error with those that no Node has.
func (s State) uniqueNodes(names []string) ([]string, error) {
	unique := slices.Clone(names)
	slices.Sort(unique)
	unique = slices.Compact(unique)
	missing := slices.DeleteFunc(slices.Clone(unique), func(name string) bool { return s.node(name) != nil })
	if len(missing) > 0 {
		return nil, fmt.Errorf("there is no node %s; to see all nodes: kubectl get nodes", strings.Join(missing, ", "))
	}
	return unique, nil
}

// sortByCost sorts Nodes by what their removal costs.
func (s State) sortByCost(names []string, isReplaced bool) {
	costs, crowds := s.costs(), map[string]int{}
	for _, name := range names {
		if !isReplaced && costs[name] >= costHealthy {
			crowds[name] = s.crowd(name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(min(costs[a], costHealthy)-min(costs[b], costHealthy), crowds[b]-crowds[a], costs[a]-costs[b],
			cmp.Compare(a, b))
	})
}

// costHealthy is the cost of a Node with a healthy member.
const costHealthy = 2

// costs returns the cost of each Node with a member: 1 if no member is healthy, 3 if one leads its
// cluster, and costHealthy otherwise.
func (s State) costs() map[string]int {
	costs := map[string]int{}
	for i := range s.Clusters {
		c := &s.Clusters[i]
		for _, m := range quorum.Summarize(s.view(c)).Members {
			isLeader := slices.ContainsFunc(observation.Accepted(c), func(o v1alpha1.Observation) bool {
				return o.Leader == m.ID
			})
			cost := costHealthy
			switch {
			case m.Count != quorum.CountsHealthy:
				cost = 1
			case isLeader:
				cost = 3
			}
			costs[m.Node] = max(costs[m.Node], cost)
		}
	}
	return costs
}

// step describes the removal of a Node that may go now.
func (s State) step(name string, isReplaced bool) Step {
	step := Step{Removal: s.removal(s.node(name)), Then: []string{}}
	var clusters []string
	for _, v := range s.decide(s.node(name)).Verdicts {
		if len(v.Members) > 0 {
			step.Members = append(step.Members, v.Members...)
			clusters = append(clusters, string(v.Cluster))
		}
	}
	if len(step.Members) == 0 {
		return step
	}
	step.Then = append(step.Then, fmt.Sprintf("check that member %s has left the member list of etcd cluster %s",
		observation.JoinIDs(step.Members, " and member "), strings.Join(clusters, " and of ")))
	if isReplaced {
		zone := s.replacementZone(s.node(name))
		if zone != "" {
			zone = " in zone " + zone
		}
		step.Then = append(step.Then, "let the replacement join as a voter"+zone+", with an agent, and wait until it counts "+
			"as Healthy: kubectl holdfast status")
	}
	return step
}

// after returns the state after the removal of a Node: its members have left and, if they are
// replaced, new ones have joined on another Node. The clusters must be copies.
func (s State) after(name string, isReplaced bool) State {
	gone := s.node(name)
	verdicts := s.decide(gone).Verdicts
	node := s.replacementOf(gone)
	for _, v := range verdicts {
		for i := range s.Clusters {
			if c := &s.Clusters[i]; observation.ClusterIDOf(c) == v.Cluster {
				removed := removeMembers(c, gone, v.Members)
				if isReplaced {
					joinMembersOn(c, node, removed)
				}
			}
		}
	}
	s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n corev1.Node) bool { return n.Name == name })
	if isReplaced && len(verdicts) > 0 && observation.IsLabelled(gone) {
		s.Nodes = append(s.Nodes, *node)
	}
	return s
}

// replacementOf returns the Node that replaces a Node. It has the role of that Node. No real Node
// has its name or its address.
func (s State) replacementOf(gone *corev1.Node) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "replacement of " + gone.Name, UID: types.UID("replacement of " + string(gone.UID)),
			Labels: map[string]string{
				observation.EtcdMemberLabel: observation.EtcdMemberLabelValue, s.zoneLabel(): s.replacementZone(gone),
			},
		},
	}
	if observation.HasRole(gone) {
		n.Labels[observation.RoleLabels()[0]] = ""
	}
	return n
}

// removeMembers removes the members from the cluster, with everything that the agent of the Node
// has reported, and returns those that another agent lists.
func removeMembers(
	c *v1alpha1.EtcdCluster, n *corev1.Node, ids []v1alpha1.MemberID,
) (removed []v1alpha1.MemberStatus) {
	has := func(id v1alpha1.MemberID) bool { return slices.Contains(ids, id) }
	c.Spec.Members = slices.DeleteFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return has(b.MemberID) })
	c.Observations = slices.DeleteFunc(c.Observations, func(o v1alpha1.Observation) bool {
		return o.Node == n.Name
	})
	for i := range c.Observations {
		o := &c.Observations[i]
		o.Members = slices.DeleteFunc(o.Members, func(m v1alpha1.MemberStatus) bool {
			isSame := func(r v1alpha1.MemberStatus) bool { return r.ID == m.ID }
			if has(m.ID) && !slices.ContainsFunc(removed, isSame) {
				removed = append(removed, m)
			}
			return has(m.ID)
		})
		if has(o.Leader) {
			o.Leader = ""
		}
	}
	return removed
}

// joinMembersOn adds a healthy member on the Node for each of the members: to the bindings, as the
// leader binds one that joined, to all lists, and with the report of its own agent.
func joinMembersOn(c *v1alpha1.EtcdCluster, n *corev1.Node, replaced []v1alpha1.MemberStatus) {
	lists := observation.Confirmed(observation.AcceptedWithNonce(c, []string{c.Spec.Nonce}))
	if len(lists) == 0 || len(replaced) == 0 {
		return
	}
	basis := v1alpha1.BasisAddress
	if observation.HasRole(n) {
		basis = v1alpha1.BasisRole
	}
	own := *lists[0].DeepCopy()
	own.Node, own.NodeUID, own.Access, own.NoMember = n.Name, n.UID, nil, false
	for _, old := range replaced {
		m := v1alpha1.MemberStatus{ID: unusedID(c), Name: old.Name, Learner: old.Learner, Healthy: true}
		c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{
			MemberID: m.ID, Node: n.Name, NodeUID: n.UID, Basis: basis,
		})
		for i := range c.Observations {
			if o := &c.Observations[i]; len(o.Members) > 0 {
				o.Members = append(o.Members, m)
			}
		}
		own.LocalMember, own.Members = m.ID, append(own.Members, m)
	}
	c.Observations = append(c.Observations, own)
}

// unusedID returns an ID that no member of the cluster has.
func unusedID(c *v1alpha1.EtcdCluster) v1alpha1.MemberID {
	for i := 1; ; i++ {
		id := v1alpha1.MemberID(fmt.Sprintf("ffffffff%08x", i))
		if !observation.IsBound(c, id) && !observation.IsListedByAny(c.Observations, id) {
			return id
		}
	}
}
