package quorum

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// A Reason classifies a Verdict. The set is closed, so it is suitable for a metric label. Package
// admission adds reasons of its own for answers without a verdict.
type Reason string

// The reasons of verdicts.
const (
	// NothingToProtect: the cluster has no member on the node, or no longer has one.
	NothingToProtect Reason = "NothingToProtect"
	// QuorumKept: enough voters on other nodes are proven healthy.
	QuorumKept Reason = "QuorumKept"
	// QuorumWouldBeLost: too few voters on other nodes are proven healthy.
	QuorumWouldBeLost Reason = "QuorumWouldBeLost"
	// CannotSee: no observer answered with a member list that a quorum confirmed.
	CannotSee Reason = "CannotSee"
	// UnknownMember: the node has a member or a server, but it is not known which one.
	UnknownMember Reason = "UnknownMember"
	// NotDraining: a guard pod is evicted, but nothing has closed its node for a drain.
	NotDraining Reason = "NotDraining"
	// OnlyMember: the drained node has the only member of its cluster, so there is no quorum to keep.
	OnlyMember Reason = "OnlyMember"
	// Deleting: the Node is already being deleted.
	Deleting Reason = "Deleting"
	// BreakGlassUsed: an authorized user overrode the verdict.
	BreakGlassUsed Reason = "BreakGlass"
	// CannotDecide: Holdfast itself failed. An input of the verdict could not be read, or a grant
	// could not be written. The reason makes no statement about etcd.
	CannotDecide Reason = "CannotDecide"
)

// RefusingReasons returns the reasons of verdicts that refuse.
func RefusingReasons() []Reason {
	return []Reason{QuorumWouldBeLost, CannotSee, UnknownMember, NotDraining, CannotDecide}
}

// A Verdict is the decision for one cluster. The zero value refuses.
type Verdict struct {
	Allowed bool
	Reason  Reason
	Cluster v1alpha1.ClusterID
	// Members are the members on the node. A grant must name all of them. If the list is empty, no
	// grant is necessary.
	Members []v1alpha1.MemberID
	// Final reports whether the review waits for no further observation. A refusal is final if none
	// that is expected can change it. An allow by the arithmetic is: it rests on a list that a quorum
	// confirmed after the nonce, and one that differs would be a later change. That no member is on
	// the node needs a second list, if one is expected.
	Final bool
	// Facts are what the sentences about the verdict need. Package words words them. Its Tally is zero
	// unless the arithmetic decides.
	Facts Facts
}

// A Decision is the answer to a Request over all etcd clusters. The zero value refuses.
type Decision struct {
	Allowed bool
	// Message explains the decision. The message of a refusal contains the next steps. Package words
	// adds it and the warnings.
	Message string
	// Warnings are what the user of an allowed deletion should know.
	Warnings []string
	// Reason is the reason of the first verdict that agrees with the decision.
	Reason Reason
	// Verdicts are the verdicts of the clusters, in the order of cluster ID.
	Verdicts []Verdict
}

// NeedsGrant reports whether members are lost by what the decision allows.
func (d Decision) NeedsGrant() bool {
	return d.Allowed && slices.ContainsFunc(d.Verdicts, func(v Verdict) bool { return len(v.Members) > 0 })
}

// reasonPrefix begins a reason in an answer of the API server.
const reasonPrefix = "holdfast.dev/"

// Cause returns the form of the reason in the causes of a refusal (Status.details.causes).
func (r Reason) Cause() metav1.CauseType { return metav1.CauseType(reasonPrefix + string(r)) }

// ReasonText returns the warning that carries the reason of an allowed dry run.
func ReasonText(r Reason, message string) string {
	return strings.TrimSuffix(reasonPrefix+string(r)+": "+printable.Line(message), ": ")
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
	case NothingToProtect, QuorumKept, OnlyMember, Deleting, BreakGlassUsed:
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
