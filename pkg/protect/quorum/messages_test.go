package quorum_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// TestMain adds the flag -update, with which TestMessages rewrites its golden files.
func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite testdata/messages")
	os.Exit(m.Run())
}

// goldenVerdicts returns a verdict for each situation that a message must explain.
func goldenVerdicts() map[string]quorum.Verdict {
	verdicts := map[string]quorum.Verdict{}
	for name, cluster := range goldenClusters() {
		verdicts[name] = quorum.Decide(cluster.View, quorumtest.Deletion(0))
	}
	clusters := []*v1alpha1.EtcdCluster{quorumtest.Voters(3).Cluster}
	unverified := quorumtest.Deletion(0)
	unverified.Unverified = []string{"systemd unit etcd-events.service"}
	unannounced := quorumtest.Deletion(0)
	unannounced.Announced = nil
	twice := quorum.Request{
		Node: "w9", UID: "u9", Labelled: true, Announced: []evidence.MemberRef{{Cluster: quorumtest.ClusterID, Member: "a"}},
	}
	problem := errors.New("parsing annotation holdfast.dev/etcd: unexpected end of JSON input")
	unknown := quorum.Request{Node: "w9", UID: "u9", Unverified: unverified.Unverified}

	verdicts["two nodes claim one member"] = quorum.Decide(quorumtest.Voters(3).View, twice)
	verdicts["no list, no announcement"] = quorum.Decide(quorumtest.Voters(3).Silent(0, 1, 2).View, unannounced)
	verdicts["no EtcdCluster"] = quorum.RefuseUndecidable(nil, quorumtest.Deletion(0))[0]
	verdicts["unparsable announcement"] = quorum.RefuseUnparsable(quorumtest.Deletion(0), problem)
	verdicts["unidentified server"] = quorum.RefuseUndecidable(clusters, unverified)[0]
	verdicts["label without a member"] = quorum.RefuseUnattributed(quorum.Request{Node: "w9", UID: "u9", Labelled: true})
	verdicts["label missing"] = quorum.DecideUnlabelled(clusters, quorum.Request{Node: "w1", UID: "u1"})
	verdicts["label missing, name reused"] = quorum.DecideUnlabelled(clusters, quorum.Request{Node: "w1", UID: "u1-again"})
	verdicts["name reused, agent has not reported"] = quorum.DecideUnlabelled(
		[]*v1alpha1.EtcdCluster{quorumtest.Voters(3).Dead(0).Granted(0).Cluster},
		quorum.Request{Node: "w1", UID: "u1-again", AgentSilent: true})
	verdicts["label missing, unidentified server"] = quorum.DecideUnlabelled(clusters, unknown)
	joining := quorumtest.Voters(4).Unbound(3).RemovedFrom(1, 3).WithoutList(2)
	joining.Cluster.Observations = joining.Cluster.Observations[:3]
	joining.Cluster.Spec.Nonce = quorumtest.Nonce
	verdicts["agent has not reported"] = quorum.DecideUnlabelled([]*v1alpha1.EtcdCluster{joining.Cluster},
		quorum.Request{Node: "w4", UID: "u4", Addresses: []string{quorumtest.Address(3)}, AgentSilent: true})
	addGoldenDrains(verdicts)
	addGoldenRemovals(verdicts)
	return verdicts
}

// addGoldenRemovals adds a verdict for each situation that the message about the removal of a
// member must explain.
func addGoldenRemovals(verdicts map[string]quorum.Verdict) {
	k3s := func(n int) *quorumtest.Cluster { return withAccess(quorumtest.Voters(n), "k3s", k3sPKI) }
	removed := k3s(3)
	removed.Cluster.Spec.Grants = []v1alpha1.Grant{quorumtest.RemovalGrantFor(1)}
	leaving := quorumtest.Voters(3)
	leaving.Cluster.Spec.Grants = []v1alpha1.Grant{quorumtest.RemovalGrantFor(1)}
	leaving.Cluster.Spec.Grants[0].Remove.Version = ""
	for name, cluster := range map[string]*quorumtest.Cluster{
		"removal, another EtcdMember":    leaving,
		"removal, one of three dead":     k3s(3).Dead(1),
		"removal, another one allowed":   removed,
		"removal, another node marked":   k3s(3).State(1, quorumtest.MarkedForRemoval),
		"removal, one voter":             k3s(1),
		"removal, no list":               k3s(3).WithoutList(0, 1).Silent(2),
		"allowed, removal":               k3s(3),
		"allowed, removal of one of two": k3s(2),
	} {
		verdicts[name] = quorum.Decide(cluster.View, quorumtest.Removal(0))
	}
	stopsFirst := quorumtest.Removal(0)
	stopsFirst.StopsFirst = true
	rke2 := withAccess(quorumtest.Voters(2), "rke2", rke2PKI)
	verdicts["removal, rke2, two voters"] = quorum.Decide(rke2.View, stopsFirst)
}

// addGoldenDrains adds a verdict for each situation that the message of a drain must explain.
func addGoldenDrains(verdicts map[string]quorum.Verdict) {
	three := func() *quorumtest.Cluster { return quorumtest.Voters(3).State(0, quorumtest.Cordoned) }
	for name, cluster := range map[string]*quorumtest.Cluster{
		"drain, node not closed":                      quorumtest.Voters(3),
		"drain, one of three dead":                    three().Dead(1),
		"drain, another node drained":                 three().Drained(1),
		"drain, another node drained and open":        three().Drained(1).State(1, opened),
		"drain, another node drained and marked":      three().Drained(1).State(1, quorumtest.Rebooting).Dead(1),
		"drain, another node drained and gone":        goneAfterDrain(three()),
		"drain, another node deleted after its drain": deletedAfterDrain(three()),
		"drain, two voters":                           quorumtest.Voters(2).State(0, quorumtest.Cordoned),
		"drain, no list":                              three().WithoutList(0, 1).Silent(2),
		"allowed, drain":                              three(),
		"allowed, drain of the only member":           quorumtest.Voters(1).State(0, quorumtest.Cordoned),
	} {
		verdicts[name] = quorum.Decide(cluster.View, quorumtest.Drain(0))
	}
}

// goneAfterDrain adds the tombstone of node w2, which was drained before.
func goneAfterDrain(c *quorumtest.Cluster) *quorumtest.Cluster {
	g := &deletedAfterDrain(c).State(1, quorumtest.Gone).Dead(1).Cluster.Spec.Grants[0]
	g.Gone, g.Delete = &v1alpha1.Door{Time: g.Delete.Time}, nil
	return c
}

func opened(n *observation.NodeState) { n.Cordoned = false }

// deletedAfterDrain adds the grant for the deletion of node w2, which was drained before.
func deletedAfterDrain(c *quorumtest.Cluster) *quorumtest.Cluster {
	g := &c.Drained(1).Cluster.Spec.Grants[0]
	g.Delete = g.Drain.DeepCopy()
	g.Drain.Time.Time = g.Drain.Time.Add(-time.Hour)
	return c
}

// goldenClusters returns the clusters in which node w1 is deleted.
func goldenClusters() map[string]*quorumtest.Cluster {
	three := func() *quorumtest.Cluster { return quorumtest.Voters(3) }
	tolerant := quorumtest.Voters(5).Dead(1)
	tolerant.MinRemainingTolerance = 1
	ghost := quorumtest.Voters(4).Unbound(3)
	ghost.Cluster.Observations = ghost.Cluster.Observations[:3]
	ghost.RemovedFrom(0, 3).RemovedFrom(1, 3).Unhealthy(3)
	departing := three().Unbound(2).Silent(2).MayRunAt(2, 2).State(2, quorumtest.Departing)
	grantedBefore := three().Granted(1)
	grantedBefore.Now = quorumtest.Noon().Add(quorum.ResolvePresentAfter)
	return map[string]*quorumtest.Cluster{
		"one of three dead":                        three().Dead(1),
		"one of four dead":                         quorumtest.Voters(4).Dead(1),
		"one of five dead, tolerance 1":            tolerant,
		"two of three dead, with this one":         three().Dead(0, 1).WithoutList(2),
		"allowed, two of five dead, with this one": quorumtest.Voters(5).Dead(0, 1),
		"kubespray, one of three dead":             withAccess(three().Dead(1), "kubespray", "/etc/ssl/etcd/ssl/"),
		"k3s, one of three dead":                   withAccess(three().Dead(1), "k3s", k3sPKI),
		"rke2, one of three dead":                  withAccess(three().Dead(1), "rke2", rke2PKI),
		"k0s, one of three dead":                   withAccess(three().Dead(1), "k0s", "/var/lib/k0s/pki/"),
		"three of five dead, with this one":        quorumtest.Voters(5).Dead(0, 1, 2),
		"two of five dead, one granted":            quorumtest.Voters(5).Dead(1, 2).Granted(3),
		"another node granted":                     three().Granted(1),
		"another node drained":                     three().Drained(1),
		"another member moved":                     movedAway(),
		"another machine joined again":             quorumtest.Voters(4).Granted(1).JoinedAgain(1, 3),
		"another node gone":                        three().State(1, quorumtest.Gone),
		"another node gone, machine off":           three().State(1, quorumtest.Gone).Noticed(1).Dead(1),
		"unbound member on a tainted node":         departing,
		"possible rejoin":                          rejoinedCluster(),
		"another node gone, detected":              three().State(1, quorumtest.Gone).Noticed(1),
		"another node granted, times in the past":  grantedBefore,
		"allowed, k3s":                             withAccess(three(), "k3s", k3sPKI),
		"allowed, four voters":                     quorumtest.Voters(4),
		"allowed, six voters, one dead":            quorumtest.Voters(6).Dead(1),
		"allowed, a learner":                       quorumtest.Voters(4).Learner(0),
		"another node forced":                      three().Forced(1),
		"another node tainted":                     three().State(1, quorumtest.Departing),
		"another node rebooted":                    three().State(1, quorumtest.Rebooting),
		"another node rebooted, member silent":     three().State(1, quorumtest.Rebooting).Dead(1),
		"another host shuts down":                  three().State(1, quorumtest.ShuttingDown),
		"another node under maintenance": three().State(1,
			quorumtest.WithCondition(corev1.NodeMaintenanceInProgress, corev1.ConditionTrue)),
		"allowed, another node has maintenance planned": three().State(1,
			quorumtest.WithCondition(corev1.NodeMaintenancePlanned, corev1.ConditionTrue)),
		"allowed, another node may be under maintenance": three().State(1,
			quorumtest.WithCondition(corev1.NodeMaintenanceInProgress, corev1.ConditionUnknown)),
		"learner on a rebooted node":            quorumtest.Voters(4).Learner(3).State(3, quorumtest.Rebooting),
		"allowed, rebooted node":                three().State(0, quorumtest.Rebooting),
		"another node unread":                   three().State(1, unread),
		"replaced member not removed":           quorumtest.Voters(4).Dead(3).State(3, quorumtest.Gone).Granted(3),
		"replacement not started":               quorumtest.Voters(4).Everywhere(3, unstarted),
		"replacement is a learner":              quorumtest.Voters(4).Learner(3).Dead(1),
		"learner on the node, another granted":  quorumtest.Voters(4).Learner(0).Granted(3),
		"learner granted":                       quorumtest.Voters(4).Learner(3).Granted(3),
		"another member corrupt":                three().Everywhere(1, alarmed),
		"alarms unread":                         three().AlarmsUnknown(0, 1, 2),
		"two members on hosts without an agent": three().Unprovable(1, 2),
		"one voter":                             quorumtest.Voters(1),
		"two voters":                            quorumtest.Voters(2),
		"two members on one node":               three().Rebound(1, 0),
		"no list":                               three().WithoutList(0, 1).Silent(2),
		"no list, other nodes gone":             three().Silent(0).State(1, quorumtest.Gone).State(2, quorumtest.Gone),
		"no binding":                            three().NeverBound(),
		"no binding, not bootstrapped":          notBootstrapped(),
		"one healthy by one word, no role":      provenBy(without(3), 1, 2),
		"one dead, by one of two lists":         quorumtest.Voters(4).Dead(1).RemovedFrom(0, 1),
		"one dead, another in one list":         ghost.Unhealthy(1),
		"allowed, three voters":                 three(),
		"allowed, five voters":                  quorumtest.Voters(5),
		"allowed, dead member":                  three().Dead(0),
		"allowed, two members on the node":      quorumtest.Voters(5).Rebound(1, 0),
		"allowed, full database":                quorumtest.Voters(5).Everywhere(1, alarm("NOSPACE")),
		"allowed, member removed":               three().Removed(0),
		"allowed, member removed, one list":     three().Removed(0).Silent(0, 1),
	}
}

// textOf returns the message and the warning of a verdict.
func textOf(v quorum.Verdict) string {
	text := words.Message(v) + "\n"
	if words.Warning(v) != "" {
		text += "Warning: " + words.Warning(v) + "\n"
	}
	return text
}

// golden returns the text in a golden file.
func golden(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(goldenFile(name))
	require.NoError(t, err, "go test ./pkg/protect/quorum -run TestMessages -update")
	return string(text)
}

func goldenFile(name string) string {
	return filepath.Join("testdata", "messages", strings.NewReplacer(" ", "-", ",", "").Replace(name)+".txt")
}

// TestMessages compares the complete message and warning of each verdict with its golden file.
func TestMessages(t *testing.T) {
	var known []string
	for name, v := range goldenVerdicts() {
		known = append(known, goldenFile(name))
		t.Run(name, func(t *testing.T) {
			if flag.Lookup("update").Value.String() == "true" {
				require.NoError(t, os.MkdirAll(filepath.Dir(goldenFile(name)), 0o755))
				require.NoError(t, os.WriteFile(goldenFile(name), []byte(textOf(v)), 0o600))
			}
			require.Equal(t, golden(t, name), textOf(v))
			require.Equal(t, strings.HasPrefix(name, "allowed"), v.Allowed)
		})
	}
	files, err := filepath.Glob("testdata/messages/*.txt")
	require.NoError(t, err)
	require.ElementsMatch(t, known, files, "golden files without a verdict")
}

// TestCommands: where agents report how they reach their members, a message is that of its golden
// file but for the commands.
func TestCommands(t *testing.T) {
	const oneDead, removeA, removeB = "one of three dead", "etcdctl member remove a", "etcdctl member remove b"
	const replaced, disarm = "replaced member not removed", "etcdctl alarm disarm"
	const ssl, k0sPKI, podPKI, packagePKI = "/etc/ssl/", "/var/lib/k0s/pki/", "/etc/kubernetes/pki/etcd/", "/etc/etcd/pki/"
	type commands = map[string]string
	on := func(node, dir, arguments string) string {
		return fmt.Sprintf("on node w%[1]s: etcdctl --endpoints=https://10.0.0.%[1]s:2379 --cacert=%[2]sca.crt "+
			"--cert=%[2]sclient.crt --key=%[2]sclient.key %[3]s", node, dir, arguments)
	}
	annotate := func(node, program string) string {
		return "kubectl annotate node " + node + " etcd." + program + ".cattle.io/remove=true"
	}
	_, inPod, _ := strings.Cut(on("3", podPKI, "member remove b"), ": ")
	for name, c := range map[string]struct {
		golden       string
		distribution v1alpha1.Distribution
		dir          string
		commands     commands
	}{
		"kubeadm":       {oneDead, "kubeadm", podPKI, commands{removeB: "kubectl -n kube-system exec etcd-w3 -- " + inPod}},
		"package":       {oneDead, "", packagePKI, commands{removeB: on("3", packagePKI, "member remove b")}},
		"forged access": {oneDead, "evil", "/etc/$(reboot)/", nil},
		"kubespray, corrupt": {"another member corrupt", "kubespray", ssl, commands{
			removeB: on("3", ssl, "member remove b"), disarm: on("3", ssl, "alarm disarm"),
		}},
		"kubespray, replaced": {replaced, "kubespray", ssl, commands{
			"etcdctl member remove d": on("2", ssl, "member remove d"), removeA: on("2", ssl, "member remove a"),
		}},
		"k3s, own":       {"two voters", "k3s", k3sPKI, commands{removeA: annotate("w1", "k3s")}},
		"rke2, own":      {"two voters", "rke2", rke2PKI, commands{removeA: on("2", rke2PKI, "member remove a")}},
		"kubespray, own": {"two voters", "kubespray", ssl, commands{removeA: on("2", ssl, "member remove a")}},
		"kubespray, allowed": {"allowed, three voters", "kubespray", ssl, commands{
			removeA: on("2", ssl, "member remove a"),
		}},
		"k0s, allowed": {"allowed, three voters", "k0s", k0sPKI, commands{
			removeA: "on node w2: k0s etcd leave --peer-address 10.0.0.1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := golden(t, c.golden)
			for general, command := range c.commands {
				require.Contains(t, want, general)
				want = strings.ReplaceAll(want, general, command)
			}
			cluster := withAccess(goldenClusters()[c.golden], c.distribution, c.dir)
			require.Equal(t, want, textOf(quorum.Decide(cluster.View, quorumtest.Deletion(0))))
		})
	}
}

// movedAway returns a cluster of three whose member b moved to the Node w2b after the deletion of
// its own Node.
func movedAway() *quorumtest.Cluster {
	cluster := quorumtest.Voters(3).Granted(1).State(1, quorumtest.Gone)
	cluster.Nodes["w2b"] = observation.NodeState{Known: true, UID: "u2b"}
	moved := *cluster.Observer(1).DeepCopy()
	moved.Node, moved.NodeUID = "w2b", "u2b"
	return cluster.Silent(1).With(moved)
}

// The directories of the certificates of etcd in k3s and RKE2.
const (
	k3sPKI  = "/var/lib/rancher/k3s/server/tls/etcd/"
	rke2PKI = "/var/lib/rancher/rke2/server/tls/etcd/"
)

// withAccess makes every agent report how it reaches its member.
func withAccess(c *quorumtest.Cluster, d v1alpha1.Distribution, dir string) *quorumtest.Cluster {
	for i := range c.Cluster.Observations {
		o := &c.Cluster.Observations[i]
		o.Access = &v1alpha1.Access{
			Distribution: d, Endpoint: fmt.Sprintf("https://10.0.0.%s:2379", strings.TrimPrefix(o.Node, "w")),
			CACert: dir + "ca.crt", Cert: dir + "client.crt", Key: dir + "client.key",
		}
	}
	return c
}

// notBootstrapped returns a cluster without bindings, and the leader's message about it.
func notBootstrapped() *quorumtest.Cluster {
	cluster := quorumtest.Voters(3).NeverBound()
	cluster.Cluster.Status.Conditions = []metav1.Condition{{
		Type: quorum.BoundCondition, Status: metav1.ConditionFalse, Reason: "NotBound",
		Message: "not bound: the claim of node w1 to member a: no confirmed member list of an observer contains the " +
			"member; the cluster has no bindings yet: other Nodes may announce it and publish a list until " +
			"2026-05-01T12:01:00Z",
	}}
	return cluster
}
