package quorum_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// FuzzPrintableMessages checks that no message contains what a terminal obeys, whatever the texts
// of Nodes and observations are.
func FuzzPrintableMessages(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		three := func() *quorumtest.Cluster { return quorumtest.Voters(3) }
		five := func() *quorumtest.Cluster { return quorumtest.Voters(5) }
		for name, c := range map[string]*quorumtest.Cluster{
			"kept": five(), "refused": three().Dead(1), "lost": three().Granted(1), "silent": three().Silent(0, 1, 2),
			"unhealthy": five().Unhealthy(0, 1), "gone": three().State(2, quorumtest.Gone).WithoutList(0),
			"unbound": three().Unbound(0), "rebound": five().Rebound(1, 0),
			"drained": three().Drained(1).State(0, quorumtest.Cordoned), "lists differ": five().RemovedFrom(2, 4),
			"away": three().State(1, quorumtest.Departing), "learner": three().Learner(2),
		} {
			for _, r := range []quorum.Request{quorumtest.Deletion(0), quorumtest.Drain(0)} {
				v := quorumtest.CopyOf(c.View)
				v.Cluster.Status.Conditions = []metav1.Condition{
					{Type: quorum.BoundCondition, Status: metav1.ConditionFalse, Message: "x"},
				}
				for i := range v.Cluster.Observations {
					v.Cluster.Observations[i].Problem = "x"
				}
				hostiletext.Spread(&v, text)
				hostiletext.Spread(&r, text)
				requirePrintable(t, name, words.Combine(quorum.Decide(v, r), quorum.Force(v, r)))
				clusters := []*v1alpha1.EtcdCluster{v.Cluster}
				requirePrintable(t, name, words.Combine(quorum.RefuseUndecidable(clusters, r)...))
				requirePrintable(t, name, words.Combine(quorum.DecideUnlabelled(clusters, r)))
				hostiletext.RequirePrintable(t, name, words.Summary(quorum.Summarize(v)))
				for _, m := range quorum.Summarize(v).Members {
					hostiletext.RequirePrintable(t, name, words.Describe(m))
				}
			}
		}
		requirePrintableNode(t, text)
	})
}

// requirePrintableNode checks the refusals about a Node whose annotations a kubelet wrote.
func requirePrintableNode(t *testing.T, text string) {
	t.Helper()
	for key, value := range map[string]string{
		observation.UnverifiedAnnotation:   `["unit etcd"]`,
		observation.AnnouncementAnnotation: `[{"cluster":"a","member":"b"}]`,
		"none":                             "none",
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "w1", UID: "u1", Labels: map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue},
			Annotations: map[string]string{key: value},
		}}
		hostiletext.Spread(n, text)
		r, err := quorum.RequestFor(n)
		if err != nil {
			requirePrintable(t, key, words.Combine(quorum.RefuseUnparsable(r, err)))
		}
		_, decision := quorum.SelectOrDecide(nil, r)
		decision = words.Explain(decision)
		requirePrintable(t, key, decision)
	}
}

func requirePrintable(t *testing.T, name string, d quorum.Decision) {
	t.Helper()
	hostiletext.RequirePrintable(t, name, d.Message)
	hostiletext.RequirePrintable(t, name, d.Warnings...)
}
