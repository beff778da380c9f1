package protect

// Keys that Holdfast writes on a Node that holds etcd; see docs/node-contract.md.
const (
	// EtcdMemberLabel selects the fail-closed webhook. Value: "true".
	EtcdMemberLabel = "holdfast.dev/etcd-member"
	// EtcdMemberLabelValue is the only value of EtcdMemberLabel.
	EtcdMemberLabelValue = "true"
	// AnnouncementAnnotation is a JSON list of MemberRef: the members that answered on this node.
	AnnouncementAnnotation = "holdfast.dev/etcd"
	// UnverifiedAnnotation is a JSON list of strings: where on this node there are etcd servers that have never said who
	// they are. Not there if there is none.
	UnverifiedAnnotation = "holdfast.dev/etcd-unverified"
	// BecauseAnnotation is one sentence for people: why the node is protected.
	BecauseAnnotation = "holdfast.dev/protected-because"
	// MarksAnnotation lists the autoscaler annotations that Holdfast itself set, sorted and separated by commas. Only
	// those are ever taken off again: one that a person had set before is not in the list and stays.
	MarksAnnotation = "holdfast.dev/marks"
	// BreakGlassAnnotation is a BreakGlass in JSON, written by a user with the verb `breakglass` on etcdclusters.
	BreakGlassAnnotation = "holdfast.dev/break-glass"
	// SettleAnnotation on an EtcdCluster names the Node UID whose grant an operator settles by hand.
	SettleAnnotation = "holdfast.dev/settle"
	// EtcdMemberCondition is the type of the Node condition that says whether the node holds a member.
	EtcdMemberCondition = "EtcdMember"
)

// Annotations by which autoscalers are told to leave a node alone (see docs/node-contract.md).
const (
	// ClusterAutoscalerAnnotation is honoured by cluster-autoscaler 0.6.1 and later, and only with the exact value
	// "true" (core/scaledown/eligibility/eligibility.go, HasNoScaleDownAnnotation).
	ClusterAutoscalerAnnotation = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// KarpenterAnnotation blocks voluntary disruption by Karpenter 0.32 and later (statenode.go).
	KarpenterAnnotation = "karpenter.sh/do-not-disrupt"
	// EscalatorAnnotation is Atlassian Escalator's; any value that is not empty counts, and is the reason.
	EscalatorAnnotation = "atlassian.com/no-delete"
	// CastAIAnnotation is CAST AI's.
	CastAIAnnotation = "autoscaling.cast.ai/removal-disabled"
)
