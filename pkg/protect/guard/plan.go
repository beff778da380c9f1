// Package guard defines the guard pods: pods that run on nodes with etcd and do nothing. A program
// that drains a node must evict its guard pod, and Holdfast judges that eviction like the deletion
// of the Node.
package guard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	// Namespace is the namespace of all guard pods.
	Namespace = "holdfast-system"
	// NamePrefix is the beginning of the names of all guard pods. The webhook configuration selects
	// evictions by it.
	NamePrefix = "holdfast-guard-"
	// NodeLabel is the label of guard pods. Its value does not matter.
	NodeLabel = "holdfast.dev/drain-guard"
	// Never is the value of the label NodeLabel by which a Node has no guard pod.
	Never = "never"
)

// Name returns the name of the guard pod of a node. A node has at most one. The policy
// holdfast-guards requires this name. A pod cannot have the name of a node of more than 238
// characters: the API server refuses it.
func Name(node string) string { return NamePrefix + node }

// NodeUIDAnnotation is the annotation of guard pods with the UID of their Node. A Node that
// registers again under the same name is another Node.
const NodeUIDAnnotation = "holdfast.dev/node-uid"

// An Action is what to do with a guard pod.
type Action string

// The actions.
const (
	// Keep: the pod stays.
	Keep Action = "Keep"
	// Wait: the pod is missing, and cannot be created now.
	Wait Action = "Wait"
	// Create: the pod is to be created.
	Create Action = "Create"
	// Delete: the pod is to be deleted. If it is to be replaced, a later plan creates the new one.
	Delete Action = "Delete"
	// Remove: the pod is to be deleted without a grace period, because no kubelet would end it.
	Remove Action = "Remove"
)

// IsWrite reports whether the action changes something.
func (a Action) IsWrite() bool { return a == Create || a == Delete || a == Remove }

// A Presence is whether a node has the guard pod that it needs.
type Presence string

// The values of Presence.
const (
	// Present: the node has it.
	Present Presence = "present"
	// Missing: the node is open and has none.
	Missing Presence = "missing"
	// Closed: none is wanted now, because the node is being drained or taken away.
	Closed Presence = "closed"
	// Defective: the node is open, and its guard pod has to be replaced.
	Defective Presence = "defective"
)

// A State is everything that decides about guard pods.
type State struct {
	Clusters []*v1alpha1.EtcdCluster
	Nodes    []*corev1.Node
	// Pods are pods of Namespace. Those without NamePrefix are ignored.
	Pods []*corev1.Pod
	// Departures has the marks of machines that go away.
	Departures departure.Table
	// Off means that no node has a guard pod.
	Off bool
	// NotBefore has, by Node name, when a guard pod may be created next. It limits how often a
	// guard pod is replaced that ends again and again.
	NotBefore map[string]time.Time
	Now       time.Time

	// places are those of the members of each cluster.
	places [][]place.Place
}

// A Decision is what to do with the guard pod of one node, and why.
type Decision struct {
	// Node is the name of the node, and Pod that of the pod.
	Node, Pod string
	Action    Action
	Why       string
	// Presence is empty if the node needs no guard pod.
	Presence Presence
	// Owner is the EtcdCluster that owns a pod to be created.
	Owner *v1alpha1.EtcdCluster
	// On is the Node of a pod to be created.
	On *corev1.Node
	// Existing is the pod to be deleted.
	Existing *corev1.Pod
}

// Plan decides about all guard pods, in the order of their names. It has no decision about a node
// that neither has a guard pod nor needs one.
func Plan(s State) []Decision {
	pods, isTaken := map[string]*corev1.Pod{}, map[string]bool{}
	var found []Decision
	for _, p := range s.Pods {
		switch {
		case !strings.HasPrefix(p.Name, NamePrefix):
		case p.Name != Name(p.Spec.NodeName):
			isTaken[p.Name] = true
			found = append(found, s.misplaced(p))
		default:
			pods[p.Spec.NodeName] = p
		}
	}
	names := s.nodeNames(pods)
	nodes, wanted := map[string]*corev1.Node{}, []*corev1.Node{}
	for _, n := range s.Nodes {
		if _, isNamed := slices.BinarySearch(names, n.Name); isNamed {
			nodes[n.Name], wanted = n, append(wanted, n)
		}
	}
	for _, c := range s.Clusters {
		s.places = append(s.places, place.On(c, wanted...))
	}
	for _, name := range names {
		d := s.decide(nodes[name], pods[name])
		if d.Action == Create && isTaken[Name(name)] {
			d = Decision{Action: Wait, Why: "another pod has its name", Presence: d.Presence}
		}
		d.Node, d.Pod = name, Name(name)
		if d.Action != "" {
			found = append(found, d)
		}
	}
	for i := range found {
		found[i].Why = printable.Line(found[i].Why)
	}
	slices.SortStableFunc(found, func(a, b Decision) int { return cmp.Compare(a.Pod, b.Pod) })
	return found
}

// misplaced decides about a pod that has the name of another node's guard pod, or of none. It may
// be a copy that a user made. It would take the place of the guard pod.
func (s State) misplaced(p *corev1.Pod) Decision {
	d := Decision{Node: p.Spec.NodeName, Pod: p.Name}
	if p.DeletionTimestamp != nil {
		return s.awaitEnd(d, p)
	}
	d.Action, d.Existing = Delete, p
	d.Why = fmt.Sprintf("the pod is on node %q, which does not belong to its name", p.Spec.NodeName)
	return d
}

func (s State) awaitEnd(d Decision, p *corev1.Pod) Decision {
	d.Action, d.Why = Wait, "the pod is being deleted"
	if s.Now.Sub(p.DeletionTimestamp.Time) > terminationLimit {
		d.Action, d.Why, d.Existing = Remove, "the pod is being deleted, and no kubelet ends it", p
	}
	return d
}

// nodeNames returns the names of all Nodes with a bound member, the label of etcd or a guard pod.
func (s State) nodeNames(pods map[string]*corev1.Pod) []string {
	names := slices.Collect(maps.Keys(pods))
	for _, n := range s.Nodes {
		if observation.IsLabelled(n) {
			names = append(names, n.Name)
		}
	}
	for _, c := range s.Clusters {
		for _, b := range c.Spec.Members {
			names = append(names, b.Node)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// terminationLimit is how long a kubelet may take to end a guard pod after its grace period. On a
// dead host none ends it, and `kubectl drain` waits until the pod is gone.
const terminationLimit = 30 * time.Second

// decide decides about the guard pod of one node. Node and pod may be nil.
func (s State) decide(node *corev1.Node, pod *corev1.Pod) Decision {
	if pod != nil && node == nil {
		return Decision{Action: Remove, Why: "its node is gone", Existing: pod}
	}
	if node == nil {
		return Decision{}
	}
	need, why, owners := s.needOf(node)
	permitted := s.clustersOf(node, place.GuardPod)
	obstacle, presence := s.obstacle(node)
	if need != needed {
		presence = ""
	}
	switch {
	case pod == nil && need == needed:
		if obstacle != "" {
			return Decision{Action: Wait, Why: obstacle, Presence: presence}
		}
		return Decision{Action: Create, Why: why, Presence: presence, Owner: owners[0], On: node}
	case pod == nil:
		return Decision{}
	case pod.DeletionTimestamp != nil:
		return s.awaitEnd(Decision{Presence: presence}, pod)
	case need == unneeded:
		return Decision{Action: Delete, Why: why, Existing: pod}
	case need == undecided:
		return Decision{Action: Keep, Why: why, Presence: Present}
	}
	defect := defectOf(pod, node, permitted)
	if defect == "" {
		return Decision{Action: Keep, Why: why, Presence: Present}
	}
	if presence == Missing {
		presence = Defective
	}
	// Without a new pod, even a defective one is better than none.
	if obstacle != "" {
		return Decision{Action: Keep, Why: defect + ", but cannot be replaced: " + obstacle, Presence: presence}
	}
	return Decision{Action: Delete, Why: defect + ", and is replaced", Presence: presence, Existing: pod}
}

// A nodeNeed is whether a node needs a guard pod.
type nodeNeed int

const (
	undecided nodeNeed = iota
	unneeded
	needed
)

// clustersOf returns the clusters of which one of the sources places a member on the node. A wrong
// announcement makes only drains of its own node fail.
func (s State) clustersOf(node *corev1.Node, by place.Source) (found []*v1alpha1.EtcdCluster) {
	isOnNode := func(p place.Place) bool { return p.UID == node.UID && p.By&by != 0 }
	for i, c := range s.Clusters {
		if slices.ContainsFunc(s.places[i], isOnNode) {
			found = append(found, c)
		}
	}
	return found
}

// needOf returns whether the node needs a guard pod, why, and the clusters that may own a new one.
func (s State) needOf(node *corev1.Node) (need nodeNeed, why string, owners []*v1alpha1.EtcdCluster) {
	switch {
	case s.Off:
		return unneeded, "guard pods are switched off (--guard-drains=false)", nil
	case node.Labels[NodeLabel] == Never:
		return unneeded, "the node has the label " + NodeLabel + "=" + Never, nil
	}
	clusters, isUnknown := s.clustersOf(node, place.GuardPod), false
	for _, c := range clusters {
		switch {
		case c.Status.Voters == nil || *c.Status.Voters < 1:
			isUnknown = true
		case *c.Status.Voters > 1:
			owners = append(owners, c)
		}
	}
	switch {
	case len(owners) > 0:
		return needed, "the node has a member of etcd cluster " + owners[0].Name, owners
	case isUnknown:
		return undecided, "the number of voters is not known", nil
	case len(clusters) > 0:
		return unneeded, "the etcd cluster has one voter, so it cannot keep quorum without it", nil
	case observation.IsLabelled(node):
		return undecided, "the node has the label of etcd, but no member is bound to it", nil
	case len(s.clustersOf(node, place.Keep(node))) > 0:
		return undecided, "an earlier node of this name had a member, and the agent of this one has not reported", nil
	}
	return unneeded, "the node has no member", nil
}

// obstacle returns why no guard pod may be created on the node now, or an empty string, and the
// presence if the node needs one and has no intact one.
func (s State) obstacle(node *corev1.Node) (why string, presence Presence) {
	if why = s.closedBecause(node); why != "" {
		return why, Closed
	}
	if at := s.NotBefore[node.Name]; s.Now.Before(at) {
		why = "the last guard pod of the node was created only shortly before"
	}
	return why, Missing
}

// closedBecause returns why no guard pod is wanted on the node now, or an empty string. On a node
// that is being drained, a new pod would have to be evicted again, and some drains would not end. A
// node that is open again needs its guard pod at once, before the grant of its drain ends: another
// program may drain it. A node that only Holdfast has cordoned is not being drained: it may be
// drained at any time, and nothing would review that without a guard pod.
func (s State) closedBecause(node *corev1.Node) string {
	mark := s.Departures.Of(node)
	switch {
	case node.DeletionTimestamp != nil:
		return "the node is being deleted"
	case mark.Class != departure.None:
		return "the node " + mark.Says
	case node.Spec.Unschedulable && !readiness.IsCordonOfHold(node):
		return "the node is cordoned"
	}
	for _, c := range s.Clusters {
		for _, g := range c.Spec.Grants {
			switch {
			case g.NodeUID != node.UID:
			case quorum.AllowsDeletion(g):
				return "the deletion of the node was allowed"
			case g.Drain != nil && node.Spec.Unschedulable:
				return "the node was drained while Holdfast held it"
			}
		}
	}
	return ""
}

// defectOf returns why the pod cannot be the guard pod of the node, or an empty string. Any cluster
// of the node may own it: while the state of one is not known, its pods stay.
func defectOf(pod *corev1.Pod, node *corev1.Node, owners []*v1alpha1.EtcdCluster) string {
	owner := metav1.GetControllerOf(pod)
	_, isLabelled := pod.Labels[NodeLabel]
	switch {
	case pod.Annotations[NodeUIDAnnotation] != string(node.UID):
		return "the pod belongs to an older node of this name"
	case !isLabelled:
		return "the pod does not have the label " + NodeLabel
	case owner == nil || !slices.ContainsFunc(owners, func(c *v1alpha1.EtcdCluster) bool { return c.UID == owner.UID }):
		return "the pod is not owned by the etcd cluster of the node"
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return fmt.Sprintf("the pod has ended (%s)", cmp.Or(pod.Status.Reason, string(pod.Status.Phase)))
	}
	return ""
}
