package protect

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Membership says whether a node holds an etcd member. The zero value is unknown.
type Membership int

// The memberships.
const (
	// MembershipUnknown: the look was not complete. What was written on the Node stays as it is.
	MembershipUnknown Membership = iota
	// Holds: a server or the data of a member is there, or the cluster still counts on one.
	Holds
	// HoldsNot: provably no member.
	HoldsNot
)

// The reasons of the EtcdMember condition that are no Source.
const (
	// Unverified: a member is there by all appearance, and it has never said who it is.
	Unverified = "Unverified"
	// NotMember: there is provably none.
	NotMember = "NotMember"
	// NotKnown: the look was not complete.
	NotKnown = "Unknown"
)

// Known is what the agent knows besides the host itself.
type Known struct {
	// Node and UID are the agent's own Node.
	Node string
	UID  types.UID
	// Announced are the members that the Node announces so far.
	Announced []MemberRef
	// Protected says that the Node carries EtcdMemberLabel.
	Protected bool
	// Annotations are the Node's, for what somebody else has set there. May be nil.
	Annotations map[string]string
	// Clusters are the EtcdClusters as cached, and ClustersKnown says that they could be read at all.
	Clusters      []v1alpha1.EtcdCluster
	ClustersKnown bool
	// StaticPods says that etcd which Kubernetes itself runs counts too.
	StaticPods bool
}

// Protection is whether the node holds a member, and why.
type Protection struct {
	Membership Membership
	// Reason is the reason of the EtcdMember condition: a Source, Unverified, NotMember or Unknown.
	Reason string
	// Because is the sentence of BecauseAnnotation, in one line. Empty unless the node holds a member.
	Because string
	// Message is the message of the condition.
	Message string
	// Announce are the members to announce, sorted.
	Announce []MemberRef
	// Unverified is where the servers are of which nothing says which member they are.
	Unverified []string
}

// Assess says whether the node holds a member. Everything that looks like one protects the node until it has provably
// left: a server without an answer, a stopped one with data, a member that the others still count on. Absence needs a
// complete look (docs/architecture.md, "Unknown is a value").
func Assess(ev HostEvidence, k Known) Protection {
	var held, doubtful []Found
	unknown := slices.Clone(ev.Unknown)
	for _, f := range ev.Found {
		switch {
		case f.InCluster && !k.StaticPods, f.Removed:
		case f.Running(), f.Answered(), f.HasData != nil && *f.HasData:
			held = append(held, f)
		case f.HasData == nil:
			doubtful = append(doubtful, f)
			unknown = append(unknown, fmt.Sprintf("whether %s has the data of a member: %s", f.Where, reasons(f.Problems)))
		}
	}
	bound := bindingsOn(k)
	switch {
	case len(held) > 0:
		return holding(ev, held, doubtful, unknown, k)
	case len(bound) > 0:
		return stillBound(bound, ev, unknown, k)
	case !k.ClustersKnown:
		unknown = append(unknown, "the EtcdClusters, which may still count on a member here")
	}
	if len(unknown) > 0 {
		return Protection{Reason: NotKnown, Announce: sortRefs(k.Announced), Message: unread(k) + ": " + strings.Join(unknown, "; ")}
	}
	return Protection{Membership: HoldsNot, Reason: NotMember, Message: notMember(ev, k)}
}

// Unseen is the protection of a node whose host cannot be looked at, and why: what was written stays as it is.
func Unseen(k Known, why string) Protection {
	message := why
	if k.Protected {
		message += "; the node stays protected"
	}
	return Protection{Reason: NotKnown, Announce: sortRefs(k.Announced), Message: message}
}

// holding is the protection of a node on which something was found. The doubtful are stopped servers that may have the data
// of a member.
func holding(ev HostEvidence, held, doubtful []Found, unknown []string, k Known) Protection {
	announce := keep(ev, held, unknown, k)
	p := Protection{Membership: Holds, Announce: announce, Unverified: unverified(slices.Concat(held, doubtful), announce, k)}
	p.Reason = reason(held, announce, p.Unverified)
	var because, details []string
	for _, f := range held {
		ref, name := identify(f, held, announce, k)
		because = append(because, introduce(f, ref, name))
		details = append(details, troubles(f)...)
	}
	slices.Sort(because)
	p.Because = bounded(strings.Join(slices.Compact(because), "; "))
	for _, u := range unknown {
		details = append(details, "could not be looked at: "+u)
	}
	p.Message = message(p.Because, announce, details, k)
	return p
}

// stillBound is the protection of a node on which nothing was found and that an EtcdCluster has a member on.
func stillBound(bound []MemberRef, ev HostEvidence, unknown []string, k Known) Protection {
	var because, details []string
	for _, ref := range bound {
		because = append(because, fmt.Sprintf("etcd member %s of cluster %s, by its EtcdCluster", describeMember(ref, nameOf(ref, k)), ref.Cluster))
		details = append(details, fmt.Sprintf("nothing of it was found here; it counts until it has left its member list: etcdctl member remove %s, or, if the whole cluster exists no more, kubectl delete etcdcluster %s",
			ref.Member, ref.Cluster))
	}
	for _, u := range unknown {
		details = append(details, "could not be looked at: "+u)
	}
	p := Protection{Membership: Holds, Reason: Unverified, Because: strings.Join(because, "; "), Announce: keep(ev, nil, unknown, k)}
	p.Message = message(p.Because, bound, details, k)
	return p
}

// keep returns what to announce while the node holds a member: who answered, and who was announced before and has not
// provably left. A member that does not answer now is a member all the same.
func keep(ev HostEvidence, held []Found, unknown []string, k Known) []MemberRef {
	var refs []MemberRef
	for _, f := range held {
		if f.Answered() {
			refs = append(refs, f.Ref)
		}
	}
	silent := slices.ContainsFunc(held, func(f Found) bool { return !f.Answered() })
	for _, ref := range k.Announced {
		i := slices.IndexFunc(k.Clusters, func(c v1alpha1.EtcdCluster) bool { return clusterID(&c) == ref.Cluster })
		removed := slices.ContainsFunc(ev.Found, func(f Found) bool { return f.Removed && f.Ref == ref })
		var c *v1alpha1.EtcdCluster
		if i >= 0 {
			c = &k.Clusters[i]
		}
		if !removed && !outlived(c, ref.Member, silent) && !replaced(c, ref.Member, silent || len(unknown) > 0 || !k.ClustersKnown) {
			refs = append(refs, ref)
		}
	}
	return sortRefs(refs)
}

// Departed says that a member has left: nothing binds it any more, and every confirmed list of the cluster's bound
// observers lacks it. No list is no proof.
func Departed(c *v1alpha1.EtcdCluster, m v1alpha1.MemberID) bool {
	lists := slices.DeleteFunc(observers(c), func(o v1alpha1.Observation) bool { return !confirmed(o) })
	bound := slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.MemberID == m })
	return len(lists) > 0 && !bound && !listedByAny(lists, m)
}

// reason picks the condition's reason: the strongest source among the servers that are verified; a node whose servers
// have never said who they are is Unverified, unless none of them runs; and so is one of which some have not.
func reason(held []Found, announce []MemberRef, unverified []string) string {
	rank := []Source{SystemdUnit, Container, Process, StaticPod, DataDirectory}
	best := func(of []Found) string {
		for _, s := range rank {
			for _, f := range of {
				is := f.Source
				if !f.Running() && !f.Answered() {
					is = DataDirectory
				}
				if is == s {
					return string(s)
				}
			}
		}
		return Unverified
	}
	if slices.ContainsFunc(held, func(f Found) bool { return f.Running() && slices.Contains(unverified, f.Where) }) {
		return Unverified
	}
	if answered := slices.DeleteFunc(slices.Clone(held), func(f Found) bool { return !f.Answered() }); len(answered) > 0 {
		return best(answered)
	}
	if len(announce) > 0 || !slices.ContainsFunc(held, func(f Found) bool { return f.Running() }) {
		return best(held)
	}
	return Unverified
}

// identify returns who a found server is: by its answer, or, if one server alone does not answer and one announced
// member alone is unaccounted for, that one.
func identify(f Found, held []Found, announce []MemberRef, k Known) (MemberRef, string) {
	if f.Answered() {
		return f.Ref, f.Name
	}
	open := unaccounted(held, announce)
	silent := 0
	for _, h := range held {
		if !h.Answered() {
			silent++
		}
	}
	if len(open) == 1 && silent == 1 && !otherName(f, open[0], k) {
		return open[0], nameOf(open[0], k)
	}
	return MemberRef{}, ""
}

// bindingsOn returns the members that the cached EtcdClusters bind to this very Node.
func bindingsOn(k Known) []MemberRef {
	var refs []MemberRef
	for i := range k.Clusters {
		for _, b := range k.Clusters[i].Spec.Members {
			if b.Node == k.Node && (b.NodeUID == k.UID || k.UID == "") {
				refs = append(refs, MemberRef{Cluster: clusterID(&k.Clusters[i]), Member: b.MemberID})
			}
		}
	}
	return sortRefs(refs)
}
