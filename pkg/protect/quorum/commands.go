package quorum

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// kubeadmDir is the directory of kubeadm's certificates that its static pod of etcd mounts.
const kubeadmDir = "/etc/kubernetes/pki/etcd/"

// safeHost matches the host of a peer URL that may be part of a command.
var safeHost = regexp.MustCompile(`^[0-9A-Za-z.:-]+$`)

// An etcdctlHost is a node on which people can run etcdctl, and how its local member is reached.
type etcdctlHost struct {
	node   string
	access v1alpha1.Access
}

// etcdctlHost returns the node for etcdctl commands: an observer that answered this request with a
// confirmed list, and whose own member is healthy and stays. Without one, the result is zero. Each
// value comes from an observer, which may lie, so evidence.SafeAccess decides what may be part of a
// command.
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
		isOwn := o.LocalMember == m.ID && isFrom(o, t.Bindings[m.ID])
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
