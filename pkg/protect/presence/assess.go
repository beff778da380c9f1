// Package presence decides whether a node holds an etcd member, and which marks its Node carries.
//
// Assess makes the decision from a scan of the host. Marks returns the annotations and labels to
// change on the Node, and Protection.Message is the message of the Node's condition EtcdMember.
// Whether a Node may be deleted is decided by package quorum.
//
// All functions are pure: no clock, no context, no log, no error. Each result contains the sentence
// that explains it to people. A value that could not be read is unknown, and never yes or no.
package presence

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// Membership is the decision whether a node holds an etcd member. The zero value is unknown.
type Membership int

// The memberships.
const (
	// MembershipUnknown: the scan is not complete. The marks on the Node stay as they are.
	MembershipUnknown Membership = iota
	// MemberPresent: the node has a server or the data of a member, or an EtcdCluster binds a member
	// to it.
	MemberPresent
	// MemberAbsent: the node provably holds no member.
	MemberAbsent
)

// The reasons of the EtcdMember condition, besides each evidence.Source.
const (
	// ReasonUnverified: there is probably a member, but it never answered with its identity.
	ReasonUnverified = "Unverified"
	// ReasonNotMember: there is provably no member.
	ReasonNotMember = "NotMember"
	// ReasonUnknown: the scan is not complete.
	ReasonUnknown = "Unknown"
)

// Inputs are the inputs of Assess besides the scan of the host.
type Inputs struct {
	// Node and UID identify the agent's own Node.
	Node string
	UID  types.UID
	// Announced are the members that the Node announces so far.
	Announced []evidence.MemberRef
	// Protected means that the Node carries observation.EtcdMemberLabel.
	Protected bool
	// Annotations are the annotations of the Node, which other programs may have changed. May be nil.
	Annotations map[string]string
	// ProviderID, Labels and Taints are those of the Node. They show whether an autoscaler finds its
	// machine.
	ProviderID string
	Labels     map[string]string
	Taints     []corev1.Taint
	// Clusters are the cached EtcdClusters. ClustersKnown is false if they could not be read.
	Clusters      []v1alpha1.EtcdCluster
	ClustersKnown bool
	// StaticPods means that etcd servers which Kubernetes itself runs count too. Those of a cluster
	// that binds a member to this Node always count.
	StaticPods bool
}

// Protection is the result of Assess: whether the node holds a member, and why.
type Protection struct {
	Membership Membership
	// Reason is the reason of the EtcdMember condition: a Source, or one of the reasons above.
	Reason string
	// Because is the value of BecauseAnnotation, a sentence in one line. It is empty unless the node
	// holds a member.
	Because string
	// Message is the message of the condition.
	Message string
	// Announce are the members to announce, sorted.
	Announce []evidence.MemberRef
	// ProviderIDProblem is the part of the message that explains why an autoscaler ends the machine in
	// spite of the protection. It is usually empty.
	ProviderIDProblem string
	// IsAwaited means that a member is bound to the node, and nothing of it was found.
	IsAwaited bool
	// Unverified are the places of the servers that cannot be assigned to a member.
	Unverified []string
}

// Assess decides whether the node holds a member. Each sign of a member protects the node until the
// member has provably left: a server without an answer, a stopped server with data, a binding.
// Absence is proven only by a complete scan (docs/architecture.md, "Unknown is a value").
func Assess(scan evidence.Scan, in Inputs) Protection {
	p := assess(scan, in)
	p.Because, p.Message = printable.Line(p.Because), printable.Line(p.Message)
	p.ProviderIDProblem = printable.Line(p.ProviderIDProblem)
	return p
}

func assess(scan evidence.Scan, in Inputs) Protection {
	scan = sortData(scan, in)
	var held, doubtful []evidence.FoundServer
	for _, f := range scan.Found {
		switch {
		case in.Ignores(f), f.Removed:
		case f.IsRunning(), f.HasAnswered(), f.HasData != nil && *f.HasData:
			held = append(held, f)
		case f.HasData == nil:
			doubtful = append(doubtful, f)
			why := cmp.Or(printable.Quote(strings.Join(f.Problems, ", ")), "no reason was reported")
			scan.Unknown = append(scan.Unknown, fmt.Sprintf("the data directory of %s: %s", f.Where, why))
		}
	}
	bound := boundMembers(in)
	switch {
	case len(held) > 0:
		return protectFound(scan, held, doubtful, in)
	case len(bound) > 0:
		return protectBound(bound, scan, in)
	}
	unknown := scan.Unknown
	if !in.ClustersKnown {
		unknown = append(unknown, "the EtcdClusters, which may bind a member to this node")
	}
	if scan.Searching {
		unknown = append(unknown, "the local disks, whose first search for data of etcd has not ended")
	}
	if len(unknown) > 0 {
		message := "no etcd was found, but the scan is not complete"
		if in.Protected {
			message += ", so the node stays protected"
		}
		return Protection{
			Reason: ReasonUnknown, Announce: observation.SortRefs(in.Announced),
			Message: message + ": " + strings.Join(unknown, "; "),
		}
	}
	return Protection{Membership: MemberAbsent, Reason: ReasonNotMember, Message: describeAbsence(scan, in)}
}

// Ignores reports whether a server does not count because it runs in a static pod. The server of a
// bound member counts: without its answer, the binding would never end, and no deletion that needs
// its report would be allowed.
func (in Inputs) Ignores(f evidence.FoundServer) bool {
	return f.InCluster && !in.StaticPods && !slices.ContainsFunc(boundMembers(in), func(r evidence.MemberRef) bool {
		return r.Cluster == f.Ref.Cluster || f.Stored != nil && r.Cluster == f.Stored.Cluster
	})
}

// protectFound returns the protection of a node with the held servers. The doubtful servers are
// stopped, and whether they have the data of a member is unknown.
func protectFound(scan evidence.Scan, held, doubtful []evidence.FoundServer, in Inputs) Protection {
	announce := membersToAnnounce(scan, held, in)
	p := Protection{
		Membership: MemberPresent, Announce: announce, ProviderIDProblem: providerIDProblem(in),
		Unverified: unverifiedServers(slices.Concat(held, doubtful), announce, in),
	}
	p.Reason = conditionReason(held, announce, p.Unverified)
	var because, details []string
	for _, f := range held {
		ref, name := identifyServer(f, held, announce, in)
		because = append(because, describeServer(f, ref, name))
		details = append(details, describeProblems(f, ref)...)
	}
	slices.Sort(because)
	p.Because = printable.Clip(strings.Join(slices.Compact(because), "; "), maxText)
	p.Message = conditionMessage(p, announce, details, scan, in)
	return p
}

// protectBound returns the protection of a node without a found server to which EtcdClusters bind
// members.
func protectBound(bound []evidence.MemberRef, scan evidence.Scan, in Inputs) Protection {
	var because, details []string
	for _, ref := range bound {
		because = append(because, describeMember(ref, memberName(ref, in))+", bound to this node")
		details = append(details, describeAwaited(ref, HasNoMemberOf(ref.Cluster, scan), in))
	}
	p := Protection{
		Membership: MemberPresent, Reason: ReasonUnverified, Because: strings.Join(because, "; "),
		Announce: membersToAnnounce(scan, nil, in), ProviderIDProblem: providerIDProblem(in),
		IsAwaited: true,
	}
	p.Message = conditionMessage(p, bound, details, scan, in)
	return p
}

// boundMembers returns the members that the cached EtcdClusters bind to this Node.
func boundMembers(in Inputs) []evidence.MemberRef {
	var refs []evidence.MemberRef
	for i := range in.Clusters {
		for _, b := range in.Clusters[i].Spec.Members {
			if b.Node == in.Node && (b.NodeUID == in.UID || in.UID == "") {
				refs = append(refs, evidence.MemberRef{Cluster: observation.ClusterIDOf(&in.Clusters[i]), Member: b.MemberID})
			}
		}
	}
	return observation.SortRefs(refs)
}

// conditionReason returns the strongest source of the servers that answered. If no server answered,
// it returns the strongest source of all servers, provided that a member is announced or that no
// server runs. Otherwise, and if a running server is unverified, it returns ReasonUnverified. A
// stopped server without an answer counts as a data directory.
func conditionReason(held []evidence.FoundServer, announce []evidence.MemberRef, unverified []string) string {
	answered := slices.DeleteFunc(slices.Clone(held), func(f evidence.FoundServer) bool { return !f.HasAnswered() })
	isUnverified := func(f evidence.FoundServer) bool { return f.IsRunning() && slices.Contains(unverified, f.Where) }
	isRunning := slices.ContainsFunc(held, evidence.FoundServer.IsRunning)
	switch {
	case slices.ContainsFunc(held, isUnverified), len(answered)+len(announce) == 0 && isRunning:
		return ReasonUnverified
	case len(answered) > 0:
		held = answered
	}
	for _, source := range []evidence.Source{
		evidence.SystemdUnit, evidence.Container, evidence.Process, evidence.StaticPod, evidence.DataDirectory,
	} {
		for _, f := range held {
			isStopped := !f.IsRunning() && !f.HasAnswered()
			if (isStopped && source == evidence.DataDirectory) || (!isStopped && source == f.Source) {
				return string(source)
			}
		}
	}
	return ReasonUnverified
}
