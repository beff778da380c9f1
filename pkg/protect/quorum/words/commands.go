package words

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// kubeadmDir is the directory of kubeadm's certificates that its static pod of etcd mounts.
const kubeadmDir = "/etc/kubernetes/pki/etcd/"

// safeHost matches the host of a peer URL that may be part of a command.
var safeHost = regexp.MustCompile(`^[0-9A-Za-z.:-]+$`)

// etcdctl returns an etcdctl command. If the agents report how they reach etcd, the command names
// the node to run it on, the endpoint and the certificates.
func (w writer) etcdctl(arguments string) string {
	a := w.Host.Access
	words := []string{"etcdctl"}
	for _, flag := range []struct{ name, value string }{
		{"endpoints", a.Endpoint}, {"cacert", a.CACert}, {"cert", a.Cert}, {"key", a.Key},
	} {
		if flag.value != "" {
			words = append(words, "--"+flag.name+"="+flag.value)
		}
	}
	command := strings.Join(append(words, arguments), " ")
	isElsewhere := func(file string) bool { return !strings.HasPrefix(file, kubeadmDir) }
	isMounted := !slices.ContainsFunc([]string{a.CACert, a.Cert, a.Key}, isElsewhere)
	switch {
	case w.Host.Node == "":
		return command
	case a.Distribution == v1alpha1.DistributionKubeadm && isMounted:
		return fmt.Sprintf("kubectl -n kube-system exec etcd-%s -- %s", w.Host.Node, command)
	}
	return fmt.Sprintf("on node %s: %s", w.Host.Node, command)
}

// removeCommand returns the command that removes a member, in the words of its distribution. A
// member on a Node that exists is removed through that Node: k3s and RKE2 watch an annotation, and
// the playbook of kubespray empties the machine as well. On the last two, etcdctl removes a member
// that runs. With its annotation RKE2 stops the static pods of the node even if etcd refuses to
// remove the member (rancher/rke2#4066). The playbook drains the node first, which is refused.
func (w writer) removeCommand(m quorum.MemberState) string {
	node, isDown := m.Node, m.Count != quorum.CountsOnNode
	switch m.Count {
	case quorum.CountsOnNode:
		node = w.node
	case quorum.CountsUnproven, quorum.CountsAway:
	case quorum.CountsLearner, quorum.CountsLost, quorum.CountsHealthy:
		node = "" // A lost member may have no Node.
	}
	switch d := m.Distribution; {
	case node == "":
	case removesWithNode(d) && (isDown || d != v1alpha1.DistributionRKE2):
		return fmt.Sprintf("kubectl annotate node %s etcd.%s.cattle.io/remove=true", node, d)
	case d == v1alpha1.DistributionKubespray && isDown:
		return fmt.Sprintf("ansible-playbook remove-node.yml -e node=%s "+
			"-e reset_nodes=false -e allow_ungraceful_removal=true", node)
	}
	return w.removeWithoutNode(m)
}

// removesWithNode reports whether the distribution removes the member of a Node that is deleted.
func removesWithNode(d v1alpha1.Distribution) bool {
	return d == v1alpha1.DistributionK3s || d == v1alpha1.DistributionRKE2
}

// removeWithoutNode returns the command that removes a member whether or not it has a Node.
func (w writer) removeWithoutNode(m quorum.MemberState) string {
	if peer := peerHost(m); m.Distribution == v1alpha1.DistributionK0s && peer != "" && w.Host.Node != "" {
		return fmt.Sprintf("on node %s: k0s etcd leave --peer-address %s", w.Host.Node, peer)
	}
	return w.etcdctl("member remove " + string(m.ID))
}

// commands joins the commands for the members, which are carried out one by one.
func commands(members []quorum.MemberState, command func(quorum.MemberState) string) string {
	var all []string
	for _, m := range members {
		if c := command(m); !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return strings.Join(all, ", then ")
}

// peerHost returns the host of the member's first peer URL, empty if it must not be part of a
// command.
func peerHost(m quorum.MemberState) string {
	if len(m.PeerURLs) == 0 {
		return ""
	}
	u, err := url.Parse(m.PeerURLs[0])
	if err != nil || !safeHost.MatchString(u.Hostname()) {
		return ""
	}
	return u.Hostname()
}
