package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func etcdCondition(n *corev1.Node) corev1.NodeCondition {
	return condition(n, observation.EtcdMemberCondition)
}

// isMarked reports whether a Node is marked as a node with an etcd member.
func isMarked(n *corev1.Node) bool {
	return n.Labels[observation.EtcdMemberLabel] == "true" && etcdCondition(n).Status == corev1.ConditionTrue
}

func testEtcd(t *testing.T, f fixture) {
	etcd := etcd.New(t, etcd.Options{Members: 3, TLS: true, BootID: bootID})
	var nodes []string
	var agent *process.Process
	for i, m := range etcd.Members() {
		spec := apiserver.NodeSpec{Name: m.Node, InternalIP: m.IP, BootID: bootID(i + 1)}
		if i == 2 {
			spec.Annotations = map[string]string{autoscaler.ClusterAutoscaler: "true"}
		}
		f.addNode(spec)
		nodes = append(nodes, m.Node)
		if i == 2 {
			agent = f.startProcess(m.Node, m.Root)
		} else {
			f.startAgent(m.Node, m.Root)
		}
	}
	for _, m := range etcd.Members() {
		f.waitFor(m.Node, "marked", func(n *corev1.Node) bool {
			return isMarked(n) && n.Annotations[observation.AnnouncementAnnotation] != ""
		})
		n := f.node(m.Node)
		require.Contains(t, n.Annotations[presence.BecauseAnnotation], m.HexID())
		require.Equal(t, "true", n.Annotations[autoscaler.ClusterAutoscaler])
	}

	announced, err := observation.ParseAnnouncement(f.node(nodes[0]).Annotations[observation.AnnouncementAnnotation])
	require.NoError(t, err)
	require.Len(t, announced, 1)
	cluster := announced[0].Cluster
	f.createCluster(cluster, nodes...)

	isHealthy := func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(f.observations())), func(o v1alpha1.Observation) bool {
			return !o.Linearizable || slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return !m.Healthy })
		})
	}
	f.requestObservations(cluster, "healthy", nodes...)
	for retry := 0; retry < 3 && !isHealthy(); retry++ { // There may have been an election.
		f.requestObservations(cluster, fmt.Sprint("healthy-", retry), nodes...)
	}
	for _, node := range nodes {
		observation := f.observations()[node]
		require.True(t, observation.Linearizable, observation.Problem)
		require.Len(t, observation.Members, 3)
		for _, m := range observation.Members {
			require.True(t, m.Healthy, "%s of %s: %s", m.ID, node, m.Reason)
		}
	}

	// The slowest case is a member that accepts connections and never answers (F5).
	third := etcd.Member(3)
	require.NoError(t, third.Pause())
	f.requestObservations(cluster, "one-hangs", nodes[:2]...)
	require.NoError(t, third.Resume())
	require.NoError(t, third.WaitReady(t.Context()))
	f.requestObservations(cluster, "healthy-again", nodes...)

	f.requireListChanges(etcd)
	bindings := f.bind(cluster, etcd.Members()[:3])
	// The next agent knows the member from the Node and from the lists.
	require.NoError(t, agent.Kill())
	require.NoError(t, etcd.RemoveMember(t.Context(), third))
	require.NoError(t, third.Kill())
	require.NoError(t, os.RemoveAll(third.DataDir()))
	f.startProcess(third.Node, third.Root)
	f.waitFor(third.Node, "waiting for the leader", func(n *corev1.Node) bool {
		require.True(t, n.Labels[observation.EtcdMemberLabel] == "true" && isHeldNode(n), "%+v", n)
		return isMarked(n) && strings.Contains(etcdCondition(n).Message, "until the webhook's leader has a new list "+
			"without the member from node etcd-1 or etcd-2")
	})
	require.Eventually(t, func() bool { return f.observations()[third.Node].NoMember }, soon, 20*time.Millisecond)
	f.patchCluster(cluster, map[string]any{"members": bindings[:2]})
	f.waitFor(third.Node, "unmarked", func(n *corev1.Node) bool {
		_, labelled := n.Labels[observation.EtcdMemberLabel]
		return !labelled && etcdCondition(n).Status == corev1.ConditionFalse
	})
	n := f.node(third.Node)
	require.Equal(t, "true", n.Annotations[autoscaler.ClusterAutoscaler], "a person has set this one")
	require.NotContains(t, n.Annotations, presence.BecauseAnnotation)
	require.NotContains(t, n.Annotations, presence.MarksAnnotation)
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	require.NoError(t, err)
	require.Equal(t, readiness.Held, record.State)
	require.Contains(t, record.Marks, autoscaler.Karpenter, "the hold has no mark, but the host has no network yet")
}

// createCluster creates an EtcdCluster, and the EtcdObservations of nodes, as the webhook's leader
// does.
func (f fixture) createCluster(id v1alpha1.ClusterID, nodes ...string) {
	f.t.Helper()
	cluster := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(id)}}
	cluster.APIVersion, cluster.Kind = v1alpha1.GroupVersion().String(), "EtcdCluster"
	cluster.Spec.Nonce = "first"
	created, err := f.clusters.EtcdClusters.Create(f.t.Context(), cluster, metav1.CreateOptions{})
	require.NoError(f.t, err)
	for _, node := range nodes {
		o := &v1alpha1.EtcdObservation{Cluster: id, Observation: v1alpha1.Observation{Node: node}}
		o.APIVersion, o.Kind = cluster.APIVersion, "EtcdObservation"
		o.Name = v1alpha1.ObservationName(id, node)
		o.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: o.APIVersion, Kind: "EtcdCluster", Name: string(id), UID: created.UID,
		}}
		_, err := f.clusters.Observations.Create(f.t.Context(), o, metav1.CreateOptions{})
		require.NoError(f.t, err)
	}
}

// maxListDelay limits the time from a change of the member list to its publication by all
// observers. It takes about two seconds, and longer on a machine that runs other tests. Without a
// reason to probe, an observation is published once a minute.
const maxListDelay = 30 * time.Second

// requireListChanges adds and removes a learner and a voter. All agents publish the new list
// without a new nonce.
func (f fixture) requireListChanges(cluster *etcd.Cluster) {
	f.t.Helper()
	has := func(o v1alpha1.Observation, m *etcd.Member) bool {
		return slices.ContainsFunc(o.Members, func(s v1alpha1.MemberStatus) bool { return string(s.ID) == m.HexID() })
	}
	for _, add := range []func(context.Context) (*etcd.Member, error){
		cluster.AddLearnerUnstarted, cluster.AddVoterUnstarted,
	} {
		began := time.Now()
		m, err := add(f.t.Context())
		require.NoError(f.t, err)
		require.Eventually(f.t, func() bool {
			return !slices.ContainsFunc(slices.Collect(maps.Values(f.observations())),
				func(o v1alpha1.Observation) bool { return !has(o, m) })
		}, maxListDelay, 10*time.Millisecond, "%s is not in all lists", m.Name)
		added := time.Since(began)
		began = time.Now()
		require.NoError(f.t, cluster.RemoveMember(f.t.Context(), m))
		require.Eventually(f.t, func() bool {
			return !slices.ContainsFunc(slices.Collect(maps.Values(f.observations())),
				func(o v1alpha1.Observation) bool { return has(o, m) })
			// An observer whose heartbeat found the member before the stored list did has another heartbeat.
		}, maxListDelay+time.Minute, 10*time.Millisecond, "%s is still in a list", m.Name)
		f.t.Logf("the added member is in all lists after %s, and in none %s after its removal",
			added.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
}

// bind binds members to their Nodes, as the webhook's leader does, and returns the bindings.
func (f fixture) bind(cluster v1alpha1.ClusterID, members []*etcd.Member) []v1alpha1.Binding {
	f.t.Helper()
	var bindings []v1alpha1.Binding
	for _, m := range members {
		bindings = append(bindings, v1alpha1.Binding{
			MemberID: v1alpha1.MemberID(m.HexID()), Node: m.Node, NodeUID: f.node(m.Node).UID, Basis: v1alpha1.BasisAddress,
		})
	}
	f.patchCluster(cluster, map[string]any{"members": bindings})
	return bindings
}

// maxMarkDelay limits the time from the start of etcd to the annotation on its Node. The
// agent wakes from inotify, because the server creates its data directory. Otherwise it would
// scan later.
const maxMarkDelay = 2 * time.Second

// testEtcdStart starts one of three etcd servers while the agent runs. The server accepts
// connections, and answers no request until the others run. The agent must mark the node
// immediately because of what it observes on the host, and verify the member when the
// server answers.
func testEtcdStart(t *testing.T, f fixture) {
	etcd := etcd.New(t, etcd.Options{
		Members: 3, TLS: true, BootID: bootID, Node: func(i int) string { return fmt.Sprint("started-", i) },
	})
	for _, m := range etcd.Members() {
		require.NoError(t, m.Kill())
		require.NoError(t, os.RemoveAll(m.DataDir()))
	}
	m := etcd.Member(1)
	f.addNode(apiserver.NodeSpec{Name: m.Node, InternalIP: m.IP, BootID: bootID(1)})
	f.startAgent(m.Node, m.Root)
	hasNoMember := func(n *corev1.Node) bool { return etcdCondition(n).Status == corev1.ConditionFalse }
	f.waitFor(m.Node, "without a member", hasNoMember)

	var servers *errgroup.Group
	for range 6 { // Other tests can slow the machine down.
		servers = &errgroup.Group{}
		start := time.Now()
		servers.Go(func() error { return m.Start(t.Context()) })
		f.waitFor(m.Node, "marked", func(n *corev1.Node) bool {
			return n.Annotations[autoscaler.ClusterAutoscaler] == "true" &&
				n.Labels[observation.EtcdMemberLabel] == "true"
		})
		took := time.Since(start)
		t.Logf("marked %s after the start of etcd", took.Round(time.Millisecond))
		if took < maxMarkDelay {
			break
		}
		require.NoError(t, m.Kill())
		require.Error(t, servers.Wait())
		require.NoError(t, os.RemoveAll(m.DataDir()))
		f.waitFor(m.Node, "without a member again", hasNoMember)
	}
	require.True(t, m.Running(), "the node was never marked within %s", maxMarkDelay)
	f.waitFor(m.Node, "unverified", func(n *corev1.Node) bool {
		return etcdCondition(n).Reason == presence.ReasonUnverified
	})
	require.Empty(t, f.node(m.Node).Annotations[observation.AnnouncementAnnotation])
	f.waitFor(m.Node, "a reason in the message", func(n *corev1.Node) bool {
		return strings.Contains(etcdCondition(n).Message, "did not answer: "+m.ClientURL)
	})

	for _, other := range etcd.Members()[1:] {
		servers.Go(func() error { return other.Start(t.Context()) })
	}
	require.NoError(t, servers.Wait())
	ready := time.Now()
	f.waitFor(m.Node, "verified", func(n *corev1.Node) bool {
		c := etcdCondition(n)
		return strings.Contains(c.Message, m.HexID()) && c.Reason != presence.ReasonUnverified &&
			n.Annotations[observation.AnnouncementAnnotation] != ""
	})
	t.Logf("verified %s after etcd was ready", time.Since(ready).Round(time.Millisecond))
}

// testWebhookDown runs the plain commands of the page NoAnswer for a webhook that is down. No
// webhook runs here.
func testWebhookDown(t *testing.T, f fixture) {
	etcd := etcd.New(t, etcd.Options{TLS: true, BootID: bootID})
	name := "drill-1"
	f.addNode(apiserver.NodeSpec{Name: name, BootID: bootID(1)})
	f.startAgent(name, etcd.Member(1).Root, "--tick=1s")
	f.waitFor(name, "marked", isMarked)
	config, err := f.User("breaker")
	require.NoError(t, err)
	kubeconfig := f.kubeconfig(config)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	nodes := client.CoreV1().Nodes()
	f.allowBreakGlass("breaker")
	require.Eventually(t, func() bool { // The authorizer watches bindings.
		_, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}, soon, 20*time.Millisecond)

	err = nodes.Delete(t.Context(), name, metav1.DeleteOptions{})
	require.ErrorContains(t, err, "etcd-nodes.holdfast.dev", "the webhook does not fail closed")
	remove := func() error {
		withoutLabel := []byte(`{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`)
		_, err := nodes.Patch(t.Context(), name, types.MergePatchType, withoutLabel, metav1.PatchOptions{})
		return err
	}
	require.ErrorContains(t, remove(), "first set the break-glass annotation")
	expired := fmt.Sprintf(`{"metadata":{"annotations":{"holdfast.dev/break-glass":`+
		`"{\"uid\":\"%s\",\"until\":\"2026-01-02T03:04:05Z\",\"reason\":\"x\"}"}}}`, f.node(name).UID)
	_, err = nodes.Patch(t.Context(), name, types.MergePatchType, []byte(expired), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, remove())
	f.waitFor(name, "marked again, because the override has expired", isMarked)

	kubectl, err := process.Binary("kubectl")
	require.NoError(t, err)
	commands := commandsWithoutPlugin(t)
	shell := func(line string) {
		line = strings.NewReplacer("NAME", name, "WHY", "the webhook cannot be had").Replace(line)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Env = []string{
			"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir(), "PATH=" + filepath.Dir(kubectl) + ":" + os.Getenv("PATH"),
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
	}
	shell(commands[0])
	shell(commands[1])
	f.waitFor(name, "without the label, and with the reason", func(n *corev1.Node) bool {
		return n.Labels[observation.EtcdMemberLabel] == "" &&
			strings.Contains(etcdCondition(n).Message, "the webhook cannot be had")
	})
	require.Never(t, func() bool { return isMarked(f.node(name)) }, 3*time.Second, 50*time.Millisecond,
		"the agent put the label back")
	shell(commands[2])
	_, err = f.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.ErrorContains(t, err, "not found")
}

// commandsWithoutPlugin returns the plain commands of the page NoAnswer.
func commandsWithoutPlugin(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/refusals/NoAnswer.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "Without the plugin:")
	require.True(t, found)
	_, section, _ = strings.Cut(section, "```sh\n")
	section, _, _ = strings.Cut(section, "\n   ```")
	commands := strings.Split(section, "\n")
	require.Len(t, commands, 3)
	return commands
}

// allowBreakGlass grants a user the shipped role, and the rights of an operator on Nodes.
func (f fixture) allowBreakGlass(user string) {
	f.t.Helper()
	f.createRole("operator", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "patch", "delete"},
	})
	for _, role := range []string{"holdfast-breakglass", "operator"} {
		f.bindRole(role, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: user})
	}
}
