package simulation

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// attack lets an attacker with root on one machine use the identities of its agent or of its
// kubelet. A history has at most one such machine, and its claims differ from one time to the next.
// It is a worker, or a host of etcd.
//
// The claims of a worker must never make Holdfast allow an unsafe deletion. A host of etcd may be
// believed about the health of members, because its root holds the keys of etcd. So it makes only
// claims that can do no more than block deletions: that members exist which do not, and that others
// are dead.
func (sim *simulation) attack() {
	if sim.attacker == nil && !sim.choices.oneIn(3) {
		return
	}
	if sim.attacker == nil {
		h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.up && !h.killed && h.node != "" })
		if !ok {
			return
		}
		sim.attacker = h
		sim.log("machine %s is compromised", h.name)
	}
	h := sim.attacker
	if !h.up || h.killed || h.node == "" {
		return
	}
	switch e := sim.pickEtcd(); {
	case !sim.isWorker(h):
		sim.publishLies(h, e, e.memberWithDataOn(h))
	case sim.choose(3) == 1:
		sim.forgeAddress(h)
	case sim.choose(2) == 1:
		sim.forgeAnnouncement(h, e)
	default:
		sim.publishLies(h, e, nil)
	}
}

// isWorker reports whether the machine has never had a member.
func (sim *simulation) isWorker(h *simulatedHost) bool {
	return !slices.ContainsFunc(sim.etcds, func(e *simulatedEtcd) bool {
		return slices.ContainsFunc(slices.Concat(e.members, e.removed), func(m *simulatedMember) bool { return m.host == h })
	})
}

// forgeAnnouncement announces members of other machines on the attacker's Node: current ones,
// former ones, or ones that never existed.
func (sim *simulation) forgeAnnouncement(h *simulatedHost, e *simulatedEtcd) {
	h.agent.silent = true // The real agent would correct it.
	var refs []evidence.MemberRef
	for range 1 + sim.choose(2) {
		known := slices.Concat(e.members, e.removed)
		id := v1alpha1.MemberID(fmt.Sprintf("%sf%d", e.id, 1+sim.choose(2)))
		if i := sim.choose(len(known) + 1); i < len(known) {
			id = known[i].id
		}
		if ref := (evidence.MemberRef{Cluster: e.id, Member: id}); !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(
			&n.ObjectMeta, observation.AnnouncementAnnotation, observation.FormatAnnouncement(refs))
		metav1.SetMetaDataLabel(&n.ObjectMeta, observation.EtcdMemberLabel, observation.EtcdMemberLabelValue)
	})
	sim.log("attacker on %s announces %v: %s", h.name, refs, errorText(err))
}

// publishLies publishes an observation of the attacker. local is the member on its machine, nil on
// a worker, which claims any member as its own.
func (sim *simulation) publishLies(h *simulatedHost, e *simulatedEtcd, local *simulatedMember) {
	h.agent.catchUp()
	c := h.agent.clusters.get(string(e.id))
	if c == nil {
		return
	}
	isWorker := sim.isWorker(h)
	lie := v1alpha1.Observation{
		Node: h.name, NodeUID: h.node, Nonce: c.Spec.Nonce, Time: metav1.Now(), Linearizable: true,
		AlarmsUnknown: !isWorker,
	}
	for _, m := range e.members {
		if isWorker && sim.choose(4) == 1 {
			continue
		}
		lie.Members = append(lie.Members, sim.lieAbout(m.id, h.agent.urlHost(m.host), m.learner, isWorker))
	}
	if sim.choose(3) == 1 {
		invented := v1alpha1.MemberID(fmt.Sprintf("%sf%d", e.id, 1+sim.choose(2)))
		lie.Members = append(lie.Members, sim.lieAbout(invented, h.address, false, isWorker))
	}
	if local != nil {
		lie.LocalMember = local.id
	} else if len(lie.Members) > 0 {
		lie.LocalMember = lie.Members[sim.choose(len(lie.Members))].ID
	}
	err := sim.api.publish(e.id, c.UID, lie)
	sim.log("attacker on %s publishes %s: %s", h.name, formatObservation(lie), errorText(err))
}

// lieAbout returns the entry of a member in a false list. It says the contrary of the truth only if
// the attacker may.
func (sim *simulation) lieAbout(id v1alpha1.MemberID, host string, learner, anything bool) v1alpha1.MemberStatus {
	if anything && sim.choose(4) == 1 {
		host = sim.hosts[sim.choose(len(sim.hosts))].address
	}
	status := v1alpha1.MemberStatus{
		ID: id, Name: "etcd-" + string(id), Learner: learner,
		PeerURLs: []string{"https://" + host + ":2380"}, ClientURLs: []string{"https://" + host + ":2379"},
	}
	if status.Healthy = anything && sim.choose(4) > 0; !status.Healthy {
		status.Reason = "it does not answer"
	}
	return status
}

func formatObservation(o v1alpha1.Observation) string {
	text := fmt.Sprintf("member %s,", o.LocalMember)
	for _, m := range o.Members {
		text += fmt.Sprintf(" %s healthy %t at %s", m.ID, m.Healthy, m.ClientURLs[0])
	}
	return text
}

// forgeAddress adds the address of another machine to the attacker's Node, as its kubelet may.
func (sim *simulation) forgeAddress(h *simulatedHost) {
	other := sim.hosts[sim.choose(len(sim.hosts))]
	address := h.agent.urlHost(other)
	_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
		n.Status.Addresses = append(nodeAddresses(h), corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: address})
	})
	sim.log("attacker on %s adds the address %s to its Node: %s", h.name, address, errorText(err))
}

// endAttack gives the machine back to its owner. If a worker is gone, its Node is deleted: no agent
// can withdraw its claims, and a refusal tells to delete the Node that has the member wrongly.
func (sim *simulation) endAttack() {
	h := sim.attacker
	if h == nil {
		return
	}
	sim.attacker, h.agent.silent = nil, false
	_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
		if n.UID == h.node {
			n.Status.Addresses = nodeAddresses(h)
		}
	})
	sim.log("the attacker has left %s: %s", h.name, errorText(err))
	if err == nil && h.killed && sim.isWorker(h) {
		sim.log("Node %s of the attacker's machine is deleted: %s", h.name, errorText(sim.api.deleteNode(h.name)))
	}
}
