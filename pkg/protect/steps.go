package protect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// nextSteps heads the list of what a person can do.
const nextSteps = "what to do, the safest first:"

// removable are the members that may be taken out of the list once they are known to be gone for good. One that could not
// be judged for want of an answer is none, and neither is one that answers though it was given up.
func (t tally) removable() []seat {
	return slices.DeleteFunc(append(t.with(unproven), t.with(lost)...), func(s seat) bool {
		return s.cause == alarmsUnread || s.cause == nodeUnread || s.lives
	})
}

// safeWithout says that the deletion would be allowed with these members out of the list.
func (t tally) safeWithout(removed []seat) bool {
	return len(removed) > 0 && t.healthy >= (t.voters-len(removed))/2+1+t.need-t.quorum
}

// await lists what may mend itself.
func (t target) await(c tally) []string {
	var steps, unread []string
	for _, seat := range c.seats {
		if seat.cause == nodeUnread && seat.standing == lost {
			unread = append(unread, seat.node)
		}
	}
	if len(unread) > 0 {
		steps = append(steps, fmt.Sprintf("  - delete the node again in a moment: the API server did not tell in time of node %s", strings.Join(unread, ", ")))
	}
	if slices.ContainsFunc(c.seats, func(s seat) bool { return s.cause == alarmsUnread && s.standing == unproven }) {
		steps = append(steps, fmt.Sprintf("  - delete the node again in a moment; if this lasts, see what the agents say of the alarms: kubectl get etcdcluster %s -o yaml (status.observations, problem)", clusterID(t.cluster)))
	}
	for _, g := range t.openGrants(c) {
		if n := t.nodes[g.Node]; n.Known && n.UID == g.NodeUID && !n.Deleting && n.DeletionTaint == "" {
			steps = append(steps, fmt.Sprintf("  - node %s is still there; if it stays, wait: it counts again within a minute of %s", g.Node, g.Time.Add(UnharmedAfter).UTC().Format(time.RFC3339)))
		}
	}
	for _, seat := range c.with(lost) {
		if seat.lives && seat.cause != nodeUnread {
			steps = append(steps, fmt.Sprintf("  - %s still answers: if its machine is to go, wait until it has gone; deleting node %s again then says what is left to do", title(seat), t.Node))
		}
	}
	return steps
}

// mend lists the steps that mend etcd itself.
func (t target) mend(c tally) []string {
	var steps []string
	dead := c.removable()
	enough := c.safeWithout(dead)
	for _, seat := range dead {
		step := "  - " + remedy(seat)
		if !enough && seat.cause != corruptData {
			step += ", then let a new member join"
		}
		steps = append(steps, step)
	}
	if enough {
		steps = append(steps, fmt.Sprintf("    (with %s out of the list, this deletion is allowed)", names(dead)))
	}
	return steps
}

// remedy says what to do about one member.
func remedy(s seat) string {
	who := title(s) + where(s)
	switch {
	case s.standing == lost:
		return fmt.Sprintf("once %s is gone for good: etcdctl member remove %s", who, s.ID)
	case s.cause == corruptData:
		return fmt.Sprintf("replace %s: etcdctl member remove %s, empty its data directory, let it join anew, then etcdctl alarm disarm", who, s.ID)
	case s.cause == neverStarted:
		return fmt.Sprintf("start the new member %s; if it is not to come: etcdctl member remove %s", who, s.ID)
	case s.node == "":
		return fmt.Sprintf("start %s again if it is down; if it is up, nobody can prove that it is: run a Holdfast agent on its host, or let it listen where the agents reach it; if it is gone for good: etcdctl member remove %s", who, s.ID)
	}
	return fmt.Sprintf("start %s again if it is down; if it is gone for good: etcdctl member remove %s", who, s.ID)
}

// makeRoom lists the steps that make the node's own members expendable.
func (t target) makeRoom(c tally) []string {
	var steps []string
	here, waiting := c.with(onNode), len(c.with(unproven))+len(c.with(lost)) > 0
	or := ""
	if !waiting {
		more := 1
		for c.healthy+more < (c.voters+more)/2+1+c.need-c.quorum {
			more++
		}
		steps = append(steps, fmt.Sprintf("  - let %s join first and become %s: then the cluster can lose what is on this node",
			many(more, "more member"), map[bool]string{true: "a voter", false: "voters"}[more == 1]))
	}
	if len(steps) > 0 || waiting {
		or = "or, "
	}
	if rest := c.voters - len(here); c.healthy >= rest/2+1+c.need-c.quorum {
		steps = append(steps, fmt.Sprintf("  - %sif this node is to go for good, take what it holds out of the cluster first (etcd checks that it can): %s", or, removals(here)))
	}
	return steps
}

// openGrants returns the grants by which members of the tally are given up.
func (t target) openGrants(c tally) []v1alpha1.Grant {
	return slices.DeleteFunc(slices.Clone(t.cluster.Spec.Grants), func(g v1alpha1.Grant) bool {
		return len(t.givenUpBy(g, c)) == 0
	})
}

// givenUpBy returns the members of the tally that are given up by a grant.
func (t target) givenUpBy(g v1alpha1.Grant, c tally) []seat {
	return slices.DeleteFunc(c.with(lost), func(s seat) bool { return !t.granted(s.ID, g) })
}

// settle lists the commands that end grants, for deletions that will not happen after all and members that live elsewhere.
func (t target) settle(c tally) []string {
	var steps []string
	for _, g := range t.openGrants(c) {
		members := t.givenUpBy(g, c)
		live := "lives"
		if len(members) > 1 {
			live = "live"
		}
		steps = append(steps, fmt.Sprintf("  - not before %s, and only if %s %s on, there or on another machine that stays: %s",
			g.Time.Add(ByHandAfter).UTC().Format(time.RFC3339), names(members), live, settleCommand(clusterID(t.cluster), g.NodeUID)))
	}
	return steps
}

func settleCommand(id v1alpha1.ClusterID, uid types.UID) string {
	return fmt.Sprintf("kubectl annotate --overwrite etcdcluster %s %s=%s", id, SettleAnnotation, uid)
}

// removals are the commands that take members out of their cluster, one after the other.
func removals(seats []seat) string {
	commands := make([]string, len(seats))
	for i, s := range seats {
		commands[i] = fmt.Sprintf("etcdctl member remove %s", s.ID)
	}
	return strings.Join(commands, ", then ")
}

// asBreaker says who may take off what guards a Node: manifests/base/policies/nodes.yaml.
const asBreaker = " (needs the verb breakglass on etcdclusters)"

// breakGlassStep is the last step of every refusal.
func breakGlassStep(r Request) string {
	return fmt.Sprintf(`  - last of all, against the verdict (needs the verb breakglass on etcdclusters; recorded with your name), and then delete the node again:
    kubectl annotate --overwrite node %s %s='{"uid":"%s","until":"'$(date -u -d +30min +%%FT%%TZ)'","reason":"say why"}'`,
		r.Node, BreakGlassAnnotation, r.UID)
}
