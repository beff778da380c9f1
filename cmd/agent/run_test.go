package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/agent"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// soon is the bound for what takes milliseconds on an idle machine.
const soon = 30 * time.Second

// site is a real API server with the shipped manifests, and agents with the rights that those give them.
type site struct {
	*testenv.APIServer
	t        *testing.T
	clusters *agent.Clusters
}

func startSite(t *testing.T) site {
	t.Helper()
	server := testenv.NewInstalledAPIServer(t)
	client, err := rest.HTTPClientFor(server.Admin())
	require.NoError(t, err)
	clusters, err := agent.NewClusters(server.Admin(), client)
	require.NoError(t, err)
	return site{server, t, clusters}
}

// transcript is what an agent writes to its standard error.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (tr *transcript) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.Write(p)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String()
}

// run is `agent run` for a node until the test ends, which it must do in good order.
func (s site) run(node, root string, flags ...string) *transcript {
	s.t.Helper()
	config, err := s.ServiceAccountConfig(s.t.Context(), "holdfast-system", "holdfast-agent", node)
	require.NoError(s.t, err)
	kubeconfig := filepath.Join(s.t.TempDir(), "kubeconfig")
	require.NoError(s.t, testenv.WriteKubeconfig(kubeconfig, config))
	args := append([]string{
		"run", "--node=" + node, "--kubeconfig=" + kubeconfig, "--host-root=" + root, "--health-listen=",
		"--trust-durable-subnet-file", "--log-format=text",
	}, flags...)
	said := &transcript{}
	ctx, cancel := context.WithCancel(s.t.Context())
	status := make(chan int, 1)
	go func() { status <- command(ctx, args, io.Discard, said) }()
	s.t.Cleanup(func() {
		cancel()
		code := <-status
		if s.t.Failed() {
			s.t.Logf("the agent of %s said:\n%s", node, said)
		}
		require.Zero(s.t, code, "an agent that is asked to end has not failed")
	})
	return said
}

func (s site) node(name string) *corev1.Node {
	s.t.Helper()
	n, err := s.Client().CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	return n
}

// until waits for a Node to be as wanted, by watching it.
func (s site) until(name, what string, wanted func(*corev1.Node) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	events, err := s.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(s.t, err)
	defer events.Stop()
	for e := range events.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok && wanted(n) {
			return
		}
	}
	require.Failf(s.t, "the node did not become as wanted", "%s: %s: %+v", name, what, s.node(name))
}

// entries are the observations in the one EtcdCluster there is, by node.
func (s site) entries() map[string]v1alpha1.Observation {
	s.t.Helper()
	list, err := s.clusters.List(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	found := map[string]v1alpha1.Observation{}
	for _, c := range list.Items {
		for _, o := range c.Status.Observations {
			found[o.Node] = o
		}
	}
	return found
}

// ask writes a nonce as the webhook does and waits for the answers of these nodes.
func (s site) ask(cluster v1alpha1.ClusterID, nonce string, within time.Duration, nodes ...string) {
	s.t.Helper()
	_, err := s.Kubectl(s.t.Context(), "patch", "etcdcluster", string(cluster), "--type=merge", "-p", `{"spec":{"nonce":"`+nonce+`"}}`)
	require.NoError(s.t, err)
	began := time.Now()
	require.Eventually(s.t, func() bool {
		found := s.entries()
		for _, node := range nodes {
			if found[node].Nonce != nonce {
				return false
			}
		}
		return true
	}, within, 5*time.Millisecond, "answers to %q", nonce)
	s.t.Logf("%d answers after %s", len(nodes), time.Since(began).Round(time.Millisecond))
}

func is(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// put places a file into a host.
func put(t *testing.T, root, path, text string, mode os.FileMode) {
	t.Helper()
	at := filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at+".new", []byte(text), mode))
	require.NoError(t, os.Rename(at+".new", at))
}

// flannel makes the host's network work, subnet file last, as flannel and its init containers do.
func flannel(t *testing.T, root string) {
	t.Helper()
	for _, plugin := range strings.Fields("flannel portmap bridge host-local loopback") {
		put(t, root, "/opt/cni/bin/"+plugin, "#!/bin/sh\n", 0o755)
	}
	put(t, root, "/etc/cni/net.d/10-flannel.conflist", `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
		{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}}]}`, 0o644)
	put(t, root, "/run/flannel/subnet.env", "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", 0o644)
}

func bootID(i int) string { return fmt.Sprintf("6f6b9d3c-1f2b-4c3f-9d3e-%012d", i) }

func TestANodeIsReleasedWhenItsNetworkWorks(t *testing.T) {
	s := startSite(t)
	root := t.TempDir()
	put(t, root, "/proc/sys/kernel/random/boot_id", bootID(1)+"\n", 0o444)
	node, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-1", InternalIP: "192.0.2.1", BootID: bootID(1)})
	require.NoError(t, err)
	require.True(t, node.Spec.Unschedulable, "it is born held")

	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	s.run(node.Name, root, "--health-listen="+address)
	s.until(node.Name, "says what is missing", func(n *corev1.Node) bool { return is(n, readiness.NetworkHeld).Status == corev1.ConditionTrue })
	require.Contains(t, is(s.node(node.Name), readiness.NetworkHeld).Message, "/etc/cni/net.d")

	flannel(t, root)
	began := time.Now()
	s.until(node.Name, "released", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
	took := time.Since(began)
	t.Logf("released %s after the last file was there", took)
	require.Less(t, took, 2*time.Second)
	s.until(node.Name, "NetworkUnavailable is cleared", func(n *corev1.Node) bool {
		return is(n, corev1.NodeNetworkUnavailable).Status == corev1.ConditionFalse
	})

	answer, err := http.Get("http://" + address + "/healthz") //nolint:noctx // a test's own server
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
}

func TestEtcdOutsideKubernetes(t *testing.T) {
	s := startSite(t)
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true, BootID: bootID})
	var nodes []string
	for i, m := range etcd.Members() {
		spec := testenv.NodeSpec{Name: m.Node, InternalIP: m.IP, BootID: bootID(i + 1)}
		if i == 2 {
			spec.Annotations = map[string]string{protect.ClusterAutoscalerAnnotation: "true"}
		}
		_, _, err := s.AddNode(t.Context(), spec)
		require.NoError(t, err)
		nodes = append(nodes, m.Node)
		s.run(m.Node, m.Root)
	}
	for _, m := range etcd.Members() {
		s.until(m.Node, "marked", func(n *corev1.Node) bool {
			return n.Labels[protect.EtcdMemberLabel] == "true" && is(n, protect.EtcdMemberCondition).Status == corev1.ConditionTrue
		})
		n := s.node(m.Node)
		require.Contains(t, n.Annotations[protect.BecauseAnnotation], m.HexID())
		require.Equal(t, "true", n.Annotations[protect.ClusterAutoscalerAnnotation])
	}

	announced, err := protect.ParseAnnouncement(s.node(nodes[0]).Annotations[protect.AnnouncementAnnotation])
	require.NoError(t, err)
	require.Len(t, announced, 1)
	cluster := announced[0].Cluster
	text := `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"` + string(cluster) + `"},"spec":{"ledger":0,"nonce":"first"}}`
	object := filepath.Join(t.TempDir(), "cluster.json")
	require.NoError(t, os.WriteFile(object, []byte(text), 0o600))
	_, err = s.Kubectl(t.Context(), "create", "-f", object)
	require.NoError(t, err)

	s.ask(cluster, "all-well", 2*time.Second, nodes...)
	for _, node := range nodes {
		entry := s.entries()[node]
		require.True(t, entry.Linearizable, entry.Problem)
		require.Len(t, entry.Members, 3)
		for _, m := range entry.Members {
			require.True(t, m.Healthy, "%s of %s: %s", m.ID, node, m.Reason)
		}
	}

	// A member that hangs is what takes longest: it accepts connections and never answers (F5).
	third := etcd.Member(3)
	require.NoError(t, third.Pause())
	s.ask(cluster, "one-hangs", 3*time.Second, nodes[:2]...)
	require.NoError(t, third.Resume())
	require.NoError(t, third.WaitReady(t.Context()))
	s.ask(cluster, "all-well-again", 3*time.Second, nodes...)

	require.NoError(t, etcd.RemoveMember(t.Context(), third))
	require.NoError(t, third.Kill())
	require.NoError(t, os.RemoveAll(third.DataDir()))
	s.until(third.Node, "unmarked", func(n *corev1.Node) bool {
		_, labelled := n.Labels[protect.EtcdMemberLabel]
		return !labelled && is(n, protect.EtcdMemberCondition).Status == corev1.ConditionFalse
	})
	n := s.node(third.Node)
	require.Equal(t, "true", n.Annotations[protect.ClusterAutoscalerAnnotation], "a person had set this one")
	require.NotContains(t, n.Annotations, protect.KarpenterAnnotation)
	require.Eventually(t, func() bool { return len(s.entries()) == 2 }, soon, 20*time.Millisecond, "the entry of a member that is gone")
}

func TestAnAgentOutlivesItsNode(t *testing.T) {
	s := startSite(t)
	root := t.TempDir()
	put(t, root, "/proc/sys/kernel/random/boot_id", bootID(1)+"\n", 0o444)
	first, kubelet, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-1", BootID: bootID(1)})
	require.NoError(t, err)
	require.NotEqual(t, types.UID(""), first.UID)
	config := s.Admin() // the token of a pod ends with its Node; an administrator's does not
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, testenv.WriteKubeconfig(kubeconfig, config))
	said := s.run(first.Name, root, "--kubeconfig="+kubeconfig)
	held := func(uid types.UID) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool {
			return n.UID == uid && n.Spec.Unschedulable && is(n, readiness.NetworkHeld).Status == corev1.ConditionTrue
		}
	}
	s.until(first.Name, "held", held(first.UID))
	require.NoError(t, s.Client().CoreV1().Nodes().Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "waiting for the node to register") }, soon, 10*time.Millisecond)
	second, err := testenv.RegisterNode(t.Context(), kubelet, testenv.NodeSpec{Name: first.Name, BootID: bootID(2)})
	require.NoError(t, err)
	put(t, root, "/proc/sys/kernel/random/boot_id", bootID(2)+"\n", 0o444)
	s.until(first.Name, "held anew", held(second.UID))
}
