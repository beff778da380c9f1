package quorum

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/place"
)

// A Request is the deletion of one Node, a drain of its node, or the removal of its member.
type Request struct {
	Node string
	UID  types.UID
	// Version is the resourceVersion of the Node that the API server is about to delete or to mark.
	Version string
	// Labelled reports whether the Node has the label EtcdMemberLabel.
	Labelled bool
	// Announced are the members that the Node's agent announced on the Node.
	Announced []evidence.MemberRef
	// Unverified are the places on the host where the Node's agent found servers that have never
	// identified themselves.
	Unverified []string
	// AgentSilent means that the Node's agent has not reported whether it found a member. It matters
	// for a node without the label only (DecideUnlabelled).
	AgentSilent bool
	// Addresses are those of the Node (observation.AddressesOf).
	Addresses []string
	// User is the name of the requesting user. The grant records it.
	User string
	// Door is the kind of the request: the door that it opens if it is allowed. DoorDrain is a drain
	// of the node (the eviction of its guard pod), and DoorRemove the removal of its member. The zero
	// value is DoorDelete.
	Door DoorKind
	// StopsFirst means that the member may stop before it is removed.
	StopsFirst bool
	// DryRun means that nothing may be written. So no probe can be requested.
	DryRun bool
	// BreakGlass is the valid override on the Node, or nil.
	BreakGlass *BreakGlass
}

// places returns the members of the cluster that may be on the node of the request, with the
// sources that place them there.
func (r Request) places(c *v1alpha1.EtcdCluster) []place.Place {
	return place.Of(c, []observation.AnnouncingNode{
		{Node: r.Node, UID: r.UID, Addresses: r.Addresses, Announced: r.Announced},
	})
}

// RequestFor returns the request for the deletion of this Node as far as the Node tells. With an
// error, the Node announces members that cannot be parsed, and the request lacks them.
func RequestFor(n *corev1.Node) (Request, error) {
	r := Request{
		Node: n.Name, UID: n.UID, Version: n.ResourceVersion, Door: DoorDelete, AgentSilent: !observation.HasReported(n),
		Labelled: observation.IsLabelled(n), Addresses: observation.AddressesOf(n),
	}
	var err error
	r.Announced, err = observation.ParseAnnouncement(n.Annotations[observation.AnnouncementAnnotation])
	if err == nil {
		r.Unverified, err = observation.ParseUnverified(n.Annotations[observation.UnverifiedAnnotation])
	}
	return r, err
}
