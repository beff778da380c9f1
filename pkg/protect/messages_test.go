package protect

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestMain adds the flag by which TestMessages writes its files anew instead of comparing them.
func TestMain(m *testing.M) {
	flag.Bool("update", false, "write testdata/messages anew")
	os.Exit(m.Run())
}

// situations are what somebody may run into at three in the morning, each with the verdict that they get.
func situations() map[string]Verdict {
	of := func(w *world) Verdict { return Decide(w.View, deletion(0)) }
	gone := func(n *NodeState) { n.UID = "" }
	tolerant := voters(5).dead(1)
	tolerant.MinRemainingTolerance = 1
	unnamed := deletion(0)
	unnamed.Unverified = []string{eventsUnit}
	clusters := []*v1alpha1.EtcdCluster{voters(3).Cluster}
	forgotten := deletion(0)
	forgotten.Announced = nil
	return map[string]Verdict{
		"one of three is dead":                            of(voters(3).dead(1)),
		"one of four is dead":                             of(voters(4).dead(1)),
		"one of five is dead, with a tolerance":           of(tolerant),
		"two of three are dead, and it is one of them":    of(voters(3).dead(0, 1).blind(2)),
		"allowed, one of the two dead of five":            of(voters(5).dead(0, 1)),
		"three of five are dead, and it is one of them":   of(voters(5).dead(0, 1, 2)),
		"two of five are dead, and one is given up":       of(voters(5).dead(1, 2).granted(3)),
		"another one was allowed a moment ago":            of(voters(3).granted(1)),
		"another one lives on elsewhere":                  of(movedAway()),
		"another one vanished":                            of(voters(3).state(1, gone)),
		"another one vanished, and its machine is off":    of(voters(3).state(1, gone).noticed(1).dead(1)),
		"one that is bound nowhere is to be scaled down":  of(voters(3).unbound(2).silent(2).placedAt(2, 2).state(2, func(n *NodeState) { n.DeletionTaint = "ToBeDeletedByClusterAutoscaler" })),
		"it may have joined again":                        of(rejoinedWorld()),
		"another one vanished, and it was noticed":        of(voters(3).state(1, gone).noticed(1)),
		"another one was forced":                          of(voters(3).forced(1)),
		"another one is about to be scaled down":          of(voters(3).state(1, func(n *NodeState) { n.DeletionTaint = "ToBeDeletedByClusterAutoscaler" })),
		"another one cannot be read":                      of(voters(3).state(1, func(n *NodeState) { *n = NodeState{} })),
		"the dead one was replaced and never removed":     of(voters(4).dead(3).state(3, gone).granted(3)),
		"the replacement has not started":                 of(voters(4).everywhere(3, func(m *v1alpha1.MemberStatus) { m.Name, m.ClientURLs, m.Healthy = "", nil, false })),
		"the replacement is a learner":                    of(voters(4).learner(3).dead(1)),
		"it is a learner, and another one is given up":    of(voters(4).learner(0).granted(3)),
		"a learner is doomed":                             of(voters(4).learner(3).granted(3)),
		"another one is corrupt":                          of(voters(3).everywhere(1, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"CORRUPT"} })),
		"nobody has read the alarms":                      of(voters(3).alarmsUnknown(0, 1, 2)),
		"two run where no agent can prove them":           of(voters(3).unprovable(1, 2)),
		"one voter":                                       of(voters(1)),
		"two voters":                                      of(voters(2)),
		"two members on one node":                         of(voters(3).rebound(1, 0)),
		"nobody sees":                                     of(voters(3).blind(0, 1).silent(2)),
		"nobody sees, and the others are gone":            of(voters(3).silent(0).state(1, gone).state(2, gone)),
		"nobody is bound":                                 of(voters(3).neverBound()),
		"two nodes claim one member":                      Decide(voters(3).View, Request{Node: "w9", UID: "u9", Labelled: true, Announced: []MemberRef{{clusterX, "a"}}}),
		"nobody sees, and it announces nothing":           Decide(voters(3).silent(0, 1, 2).View, forgotten),
		"its object is missing":                           Missing(nil, deletion(0))[0],
		"what its agent has written cannot be read":       Garbled(deletion(0), errors.New("parsing annotation holdfast.dev/etcd: unexpected end of JSON input")),
		"a server has never said who it is":               Missing(clusters, unnamed)[0],
		"labelled, and nothing says why":                  Unattributed(Request{Node: "w9", UID: "u9", Labelled: true}),
		"the label is missing":                            UnlabelledVerdict(clusters, Request{Node: "w1", UID: "u1"}),
		"the label is missing, and it is a namesake":      UnlabelledVerdict(clusters, Request{Node: "w1", UID: "u1-again"}),
		"the label is missing, and nobody knows what":     UnlabelledVerdict(clusters, Request{Node: "w9", UID: "u9", Unverified: []string{eventsUnit}}),
		"allowed, of three":                               of(voters(3)),
		"allowed, of five":                                of(voters(5)),
		"allowed, the dead one":                           of(voters(3).dead(0)),
		"allowed, with a full database":                   of(voters(5).everywhere(1, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"NOSPACE"} })),
		"allowed, its member was removed":                 of(voters(3).removed(0)),
		"allowed, its member was removed, by one account": of(voters(3).removed(0).silent(0, 1)),
	}
}

// TestMessages shows the whole of what people get: the message of each situation, as kubectl prints it behind its own
// words, and the warning.
func TestMessages(t *testing.T) {
	var known []string
	for name, v := range situations() {
		file := filepath.Join("testdata", "messages", strings.NewReplacer(" ", "-", ",", "").Replace(name)+".txt")
		known = append(known, file)
		t.Run(name, func(t *testing.T) {
			text := v.Message + "\n"
			if v.Warning != "" {
				text += "Warning: " + v.Warning + "\n"
			}
			if flag.Lookup("update").Value.String() == "true" {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err, "go test ./pkg/protect -run TestMessages -update")
			require.Equal(t, string(want), text)
			require.Equal(t, strings.HasPrefix(name, "allowed"), v.Allowed)
		})
	}
	files, err := filepath.Glob("testdata/messages/*.txt")
	require.NoError(t, err)
	require.ElementsMatch(t, known, files, "a message that nobody gets any more")
}

// movedAway is a cluster of three whose member b has moved to a Node of another name, w2b, after its own was deleted.
func movedAway() *world {
	w := voters(3).granted(1).state(1, goneNode)
	w.Nodes["w2b"] = NodeState{Known: true, UID: "u2b"}
	w.with(*w.observer(1).DeepCopy()).silent(1)
	last := &w.Cluster.Status.Observations[3]
	last.Node, last.NodeUID = "w2b", "u2b"
	return w
}

// noticed is the grant that the leader writes for a Node which is gone without one.
func (w *world) noticed(i int) *world {
	w.granted(i).Cluster.Spec.Grants[0].User = ""
	return w
}

func (w *world) forced(i int) *world {
	w.granted(i).Cluster.Spec.Grants[0].BreakGlass = true
	return w
}

// unprovable makes members run on hosts without an agent, where they listen on loopback alone.
func (w *world) unprovable(members ...int) *world {
	for _, i := range members {
		w.Cluster.Status.Observations = slices.DeleteFunc(w.Cluster.Status.Observations, func(o v1alpha1.Observation) bool { return o.Node == node(i) })
		w.unbound(i).everywhere(i, func(m *v1alpha1.MemberStatus) {
			m.Healthy, m.Reason = false, "https://127.0.0.1:2379: it is member a, not "+string(m.ID)
			m.ClientURLs = []string{"https://127.0.0.1:2379"}
		})
	}
	return w
}
