package readiness

// Keys that this package reads and writes on a Node; see docs/node-contract.md.
const (
	// HoldAnnotation holds the Record in JSON. It travels in one write with the cordon or the taint that it speaks for.
	HoldAnnotation = "holdfast.dev/hold"
	// KeepCordonedAnnotation, with any value, asks that the cordon stays when the hold ends.
	KeepCordonedAnnotation = "holdfast.dev/keep-cordoned"
	// HoldLabel with the value HoldNever says that this node is never held. A hold that stands is ended by it.
	HoldLabel = "holdfast.dev/hold"
	// HoldNever is the only value of HoldLabel that means something.
	HoldNever = "never"
	// NetworkHeld is the type of the condition that says whether the node is held and what is missing.
	NetworkHeld = "NetworkHeld"
)

// Reasons of the condition NetworkUnavailable by which a value is known as ours.
const (
	HeldByHoldfast     = "HeldByHoldfast"
	ReleasedByHoldfast = "ReleasedByHoldfast"
	// CiliumIsUp is Cilium's reason. It is put back whenever somebody changes it (cilium pkg/k8s/watchers and operator,
	// issue 16857), so that setting the condition again would never end.
	CiliumIsUp = "CiliumIsUp"
	// RouteCreated is the reason of the cloud providers' route controller. It writes it as long as the condition is not False
	// and never after (cloud-provider controllers/route, updateNetworkingCondition).
	RouteCreated = "RouteCreated"
)

// Reasons of the condition NetworkHeld.
const (
	// These name the first gate that is closed.
	WaitingForFlannel       = "WaitingForFlannel"
	WaitingForCNI           = "WaitingForCNI"
	WaitingForNetworkPlugin = "WaitingForNetworkPlugin"
	WaitingForUnit          = "WaitingForUnit"
	WaitingForCondition     = "WaitingForCondition"
	// WaitingForOthers says that the network is ready and that a mark of somebody else forbids to uncordon.
	WaitingForOthers = "WaitingForOthers"
	// CordonedByOthers says that the node would be held if it were not cordoned by somebody else already.
	CordonedByOthers = "CordonedByOthers"
	// NotHeld says that nothing is held. GatesDoNotFit, below, is the other reason for that.
	NotHeld = "NotHeld"
	// RecordUnreadable says that the value of HoldAnnotation is not a Record.
	RecordUnreadable = "RecordUnreadable"
	// BootUnknown says that the host's boot ID could not be read, and so nothing was decided.
	BootUnknown = "BootUnknown"
)

// Reasons of a Record: why the node is in its state.
const (
	// NewNode is the reason that the born-held policy writes, and the agent for a node that came with the policy's taint.
	NewNode = "NewNode"
	// NotReadyYet is the reason of a hold by the agent on a node that has no record and is not Ready.
	NotReadyYet = "NotReadyYet"
	// Rebooted is the reason of a hold by the agent on a node that had been in service in an earlier boot, GoingDown of one
	// on a node whose host is shutting down, and of the condition NetworkHeld as long as it is. These are the reasons under
	// which a hold leaves NetworkUnavailable alone.
	Rebooted  = "Rebooted"
	GoingDown = "GoingDown"
	// CalledOff is the reason of a release because the host does not go down after all.
	CalledOff = "CalledOff"
	// NetworkReady is the reason of a release.
	NetworkReady = "NetworkReady"
	// KeptCordoned is the reason of a release that left the cordon, as KeepCordonedAnnotation asks.
	KeptCordoned = "KeptCordoned"
	// FirstSeen is the reason of the record of a node that came without a record and was not held: it was Ready, or nothing
	// called for a hold.
	FirstSeen = "FirstSeen"
	// GatesDoNotFit is the reason of the record of a node that was Ready when first seen although gates were closed, and of
	// the condition NetworkHeld while that stands. Such a node is not held after a reboot either.
	GatesDoNotFit = "GatesDoNotFit"
	// Exempt is the reason of the record of a node that HoldLabel exempts.
	Exempt = "Exempt"
	// EndedByLabel is the reason of an override by HoldLabel.
	EndedByLabel = "EndedByLabel"
	// EndedByHand is the reason of an override by whoever cleared the bit or took off the taint.
	EndedByHand = "EndedByHand"
)

// Reasons of the events that a Decision may carry.
const (
	EventHeld       = "Held"
	EventReleased   = "Released"
	EventOverridden = "HoldOverridden"
	// EventGatesDoNotFit is told once, when the node is first seen.
	EventGatesDoNotFit = "GatesDoNotFit"
)

// Names of the gates, in the order in which they are asked.
const (
	GateCNI           = "cni"
	GateFlannel       = "flannel"
	GateNetworkPlugin = "network-plugin"
	// GateUnit and GateCondition are beginnings of names: a systemd unit follows the one, the type of a condition of the
	// Node the other.
	GateUnit      = "unit:"
	GateCondition = "condition:"
)

// Annotations by which autoscalers are asked to leave a node alone. A hold sets those that nobody has set, and takes off
// what it has set. They are the same that guard a node with etcd (pkg/protect).
const (
	clusterAutoscalerAnnotation = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	karpenterAnnotation         = "karpenter.sh/do-not-disrupt"
	escalatorAnnotation         = "atlassian.com/no-delete"
	castAIAnnotation            = "autoscaling.cast.ai/removal-disabled"
)

// What the agent says of etcd on a Node (pkg/protect, MarksAnnotation and EtcdMemberCondition). The marks that the first
// lists guard a member, and are no longer the hold's.
const (
	etcdMarksAnnotation = "holdfast.dev/marks"
	etcdMemberCondition = "EtcdMember"
)

// scaleDownMarks are those annotations with the values that a hold sets, as the born-held policy has them too.
func scaleDownMarks() map[string]string {
	return map[string]string{
		clusterAutoscalerAnnotation: "true",
		karpenterAnnotation:         "true",
		escalatorAnnotation:         "held by Holdfast until its network works",
		castAIAnnotation:            "true",
	}
}

// flannelPlugin is the type by which a conflist names flannel's CNI plugin.
const flannelPlugin = "flannel"

// kuredAnnotation is on a Node while kured drains and reboots it (kured, KuredRebootInProgressAnnotation).
const kuredAnnotation = "weave.works/kured-reboot-in-progress"

// foreignTaints are the keys of taints by which others say that they are deleting or draining a node.
func foreignTaints() []string {
	return []string{
		// cluster-autoscaler, utils/taints ToBeDeletedTaint. DeletionCandidateOfClusterAutoscaler is only a wish.
		"ToBeDeletedByClusterAutoscaler",
		// Karpenter since 1.0, pkg/apis/v1 DisruptedTaintKey; before that it was the second.
		"karpenter.sh/disrupted",
		"karpenter.sh/disruption",
		// medik8s' node-maintenance-operator.
		"medik8s.io/drain",
		// Elastisys' kubeaware-cloudpool-proxy.
		"node-about-to-be-drained",
	}
}
