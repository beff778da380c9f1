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
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
)

// A simulatedAgent is the agent of one host. It writes its Node by the real rules of
// pkg/protect. It probes etcd in steps, so that the simulation can change in between.
type simulatedAgent struct {
	host *simulatedHost
	// clusters and observations are the agent's own watches.
	clusters     *simulatedCache[*v1alpha1.EtcdCluster]
	observations *simulatedCache[*v1alpha1.EtcdObservation]
	// A silent agent does not run. A blind agent finds no certificate for etcd.
	silent, blind bool
	// hasForeignURLs is true if the members' URLs contain no address of a Node.
	hasForeignURLs bool
	probes         []*agentProbe
	probeCount     int
	// lastBegun is the time at which the last probe of a cluster began. A cluster is probed at
	// least once a minute.
	lastBegun map[v1alpha1.ClusterID]time.Time
	// lastKey is the key of the last probe that the agent began, and lastPublished the number
	// of the last probe that it published.
	lastKey       map[v1alpha1.ClusterID]probeKey
	lastPublished map[v1alpha1.ClusterID]int
	// lastList is the last confirmed member list of each cluster.
	lastList map[v1alpha1.ClusterID][]v1alpha1.MemberStatus
	// lastInput is what the agent wrote its Node from last. It repeats the check every ten
	// seconds even if nothing changed.
	lastInput nodeWriteInput
}

// A nodeWriteInput identifies the state that the marks of a Node are written from.
type nodeWriteInput struct {
	version   string
	snapshots int
	at        time.Time
}

type probeKey struct {
	// cluster and object are the UIDs of the EtcdCluster and of the agent's EtcdObservation.
	cluster, object, node types.UID
	nonce                 string
	member                v1alpha1.MemberID
}

// An agentProbe is one probe of one cluster.
type agentProbe struct {
	agent  *simulatedAgent
	etcd   *simulatedEtcd
	key    probeKey
	number int
	result v1alpha1.Observation
	// hasList and hasAlarms are true after the attempts to read them.
	hasList, hasAlarms bool
	// remaining are the members that the agent has not probed yet.
	remaining []v1alpha1.MemberID
}

func newAgent(sim *simulation, h *simulatedHost) *simulatedAgent {
	return &simulatedAgent{
		host: h, hasForeignURLs: sim.profile.foreignURLs,
		clusters: newSimulatedCache(sim, &sim.api.clusters), observations: newSimulatedCache(sim, &sim.api.observations),
		lastKey: map[v1alpha1.ClusterID]probeKey{}, lastPublished: map[v1alpha1.ClusterID]int{},
		lastList: map[v1alpha1.ClusterID][]v1alpha1.MemberStatus{}, lastBegun: map[v1alpha1.ClusterID]time.Time{},
	}
}

func (a *simulatedAgent) isWorking() bool {
	return !a.silent && a.host.up && !a.host.killed && a.host.node != ""
}

func (a *simulatedAgent) catchUp() {
	a.clusters.receive(len(a.clusters.table.log))
	a.observations.receive(len(a.observations.table.log))
}

// joined returns the EtcdClusters with their observations, as the agent knows both.
func (a *simulatedAgent) joined() []v1alpha1.EtcdCluster {
	var all []v1alpha1.EtcdCluster
	for _, c := range a.clusters.list() {
		all = append(all, *observation.Join(c, a.observations.list()))
	}
	return all
}

// own returns the EtcdObservation of the agent's Node, or nil.
func (a *simulatedAgent) own(c *v1alpha1.EtcdCluster) *v1alpha1.EtcdObservation {
	o := a.observations.get(v1alpha1.ObservationName(observation.ClusterIDOf(c), a.host.name))
	if o == nil || !observation.BelongsTo(o, c.UID) {
		return nil
	}
	return o
}

// dueProbe returns the key of the probe that is due, from what the agent's watch has
// received. The agent observes the member whose data are on its host.
func (a *simulatedAgent) dueProbe(e *simulatedEtcd) (probeKey, bool) {
	c, m := a.clusters.get(string(e.id)), e.memberWithDataOn(a.host)
	if c == nil || m == nil || !m.started {
		return probeKey{}, false
	}
	own := a.own(c)
	if own == nil {
		return probeKey{}, false
	}
	q := probeKey{cluster: c.UID, object: own.UID, node: a.host.node, nonce: c.Spec.Nonce, member: m.id}
	return q, a.lastKey[e.id] != q || time.Since(a.lastBegun[e.id]) > time.Minute
}

// beginProbe reads the nonce before anything else.
func (a *simulatedAgent) beginProbe(e *simulatedEtcd, q probeKey) *agentProbe {
	a.lastKey[e.id], a.lastBegun[e.id] = q, time.Now()
	a.probeCount++
	l := &agentProbe{agent: a, etcd: e, key: q, number: a.probeCount}
	l.result = v1alpha1.Observation{
		Node: a.host.name, NodeUID: q.node, Nonce: q.nonce, LocalMember: q.member, Time: metav1.Now(), AlarmsUnknown: true,
	}
	a.probes = append(a.probes, l)
	return l
}

// canList reports whether the local member confirms the member list, or another one that the agent
// knows.
func (l *agentProbe) canList() bool {
	known := memberIDs(l.agent.lastList[l.etcd.id])
	return !l.agent.blind && slices.ContainsFunc(l.etcd.members, func(m *simulatedMember) bool {
		isAsked := m.host == l.agent.host || slices.Contains(known, m.id)
		return isAsked && !m.learner && l.etcd.serves(m) && l.agent.reachesMember(l.etcd, m)
	})
}

// listMembers requests the member list, confirmed by a quorum.
func (l *agentProbe) listMembers() {
	l.hasList = true
	if !l.canList() {
		l.result.Problem = "no quorum confirmed the member list"
		if !l.agent.blind { // The agent probes the members that it last knew.
			l.result.Members = slices.Clone(l.agent.lastList[l.etcd.id])
			l.remaining = memberIDs(l.result.Members)
		}
		return
	}
	l.result.Linearizable = true
	for _, m := range l.etcd.members {
		address := l.agent.urlHost(m.host)
		status := v1alpha1.MemberStatus{ID: m.id, Learner: m.learner, PeerURLs: []string{"https://" + address + ":2380"}}
		if m.started {
			status.Name, status.ClientURLs = "etcd-"+string(m.id), []string{"https://" + address + ":2379"}
		}
		l.result.Members = append(l.result.Members, status)
	}
	l.remaining = memberIDs(l.result.Members)
	l.agent.lastList[l.etcd.id] = slices.Clone(l.result.Members)
}

func memberIDs(members []v1alpha1.MemberStatus) []v1alpha1.MemberID {
	var ids []v1alpha1.MemberID
	for _, m := range members {
		ids = append(ids, m.ID)
	}
	return ids
}

// urlHost returns the host in the URLs of a member on the machine.
func (a *simulatedAgent) urlHost(h *simulatedHost) string {
	if a.hasForeignURLs {
		return "etcd." + h.name + ".example.org"
	}
	return h.address
}

// probeMember requests a read from one member. A voter needs a quorum for it, a learner
// does not.
func (l *agentProbe) probeMember(i int, fails bool) {
	id := l.remaining[i]
	l.remaining = slices.Delete(l.remaining, i, i+1)
	at := slices.IndexFunc(l.result.Members, func(m v1alpha1.MemberStatus) bool { return m.ID == id })
	status := &l.result.Members[at]
	status.Healthy = !fails && slices.ContainsFunc(l.etcd.members, func(m *simulatedMember) bool {
		return m.id == id && l.agent.reachesMember(l.etcd, m) && (l.etcd.serves(m) || status.Learner && m.isAlive())
	})
	if !status.Healthy {
		status.Reason = "it does not answer"
	}
}

// complete does the remaining steps of a probe, except publishing it.
func (l *agentProbe) complete() {
	if !l.hasList {
		l.listMembers()
	}
	if !l.hasAlarms {
		l.readAlarms(false)
	}
	for len(l.remaining) > 0 {
		l.probeMember(0, false)
	}
}

// finish removes the probe from the agent. It returns false if a later probe is published
// already.
func (l *agentProbe) finish() bool {
	a := l.agent
	a.probes = slices.DeleteFunc(a.probes, func(o *agentProbe) bool { return o == l })
	if l.number < a.lastPublished[l.etcd.id] {
		return false
	}
	a.lastPublished[l.etcd.id] = l.number
	return true
}

func (sim *simulation) publish(l *agentProbe) {
	if err := sim.api.publish(l.etcd.id, l.key.cluster, l.result); err != nil {
		sim.log("agent %s cannot publish: %v", l.agent.host.name, err)
		return
	}
	sim.recordProof(l)
}

// scanHost returns the evidence that the host shows.
func (a *simulatedAgent) scanHost(sim *simulation) evidence.Scan {
	var ev evidence.Scan
	for _, e := range sim.etcds {
		m := e.memberWithDataOn(a.host)
		if m == nil || !m.started || m.wiped {
			continue
		}
		has := true
		f := evidence.FoundServer{Server: evidence.Server{
			Source: evidence.SystemdUnit,
			Where:  "systemd unit of " + string(e.id), HasData: &has,
		}}
		if m.isAlive() && e.memberOn(a.host) == m {
			f.PID = 1
			f.Identity = evidence.Identity{
				Ref: evidence.MemberRef{Cluster: e.id, Member: m.id}, Name: "etcd-" + string(m.id),
				Learner: m.learner,
			}
		} else {
			f.Problem = "it does not answer"
		}
		ev.Found = append(ev.Found, f)
	}
	return ev
}

// writeNode brings the label and the annotations of the Node up to date. It reports whether
// it wrote anything.
func (a *simulatedAgent) writeNode(sim *simulation) bool {
	n, err := sim.api.node(a.host.name)
	if err != nil || n.UID != a.host.node {
		return false
	}
	this := nodeWriteInput{version: n.ResourceVersion, snapshots: len(sim.snapshots), at: a.lastInput.at}
	if this == a.lastInput && time.Since(this.at) < 10*time.Second {
		return false
	}
	this.at = time.Now()
	a.lastInput = this
	announced, err := observation.ParseAnnouncement(n.Annotations[observation.AnnouncementAnnotation])
	if err != nil {
		sim.fail("agent wrote an invalid announcement: %v", err)
	}
	k := presence.Inputs{
		Node: n.Name, UID: n.UID, Announced: announced, Protected: n.Labels[observation.EtcdMemberLabel] != "",
		Annotations: n.Annotations, ClustersKnown: true,
	}
	k.Clusters = a.joined()
	scan := a.scanHost(sim)
	p := presence.Assess(scan, k)
	retired := false
	for _, c := range k.Clusters {
		retired = (p.Membership != presence.MemberAbsent && a.reportAbsence(sim, n, c, scan)) || retired
	}
	annotations, labels := presence.Marks(p, n.Annotations, n.Labels, nil)
	report := corev1.NodeCondition{Type: observation.EtcdMemberCondition, Status: statusOf(p.Membership)}
	if len(annotations)+len(labels) == 0 && slices.Contains(n.Status.Conditions, report) {
		return retired
	}
	sim.log("agent %s updates its Node: %s", a.host.name, formatChanges(annotations, labels))
	_, err = sim.api.editNode(a.host.name, func(n *corev1.Node) {
		n.Annotations, n.Labels = applyChanges(n.Annotations, annotations), applyChanges(n.Labels, labels)
		setCondition(n, report)
	})
	if err != nil {
		sim.fail("agent %s cannot update its Node: %v", a.host.name, err)
	}
	return true
}

// reportAbsence reports that the host has no member any more of a cluster that binds one to its
// Node. It reports whether it wrote that.
func (a *simulatedAgent) reportAbsence(
	sim *simulation, n *corev1.Node, c v1alpha1.EtcdCluster, scan evidence.Scan,
) bool {
	isBound := slices.ContainsFunc(c.Spec.Members, func(b v1alpha1.Binding) bool { return b.NodeUID == n.UID })
	if !isBound || !presence.HasNoMemberOf(observation.ClusterIDOf(&c), scan) {
		return false
	}
	own := a.own(&c)
	if own == nil {
		return false
	}
	entry := v1alpha1.Observation{Node: n.Name, NodeUID: n.UID, AlarmsUnknown: true}
	if own.NodeUID == n.UID {
		entry = own.DeepCopy().Observation
	}
	if entry.NoMember {
		return false
	}
	entry.NoMember, entry.Time = true, metav1.Now()
	err := sim.api.publish(v1alpha1.ClusterID(c.Name), c.UID, entry)
	sim.log("agent %s reports that its host has no member of %s: %s", n.Name, c.Name, errorText(err))
	return err == nil
}

func formatChanges(changes ...map[string]*string) string {
	text := ""
	for _, c := range changes {
		for _, key := range []string{observation.AnnouncementAnnotation, observation.EtcdMemberLabel} {
			if value, changed := c[key]; changed && value != nil {
				text += fmt.Sprintf(" %s=%s", key, *value)
			} else if changed {
				text += fmt.Sprintf(" no %s", key)
			}
		}
	}
	return text
}

func applyChanges(have map[string]string, changes map[string]*string) map[string]string {
	if have == nil {
		have = map[string]string{}
	}
	for key, value := range changes {
		if value == nil {
			delete(have, key)
		} else {
			have[key] = *value
		}
	}
	return have
}

// statusOf returns the status of the condition by which the agent reports whether the node holds a
// member.
func statusOf(m presence.Membership) corev1.ConditionStatus {
	switch m {
	case presence.MemberPresent:
		return corev1.ConditionTrue
	case presence.MemberAbsent:
		return corev1.ConditionFalse
	case presence.MembershipUnknown:
	}
	return corev1.ConditionUnknown
}

// setCondition replaces the condition of this type.
func setCondition(n *corev1.Node, c corev1.NodeCondition) {
	n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions,
		func(old corev1.NodeCondition) bool { return old.Type == c.Type }), c)
}
