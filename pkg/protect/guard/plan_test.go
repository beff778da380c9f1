package guard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// A fixture is a cluster of three voters on the nodes n1 to n3. Only n1 has its Node in the state;
// it has a guard pod.
type fixture struct {
	State
	cluster *v1alpha1.EtcdCluster
	node    *corev1.Node
	pod     *corev1.Pod
}

// A change is what is different in a test.
type change = func(*fixture)

func by(changes ...change) []change { return changes }

func noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func newFixture() *fixture {
	f := &fixture{
		cluster: newCluster("c1", 3, "n1", "n2", "n3"),
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "uid-n1", Labels: map[string]string{observation.EtcdMemberLabel: "true"},
		}},
	}
	f.pod = newPod("n1", "uid-n1", "uid-c1")
	f.Clusters, f.Now = []*v1alpha1.EtcdCluster{f.cluster}, noon()
	f.Nodes, f.Pods = []*corev1.Node{f.node}, []*corev1.Pod{f.pod}
	return f
}

func newCluster(name string, voters int32, nodes ...string) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Voters = &voters
	for _, n := range nodes {
		c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{Node: n, NodeUID: types.UID("uid-" + n)})
	}
	return c
}

func newPod(node, uid, owner string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(node), Labels: map[string]string{NodeLabel: node}, Annotations: map[string]string{NodeUIDAnnotation: uid},
			OwnerReferences: []metav1.OwnerReference{{Kind: "EtcdCluster", UID: types.UID(owner), Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func withoutPod(f *fixture)  { f.Pods = nil }
func withoutNode(f *fixture) { f.Nodes = nil }
func cordoned(f *fixture)    { f.node.Spec.Unschedulable = true }
func unbound(f *fixture)     { f.cluster.Spec.Members = f.cluster.Spec.Members[1:] }
func failed(f *fixture)      { f.pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"} }

func tainted(key string) change {
	return func(f *fixture) {
		f.node.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	}
}

func granted(f *fixture) {
	f.cluster.Spec.Grants = []v1alpha1.Grant{{NodeUID: f.node.UID, Delete: &v1alpha1.Door{}}}
}

func doorless(f *fixture) { f.cluster.Spec.Grants = []v1alpha1.Grant{{NodeUID: f.node.UID}} }

func drained(f *fixture) {
	f.cluster.Spec.Grants = []v1alpha1.Grant{{NodeUID: f.node.UID, Drain: &v1alpha1.Door{}}}
}

// gone: the leader has seen that the Node was gone, and the cache of Nodes is older.
func gone(f *fixture) {
	f.cluster.Spec.Grants = []v1alpha1.Grant{{NodeUID: f.node.UID, Gone: &v1alpha1.Door{}}}
}

func removing(f *fixture) {
	f.cluster.Spec.Grants = []v1alpha1.Grant{{NodeUID: f.node.UID, Remove: &v1alpha1.Door{}}}
}

func secondCluster(voters int32) change {
	return func(f *fixture) { f.Clusters = append(f.Clusters, newCluster("c2", voters, "n1")) }
}

func noMember(f *fixture) {
	f.node.Status.Conditions = []corev1.NodeCondition{
		{Type: observation.EtcdMemberCondition, Status: corev1.ConditionFalse},
	}
}

func TestPlan(t *testing.T) {
	for name, test := range map[string]struct {
		change   []change
		want     Action
		presence Presence
		why      string
	}{
		"a pod on an etcd node":         {nil, Keep, Present, "the node has a member of etcd cluster c1"},
		"no pod on an etcd node":        {by(withoutPod), Create, Missing, "the node has a member of etcd cluster c1"},
		"one voter":                     {by(oneVoter), Delete, "", "the etcd cluster has one voter"},
		"one voter, no pod":             {by(oneVoter, withoutPod), "", "", ""},
		"one voter, and two of another": {by(oneVoter, secondCluster(2), withoutPod), Create, Missing, "etcd cluster c2"},
		"one voter, another unknown":    {by(oneVoter, secondCluster(0)), Keep, Present, "is not known"},
		"unknown, and two of another":   {by(votersUnknown, secondCluster(2), withoutPod), Create, Missing, "cluster c2"},
		"voters unknown":                {by(votersUnknown), Keep, Present, "the number of voters is not known"},
		"voters unknown, no pod":        {by(votersUnknown, withoutPod), "", "", ""},

		// F39: what is drained stays drained.
		"F39 cordoned, no pod":          {by(cordoned, withoutPod), Wait, Closed, "the node is cordoned"},
		"cordoned":                      {by(cordoned), Keep, Present, "etcd cluster c1"},
		"F39 about to be deleted":       {by(tainted("karpenter.sh/disrupted"), withoutPod), Wait, Closed, "about to be"},
		"marked":                        {by(tainted("medik8s.io/drain")), Keep, Present, "etcd cluster c1"},
		"F39 a mark of a flag":          {by(ownMark, withoutPod), Wait, Closed, "--away-mark"},
		"F39 being deleted":             {by(deleting, withoutPod), Wait, Closed, "the node is being deleted"},
		"being deleted":                 {by(deleting), Keep, Present, "etcd cluster c1"},
		"F39 drained":                   {by(drained, cordoned, withoutPod), Wait, Closed, "is cordoned"},
		"drained, and open again":       {by(drained, withoutPod), Create, Missing, "etcd cluster c1"},
		"F39 deletion allowed":          {by(granted, withoutPod), Wait, Closed, "the deletion of the node was allowed"},
		"grant of an earlier version":   {by(doorless, withoutPod), Wait, Closed, "the deletion of the node was allowed"},
		"drain allowed":                 {by(drained), Keep, Present, "etcd cluster c1"},
		"F39 deletion in another one":   {by(grantedElsewhere, withoutPod), Wait, Closed, "the deletion of the node"},
		"machine was gone":              {by(gone, withoutPod), Wait, Closed, "the deletion of the node was allowed"},
		"removal of its member allowed": {by(removing, withoutPod), Create, Missing, "etcd cluster c1"},
		"grant of an older Node":        {by(granted, oldGrant, withoutPod), Create, Missing, "etcd cluster c1"},
		"created shortly before":        {by(paced, withoutPod), Wait, Missing, "only shortly before"},
		"a taint that is no mark":       {by(tainted("example.com/gpu"), withoutPod), Create, Missing, "etcd cluster c1"},
		"the pod is being deleted":      {by(podDeleted), Wait, Missing, "the pod is being deleted"},
		"replaced pod is being deleted": {by(podDeleted, failed), Wait, Missing, "the pod is being deleted"},
		"pod being deleted, cordoned":   {by(podDeleted, cordoned), Wait, Closed, "the pod is being deleted"},
		"pod being deleted, one voter":  {by(podDeleted, oneVoter), Wait, "", "the pod is being deleted"},
		"pod being deleted, unbound":    {by(podDeleted, newNode), Wait, "", "the pod is being deleted"},
		"F59 no kubelet ends the pod":   {by(podDeleted, later), Remove, Missing, "no kubelet ends it"},

		"opted out":              {by(optedOut), Delete, "", "the node has the label holdfast.dev/drain-guard=never"},
		"opted out, no pod":      {by(optedOut, withoutPod), "", "", ""},
		"another value":          {by(optedOut, optedIn), Keep, Present, "etcd cluster c1"},
		"switched off":           {by(switchedOff), Delete, "", "switched off"},
		"switched off, cordoned": {by(switchedOff, cordoned), Delete, "", "switched off"},
		"switched off, no pod":   {by(switchedOff, withoutPod), "", "", ""},
		"switched off, unknown":  {by(switchedOff, votersUnknown), Delete, "", "switched off"},

		// F74: a hold cordons the node too, and `kubectl drain` of a held node changes nothing on it.
		"F74 held, no pod":           {by(held, withoutPod), Create, Missing, "etcd cluster c1"},
		"F74 held, drained":          {by(held, drained, withoutPod), Wait, Closed, "was drained while"},
		"held, removal allowed":      {by(held, removing, withoutPod), Create, Missing, "etcd cluster c1"},
		"held, and kept cordoned":    {by(held, kept, withoutPod), Wait, Closed, "the node is cordoned"},
		"released, cordoned, no pod": {by(released, withoutPod), Wait, Closed, "the node is cordoned"},

		// F75: a member that another Node is bound to can be drained away too.
		// F75, F76: a host registered under another name, and its second Node had no guard pod, or one of
		// two clusters was unknown for a moment, and all guard pods were replaced.
		"F75 announced, not bound":      {by(unbound, announced, withoutPod), Create, Missing, "etcd cluster c1"},
		"F75 announced, a pod":          {by(unbound, announced), Keep, Present, "etcd cluster c1"},
		"announced, not labelled":       {by(unbound, announced, unlabelled, withoutPod), "", "", ""},
		"announced in another cluster":  {by(unbound, announcedElsewhere, withoutPod), "", "", ""},
		"announcement cannot be parsed": {by(unbound, unparsable, withoutPod), "", "", ""},
		"F76 the owner is unknown":      {by(votersUnknown, secondCluster(2)), Keep, Present, "etcd cluster c2"},

		// F38: only what is known to need no guard pod loses it.
		"no member any more":          {by(unbound, unlabelled), Delete, "", "the node has no member"},
		"no member, cordoned":         {by(unbound, unlabelled, cordoned), Delete, "", "the node has no member"},
		"F38 labelled, but not bound": {by(unbound), Keep, Present, "no member is bound to it"},
		"F38 the EtcdCluster is gone": {by(withoutCluster), Keep, Present, "no member is bound to it"},
		"labelled, no pod":            {by(unbound, withoutPod), "", "", ""},
		"Node gone":                   {by(withoutNode), Remove, "", "its node is gone"},
		"Node gone, pod deleted":      {by(withoutNode, podDeleted), Remove, "", "its node is gone"},
		"Node gone, no pod":           {by(withoutNode, withoutPod), "", "", ""},
		"another Node of this name":   {by(newNode), Keep, Present, "no member is bound to it"},
		"F84 the same, not labelled":  {by(newNode, unlabelled), Keep, Present, "the agent of this one has not reported"},
		"the same, reported":          {by(newNode, unlabelled, noMember), Delete, "", "the node has no member"},
		"the same, bound":             {by(newNode, rebound), Delete, Defective, "belongs to an older node of this name"},
		"the same, no annotation":     {by(noAnnotation), Delete, Defective, "belongs to an older node of this name"},

		// F38: a pod that cannot be evicted like a guard pod is replaced.
		"F38 no label": {by(noLabel), Delete, Defective, "the pod does not have the label"},
		// F38, F39, F59: a false guard pod stood in, one came back on a drained node, or no kubelet ended
		// one on a dead host: the drain did not wait, or never finished.
		"F38 no owner":         {by(noOwner), Delete, Defective, "the pod is not owned by the etcd cluster"},
		"F38 no controller":    {by(noController), Delete, Defective, "the pod is not owned by the etcd cluster"},
		"F38 another owner":    {by(otherOwner), Delete, Defective, "the pod is not owned by the etcd cluster"},
		"no owner, cordoned":   {by(noOwner, cordoned), Keep, Closed, "cannot be replaced: the node is cordoned"},
		"no owner, unknown":    {by(noOwner, votersUnknown), Keep, Present, "is not known"},
		"another image":        {by(otherImage), Keep, Present, "etcd cluster c1"},
		"ended":                {by(failed), Delete, Defective, "the pod has ended (Evicted)"},
		"ended shortly before": {by(failed, paced), Keep, Defective, "the pod has ended (Evicted), but cannot be replaced"},
		"ended, cordoned":      {by(failed, cordoned), Keep, Closed, "cannot be replaced: the node is cordoned"},
		"completed":            {by(completed), Delete, Defective, "the pod has ended (Succeeded)"},
		"on another node":      {by(otherNode, withoutNode), Delete, "", `the pod is on node "n2"`},
		"on another node, and no kubelet ends it": {
			by(otherNode, withoutNode, podDeleted, later), Remove, "", "no kubelet ends it",
		},
		"on no node": {by(noNode, withoutNode), Delete, "", `the pod is on node ""`},
		"a pod of another name": {
			by(otherName), Create, Missing, "etcd cluster c1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			for _, apply := range test.change {
				apply(f)
			}
			plan := Plan(f.State)
			if test.want == "" {
				require.Empty(t, plan)
				return
			}
			require.Len(t, plan, 1)
			d := plan[0]
			require.Equal(t, test.want, d.Action, d.Why)
			require.Contains(t, d.Why, test.why)
			require.Equal(t, test.presence, d.Presence)
			require.Equal(t, "holdfast-guard-n1", d.Pod)
			require.Equal(t, test.want == Create, d.Owner != nil && d.On != nil)
			require.Equal(t, test.want == Delete || test.want == Remove, d.Existing != nil)
		})
	}
}

func oneVoter(f *fixture)           { *f.cluster.Status.Voters = 1 }
func votersUnknown(f *fixture)      { f.cluster.Status.Voters = nil }
func deleting(f *fixture)           { f.node.DeletionTimestamp = new(metav1.NewTime(noon())) }
func later(f *fixture)              { f.Now = noon().Add(terminationLimit + time.Second) }
func podDeleted(f *fixture)         { f.pod.DeletionTimestamp = new(metav1.NewTime(noon())) }
func oldGrant(f *fixture)           { f.cluster.Spec.Grants[0].NodeUID = "uid-older" }
func paced(f *fixture)              { f.NotBefore = map[string]time.Time{"n1": noon().Add(time.Second)} }
func optedOut(f *fixture)           { f.node.Labels[NodeLabel] = Never }
func optedIn(f *fixture)            { f.node.Labels[NodeLabel] = "always" }
func switchedOff(f *fixture)        { f.Off = true }
func unlabelled(f *fixture)         { f.node.Labels = nil }
func withoutCluster(f *fixture)     { f.Clusters = nil }
func newNode(f *fixture)            { f.node.UID = "uid-new" }
func rebound(f *fixture)            { f.cluster.Spec.Members[0].NodeUID = "uid-new" }
func noAnnotation(f *fixture)       { f.pod.Annotations = nil }
func noLabel(f *fixture)            { f.pod.Labels = nil }
func noOwner(f *fixture)            { f.pod.OwnerReferences = nil }
func noController(f *fixture)       { f.pod.OwnerReferences[0].Controller = nil }
func otherOwner(f *fixture)         { f.pod.OwnerReferences[0].UID = "uid-other" }
func otherImage(f *fixture)         { f.pod.Spec.Containers = []corev1.Container{{Image: "example.org/other"}} }
func completed(f *fixture)          { f.pod.Status.Phase = corev1.PodSucceeded }
func otherNode(f *fixture)          { f.pod.Spec.NodeName = "n2" }
func noNode(f *fixture)             { f.pod.Spec.NodeName = "" }
func otherName(f *fixture)          { f.pod.Name = "copy-of-n1" }
func kept(f *fixture)               { f.node.Annotations[readiness.KeepCordonedAnnotation] = "" }
func held(f *fixture)               { recorded(f, readiness.Held) }
func released(f *fixture)           { recorded(f, readiness.Released) }
func announced(f *fixture)          { announce(f, "c1") }
func announcedElsewhere(f *fixture) { announce(f, "c9") }
func unparsable(f *fixture) {
	f.node.Annotations = map[string]string{observation.AnnouncementAnnotation: "["}
}

// recorded cordons the node and gives it a record with this state.
func recorded(f *fixture, state readiness.State) {
	cordoned(f)
	f.node.Annotations = map[string]string{readiness.HoldAnnotation: readiness.Record{State: state}.Format()}
}

func announce(f *fixture, cluster v1alpha1.ClusterID) {
	f.node.Annotations = map[string]string{observation.AnnouncementAnnotation: observation.FormatAnnouncement(
		[]evidence.MemberRef{{Cluster: cluster, Member: "a"}})}
}

func ownMark(f *fixture) {
	f.Departures = f.Departures.Add(departure.ForAWhile, "example.com/reboot")
	tainted("example.com/reboot")(f)
}

func grantedElsewhere(f *fixture) {
	secondCluster(1)(f)
	f.Clusters[1].Spec.Grants = []v1alpha1.Grant{{NodeUID: f.node.UID, Machine: &v1alpha1.Door{}}}
}

// TestPlanOfSeveral checks the order, and that a copy of a guard pod does not hide the missing one.
func TestPlanOfSeveral(t *testing.T) {
	f := newFixture()
	for _, name := range []string{"n3", "n2"} {
		f.Nodes = append(f.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}})
	}
	copied := f.pod.DeepCopy()
	copied.Spec.NodeName, copied.Name = "n1", Name("n2")
	f.Pods = append(f.Pods, copied)
	var got []string
	for _, d := range Plan(f.State) {
		got = append(got, d.Pod+" "+string(d.Action))
	}
	require.Equal(t, []string{
		"holdfast-guard-n1 Keep", "holdfast-guard-n2 Delete", "holdfast-guard-n2 Wait", "holdfast-guard-n3 Create",
	}, got)
}
