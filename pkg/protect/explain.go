package protect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func (t target) nothing() string {
	return fmt.Sprintf("no member of etcd cluster %s is on node %s", clusterID(t.cluster), t.Node)
}

// alone warns that nobody but one Node says that nothing is lost.
func (t target) alone() string {
	if t.conclusive() {
		return ""
	}
	return fmt.Sprintf("that no member of etcd cluster %s is on node %s rests on the word of node %s alone, nobody else has answered",
		clusterID(t.cluster), t.Node, t.lists[0].Node)
}

func (t target) kept(c tally) string {
	return fmt.Sprintf("etcd cluster %s keeps its quorum without node %s: of %s %d must live, and %d are proven healthy elsewhere",
		clusterID(t.cluster), t.Node, many(c.voters, "voter"), c.quorum, c.healthy)
}

// warning is what goes with an allowed deletion: that the next loss costs the quorum, and a full database.
func (t target) warning(c tally) string {
	var words []string
	if c.healthy == c.quorum {
		words = append(words, fmt.Sprintf("after node %s is gone, etcd cluster %s can lose no further voter until %s left the member list (%s) and a new member has joined",
			t.Node, clusterID(t.cluster), namesHave(c.with(onNode)), removals(c.with(onNode))))
	}
	for _, seat := range c.with(onNode) {
		if seat.why != "" {
			words = append(words, fmt.Sprintf("%s on node %s is not proven healthy as it is", title(seat), t.Node))
		}
	}
	for _, seat := range c.seats {
		if slices.Contains(seat.Alarms, noSpaceAlarm) {
			words = append(words, fmt.Sprintf("%s has raised the alarm NOSPACE: etcd cluster %s takes no writes until its database is compacted and defragmented, and the alarm disarmed", title(seat), clusterID(t.cluster)))
		}
	}
	return strings.Join(words, "; ")
}

// refusal explains a quorum that would be lost: the arithmetic, every member, and the way out.
func (t target) refusal(c tally) string {
	what := fmt.Sprintf("would cost etcd cluster %s its quorum", clusterID(t.cluster))
	spare, while := "", ""
	if c.need > c.quorum {
		what = fmt.Sprintf("would leave etcd cluster %s too close to losing its quorum", clusterID(t.cluster))
		spare = fmt.Sprintf(" and %d more must be expendable", c.need-c.quorum)
	}
	if dead := c.removable(); c.safeWithout(dead) {
		while = fmt.Sprintf(" while %s %s in its member list", names(dead), isOrAre(len(dead)))
	}
	lines := []string{fmt.Sprintf("deleting node %s %s%s: of %s %d must live%s, and %s",
		t.Node, what, while, many(c.voters, "voter"), c.quorum, spare, left(c.healthy))}
	for _, seat := range c.seats {
		lines = append(lines, "  "+title(seat)+where(seat)+": "+fate(seat))
	}
	lines = append(lines, nextSteps)
	lines = append(lines, t.await(c)...)
	lines = append(lines, t.mend(c)...)
	lines = append(lines, t.makeRoom(c)...)
	lines = append(lines, t.settle(c)...)
	return strings.Join(append(lines, breakGlassStep(t.Request)), "\n")
}

// where says where a member runs, unless its fate says so.
func where(s seat) string {
	if s.node == "" || s.standing == onNode || s.standing == lost {
		return ""
	}
	return " on node " + s.node
}

func fate(s seat) string {
	as := ""
	if s.promoted {
		as = " (a learner: it counts as a voter, since it may be promoted before it is gone)"
	}
	switch s.standing {
	case onNode:
		if s.why != "" {
			as += ", and not proven healthy: " + s.why
		}
		return "on this node" + as
	case lost:
		if s.lives {
			as += "; it still answers, so its etcd runs on"
		}
		return "given up: " + s.why + as
	case unproven:
		return "not proven healthy: " + s.why
	case healthy:
		return "healthy"
	case learner:
	}
	return "learner, has no vote"
}

// cannotSee explains that nobody answered: who was asked and what they said.
func (t target) cannotSee(members []v1alpha1.MemberID) string {
	id := clusterID(t.cluster)
	lines := []string{fmt.Sprintf("cannot see etcd cluster %s, of which node %s holds %s: no agent that was asked gave a member list that a quorum confirmed; whether quorum would be lost is not known",
		id, t.Node, join(members))}
	for _, b := range distinctNodes(t.cluster.Spec.Members) {
		lines = append(lines, "  node "+b.Node+": "+t.silence(b))
	}
	if len(t.cluster.Spec.Members) == 0 {
		lines = append(lines, "  nobody could be asked: no member is bound to a Node yet (the webhook's leader does that within seconds of an agent's announcement)")
	}
	needs, retire := "", fmt.Sprintf("kubectl delete etcdcluster %s", id)
	if slices.ContainsFunc(t.Announced, func(a MemberRef) bool { return a.Cluster == id }) {
		needs, retire = asBreaker, fmt.Sprintf("kubectl annotate node %s %s-, and then %s (the other way round it is made anew)", t.Node, AnnouncementAnnotation, retire)
	}
	return strings.Join(append(lines, nextSteps,
		"  - see what the agents say: kubectl describe node "+t.Node+" (condition "+EtcdMemberCondition+"), and their logs; then delete the node again",
		"    (if this etcd is kube-apiserver's own, your request came through it, so it has quorum: suspect the agents' certificates and the network)",
		"  - if etcd has lost its quorum already, keep this node, also if its member is dead: its disk may be what the cluster is restored from",
		"  - only if this etcd cluster exists no more anywhere"+needs+": "+retire,
		breakGlassStep(t.Request)), "\n")
}

// roll says in one line what came of asking every observer.
func (s sight) roll() string {
	var words []string
	for _, b := range distinctNodes(s.cluster.Spec.Members) {
		words = append(words, "node "+b.Node+" "+s.silence(b))
	}
	return strings.Join(words, ", ")
}

// silence says what came of asking the observer of one binding.
func (s sight) silence(b v1alpha1.Binding) string {
	if n := s.nodes[b.Node]; n.Known && n.UID != b.NodeUID {
		return "is gone, and its agent with it"
	}
	for _, o := range observers(s.cluster) {
		if o.Node != b.Node {
			continue
		}
		if slices.ContainsFunc(s.answers, func(a v1alpha1.Observation) bool { return a.Node == o.Node }) {
			if o.Problem == "" {
				return "its agent answered without a confirmed member list"
			}
			return "its agent answered: " + clip(o.Problem)
		}
		return fmt.Sprintf("its agent has not answered; it was last heard at %s", o.Time.UTC().Format(time.RFC3339))
	}
	return "its agent has never been heard"
}

// disputed explains that two Nodes claim a member.
func (t target) disputed(members []v1alpha1.MemberID) string {
	lines := []string{fmt.Sprintf("node %s announces %s of etcd cluster %s, which another Node has: deleting the wrong one would lose a member without counting it",
		t.Node, join(members), clusterID(t.cluster))}
	for _, id := range members {
		lines = append(lines, fmt.Sprintf("  %s is bound to node %s, which exists", id, t.bindings[id].Node))
	}
	return strings.Join(append(lines, nextSteps,
		"  - if the other Node is a leftover of the same host, delete that one first",
		breakGlassStep(t.Request)), "\n")
}

// title names a member for people: by its name, or by where it was to be if it has none yet.
func title(s seat) string {
	switch {
	case s.Name != "":
		return fmt.Sprintf("%s (%s)", clip(s.Name), s.ID)
	case len(s.PeerURLs) > 0:
		return fmt.Sprintf("%s (%s)", clip(s.PeerURLs[0]), s.ID)
	}
	return string(s.ID)
}

func names(seats []seat) string {
	var titles []string
	for _, s := range seats {
		titles = append(titles, title(s))
	}
	return strings.Join(titles, ", ")
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// namesHave names members as the subject of a sentence in the perfect tense.
func namesHave(seats []seat) string {
	if len(seats) == 1 {
		return names(seats) + " has"
	}
	return names(seats) + " have"
}

func join(members []v1alpha1.MemberID) string {
	words := make([]string, len(members))
	for i, m := range members {
		words[i] = string(m)
	}
	if len(words) == 1 {
		return "member " + words[0]
	}
	return "members " + strings.Join(words, ", ")
}

func distinctNodes(bindings []v1alpha1.Binding) []v1alpha1.Binding {
	var found []v1alpha1.Binding
	for _, b := range bindings {
		if !slices.ContainsFunc(found, func(f v1alpha1.Binding) bool { return f.Node == b.Node && f.NodeUID == b.NodeUID }) {
			found = append(found, b)
		}
	}
	slices.SortFunc(found, func(a, b v1alpha1.Binding) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// many counts things in words: `1 voter`, `3 voters`.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// left says how many healthy voters would remain.
func left(n int) string {
	switch n {
	case 0:
		return "none would be left that is proven healthy"
	case 1:
		return "only 1 would be left that is proven healthy"
	}
	return fmt.Sprintf("only %d would be left that are proven healthy", n)
}
