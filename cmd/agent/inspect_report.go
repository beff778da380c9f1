package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/node/host"
	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// reportVersion is the version of the report's JSON. It changes when a key is removed or
// gets another meaning. New keys do not change it.
const reportVersion = 1

// report is the output of `holdfast-agent inspect`. Scripts read its JSON, which
// docs/inspect.md describes.
type report struct {
	Version int          `json:"version"`
	Result  reportResult `json:"result"`
	// Conclusion is the result in a sentence.
	Conclusion string `json:"conclusion"`

	Host     hostReport      `json:"host"`
	Etcd     etcdReport      `json:"etcd"`
	Network  readiness.Facts `json:"network"`
	Decision decisionReport  `json:"decision"`
	// OpenStack is nil on machines of other clouds.
	OpenStack *openstackReport `json:"openstack,omitempty"`
}

// reportResult is the result of an inspection in one word.
type reportResult string

const (
	resultHoldsEtcd   reportResult = "HoldsEtcd"
	resultEtcdUnknown reportResult = "EtcdUnknown"
	resultStaysHeld   reportResult = "StaysHeld" // no etcd, but a held node would stay held
	resultClear       reportResult = "Clear"     // none of the others
)

// exitCode returns the exit code with --exit-code. It differs from the exit codes of
// every command.
func (r reportResult) exitCode() int {
	return map[reportResult]int{resultHoldsEtcd: 10, resultEtcdUnknown: 11, resultStaysHeld: 12, resultClear: 0}[r]
}

type hostReport struct {
	Name   string `json:"name"`
	Root   string `json:"root"`
	BootID string `json:"bootID,omitempty"`
	// UserID is the user that runs the inspection. Only root can read everything.
	UserID int `json:"userID"`
}

type etcdReport struct {
	// Found replaces that of the Scan.
	Found []foundReport `json:"found"`
	evidence.Scan
}

// foundReport is one etcd server, its answer, and what it reported about its cluster.
type foundReport struct {
	evidence.FoundServer
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

// deletionReport is the decision on a request to delete this host's node, based on this
// host's view of the cluster.
type deletionReport struct {
	Cluster v1alpha1.ClusterID `json:"cluster"`
	Allowed bool               `json:"allowed"`
	Reason  quorum.Reason      `json:"reason"`
	Voters  int                `json:"voters"`
	Healthy int                `json:"healthyElsewhere"`
	Quorum  int                `json:"quorum"`
	Message string             `json:"message"`
	Warning string             `json:"warning,omitempty"`
}

type holdReport struct {
	// Release reports whether a node that is held now would be released.
	Release bool             `json:"release"`
	Reason  string           `json:"reason"`
	Message string           `json:"message"`
	Gates   []readiness.Gate `json:"gates"`
}

// openstackReport compares the names of an OpenStack machine that Magnum's autoscaler
// compares.
type openstackReport struct {
	openstack.Identity
	// Source is the origin of the provider ID.
	Source string   `json:"source,omitempty"`
	Unread []string `json:"unread,omitempty"`
}

// describeMachine returns nil if the machine is not one of OpenStack. The provider ID is
// a field of the Node, which an inspection does not read. So it is the given ID, else the
// kubelet's flag, else the ID that the cloud provider derives from cloud-init's instance
// ID.
func describeMachine(m host.MachineIDs, given string) *openstackReport {
	id, source := given, "--provider-id"
	if id == "" {
		id, source = m.ProviderID, "the kubelet's --provider-id"
	}
	if id == "" && m.OpenStack && m.InstanceID != "" {
		id, source = "openstack:///"+m.InstanceID, "cloud-init's instance ID"
	}
	if !m.OpenStack && !openstack.IsProviderID(id) {
		return nil
	}
	if id == "" {
		source = ""
	}
	return &openstackReport{Identity: openstack.Identify(id, m.SystemUUID, m.MachineID), Source: source, Unread: m.Unread}
}

// decide returns the agent's decisions for a host in this state. Because an inspection
// reads no cluster, it assumes a new Node that only the born-held policy has written to.
func (r report) decide(options inspectFlags) decisionReport {
	scan := r.Etcd.Scan
	scan.Found = nil
	for _, found := range r.Etcd.Found {
		scan.Found = append(scan.Found, found.FoundServer)
	}
	known := presence.Inputs{Node: r.Host.Name, ClustersKnown: true, StaticPods: options.staticPods}
	assessment := presence.Assess(scan, known)
	decision := decisionReport{
		Protect: protectReport{
			HoldsMember: map[presence.Membership]string{
				presence.MemberPresent: "true", presence.MemberAbsent: "false", presence.MembershipUnknown: "unknown",
			}[assessment.Membership],
			Reason: assessment.Reason, Message: assessment.Message,
		},
		Hold: r.decideHold(options.policy),
	}
	decision.Protect.Annotations, decision.Protect.Labels = presence.Marks(assessment, nil, nil, nil)
	if assessment.Membership == presence.MemberPresent {
		decision.Deletion = r.decideDeletions()
	}
	return decision
}

// conclude returns the result, and one line that summarizes the decisions. Etcd comes
// first, because the loss of a member is permanent.
func (d decisionReport) conclude() (result reportResult, conclusion string) {
	result, hold := resultClear, "A held node would be released."
	if !d.Hold.Release {
		result, hold = resultStaysHeld, fmt.Sprintf("A held node would stay held (%s).", d.Hold.Reason)
	}
	switch d.Protect.HoldsMember {
	case "true":
		return resultHoldsEtcd, "This host holds an etcd member; " + d.concludeDeletion() + ". " + hold
	case "unknown":
		return resultEtcdUnknown, "It is unknown whether this host holds an etcd member. " + hold
	}
	return result, "This host holds no etcd member. " + hold
}

// concludeDeletion summarizes the decisions on the deletion of the node: every cluster must allow
// it, and each server must be known to be one of their members.
func (d decisionReport) concludeDeletion() string {
	isRefused := func(deletion deletionReport) bool { return !deletion.Allowed }
	switch {
	case len(d.Deletion) == 0:
		return "whether its node can be deleted is unknown"
	case slices.ContainsFunc(d.Deletion, isRefused), d.Protect.Annotations[observation.UnverifiedAnnotation] != nil:
		return "deleting its node would be refused"
	}
	return "deleting its node would be allowed"
}

// decideDeletions decides as the webhook does, for each cluster with a member on this
// host. This host is the only observer.
func (r report) decideDeletions() []deletionReport {
	const nonce = "inspect"
	uid := types.UID(nonce)
	request := quorum.Request{Node: r.Host.Name, UID: uid, Labelled: true}
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
		cluster.Spec.Members = append(cluster.Spec.Members, v1alpha1.Binding{
			MemberID: found.Ref.Member, Node: r.Host.Name, NodeUID: uid, Basis: v1alpha1.BasisAddress,
		})
		observation := *found.Observation
		observation.Node, observation.NodeUID, observation.Nonce = r.Host.Name, uid, nonce
		if len(cluster.Observations) == 0 || !cluster.Observations[0].Linearizable {
			cluster.Observations = []v1alpha1.Observation{observation}
		}
	}
	var reports []deletionReport
	for _, id := range slices.Sorted(maps.Keys(clusters)) {
		verdict := quorum.Decide(quorum.View{
			Cluster: clusters[id], Nonces: []string{nonce},
			Nodes: map[string]observation.NodeState{r.Host.Name: {Known: true, UID: uid}},
		}, request)
		// The further lines of a refusal tell a person whose request was refused what to do.
		message, _, _ := strings.Cut(words.Message(verdict), "\n")
		tally := verdict.Facts.Tally
		reports = append(reports, deletionReport{
			Cluster: id, Allowed: verdict.Allowed, Reason: verdict.Reason, Voters: tally.Voters,
			Healthy: tally.Healthy, Quorum: tally.Quorum, Message: message, Warning: words.Warning(verdict),
		})
	}
	return reports
}

// decideHold decides for a Node that was born held in this boot. Its podCIDRs are unknown here, so
// flannel's subnet file is not compared with them.
func (r report) decideHold(policy readiness.Policy) holdReport {
	record := fmt.Sprintf(`{"state":%q,"bootID":%q,"reason":%q}`, readiness.Held, r.Network.BootID, readiness.NewNode)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: r.Host.Name, Annotations: map[string]string{readiness.HoldAnnotation: record}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}
	// Without the label --network-plugin-label has no effect.
	if key, value, _ := strings.Cut(policy.NetworkPluginLabel, "="); key != "" {
		node.Labels = map[string]string{key: value}
	}
	if policy.TaintKey != "" {
		node.Spec.Taints = []corev1.Taint{{Key: policy.TaintKey, Effect: corev1.TaintEffectNoSchedule}}
	}
	policy.FlannelUsesEtcd = true
	d := readiness.Decide(node, r.Network, policy, time.Time{})
	return holdReport{
		Release: !d.Held && r.Network.BootID != "", Reason: d.Reason, Message: d.Message,
		Gates: append([]readiness.Gate{}, d.Gates...),
	}
}
