package quorum

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// RequestFor returns the request for the deletion of this Node as far as the Node tells. With an
// error, the Node announces members that cannot be parsed, and the request lacks them.
func RequestFor(n *corev1.Node) (Request, error) {
	r := Request{
		Node: n.Name, UID: n.UID, Version: n.ResourceVersion, AgentSilent: !hasReported(n),
		Labelled: IsLabelled(n), Addresses: observation.AddressesOf(n),
	}
	var err error
	r.Announced, err = observation.ParseAnnouncement(n.Annotations[observation.AnnouncementAnnotation])
	if err == nil {
		r.Unverified, err = observation.ParseUnverified(n.Annotations[observation.UnverifiedAnnotation])
	}
	return r, err
}

// IsLabelled reports whether the Node has the label that selects the fail-closed entry.
func IsLabelled(n *corev1.Node) bool {
	return n.Labels[observation.EtcdMemberLabel] == observation.EtcdMemberLabelValue
}

// hasReported reports whether the agent of the Node has found out whether the node holds a member.
func hasReported(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == observation.EtcdMemberCondition && c.Status != corev1.ConditionUnknown
	})
}

// RefuseOpenNode refuses a drain of a node that nothing has closed for pods. Each program that
// drains a node closes it first. Otherwise something else evicts the guard pod, for example a
// descheduler, and the machine stays. A Node that could not be read is not refused here.
func RefuseOpenNode(n observation.NodeState, r Request) (v Verdict, isRefused bool) {
	if !r.Drain || !n.Known || n.UID != r.UID || n.Closed() != "" {
		return Verdict{}, false
	}
	fact := fmt.Sprintf("node %s is not being drained: it is neither cordoned nor marked by a program that removes or "+
		"restarts nodes, so the eviction of its guard pod is refused", r.Node)
	return Verdict{Reason: NotDraining, Final: true, Message: refusalText(r, []string{fact},
		fmt.Sprintf("to drain the node: kubectl drain %s --ignore-daemonsets (it cordons the node first)", r.Node),
		"if a program evicts pods from nodes that stay (descheduler), exclude the namespace holdfast-system from it",
	)}, true
}

// isOnlyMember reports whether the request is a drain of the node with the only member of the
// cluster. There is no quorum that the drain could break and waiting could keep, and a cluster of
// one node must be able to restart. With a learner or another binding, the arithmetic decides.
func (t requestTarget) isOnlyMember(list v1alpha1.Observation) bool {
	isOther := func(b v1alpha1.Binding) bool { return b.MemberID != list.Members[0].ID }
	return t.Drain && len(list.Members) == 1 && !slices.ContainsFunc(t.Cluster.Spec.Members, isOther)
}

// allowOnlyMember allows the drain of the node with the only member.
func (t requestTarget) allowOnlyMember() Verdict {
	id := observation.ClusterIDOf(t.Cluster)
	return Verdict{
		Allowed: true, Reason: OnlyMember, Voters: 1, Quorum: 1, Final: true,
		Message: fmt.Sprintf("node %s has the only member of etcd cluster %s, so no quorum can be kept", t.Node, id),
		Warning: fmt.Sprintf("etcd cluster %s is down until node %s is back, and its data are on that node only", id, t.Node),
	}
}

// isDrained reports whether the member is lost by the grant of a drain whose Node still exists.
func (s Snapshot) isDrained(m memberState) bool {
	return slices.ContainsFunc(s.Cluster.Spec.Grants, func(g v1alpha1.Grant) bool {
		n := s.Nodes[g.Node]
		return g.Drained != nil && n.Known && n.UID == g.NodeUID && s.mayBeGivenUp(m.ID, g)
	})
}

// drainedStep tells how a drained node comes back. n is the state of its Node, which exists.
func (t requestTarget) drainedStep(g v1alpha1.Grant, n observation.NodeState, tally memberTally) string {
	members := joinTitles(t.lostBy(g, tally))
	count := "counts"
	if len(t.lostBy(g, tally)) > 1 {
		count = "count"
	}
	since := "node " + g.Node + " was drained at " + g.Drained.UTC().Format(time.RFC3339)
	again := fmt.Sprintf("%s %s again when the agent there has proven it healthy twice, %s apart", members, count,
		ResolveReturnedAfter)
	switch {
	case n.Deleting:
		return fmt.Sprintf("%s and is being deleted: wait until its machine is gone, then %s node %s again to see the "+
			"remaining steps", since, t.Verb().Base, t.Node)
	case n.Departure.Class != departure.None:
		return fmt.Sprintf("%s and %s (%s): wait until it is back, uncordoned and without that mark, and etcd runs there; %s",
			since, n.Departure.Says, n.Departure, again)
	case n.Cordoned:
		return fmt.Sprintf("%s and is still cordoned: wait until it is back; the program that drained it uncordons it, "+
			"or you do when etcd runs there: kubectl uncordon %s; %s", since, g.Node, again)
	}
	return fmt.Sprintf("%s and is open again: wait until etcd runs there; %s", since, again)
}

// reasonPrefix begins a reason in an answer of the API server.
const reasonPrefix = "holdfast.dev/"

// Cause returns the form of the reason in the causes of a refusal (Status.details.causes).
func (r Reason) Cause() metav1.CauseType { return metav1.CauseType(reasonPrefix + string(r)) }

// ReasonText returns the warning that carries the reason of an allowed dry run.
func ReasonText(r Reason, message string) string {
	return strings.TrimSuffix(reasonPrefix+string(r)+": "+observation.OneLine(message), ": ")
}

// ParseReasonText returns the reason and message in a warning. isReason is false for other
// warnings.
func ParseReasonText(warning string) (r Reason, message string, isReason bool) {
	text, isReason := strings.CutPrefix(warning, reasonPrefix)
	reason, message, _ := strings.Cut(text, ": ")
	return Reason(reason), message, isReason
}

// ReasonOf returns the reason of a refusal. isReason is false if Holdfast did not refuse.
func ReasonOf(details *metav1.StatusDetails) (r Reason, isReason bool) {
	if details == nil {
		return "", false
	}
	for _, cause := range details.Causes {
		if reason, isReason := strings.CutPrefix(string(cause.Type), reasonPrefix); isReason {
			return Reason(reason), true
		}
	}
	return "", false
}

// An Answer is what a Reason says about the question whether a Node may be deleted.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// AnswerOf returns the answer for the reason of a decision. A reason that is not about etcd, and
// one that is not known here, are Unknown, whether or not the deletion was allowed: a Node
// without the label of etcd is deleted without a decision if none is possible.
func AnswerOf(r Reason, isAllowed bool) Answer {
	switch r {
	case NothingToProtect, QuorumKept, OnlyMember, Repeated, Deleting, BreakGlassUsed:
		if isAllowed {
			return Yes
		}
	case QuorumWouldBeLost, UnknownMember, NotDraining:
		if !isAllowed {
			return No
		}
	case CannotSee, CannotDecide:
	}
	return Unknown
}

// maxBreakGlassDuration limits how far in the future a break-glass annotation may expire.
const maxBreakGlassDuration = time.Hour

// A BreakGlass is the value of BreakGlassAnnotation. It allows the deletion of one Node whatever
// the verdict.
type BreakGlass struct {
	// UID is the UID of the Node. It prevents that the annotation applies to a later Node.
	UID    types.UID `json:"uid"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
}

// ParseBreakGlass parses BreakGlassAnnotation on the Node with this UID. The error contains an
// example of a valid value.
func ParseBreakGlass(annotation string, uid types.UID, now time.Time) (BreakGlass, error) {
	b, err := parseBreakGlass(annotation, uid, now)
	if err != nil {
		return BreakGlass{}, fmt.Errorf(`%w: write {"uid":"%s","until":"%s","reason":"say why"}`,
			err, uid, now.UTC().Add(maxBreakGlassDuration/2).Format(time.RFC3339))
	}
	return b, nil
}

func parseBreakGlass(annotation string, uid types.UID, now time.Time) (BreakGlass, error) {
	var b BreakGlass
	if len(annotation) > observation.MaxAnnotationBytes {
		return b, fmt.Errorf("annotation %s is longer than %d bytes", BreakGlassAnnotation, observation.MaxAnnotationBytes)
	}
	if err := json.Unmarshal([]byte(annotation), &b); err != nil {
		return b, fmt.Errorf("parsing annotation %s: %w", BreakGlassAnnotation, err)
	}
	b.Reason = strings.TrimSpace(b.Reason)
	switch {
	case uid == "" || b.UID != uid:
		return b, fmt.Errorf("annotation %s names the UID %q, but this Node has the UID %q", BreakGlassAnnotation, b.UID, uid)
	case b.Reason == "":
		return b, fmt.Errorf("annotation %s contains no reason", BreakGlassAnnotation)
	case !b.Until.After(now):
		return b, fmt.Errorf("annotation %s expired at %s", BreakGlassAnnotation, b.Until.Format(time.RFC3339))
	case b.Until.Sub(now) > maxBreakGlassDuration:
		return b, fmt.Errorf("annotation %s is valid until %s, more than %s from now",
			BreakGlassAnnotation, b.Until.Format(time.RFC3339), maxBreakGlassDuration)
	}
	return b, nil
}
