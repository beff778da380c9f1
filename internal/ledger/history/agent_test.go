package history

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// agent is the agent of one host. It writes its Node by the real rules of pkg/protect, and looks at etcd in stages, so
// that the world can change in between.
type agent struct {
	host *host
	// clusters is its own watch.
	clusters *mirror[*v1alpha1.EtcdCluster]
	// silent says that it is not running, blind that it finds no certificate.
	silent, blind bool
	// placeless says that the members' URLs name no Node's address.
	placeless bool
	looks     []*look
	began     int
	// beat is when it began to look at a cluster last: it does so every minute.
	beat map[v1alpha1.ClusterID]time.Time
	// asked is the last question that it began a look for, and written the number of the look that it published last.
	asked   map[v1alpha1.ClusterID]question
	written map[v1alpha1.ClusterID]int
	// list is the last one that was confirmed, by cluster.
	list map[v1alpha1.ClusterID][]v1alpha1.MemberStatus
	// wrote is what it wrote its Node by last: without news it looks at it every ten seconds.
	wrote glance
}

// glance is what a Node is written by, as far as events tell.
type glance struct {
	version string
	moments int
	at      time.Time
}

type question struct {
	object, node types.UID
	nonce        string
	member       v1alpha1.MemberID
}

// look is one look at one cluster.
type look struct {
	agent    *agent
	etcd     *etcd
	question question
	number   int
	seen     v1alpha1.Observation
	listed   bool
	// unprobed are the members still to be asked.
	unprobed []v1alpha1.MemberID
}

func newAgent(w *world, h *host) *agent {
	return &agent{
		host: h, placeless: w.profile.placeless, clusters: newMirror(&w.api.clusters), asked: map[v1alpha1.ClusterID]question{}, written: map[v1alpha1.ClusterID]int{},
		list: map[v1alpha1.ClusterID][]v1alpha1.MemberStatus{}, beat: map[v1alpha1.ClusterID]time.Time{},
	}
}

func (a *agent) working() bool { return !a.silent && a.host.up && !a.host.killed && a.host.node != "" }

func (a *agent) catchUp() { a.clusters.hold(len(a.clusters.table.log)) }

// due returns the question that the agent has not begun to answer, by what it has heard. The member that it observes is
// the one that its host has data of.
func (a *agent) due(e *etcd) (question, bool) {
	c, m := a.clusters.one(string(e.id)), e.remains(a.host)
	if c == nil || m == nil || !m.started {
		return question{}, false
	}
	q := question{object: c.UID, node: a.host.node, nonce: c.Spec.Nonce, member: m.id}
	return q, a.asked[e.id] != q || time.Since(a.beat[e.id]) > time.Minute
}

// begin reads the nonce, before anything else.
func (a *agent) begin(e *etcd, q question) *look {
	a.asked[e.id], a.beat[e.id] = q, time.Now()
	a.began++
	l := &look{agent: a, etcd: e, question: q, number: a.began}
	l.seen = v1alpha1.Observation{
		Node: a.host.name, NodeUID: q.node, Nonce: q.nonce, LocalMember: q.member, Time: metav1.Now(), AlarmsUnknown: true,
	}
	a.looks = append(a.looks, l)
	return l
}

// list asks for the member list, confirmed by a quorum, through the local member.
func (l *look) list() {
	l.listed = true
	local := l.etcd.of(l.agent.host)
	if l.agent.blind || local == nil || !local.alive() || local.learner || !l.etcd.hasQuorum() {
		l.seen.Problem = "no member list confirmed by a quorum"
		if !l.agent.blind { // it asks those that it last knew of
			l.seen.Members = slices.Clone(l.agent.list[l.etcd.id])
			l.unprobed = idsOf(l.seen.Members)
		}
		return
	}
	l.seen.Linearizable, l.seen.AlarmsUnknown = true, false
	for _, m := range l.etcd.members {
		address := m.host.address
		if l.agent.placeless {
			address = "etcd." + m.host.name + ".example.org"
		}
		status := v1alpha1.MemberStatus{ID: m.id, Learner: m.learner, PeerURLs: []string{"https://" + address + ":2380"}}
		if m.started {
			status.Name, status.ClientURLs = "etcd-"+string(m.id), []string{"https://" + address + ":2379"}
		}
		l.seen.Members = append(l.seen.Members, status)
	}
	l.unprobed = idsOf(l.seen.Members)
	l.agent.list[l.etcd.id] = slices.Clone(l.seen.Members)
}

func idsOf(members []v1alpha1.MemberStatus) []v1alpha1.MemberID {
	var ids []v1alpha1.MemberID
	for _, m := range members {
		ids = append(ids, m.ID)
	}
	return ids
}

// probe asks one member for a read: a voter needs a quorum for it, a learner only itself.
func (l *look) probe(i int, fails bool) {
	id := l.unprobed[i]
	l.unprobed = slices.Delete(l.unprobed, i, i+1)
	at := slices.IndexFunc(l.seen.Members, func(m v1alpha1.MemberStatus) bool { return m.ID == id })
	in := slices.IndexFunc(l.etcd.members, func(m *member) bool { return m.id == id })
	status := &l.seen.Members[at]
	if in < 0 || fails || !l.etcd.members[in].alive() || (!status.Learner && !l.etcd.hasQuorum()) {
		status.Reason = "it does not answer"
		return
	}
	status.Healthy = true
}

// rest does what is left of a look but publishing it.
func (l *look) rest() {
	if !l.listed {
		l.list()
	}
	for len(l.unprobed) > 0 {
		l.probe(0, false)
	}
}

// end takes the look off the agent's hands; false says that a later one has overtaken it.
func (l *look) end() bool {
	a := l.agent
	a.looks = slices.DeleteFunc(a.looks, func(o *look) bool { return o == l })
	if l.number < a.written[l.etcd.id] {
		return false
	}
	a.written[l.etcd.id] = l.number
	return true
}

// publish writes the entry.
func (w *world) publish(l *look) {
	if err := w.api.applyObservation(string(l.etcd.id), l.agent.host.name, &l.seen); err != nil {
		w.say("agent %s cannot publish: %v", l.agent.host.name, err)
	}
}

// evidence is what the host shows.
func (a *agent) evidence(w *world) protect.HostEvidence {
	var ev protect.HostEvidence
	for _, e := range w.etcds {
		m := e.remains(a.host)
		if m == nil || !m.started || m.wiped {
			continue
		}
		has := true
		f := protect.Found{Sighting: protect.Sighting{Source: protect.SystemdUnit, Where: "systemd unit of " + string(e.id), HasData: &has}}
		if m.alive() && e.of(a.host) == m {
			f.PID = 1
			f.Answer = protect.Answer{Ref: protect.MemberRef{Cluster: e.id, Member: m.id}, Name: "etcd-" + string(m.id), Learner: m.learner}
		} else {
			f.Problem = "it does not answer"
		}
		ev.Found = append(ev.Found, f)
	}
	return ev
}

// writeNode brings label and annotations of the Node up to date. It returns whether there was anything to write.
func (a *agent) writeNode(w *world) bool {
	n, err := w.api.node(a.host.name)
	if err != nil || n.UID != a.host.node {
		return false
	}
	this := glance{version: n.ResourceVersion, moments: len(w.moments), at: a.wrote.at}
	if this == a.wrote && time.Since(this.at) < 10*time.Second {
		return false
	}
	this.at = time.Now()
	a.wrote = this
	announced, err := protect.ParseAnnouncement(n.Annotations[protect.AnnouncementAnnotation])
	if err != nil {
		w.fail("an agent wrote an announcement that cannot be read: %v", err)
	}
	k := protect.Known{
		Node: n.Name, UID: n.UID, Announced: announced, Protected: n.Labels[protect.EtcdMemberLabel] != "",
		Annotations: n.Annotations, ClustersKnown: true,
	}
	for _, c := range a.clusters.all() {
		k.Clusters = append(k.Clusters, *c)
	}
	p := protect.Assess(a.evidence(w), k)
	retired := false
	for _, c := range k.Clusters {
		at := slices.IndexFunc(c.Status.Observations, func(o v1alpha1.Observation) bool { return o.Node == n.Name })
		if p.Membership == protect.HoldsNot && at >= 0 {
			err := w.api.applyObservation(c.Name, n.Name, nil)
			retired = retired || err == nil
		}
	}
	annotations, labels := protect.Marks(p, n.Annotations, n.Labels, nil)
	if len(annotations)+len(labels) == 0 {
		return retired
	}
	w.say("agent %s writes its Node: %s", a.host.name, changesIn(annotations, labels))
	_, err = w.api.editNode(a.host.name, func(n *corev1.Node) {
		n.Annotations, n.Labels = merged(n.Annotations, annotations), merged(n.Labels, labels)
	})
	if err != nil {
		w.fail("agent %s cannot write its Node: %v", a.host.name, err)
	}
	return true
}

func changesIn(changes ...map[string]*string) string {
	text := ""
	for _, c := range changes {
		for _, key := range []string{protect.AnnouncementAnnotation, protect.EtcdMemberLabel} {
			if value, changed := c[key]; changed && value != nil {
				text += fmt.Sprintf(" %s=%s", key, *value)
			} else if changed {
				text += fmt.Sprintf(" no %s", key)
			}
		}
	}
	return text
}

func merged(have map[string]string, changes map[string]*string) map[string]string {
	have = maps.Clone(have)
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
