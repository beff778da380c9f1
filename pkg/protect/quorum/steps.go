package quorum

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// refusalText joins the facts, the steps from the safest to the last resort, and the break-glass
// step.
func refusalText(r Request, facts []string, steps ...string) string {
	lines := append(slices.Clone(facts), "what to do, safest first:")
	if r.Drain {
		lines[len(facts)] = "what to do, safest first (programs that drain nodes try again by themselves):"
	}
	for _, step := range steps {
		lines = append(lines, "  - "+step)
	}
	return strings.Join(append(lines, breakGlassStep(r)), "\n")
}

// breakGlassVerbNote follows the steps that remove the protection of a Node. The policy in
// manifests/base/policies/nodes.yaml allows them only with this verb.
const breakGlassVerbNote = " (needs the verb breakglass on etcdclusters)"

// breakGlassStep returns the last step of every refusal.
func breakGlassStep(r Request) string {
	return fmt.Sprintf("  - as a last resort, override this refusal (needs the verb breakglass on etcdclusters; "+
		"recorded with your name), then %s:\n    kubectl holdfast break-glass %s --reason \"say why\"\n"+
		"    or without the plugin:\n    kubectl annotate --overwrite node %s "+
		`%s='{"uid":"%s","until":"'$(date -u -d +30min +%%FT%%TZ)'","reason":"say why"}'`,
		r.again(), r.Node, r.Node, BreakGlassAnnotation, r.UID)
}

// removableMembers returns the members that an operator may remove from the list once they are
// permanently gone. A member is not removable if its state could not be read, if it still answers
// although it counts as lost, or if another list does not contain it.
func (t memberTally) removableMembers() []memberState {
	return slices.DeleteFunc(append(t.withStatus(statusUnproven), t.withStatus(statusLost)...), func(m memberState) bool {
		return m.problem == problemAlarmsUnread || m.problem == problemNodeUnread || m.stillAnswers || m.isMissingElsewhere
	})
}

// isSafeWithout reports whether the deletion would be allowed if these members left the list.
func (t memberTally) isSafeWithout(removed []memberState) bool {
	return len(removed) > 0 && t.isSafeWithVoters(t.voters-len(removed), t.healthy)
}

// waitSteps lists what may resolve itself.
func (t requestTarget) waitSteps(tally memberTally) []string {
	var steps []string
	for _, m := range tally.withStatus(statusAway) {
		steps = append(steps, t.awayStep(m))
	}
	return slices.Concat(t.readSteps(tally), t.grantSteps(tally), t.lossSteps(tally), steps)
}

// readSteps are the steps about what could not be read, or differs between the lists.
func (t requestTarget) readSteps(tally memberTally) (steps []string) {
	var unread []string
	for _, m := range tally.withStatus(statusLost) {
		if m.problem == problemNodeUnread {
			unread = append(unread, m.node)
		}
	}
	if len(unread) > 0 {
		steps = append(steps, fmt.Sprintf("%s in a few seconds: "+
			"the API server did not return node %s in time", t.again(), strings.Join(unread, ", ")))
	}
	alarmsUnread := func(m memberState) bool { return m.problem == problemAlarmsUnread }
	if slices.ContainsFunc(tally.withStatus(statusUnproven), alarmsUnread) {
		steps = append(steps, fmt.Sprintf("%s in a few seconds; "+
			"if the problem persists, check what the agents report about the alarms: "+
			"kubectl get etcdobservations (column PROBLEM)", t.again()))
	}
	if missing := tally.missingElsewhere(); len(missing) > 0 {
		steps = append(steps, fmt.Sprintf("%s in a few seconds, because the member list may have just "+
			"changed; if the lists still differ, find out with `etcdctl member list` whether the cluster has %s, "+
			"and check the agent of the node that reports otherwise; remove no member before", t.again(), joinTitles(missing)))
	}
	return steps
}

// grantSteps are the steps about the grants of nodes that still exist.
func (t requestTarget) grantSteps(tally memberTally) (steps []string) {
	for _, g := range t.effectiveGrants(tally) {
		n := t.Nodes[g.Node]
		if n.Known && n.UID == g.NodeUID && g.Drain != nil {
			steps = append(steps, t.drainedStep(g, n, tally))
			continue
		}
		if n.Known && n.UID == g.NodeUID && !n.Deleting && n.Departure.Class != departure.ForGood {
			within := "a minute, unless a Machine or NodeClaim of it is being deleted or cannot be read"
			if at := LastOpened(g).Add(ResolvePresentAfter); t.Now.Before(at) {
				within = "a minute of " + at.UTC().Format(time.RFC3339)
			}
			steps = append(steps, fmt.Sprintf("node %s still exists; if it stays, wait: "+
				"its members count again within %s", g.Node, within))
		}
	}
	return steps
}

// lossSteps are the steps about lost members that still answer, or whose machine stays.
func (t requestTarget) lossSteps(tally memberTally) (steps []string) {
	for _, m := range tally.withStatus(statusLost) {
		if m.problem == problemMachineGivenUp {
			steps = append(steps, fmt.Sprintf("if the machine of node %s stays, wait: %s counts again by itself at the "+
				"time above", m.node, m.title()))
		}
		mark := t.Nodes[m.node].Departure
		switch {
		case !m.stillAnswers || m.problem == problemNodeUnread || t.isDrained(m):
		case mark.IsRemoval():
			steps = append(steps, fmt.Sprintf("wait until %s has left the member list, then %s node %s again; "+
				"to cancel its removal: %s", m.title(), t.Verb().Base, t.Node, mark.RemoveCommand(m.node)))
		default:
			steps = append(steps, fmt.Sprintf("%s still answers: if its machine is being removed, "+
				"wait until it is gone, then %s node %s again to see the remaining steps", m.title(), t.Verb().Base, t.Node))
		}
	}
	return steps
}

// awayStep returns the step about a member whose node is away for a while.
func (t requestTarget) awayStep(m memberState) string {
	step := fmt.Sprintf("wait for %s: node %s %s (%s); once that is over, %s node %s again",
		m.title(), m.node, m.awayMark.Says, m.awayMark, t.Verb().Base, t.Node)
	if !m.stillAnswers {
		step += fmt.Sprintf("; only if node %s never comes back: %s", m.node, t.removeCommand(m))
	}
	return step + "\n    (only if that mark is a leftover: " + m.awayMark.RemoveCommand(m.node) + ")"
}

// repairSteps lists the steps that repair or remove unhealthy members.
func (t requestTarget) repairSteps(tally memberTally) []string {
	var steps []string
	dead := tally.removableMembers()
	enough := tally.isSafeWithout(dead)
	for _, m := range dead {
		step := t.repairStep(m)
		if !enough && m.problem != problemCorrupt {
			step += ", then add a new member"
		}
		steps = append(steps, step)
	}
	if enough {
		steps[len(steps)-1] += fmt.Sprintf("\n    (without %s in the member list, this %s is allowed)",
			joinTitles(dead), t.Verb().Noun)
	}
	return steps
}

func (t requestTarget) repairStep(m memberState) string {
	title, remove := m.title()+m.location(), t.removeCommand(m)
	switch {
	case m.status == statusLost:
		return fmt.Sprintf("once %s is permanently gone: %s", title, remove)
	case m.problem == problemCorrupt:
		return fmt.Sprintf("replace %s: %s, empty its data directory, let it join again, then %s",
			title, t.removeWithoutNode(m), t.etcdctl("alarm disarm"))
	case m.problem == problemNeverStarted:
		return fmt.Sprintf("start the new member %s; if it is no longer wanted: %s", title, t.removeWithoutNode(m))
	case m.node == "":
		return fmt.Sprintf("start %s if it is down; if it is running, no agent can confirm that: "+
			"run a Holdfast agent on its host, or make it listen on an address that the agents can reach; "+
			"if it is permanently gone: %s", title, remove)
	}
	return fmt.Sprintf("start %s if it is down; if it is permanently gone: %s", title, remove)
}

// replaceSteps lists the steps after which the cluster does not need the members on the node.
func (t requestTarget) replaceSteps(tally memberTally) []string {
	var steps []string
	onNode := tally.withStatus(statusOnNode)
	others := slices.Concat(tally.withStatus(statusUnproven), tally.withStatus(statusLost), tally.withStatus(statusAway))
	if len(others)+len(tally.missingElsewhere()) == 0 {
		more := 1
		for !tally.isSafeWithVoters(tally.voters+more, tally.healthy+more) {
			more++
		}
		steps = append(steps, fmt.Sprintf("first add %s and wait until %s; then the cluster can lose this node",
			observation.Plural(more, "more member"), agree(more, "it is a voter", "they are voters")))
	}
	if !t.Remove && len(tally.missingElsewhere()) == 0 && tally.isSafeWithVoters(tally.voters-len(onNode), tally.healthy) {
		// This step always follows another one.
		steps = append(steps, fmt.Sprintf("or, if this node is to be removed permanently, "+
			"first remove its members from the cluster (etcd checks that this is safe): %s", t.removeCommands(onNode)))
	}
	return steps
}

// resolveSteps lists the commands that resolve grants by hand, for deletions that will not happen
// and for members that run on another machine.
func (t requestTarget) resolveSteps(tally memberTally) []string {
	var steps []string
	for _, g := range t.effectiveGrants(tally) {
		members := t.lostBy(g, tally)
		notBefore := ""
		if at := LastOpened(g).Add(ResolveByHandAfter); t.Now.Before(at) {
			notBefore = fmt.Sprintf("not before %s, and ", at.UTC().Format(time.RFC3339))
		}
		steps = append(steps, fmt.Sprintf("%sonly if %s %s running, "+
			"on the same machine or on another one that stays: kubectl holdfast settle %s\n"+
			"    or without the plugin:\n    kubectl annotate --overwrite etcdcluster %s %s=%s",
			notBefore, joinTitles(members), agree(len(members), "keeps", "keep"), g.Node,
			observation.ClusterIDOf(t.Cluster), ResolveAnnotation, g.NodeUID))
	}
	return steps
}

// effectiveGrants returns the grants by which members of the tally count as lost.
func (t requestTarget) effectiveGrants(tally memberTally) []v1alpha1.Grant {
	return slices.DeleteFunc(slices.Clone(t.Cluster.Spec.Grants), func(g v1alpha1.Grant) bool {
		return len(t.lostBy(g, tally)) == 0
	})
}

// lostBy returns the members of the tally that count as lost by a grant.
func (t requestTarget) lostBy(g v1alpha1.Grant, tally memberTally) []memberState {
	return slices.DeleteFunc(tally.withStatus(statusLost), func(m memberState) bool {
		return t.giveUpOf(m.ID, g) == notGivenUp
	})
}

// kubeadmDir is the directory of kubeadm's certificates that its static pod of etcd mounts.
const kubeadmDir = "/etc/kubernetes/pki/etcd/"

// safeHost matches the host of a peer URL that may be part of a command.
var safeHost = regexp.MustCompile(`^[0-9A-Za-z.:-]+$`)

// An etcdctlHost is a node on which people can run etcdctl, and how its local member is reached.
type etcdctlHost struct {
	node   string
	access v1alpha1.Access
}

// etcdctlHost returns the node for etcdctl commands: an observer that answered the probe request
// with a confirmed list, and whose own member is healthy and stays. Without one, the result is
// zero. Each value comes from an observer, which may lie, so evidence.SafeAccess decides what may
// be part of a command.
func (t requestTarget) etcdctlHost() etcdctlHost {
	for _, o := range t.Lists {
		a := evidence.SafeAccess(o.Access)
		if a == nil || a.Endpoint == "" || o.Node == t.Node || !t.proven[o.LocalMember] || t.Corrupt[o.LocalMember] ||
			t.lossOf(o.LocalMember).reason != "" {
			continue
		}
		return etcdctlHost{o.Node, *a}
	}
	return etcdctlHost{}
}

// etcdctl returns an etcdctl command. If the agents report how they reach etcd, the command names
// the node to run it on, the endpoint and the certificates.
func (t requestTarget) etcdctl(arguments string) string {
	host := t.etcdctlHost()
	a := host.access
	words := []string{"etcdctl"}
	for _, flag := range []struct{ name, value string }{
		{"endpoints", a.Endpoint}, {"cacert", a.CACert}, {"cert", a.Cert}, {"key", a.Key},
	} {
		if flag.value != "" {
			words = append(words, "--"+flag.name+"="+flag.value)
		}
	}
	command := strings.Join(append(words, arguments), " ")
	switch {
	case host.node == "":
		return command
	case a.Distribution == v1alpha1.DistributionKubeadm && isBelow(kubeadmDir, a.CACert, a.Cert, a.Key):
		return fmt.Sprintf("kubectl -n kube-system exec etcd-%s -- %s", host.node, command)
	}
	return fmt.Sprintf("on node %s: %s", host.node, command)
}

// isBelow reports whether all files are below the directory.
func isBelow(dir string, files ...string) bool {
	return !slices.ContainsFunc(files, func(file string) bool { return !strings.HasPrefix(file, dir) })
}

// distributionOf returns the distribution that manages a member, by the agent of its own node, or
// else by the agent whose etcdctl command is shown.
func (t requestTarget) distributionOf(m memberState) v1alpha1.Distribution {
	for _, o := range observation.Accepted(t.Cluster) {
		isOwn := o.LocalMember == m.ID && observation.IsFrom(o, t.Bindings[m.ID])
		if a := evidence.SafeAccess(o.Access); isOwn && a != nil {
			return a.Distribution
		}
	}
	return t.etcdctlHost().access.Distribution
}

// removeCommand returns the command that removes a member, in the words of its distribution. A
// member on a Node that exists is removed through that Node: k3s and RKE2 watch an annotation, and
// the playbook of kubespray empties the machine as well. On the last two, etcdctl removes a member
// that runs. With its annotation RKE2 stops the static pods of the node even if etcd refuses to
// remove the member (rancher/rke2#4066). The playbook drains the node first, which is refused.
func (t requestTarget) removeCommand(m memberState) string {
	node, isDown := m.node, m.status != statusOnNode
	switch m.status {
	case statusOnNode:
		node = t.Node
	case statusUnproven, statusAway:
	case statusLearner, statusLost, statusHealthy:
		node = "" // A lost member may have no Node.
	}
	d := t.distributionOf(m)
	switch {
	case node == "":
	case removesWithNode(d) && (isDown || d != v1alpha1.DistributionRKE2):
		return fmt.Sprintf("kubectl annotate node %s etcd.%s.cattle.io/remove=true", node, d)
	case d == v1alpha1.DistributionKubespray && isDown:
		return fmt.Sprintf("ansible-playbook remove-node.yml -e node=%s "+
			"-e reset_nodes=false -e allow_ungraceful_removal=true", node)
	}
	return t.removeWithoutNode(m)
}

// removesWithNode reports whether the distribution removes the member of a Node that is deleted.
func removesWithNode(d v1alpha1.Distribution) bool {
	return d == v1alpha1.DistributionK3s || d == v1alpha1.DistributionRKE2
}

// removeWithoutNode returns the command that removes a member whether or not it has a Node.
func (t requestTarget) removeWithoutNode(m memberState) string {
	host := t.etcdctlHost().node
	if peer := m.peerHost(); t.distributionOf(m) == v1alpha1.DistributionK0s && peer != "" && host != "" {
		return fmt.Sprintf("on node %s: k0s etcd leave --peer-address %s", host, peer)
	}
	return t.etcdctl("member remove " + string(m.ID))
}

// removeCommands returns the commands that remove the members from their cluster one by one.
func (t requestTarget) removeCommands(members []memberState) string {
	return joinCommands(members, t.removeCommand)
}

func joinCommands(members []memberState, command func(memberState) string) string {
	var commands []string
	for _, m := range members {
		if c := command(m); !slices.Contains(commands, c) {
			commands = append(commands, c)
		}
	}
	return strings.Join(commands, ", then ")
}

// peerHost returns the host of the member's first peer URL, empty if it must not be part of a
// command.
func (m memberState) peerHost() string {
	if len(m.PeerURLs) == 0 {
		return ""
	}
	u, err := url.Parse(m.PeerURLs[0])
	if err != nil || !safeHost.MatchString(u.Hostname()) {
		return ""
	}
	return u.Hostname()
}
