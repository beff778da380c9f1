package departure_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
)

func nodeWith(changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{}
	n.Annotations, n.Labels = map[string]string{}, map[string]string{}
	for _, change := range changes {
		change(n)
	}
	return n
}

func tainted(keys ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, key := range keys {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
}

func annotated(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[key] = value }
}

func labelled(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func TestMarks(t *testing.T) {
	const kured, forGood, forAWhile = "weave.works/kured-reboot-in-progress", departure.ForGood, departure.ForAWhile
	const fluo = "flatcar-linux-update.v1.flatcar-linux.net/"
	for name, c := range map[string]struct {
		node  *corev1.Node
		class departure.Class
		text  string
	}{
		"no mark":    {nodeWith(), departure.None, ""},
		"cordoned":   {nodeWith(cordoned, tainted(corev1.TaintNodeUnschedulable)), departure.None, ""},
		"not ready":  {nodeWith(tainted(corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable)), departure.None, ""},
		"candidate":  {nodeWith(tainted("DeletionCandidateOfClusterAutoscaler")), departure.None, ""},
		"guarded":    {nodeWith(annotated("karpenter.sh/do-not-disrupt", "true")), departure.None, ""},
		"AWS, label": {nodeWith(labelled("aws-node-termination-handler/action", "x")), departure.None, ""},
		"kured": {
			nodeWith(cordoned, annotated(kured, "2026-05-01T11:55:00+02:00")), forAWhile,
			"annotation weave.works/kured-reboot-in-progress, since 2026-05-01T09:55:00Z",
		},
		"kured, other value":   {nodeWith(cordoned, annotated(kured, "x")), forAWhile, "annotation " + kured},
		"kured, reboot wanted": {nodeWith(annotated(kured, "2026-05-01T11:55:00Z")), departure.None, ""},
		"FLUO#188: rebooting": {
			nodeWith(cordoned, annotated(fluo+"reboot-in-progress", "true"), annotated(fluo+"agent-made-unschedulable", "true")),
			forAWhile, "annotation " + fluo + "reboot-in-progress",
		},
		"FLUO, before the cordon": {nodeWith(annotated(fluo+"reboot-in-progress", "true")), departure.None, ""},
		"FLUO, rebooted":          {nodeWith(cordoned, annotated(fluo+"reboot-in-progress", "false")), departure.None, ""},
		"FLUO, reboot wanted":     {nodeWith(cordoned, annotated(fluo+"reboot-needed", "true")), departure.None, ""},
		"CLUO": {
			nodeWith(cordoned, annotated("container-linux-update.v1.coreos.com/reboot-in-progress", "true")), forAWhile,
			"annotation container-linux-update.v1.coreos.com/reboot-in-progress",
		},
		"kured and Karpenter": {
			nodeWith(cordoned, annotated(kured, "x"), tainted("karpenter.sh/disrupted")), forGood,
			"taint karpenter.sh/disrupted",
		},
		"unreadable shutdown": {
			nodeWith(annotated(departure.ShutdownAnnotation, "{")), forAWhile,
			"annotation holdfast.dev/shutdown",
		},
		"kured and the host": {
			nodeWith(cordoned, annotated(kured, "x"), annotated(departure.ShutdownAnnotation, "{}")), forAWhile,
			"annotation " + kured,
		},
		"prefix, no final part": {nodeWith(tainted("aws-node-termination-handlers")), departure.None, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := departure.Table{}.Of(c.node)
			require.Equal(t, c.class, m.Class)
			if c.class == departure.None {
				require.Equal(t, departure.Mark{}, m)
				return
			}
			require.Equal(t, c.text, m.String())
			require.NotEmpty(t, m.Says)
		})
	}
}

func TestTaints(t *testing.T) {
	added := metav1.NewTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	for key, class := range map[string]departure.Class{
		"ToBeDeletedByClusterAutoscaler":                  departure.ForGood,
		"karpenter.sh/disrupted":                          departure.ForGood,
		"karpenter.sh/disruption":                         departure.ForGood,
		"node-about-to-be-drained":                        departure.ForGood,
		"node.kubernetes.io/out-of-service":               departure.ForGood,
		"cloud.google.com/impending-node-termination":     departure.ForGood,
		"aws-node-termination-handler/spot-itn":           departure.ForGood,
		"medik8s.io/drain":                                departure.ForAWhile,
		"medik8s.io/remediation":                          departure.ForAWhile,
		"medik8s.io/fence-agents-remediation":             departure.ForAWhile,
		"remediation.medik8s.io/fence-agents-remediation": departure.ForAWhile,
		"readiness.k8s.io/network":                        departure.None,
	} {
		m := departure.Table{}.Of(nodeWith(tainted("x"), func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, TimeAdded: &added})
		}))
		require.Equal(t, class, m.Class, key)
		if class != departure.None {
			require.Equal(t, "taint "+key+", since 2026-05-01T12:00:00Z", m.String())
			require.Equal(t, "kubectl taint node n "+key+"-", m.RemoveCommand("n"))
			require.NotEmpty(t, m.Says)
		}
	}
}

func TestAdd(t *testing.T) {
	none := departure.Table{}
	table := none.Add(departure.ForGood, "example.com/gone").Add(departure.ForAWhile, "example.org/").
		Add(departure.ForAWhile, "maintenance")
	const forGood, forAWhile = departure.ForGood, departure.ForAWhile
	for name, c := range map[string]struct {
		node   *corev1.Node
		class  departure.Class
		remove string // the command that removes the mark, after kubectl
	}{
		"taint":                   {nodeWith(tainted("example.com/gone")), forGood, "taint node n example.com/gone-"},
		"annotation for good":     {nodeWith(annotated("example.com/gone", "")), departure.None, ""},
		"longer key":              {nodeWith(tainted("example.com/gone-soon")), departure.None, ""},
		"prefix of a taint":       {nodeWith(tainted("example.org/x")), forAWhile, "taint node n example.org/x-"},
		"prefix of an annotation": {nodeWith(annotated("example.org/y", "")), forAWhile, "annotate node n example.org/y-"},
		"label":                   {nodeWith(labelled("maintenance", "true")), forAWhile, "label node n maintenance-"},
		"for good besides away": {
			nodeWith(tainted("medik8s.io/drain", "example.com/gone")), forGood, "taint node n example.com/gone-",
		},
		"label false":      {nodeWith(labelled("maintenance", "false")), departure.None, ""},
		"annotation false": {nodeWith(annotated("example.org/y", "false")), departure.None, ""},
		"first of several, by name": {
			nodeWith(annotated("example.org/b", ""), annotated("example.org/a", "")), forAWhile,
			"annotate node n example.org/a-",
		},
		"built in": {nodeWith(tainted("karpenter.sh/disrupted")), forGood, "taint node n karpenter.sh/disrupted-"},
	} {
		t.Run(name, func(t *testing.T) {
			m := table.Of(c.node)
			require.Equal(t, c.class, m.Class)
			if c.class != departure.None {
				require.Equal(t, "kubectl "+c.remove, m.RemoveCommand("n"))
			}
		})
	}
	require.Equal(t, departure.None, none.Of(nodeWith(tainted("example.com/gone"))).Class, "Add changes no other table")
}

// TestShutdown plays the shutdowns of a host. Its agent writes what AnnounceShutdown returns.
func TestShutdown(t *testing.T) {
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	const announced = `{"bootID":"b1","since":"2026-05-01T12:00:00Z"}`
	for name, c := range map[string]struct {
		current string
		host    departure.Host
		want    string
	}{
		"up":                        {"", departure.Host{BootID: "b1", HasEtcd: true}, ""},
		"going down":                {"", departure.Host{BootID: "b1", HasEtcd: true, GoingDown: true}, announced},
		"going down without etcd":   {"", departure.Host{BootID: "b1", GoingDown: true}, ""},
		"boot unknown":              {"", departure.Host{HasEtcd: true, GoingDown: true}, ""},
		"still going down":          {announced, departure.Host{BootID: "b1", HasEtcd: true, GoingDown: true}, announced},
		"new agent, logind awaited": {announced, departure.Host{BootID: "b1", HasEtcd: true, AwaitsLogind: true}, announced},
		"cancelled":                 {announced, departure.Host{BootID: "b1", HasEtcd: true}, ""},
		"no longer with etcd":       {announced, departure.Host{BootID: "b1", GoingDown: true}, ""},
		"announced, boot unknown":   {announced, departure.Host{}, announced},
		"next boot, logind awaited": {announced, departure.Host{BootID: "b2", HasEtcd: true, AwaitsLogind: true}, ""},
		"next boot, going down": {
			announced,
			departure.Host{BootID: "b2", HasEtcd: true, GoingDown: true},
			`{"bootID":"b2","since":"2026-05-01T13:00:00Z"}`,
		},
		"unreadable, going down": {
			"{",
			departure.Host{BootID: "b1", HasEtcd: true, GoingDown: true},
			`{"bootID":"b1","since":"2026-05-01T13:00:00Z"}`,
		},
		"unreadable, up": {"{", departure.Host{BootID: "b1", HasEtcd: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			now := noon
			if c.current != "" {
				now = noon.Add(time.Hour)
			}
			require.Equal(t, c.want, departure.AnnounceShutdown(c.current, c.host, now))
		})
	}

	node := func(bootID string) *corev1.Node {
		return nodeWith(annotated(departure.ShutdownAnnotation, announced), func(n *corev1.Node) {
			n.Status.NodeInfo.BootID = bootID
		})
	}
	for _, bootID := range []string{"", "b1"} {
		m := departure.Table{}.Of(node(bootID))
		require.Equal(t, departure.ForAWhile, m.Class)
		require.Equal(t, noon, m.Since)
		require.Equal(t, "annotation holdfast.dev/shutdown, since 2026-05-01T12:00:00Z", m.String())
		require.Equal(t, departure.Mark{}, departure.OfOthers(node(bootID)), "it is not the mark of another program")
	}
	require.Equal(t, departure.Mark{}, departure.Table{}.Of(node("b2")), "the host is up again")
}
