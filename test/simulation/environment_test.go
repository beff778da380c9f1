package simulation

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// deleteActions returns new DELETEs: of the same Nodes again and again, or of all Nodes
// together.
func (sim *simulation) deleteActions() []action {
	if len(sim.deletions) > 6 {
		return nil
	}
	actions := []action{{
		sim.profile.deletions,
		func() { sim.startDelete(sim.hosts[sim.choose(len(sim.hosts))], false, false) },
	}}
	if sim.profile.enabled[dryRuns] {
		actions = append(actions, action{1, func() { sim.startDelete(sim.hosts[sim.choose(len(sim.hosts))], true, false) }})
	}
	if sim.profile.enabled[collectionDeletes] && len(sim.deletions) == 0 {
		actions = append(actions, action{1, func() {
			for _, h := range sim.hosts {
				sim.startDelete(h, false, true)
			}
		}})
	}
	return actions
}

// pickMatching picks one of the elements for which is returns true. ok is false if there is
// none.
func pickMatching[T any](sim *simulation, all []T, is func(T) bool) (found T, ok bool) {
	all = slices.DeleteFunc(slices.Clone(all), func(t T) bool { return !is(t) })
	if len(all) == 0 {
		return found, false
	}
	return all[sim.choose(len(all))], true
}

func (sim *simulation) pickEtcd() *simulatedEtcd { return sim.etcds[sim.choose(len(sim.etcds))] }

func (sim *simulation) stopMember() {
	if m, ok := pickMatching(sim, sim.pickEtcd().members, (*simulatedMember).isAlive); ok {
		m.running = false
		sim.log("member %s stops", m.id)
	}
}

func (sim *simulation) startMember() {
	e := sim.pickEtcd()
	if m, ok := pickMatching(sim, e.members,
		func(m *simulatedMember) bool { return m.started && !m.running && m.host.up && !m.host.killed }); ok {
		m.running = true
		sim.log("member %s starts", m.id)
	}
}

func (sim *simulation) stopMachine() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.up && !h.killed }); ok {
		h.up = false
		sim.log("machine %s stops", h.name)
	}
}

func (sim *simulation) startMachine() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return !h.up && !h.killed }); ok {
		h.up = true
		sim.log("machine %s starts", h.name)
	}
}

// deleteNodeWithoutReview deletes a Node without a call of the webhook. It waits until the
// leader has processed a settle annotation for the Node, because the leader would apply the
// annotation, which is about an earlier deletion, to this one.
func (sim *simulation) deleteNodeWithoutReview() {
	h, ok := pickMatching(sim, sim.hosts,
		func(h *simulatedHost) bool { return h.node != "" && !sim.hasSettleAnnotation(h.node) })
	if !ok {
		return
	}
	sim.log("Node %s (%s) is deleted without a review", h.name, h.node)
	sim.addLoss(h, sim.knowledgeAbout(h.name, h.node).bound[h.node])
	if err := sim.api.deleteNode(h.name); err != nil {
		sim.fail("deleting a Node: %v", err)
	}
	sim.syncKubelets()
}

// hasSettleAnnotation reports whether an unprocessed settle annotation names the Node.
func (sim *simulation) hasSettleAnnotation(uid types.UID) bool {
	return slices.ContainsFunc(sim.etcds, func(e *simulatedEtcd) bool {
		c := sim.api.clusters.objects[string(e.id)]
		return c != nil && c.Annotations[quorum.ResolveAnnotation] == string(uid)
	})
}

// addLoss records that the host may be lost without a grant.
func (sim *simulation) addLoss(h *simulatedHost, members []evidence.MemberRef) {
	sim.losses = append(sim.losses, &pendingLoss{
		uid: h.node, node: h.name, host: h, members: members, happened: true, at: time.Now(),
		order: map[v1alpha1.ClusterID]int{}, forgiven: map[v1alpha1.ClusterID]bool{},
	})
}

func (sim *simulation) registerAgain() {
	if h, ok := pickMatching(sim, sim.hosts,
		func(h *simulatedHost) bool { return h.up && !h.killed && h.node == "" }); ok {
		sim.registerNode(h)
	}
}

const casTaint = "ToBeDeletedByClusterAutoscaler"

// toggleTaint adds the deletion taint of cluster-autoscaler to a Node, or removes it.
func (sim *simulation) toggleTaint() {
	h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.node != "" })
	if !ok {
		return
	}
	had := false
	n, err := sim.api.editNode(h.name, func(n *corev1.Node) {
		had = len(n.Spec.Taints) > 0
		n.Spec.Taints = nil
		if !had {
			n.Spec.Taints = []corev1.Taint{{Key: casTaint, Effect: corev1.TaintEffectNoSchedule}}
		}
	})
	if err != nil {
		sim.fail("tainting a Node: %v", err)
		return
	}
	sim.log("deletion taint of Node %s: %t", h.name, !had)
	if !had {
		sim.addLoss(h, sim.knowledgeAbout(h.name, n.UID).bound[n.UID])
		return
	}
	for _, d := range sim.losses {
		if d.uid == n.UID && len(d.order) == 0 && n.DeletionTimestamp == nil {
			d.over = d.over || d.happened // The announced deletion does not happen.
		}
	}
}

func (sim *simulation) removeLabel() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.node != "" }); ok {
		_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
			delete(n.Labels, observation.EtcdMemberLabel)
		})
		sim.log("label of Node %s is removed: %s", h.name, errorText(err))
	}
}

// addMachine adds a machine under a new name or under the name of a terminated one.
func (sim *simulation) addMachine() {
	if len(sim.hosts) > 9 {
		return
	}
	name := fmt.Sprintf("n%d", len(sim.hosts))
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.killed && h.node == "" }); ok &&
		sim.choose(2) == 1 {
		name = h.name
		if _, err := sim.api.node(name); err == nil {
			return
		}
	}
	sim.addHost(name)
}

func (sim *simulation) useBreakGlass() {
	if h, ok := pickMatching(sim, sim.hosts, func(h *simulatedHost) bool { return h.node != "" }); ok {
		sim.useBreakGlassFor(h)
	}
}

func (sim *simulation) useBreakGlassFor(h *simulatedHost) {
	_, err := sim.api.editNode(h.name, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, quorum.BreakGlassAnnotation, fmt.Sprintf(
			`{"uid":%q,"until":%q,"reason":"test"}`, h.node, time.Now().Add(10*time.Minute).Format(time.RFC3339)))
	})
	sim.log("break-glass override for Node %s: %s", h.name, errorText(err))
}

// settleAnyGrant lets an operator end a grant that is really over: the deletion cannot
// happen any more, or the machine is guaranteed to stay.
func (sim *simulation) settleAnyGrant() {
	e := sim.pickEtcd()
	c, err := sim.api.cluster(string(e.id))
	if err != nil {
		return
	}
	g, ok := pickMatching(sim, c.Spec.Grants, func(g v1alpha1.Grant) bool { return sim.canSettle(g.NodeUID) })
	if !ok {
		return
	}
	sim.settleGrant(c, g.NodeUID)
}

// settleGrant lets an operator name a grant, and guarantees that the machine of its Node
// stays.
func (sim *simulation) settleGrant(c *v1alpha1.EtcdCluster, uid types.UID) {
	for _, d := range sim.losses {
		if d.uid == uid {
			d.over, d.host.keptByOperator = true, true
		}
	}
	sim.nameGrant(c, uid)
}

// nameGrant lets an operator name a grant, which the leader then ends.
func (sim *simulation) nameGrant(c *v1alpha1.EtcdCluster, uid types.UID) {
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, quorum.ResolveAnnotation, uid)
	_, err := sim.api.patchCluster(c.Name, types.MergePatchType, []byte(body))
	sim.log("operator settles the grant for Node UID %s in %s: %s", uid, c.Name, errorText(err))
}

// canSettle reports whether an operator may truthfully end the grant for this Node.
func (sim *simulation) canSettle(uid types.UID) bool {
	for _, d := range sim.deletions {
		if (d.admitted != nil && d.admitted.UID == uid) || (d.review != nil && d.review.node.UID == uid) {
			return false
		}
	}
	for _, d := range sim.pendingLosses() {
		if d.uid != uid {
			continue
		}
		if n, err := sim.api.node(d.node); d.host.killed || (err == nil && n.UID == uid) {
			return false
		}
	}
	return true
}
