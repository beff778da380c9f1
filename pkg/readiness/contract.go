package readiness

import "github.com/holdfast-dev/holdfast/pkg/autoscaler"

// Keys that this package reads and writes on a Node; see docs/node-contract.md.
const (
	// HoldAnnotation contains the Record in JSON. It is written together with the cordon or
	// the taint that it describes.
	HoldAnnotation = "holdfast.dev/hold"
	// KeepCordonedAnnotation, with any value, keeps the cordon when the hold ends.
	KeepCordonedAnnotation = "holdfast.dev/keep-cordoned"
	// HoldLabel with the value HoldNever exempts a node from holds and ends its current hold.
	HoldLabel = "holdfast.dev/hold"
	// HoldNever is the only value of HoldLabel that has an effect.
	HoldNever = "never"
	// NetworkHeld is the type of the condition that reports whether the node is held and what
	// is missing.
	NetworkHeld = "NetworkHeld"
)

// Reasons of the condition NetworkUnavailable that identify its writer.
const (
	HeldByHoldfast     = "HeldByHoldfast"
	ReleasedByHoldfast = "ReleasedByHoldfast"
	// CiliumIsUp is Cilium's reason. Cilium restores it after every change (cilium
	// pkg/k8s/watchers and operator, issue 16857), so setting the condition again would never
	// end.
	CiliumIsUp = "CiliumIsUp"
	// RouteCreated is the reason of the cloud providers' route controller, which writes the
	// condition only while it is not False (cloud-provider controllers/route,
	// updateNetworkingCondition).
	RouteCreated = "RouteCreated"
)

// Reasons of the condition NetworkHeld only.
const (
	// WaitingFor… names the first closed gate, except WaitingForOthers.
	WaitingForFlannel       = "WaitingForFlannel"
	WaitingForCNI           = "WaitingForCNI"
	WaitingForNetworkPlugin = "WaitingForNetworkPlugin"
	WaitingForUnit          = "WaitingForUnit"
	WaitingForCondition     = "WaitingForCondition"
	WaitingForLabel         = "WaitingForLabel"
	WaitingForProbe         = "WaitingForProbe"
	// WaitingForOthers means that the network is ready, but a mark of another component
	// prevents the release.
	WaitingForOthers = "WaitingForOthers"
	// CordonedByOthers means that the node would be held if it were not already cordoned by
	// another client.
	CordonedByOthers = "CordonedByOthers"
	// NotHeld means that the node is not held. GatesMismatch is the other reason for that.
	NotHeld = "NotHeld"
	// RecordUnreadable means that the value of HoldAnnotation is not a Record.
	RecordUnreadable = "RecordUnreadable"
	// BootUnknown means that the host's boot ID could not be read, so no decision was made.
	BootUnknown = "BootUnknown"
	// AgentMissing means that no agent has reported on the node since it is held. The leader writes
	// AgentMissing and Overdue, and only while no agent has written the condition in this boot.
	AgentMissing = "AgentMissing"
)

// RecordReason is the reason of a Record: why the node is in its state.
type RecordReason string

// Reasons of a Record only.
const (
	// NewNode is the reason of a hold that began with the Node: the born-held policy writes
	// it, and the agent for a Node that registered with the policy's taint.
	NewNode RecordReason = "NewNode"
	// NotReadyYet is the reason of a hold by the agent on a node without a record that is not
	// Ready, and not known to have been Ready.
	NotReadyYet RecordReason = "NotReadyYet"
	// Rebooted is the reason of a hold by the agent on a node that was in service in an
	// earlier boot. Like a hold with the reason GoingDown, it does not change NetworkUnavailable.
	Rebooted RecordReason = "Rebooted"
	// ShutdownCancelled is the reason of a release after a cancelled shutdown.
	ShutdownCancelled RecordReason = "CalledOff"
	// NetworkReady is the reason of a release with all gates open.
	NetworkReady RecordReason = "NetworkReady"
	// KeptCordoned is the reason of a release that kept the cordon because of
	// KeepCordonedAnnotation.
	KeptCordoned RecordReason = "KeptCordoned"
	// FirstSeen is the reason of the record of a node that came without a record and was not
	// held: it was Ready then or before, or no hold was needed.
	FirstSeen RecordReason = "FirstSeen"
	// Exempt is the reason of the record of a node that HoldLabel exempts.
	Exempt RecordReason = "Exempt"
	// EndedByLabel is the reason of an override by HoldLabel.
	EndedByLabel RecordReason = "EndedByLabel"
	// EndedByHand is the reason of an override by a client that removed the cordon or taint.
	EndedByHand RecordReason = "EndedByHand"
)

// Reasons of a Record and of the condition NetworkHeld. They have no type, so they can be either.
const (
	// GoingDown is the reason of a hold on a node whose host is shutting down, and of the
	// condition during the shutdown.
	GoingDown = "GoingDown"
	// GatesMismatch is the reason of the record of a node that was Ready when first observed
	// although gates were closed, and of the condition on such a node. The node is not held
	// after a reboot either.
	GatesMismatch = "GatesDoNotFit"
	// Overdue means that the hold has exceeded its time limit. As the reason of a record, it means
	// that the leader released the node because of that.
	Overdue = "Overdue"
)

// Reasons of the events that a Decision may carry.
const (
	EventHeld       = "Held"
	EventReleased   = "Released"
	EventOverridden = "HoldOverridden"
	// EventGatesMismatch is recorded once, when the node is first observed.
	EventGatesMismatch = "GatesDoNotFit"
)

// Reasons of the events of the webhook's leader about a hold. AgentMissing is another one.
const (
	// EventOverdue: the hold has exceeded its time limit.
	EventOverdue = "HoldOverdue"
	// EventGivenUp: the leader ended the hold because of that.
	EventGivenUp = "HoldGivenUp"
)

// Names of the gates, in the order in which they are evaluated.
const (
	GateCNI           = "cni"
	GateFlannel       = "flannel"
	GateNetworkPlugin = "network-plugin"
	// The following are prefixes. The name of a systemd unit follows the first. The type of a
	// condition of the Node follows the second, and may be followed by = and a status.
	GateUnit      = "unit:"
	GateCondition = "condition:"
	// GateLabel precedes the key of a label of the Node, which = and a value may follow.
	GateLabel = "label:"
	// GateHTTP and GateHTTPS precede HOST:PORT/PATH, GateTCP precedes HOST:PORT.
	GateHTTP  = "http:"
	GateHTTPS = "https:"
	GateTCP   = "tcp:"
)

// Keys of the agent's report about etcd on a Node (pkg/protect, MarksAnnotation and
// EtcdMemberCondition). The autoscaler annotations that MarksAnnotation lists protect a member and
// no longer belong to the hold.
const (
	etcdMarksAnnotation = "holdfast.dev/marks"
	etcdMemberCondition = "EtcdMember"
	etcdMemberLabel     = "holdfast.dev/etcd-member"
)

// autoscalerAnnotations returns the autoscaler annotations with the values that a hold sets. The
// born-held policy sets the same.
func autoscalerAnnotations() map[string]string {
	return autoscaler.Annotations("held by Holdfast until its network works")
}

// flannelPlugin is the type of flannel's CNI plugin in a conflist.
const flannelPlugin = "flannel"
