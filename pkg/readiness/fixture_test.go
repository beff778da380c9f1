package readiness

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	thisBoot  = "3f2c6f0e-boot-b"
	otherBoot = "9a1d7b44-boot-a"
	holdTaint = "readiness.k8s.io/holdfast"
	// otherTaint is the key after a change of --hold-taint-key.
	otherTaint = "holdfast.dev/held"
)

// TestMain lets the heap grow more between collections: the models allocate much and keep little.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

func noon() time.Time { return time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC) }

func testLimits() HoldLimits {
	return HoldLimits{Agent: 2 * time.Minute, Hold: 10 * time.Minute, Namespace: "holdfast-system"}
}

// releasingLimits are the limits of a leader with --on-stuck-hold=release.
func releasingLimits() HoldLimits {
	limits := testLimits()
	limits.Release = true
	return limits
}

// nodeOption is a property of a test's Node.
type nodeOption = func(*corev1.Node)

func node(options ...nodeOption) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Labels: map[string]string{}, Annotations: map[string]string{},
	}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.3.0/24"}}}
	for _, option := range options {
		option(n)
	}
	return n
}

func recorded(state State, boot string, reason RecordReason) nodeOption {
	return recordedAs(Record{State: state, BootID: boot, Reason: reason})
}

func recordedAs(r Record) nodeOption { return annotated(HoldAnnotation, r.Format()) }

func heldByTaint(key string) nodeOption {
	return recordedAs(Record{State: Held, BootID: thisBoot, Reason: NewNode, Taint: key})
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func tainted(key string) nodeOption {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func annotated(key, value string) nodeOption {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func exempt(n *corev1.Node) { n.Labels[HoldLabel] = HoldNever }

func deleting(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: noon()} }

func booted(boot string) nodeOption {
	return func(n *corev1.Node) { n.Status.NodeInfo.BootID = boot }
}

func conditioned(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) nodeOption {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: reason})
	}
}

// kubeletSince sets the conditions of a kubelet that registered its node as NotReady. Later Ready
// changed, and became False again.
func kubeletSince(later time.Duration) nodeOption {
	return func(n *corev1.Node) {
		for kind, at := range map[corev1.NodeConditionType]time.Time{
			corev1.NodeMemoryPressure: noon(), corev1.NodeDiskPressure: noon(), corev1.NodePIDPressure: noon(),
			corev1.NodeReady: noon().Add(later),
		} {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(at),
			})
		}
	}
}

// unavailable sets NetworkUnavailable to True, available sets it to False.
func unavailable(reason string) nodeOption {
	return conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, reason)
}

func available(reason string) nodeOption {
	return conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, reason)
}

// written sets a condition that was last written at a time.
func written(
	kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string, at time.Time,
) nodeOption {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason,
			LastHeartbeatTime: metav1.NewTime(at), LastTransitionTime: metav1.NewTime(at.Add(-time.Hour)),
		})
	}
}

// owned adds an entry to managedFields like the API server does.
func owned(manager, subresource, fields string) nodeOption {
	return func(n *corev1.Node) {
		n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		})
	}
}

// readyFacts are the facts of a host with everything that flannel needs.
func readyFacts() Facts {
	return Facts{
		BootID: thisBoot,
		Subnet: SubnetFile{
			Path: "/run/flannel/subnet.env", Presence: Present, Volatile: Present,
			Network: "10.244.0.0/16", Subnet: "10.244.3.1/24", MTU: "1450",
		},
		Conflist: Conflist{
			Directory: "/etc/cni/net.d", Path: "/etc/cni/net.d/10-flannel.conflist", Presence: Present, Name: "cbr0",
			Plugins: []Plugin{
				{Type: "flannel", Executable: Present},
				{Type: "bridge", NeededBy: "flannel", Executable: Present},
				{Type: "portmap", Executable: Present},
			},
		},
		Marker: Marker{Path: "/run/holdfast/network_plugin.done", Presence: Absent},
		Etcd:   Absent,
	}
}

func readyFactsWith(change func(*Facts)) Facts {
	f := readyFacts()
	change(&f)
	return f
}

// closedFacts are the facts of a host without flannel's subnet file.
func closedFacts() Facts { return readyFactsWith(func(f *Facts) { f.Subnet.Presence = Absent }) }

func bootlessFacts() Facts { return readyFactsWith(func(f *Facts) { f.BootID = "" }) }

func shutdownFacts() Facts { return readyFactsWith(func(f *Facts) { f.GoingDown = true }) }

// calicoFacts are the facts of a host whose CNI is not flannel.
func calicoFacts() Facts {
	return readyFactsWith(func(f *Facts) {
		f.Subnet = SubnetFile{Path: "/run/flannel/subnet.env", Presence: Absent}
		f.Conflist.Path = "/etc/cni/net.d/10-calico.conflist"
		f.Conflist.Plugins = []Plugin{{Type: "calico", Executable: Present}}
	})
}

// bridgeFacts are the facts of a host with a plain bridge.
func bridgeFacts(ambiguous bool, subnets ...string) Facts {
	f := calicoFacts()
	f.Conflist = Conflist{
		Directory: "/etc/cni/net.d", Path: "/etc/cni/net.d/10-net.conflist", Presence: Present,
		BridgeSubnets: subnets, AmbiguousName: ambiguous,
		Plugins: []Plugin{
			{Type: "bridge", Executable: Present}, {Type: "host-local", NeededBy: "bridge", Executable: Present},
		},
	}
	return f
}

// holdOutcome is the part of a decision that tables compare.
type holdOutcome struct {
	record      string // state and reason; empty if the record does not change
	cordon      string // "on" or "off"; empty if the cordon does not change
	unavailable corev1.ConditionStatus
	held        bool
	reason      string
	event       string
}

// clearing returns the outcome that also sets NetworkUnavailable to False.
func (o holdOutcome) clearing() holdOutcome {
	o.unavailable = corev1.ConditionFalse
	return o
}

func outcomeOf(t *testing.T, d Decision) holdOutcome {
	t.Helper()
	o := holdOutcome{held: d.Held, reason: d.Reason}
	if d.Record != nil {
		o.record = fmt.Sprint(d.Record.State, " ", d.Record.Reason)
		if d.Record.NetworkUp == "" { // Otherwise the record is an old one with a new field.
			require.Equal(t, noon(), d.Record.Since)
		}
	}
	if d.Unschedulable != nil {
		o.cordon = map[bool]string{true: "on", false: "off"}[*d.Unschedulable]
	}
	if d.Event != nil {
		o.event = d.Event.Reason
	}
	require.EqualValues(t, NetworkHeld, d.Conditions[0].Type)
	require.Equal(t, d.Reason, d.Conditions[0].Reason)
	require.Equal(t, d.Message, d.Conditions[0].Message)
	require.NotEmpty(t, d.Message)
	for _, c := range d.Conditions[1:] {
		require.Equal(t, corev1.NodeNetworkUnavailable, c.Type)
		o.unavailable = c.Status
	}
	return o
}

// updateTaints does what the node lifecycle controller does: it adds and removes the taints
// that follow from the cordon and the condition.
func updateTaints(n *corev1.Node) {
	c := FindCondition(n, corev1.NodeNetworkUnavailable)
	setTaint(n, corev1.TaintNodeUnschedulable, n.Spec.Unschedulable)
	setTaint(n, corev1.TaintNodeNetworkUnavailable, c != nil && c.Status == corev1.ConditionTrue)
}

func setTaint(n *corev1.Node, key string, wanted bool) {
	hasKey := func(t corev1.Taint) bool { return t.Key == key }
	switch {
	case !wanted:
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, hasKey)
	case !slices.ContainsFunc(n.Spec.Taints, hasKey):
		tainted(key)(n)
	}
}

// write applies a decision in two writes and returns the Node after each. The function is
// called between the writes.
func write(n *corev1.Node, d Decision, between nodeOption) (half, whole *corev1.Node) {
	main := func(n *corev1.Node) {
		if d.Record != nil {
			n.Annotations[HoldAnnotation] = d.Record.Format()
		}
		for key, value := range d.Annotations {
			if value == nil {
				delete(n.Annotations, key)
			} else {
				n.Annotations[key] = *value
			}
		}
		if d.Unschedulable != nil {
			n.Spec.Unschedulable = *d.Unschedulable
		}
		for _, gone := range d.RemoveTaints {
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&gone) })
		}
		for _, added := range d.AddTaints {
			if !hasTaint(n, added.Key) {
				n.Spec.Taints = append(n.Spec.Taints, added)
			}
		}
	}
	status := func(n *corev1.Node) {
		for _, c := range d.Conditions {
			if before := FindCondition(n, c.Type); before != nil {
				*before = c
			} else {
				n.Status.Conditions = append(n.Status.Conditions, c)
			}
		}
	}
	first, second := main, status
	if d.StatusFirst {
		first, second = status, main
	}
	half = clone(n)
	first(half)
	between(half)
	whole = clone(half)
	second(whole)
	return half, whole
}

// writeAll applies a decision and returns the Node.
func writeAll(n *corev1.Node, d Decision) *corev1.Node {
	_, whole := write(n, d, unchanged)
	return whole
}

func unchanged(*corev1.Node) {}

// clone copies what write and updateTaints change. A deep copy would take most of the time of
// the enumeration.
func clone(n *corev1.Node) *corev1.Node {
	c := *n
	c.Annotations = maps.Clone(n.Annotations)
	c.Spec.Taints = slices.Clone(n.Spec.Taints)
	c.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &c
}

// settle applies decisions until the Node no longer changes.
func settle(n *corev1.Node, f Facts, p Policy, between nodeOption) (*corev1.Node, error) {
	var d Decision
	for range 4 {
		d = Decide(n, f, p, noon())
		_, next := write(n, d, between)
		if d.Record == nil && d.Event == nil && isSame(n, next) {
			return n, nil
		}
		n = next
	}
	return n, fmt.Errorf("not settled after three decisions; the last was %+v", d)
}

func isSame(a, b *corev1.Node) bool {
	return maps.Equal(a.Annotations, b.Annotations) && a.Spec.Unschedulable == b.Spec.Unschedulable &&
		slices.Equal(a.Spec.Taints, b.Spec.Taints) && slices.Equal(a.Status.Conditions, b.Status.Conditions)
}

// ofAge returns the history of a hold of which the leader has observed only the age.
func ofAge(age time.Duration) HoldHistory { return HoldHistory{Age: age} }
