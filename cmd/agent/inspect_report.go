package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// report is what `holdfast-agent inspect` prints. Its JSON is read by machines: keys are only added.
type report struct {
	Host     hostReport      `json:"host"`
	Etcd     etcdReport      `json:"etcd"`
	Network  readiness.Facts `json:"network"`
	Decision decisionReport  `json:"decision"`
	// OpenStack is nil on machines of other clouds.
	OpenStack *openstackReport `json:"openstack,omitempty"`
}

type hostReport struct {
	Name   string `json:"name"`
	Root   string `json:"root"`
	BootID string `json:"bootID,omitempty"`
	// UserID is whose eyes these are: others than root's see less.
	UserID int `json:"userID"`
}

type etcdReport struct {
	Found   []foundReport `json:"found"`
	Unknown []string      `json:"unknown,omitempty"`
	Notes   []string      `json:"notes,omitempty"`
}

// foundReport is one server with what it said, and what it said of its cluster.
type foundReport struct {
	protect.Found
	Observation *v1alpha1.Observation `json:"observation,omitempty"`
}

type decisionReport struct {
	Protect  protectReport    `json:"protect"`
	Deletion []deletionReport `json:"deletion,omitempty"`
	Hold     holdReport       `json:"hold"`
}

type protectReport struct {
	// HoldsMember is true, false or unknown.
	HoldsMember string             `json:"holdsMember"`
	Reason      string             `json:"reason"`
	Message     string             `json:"message"`
	Annotations map[string]*string `json:"annotations,omitempty"`
	Labels      map[string]*string `json:"labels,omitempty"`
}

// deletionReport is what would become of a request to delete this host's node, as this host alone sees its cluster.
type deletionReport struct {
	Cluster v1alpha1.ClusterID `json:"cluster"`
	Allowed bool               `json:"allowed"`
	Reason  protect.Reason     `json:"reason"`
	Voters  int                `json:"voters"`
	Healthy int                `json:"healthyElsewhere"`
	Quorum  int                `json:"quorum"`
	Message string             `json:"message"`
	Warning string             `json:"warning,omitempty"`
}

type holdReport struct {
	// Release says that a node which is held now would be released.
	Release bool         `json:"release"`
	Reason  string       `json:"reason"`
	Message string       `json:"message"`
	Gates   []gateReport `json:"gates"`
}

type gateReport struct {
	Name    string `json:"name"`
	Open    bool   `json:"open"`
	Missing string `json:"missing,omitempty"`
}

func describeHost(root string) hostReport {
	name, err := os.Hostname()
	if err != nil {
		name = "this-host"
	}
	return hostReport{Name: name, Root: root, UserID: os.Geteuid()}
}

// decide decides as the agent would on the Node of a host that looks like this. There is no cluster to ask: it is a Node
// that nobody has written on but the born-held policy.
func (r report) decide(asked inspection) decisionReport {
	evidence := protect.HostEvidence{Unknown: r.Etcd.Unknown}
	for _, found := range r.Etcd.Found {
		evidence.Found = append(evidence.Found, found.Found)
	}
	known := protect.Known{Node: r.Host.Name, ClustersKnown: true, StaticPods: asked.staticPods}
	held := protect.Assess(evidence, known)
	decision := decisionReport{
		Protect: protectReport{HoldsMember: word(held.Membership), Reason: held.Reason, Message: held.Message},
		Hold:    r.hold(asked.policy),
	}
	decision.Protect.Annotations, decision.Protect.Labels = protect.Marks(held, nil, nil, nil)
	if held.Membership == protect.Holds {
		decision.Deletion = r.deletions()
	}
	return decision
}

func word(m protect.Membership) string {
	switch m {
	case protect.Holds:
		return "true"
	case protect.HoldsNot:
		return "false"
	case protect.MembershipUnknown:
	}
	return "unknown"
}

// deletions asks the webhook's question of each cluster with a member here, with this host for its only observer.
func (r report) deletions() []deletionReport {
	const question = "inspect"
	uid := types.UID(question)
	request := protect.Request{Node: r.Host.Name, UID: uid, Labelled: true}
	clusters := map[v1alpha1.ClusterID]*v1alpha1.EtcdCluster{}
	for _, found := range r.Etcd.Found {
		if found.Observation == nil {
			continue
		}
		cluster := clusters[found.Ref.Cluster]
		if cluster == nil {
			cluster = &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(found.Ref.Cluster)}}
			clusters[found.Ref.Cluster] = cluster
		}
		request.Announced = append(request.Announced, found.Ref)
		cluster.Spec.Members = append(cluster.Spec.Members, v1alpha1.Binding{MemberID: found.Ref.Member, Node: r.Host.Name, NodeUID: uid})
		seen := *found.Observation
		seen.Node, seen.NodeUID, seen.Nonce = r.Host.Name, uid, question
		if len(cluster.Status.Observations) == 0 || !cluster.Status.Observations[0].Linearizable {
			cluster.Status.Observations = []v1alpha1.Observation{seen}
		}
	}
	var verdicts []deletionReport
	for _, id := range slices.Sorted(maps.Keys(clusters)) {
		v := protect.Decide(protect.View{
			Cluster: clusters[id], Asked: []string{question},
			Nodes: map[string]protect.NodeState{r.Host.Name: {Known: true, UID: uid}},
		}, request)
		message, _, _ := strings.Cut(v.Message, "\n") // what to do about a refusal is for the one who was refused
		verdicts = append(verdicts, deletionReport{
			Cluster: id, Allowed: v.Allowed, Reason: v.Reason,
			Voters: v.Voters, Healthy: v.Healthy, Quorum: v.Quorum, Message: message, Warning: v.Warning,
		})
	}
	return verdicts
}

// hold decides on a Node that was born held in this boot.
func (r report) hold(policy readiness.Policy) holdReport {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: r.Host.Name, Annotations: map[string]string{
			readiness.HoldAnnotation: fmt.Sprintf(`{"state":%q,"bootID":%q,"reason":%q}`, readiness.Held, r.Network.BootID, readiness.NewNode),
		}},
		Spec: corev1.NodeSpec{Unschedulable: true},
	}
	if key, value, _ := strings.Cut(policy.NetworkPluginLabel, "="); key != "" {
		node.Labels = map[string]string{key: value} // else the flag would change nothing
	}
	if policy.TaintKey != "" {
		node.Spec.Taints = []corev1.Taint{{Key: policy.TaintKey, Effect: corev1.TaintEffectNoSchedule}}
	}
	d := readiness.Decide(node, r.Network, policy, time.Time{})
	hold := holdReport{Release: !d.Held && r.Network.BootID != "", Reason: d.Reason, Message: d.Message, Gates: []gateReport{}}
	for _, g := range d.Gates {
		hold.Gates = append(hold.Gates, gateReport{Name: g.Name, Open: g.Open, Missing: g.Missing})
	}
	return hold
}
