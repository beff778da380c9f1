package clusterstore_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestTrimToZone: an ordinary Node takes no map of its own, unless a kubelet invents zones.
func TestTrimToZone(t *testing.T) {
	const limit = 10
	for zones, isShared := range map[int]bool{limit: true, limit + 1: false} {
		trimmer := clusterstore.Trimmer{ZoneLabel: corev1.LabelTopologyZone, Zones: cache.NewLRUExpireCache(limit)}
		kept := map[string][]map[string]string{}
		for i := range 2 * zones {
			zone := fmt.Sprint("zone-", i%zones)
			read := fullNode()
			label(corev1.LabelTopologyZone, zone)(read)
			got, err := trimmer.Trim(read)
			require.NoError(t, err)
			labels := got.(*corev1.Node).Labels
			require.Equal(t, map[string]string{corev1.LabelTopologyZone: zone}, labels)
			kept[zone] = append(kept[zone], labels)
		}
		first := kept["zone-0"]
		require.Equal(t, isShared, reflect.ValueOf(first[0]).Pointer() == reflect.ValueOf(first[1]).Pointer(), zones)
	}
}

// TestTrim: an ordinary Node is cached without what no decision reads. A Node with anything that a
// decision may depend on is cached with all of its metadata, taints and conditions.
func TestTrim(t *testing.T) {
	trimmer := clusterstore.Trimmer{
		Departures: departure.Table{}.Add(departure.ForAWhile, "example.org/away").Add(departure.ForGood, "example.org/gone"),
		ZoneLabel:  corev1.LabelTopologyZone,
	}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		kept   bool
	}{
		"ordinary":            {change: func(*corev1.Node) {}},
		"never held":          {change: func(n *corev1.Node) { delete(n.Annotations, readiness.HoldAnnotation) }},
		"in a zone":           {change: label(corev1.LabelTopologyZone, "a")},
		"taint of the cloud":  {change: addTaint("example.org/gpu")},
		"no condition":        {change: func(n *corev1.Node) { n.Status.Conditions = nil }},
		"hold overridden":     {change: setRecord(readiness.Record{State: readiness.Overridden})},
		"held":                {change: setRecord(readiness.Record{State: readiness.Held}), kept: true},
		"record is malformed": {change: annotate(readiness.HoldAnnotation, "{"), kept: true},
		"hold not finished":   {change: setCondition(readiness.NetworkHeld, corev1.ConditionTrue), kept: true},
		"label of etcd":       {change: label(observation.EtcdMemberLabel, "true"), kept: true},
		"announcement only":   {change: annotate(observation.AnnouncementAnnotation, "?"), kept: true},
		"break-glass":         {change: annotate("holdfast.dev/break-glass", "?"), kept: true},
		"exempt from holds":   {change: label(readiness.HoldLabel, readiness.HoldNever), kept: true},
		"cordoned":            {change: func(n *corev1.Node) { n.Spec.Unschedulable = true }, kept: true},
		"deleting":            {change: func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }, kept: true},
		"mark of another":     {change: addTaint("ToBeDeletedByClusterAutoscaler"), kept: true},
		"mark of a flag":      {change: label("example.org/away", "true"), kept: true},
		"taint of a flag":     {change: addTaint("example.org/gone"), kept: true},
		"under maintenance":   {change: addCondition("MaintenanceInProgress", corev1.ConditionTrue), kept: true},
		"maintenance unknown": {change: addCondition("MaintenanceInProgress", corev1.ConditionUnknown)},
		"shutdown":            {change: annotate(departure.ShutdownAnnotation, "{}"), kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			read, want := fullNode(), ordinaryNode()
			c.change(read)
			if c.kept {
				want = read.DeepCopy()
			}
			if zone, hasZone := read.Labels[corev1.LabelTopologyZone]; hasZone && !c.kept {
				want.Labels = map[string]string{corev1.LabelTopologyZone: zone}
			}
			if len(read.Status.Conditions) == 0 {
				want.Status.Conditions = nil
			}
			got, err := trimmer.Trim(withUnread(read))
			require.NoError(t, err)
			require.Equal(t, want, got)
			got, err = trimmer.Trim(got) // client-go may trim an object twice.
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	t.Run("metadata of all", func(t *testing.T) {
		got, err := clusterstore.Trimmer{KeepMetadata: true}.Trim(withUnread(fullNode()))
		require.NoError(t, err)
		want := fullNode()
		want.Status.Capacity, want.Status.Allocatable = amounts(), amounts()
		require.Equal(t, want, got)
	})
	t.Run("another kind", func(t *testing.T) {
		c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{
			Name: "c", Annotations: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		}}
		want := c.DeepCopy()
		want.ManagedFields = nil
		got, err := trimmer.Trim(c)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// fullNode returns an ordinary Node with all that may be cached.
func fullNode() *corev1.Node {
	n := ordinaryNode()
	n.Labels, n.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	setRecord(readiness.Record{State: readiness.Released})(n)
	n.Spec.Taints = []corev1.Taint{{Key: "e"}}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: observation.EtcdMemberCondition, Status: corev1.ConditionFalse, Reason: "NoEtcd", Message: "no etcd"},
		{Type: readiness.NetworkHeld, Status: corev1.ConditionFalse},
	}
	return n
}

// ordinaryNode returns the same Node as it is cached.
func ordinaryNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "worker-1", UID: "u1", ResourceVersion: "7", CreationTimestamp: metav1.Unix(1700000000, 0),
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///i-1"},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			Conditions: []corev1.NodeCondition{{Type: observation.EtcdMemberCondition, Status: corev1.ConditionFalse}},
			NodeInfo:   corev1.NodeSystemInfo{MachineID: "m1", SystemUUID: "s1", BootID: "b1"},
		},
	}
}

func amounts() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
}

// withUnread returns the Node with fields that no reader of the cache needs.
func withUnread(n *corev1.Node) *corev1.Node {
	n = n.DeepCopy()
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", Time: new(metav1.NewTime(time.Now()))}}
	n.Status.Capacity, n.Status.Allocatable = amounts(), amounts()
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"holdfast-agent"}}}
	n.Status.VolumesInUse = []corev1.UniqueVolumeName{"v"}
	n.Status.NodeInfo.KernelVersion = "6.12"
	return n
}

func setRecord(r readiness.Record) func(*corev1.Node) {
	return annotate(readiness.HoldAnnotation, r.Format())
}

func annotate(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func addTaint(key string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key}) }
}

func addCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status})
	}
}

func setCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for i := range n.Status.Conditions {
			if n.Status.Conditions[i].Type == kind {
				n.Status.Conditions[i].Status = status
			}
		}
	}
}
