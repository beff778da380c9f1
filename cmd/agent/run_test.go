package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// TestRun has one API server for all, since one with the manifests takes seconds to start.
func TestRun(t *testing.T) {
	s := startSite(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, site)
	}{
		{"a node is released when its network works", released},
		{"etcd outside Kubernetes", etcdOutsideKubernetes},
		{"etcd is started", etcdIsStarted},
		{"an agent outlives its node", outlivesItsNode},
		{"a machine of SPC is labelled", labelled},
		{"the webhook is down", webhookIsDown},
		{"a node's life costs few requests", fewRequests}, // the last: a controller is at work from here on
	} {
		t.Run(part.name, func(t *testing.T) { s := s; s.t = t; part.run(t, s) })
	}
}

func released(t *testing.T, s site) {
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
	require.Less(t, took, 5*time.Second, "half a tick")
	s.until(node.Name, "NetworkUnavailable is cleared", func(n *corev1.Node) bool {
		return is(n, corev1.NodeNetworkUnavailable).Status == corev1.ConditionFalse
	})

	answer, err := http.Get("http://" + address + "/healthz")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
	answer, err = http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	numbers, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	for _, name := range []string{"holdfast_agent_look_duration_seconds_count", "holdfast_agent_etcd_questions_total", "process_cpu_seconds_total"} {
		require.Contains(t, string(numbers), name)
	}
}

func etcdOutsideKubernetes(t *testing.T, s site) {
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
			return n.Labels[protect.EtcdMemberLabel] == "true" && is(n, protect.EtcdMemberCondition).Status == corev1.ConditionTrue &&
				n.Annotations[protect.AnnouncementAnnotation] != ""
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

	healthy := func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(s.entries())), func(o v1alpha1.Observation) bool {
			return !o.Linearizable || slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return !m.Healthy })
		})
	}
	s.ask(cluster, "all-well", nodes...)
	for again := 0; again < 3 && !healthy(); again++ { // an election may have been on
		s.ask(cluster, fmt.Sprint("all-well-", again), nodes...)
	}
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
	s.ask(cluster, "one-hangs", nodes[:2]...)
	require.NoError(t, third.Resume())
	require.NoError(t, third.WaitReady(t.Context()))
	s.ask(cluster, "all-well-again", nodes...)

	require.NoError(t, etcd.RemoveMember(t.Context(), third))
	require.NoError(t, third.Kill())
	require.NoError(t, os.RemoveAll(third.DataDir()))
	s.until(third.Node, "unmarked", func(n *corev1.Node) bool {
		_, labelled := n.Labels[protect.EtcdMemberLabel]
		return !labelled && is(n, protect.EtcdMemberCondition).Status == corev1.ConditionFalse
	})
	n := s.node(third.Node)
	require.Equal(t, "true", n.Annotations[protect.ClusterAutoscalerAnnotation], "a person had set this one")
	require.NotContains(t, n.Annotations, protect.BecauseAnnotation)
	require.NotContains(t, n.Annotations, protect.MarksAnnotation)
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	require.NoError(t, err)
	require.Contains(t, record.Marks, protect.KarpenterAnnotation, "what is left is the hold's: this host has no network yet")
	require.Eventually(t, func() bool { return len(s.entries()) == 2 }, soon, 20*time.Millisecond, "the entry of a member that is gone")
}

func outlivesItsNode(t *testing.T, s site) {
	root := t.TempDir()
	put(t, root, "/proc/sys/kernel/random/boot_id", bootID(1)+"\n", 0o444)
	first, kubelet, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-2", BootID: bootID(1)})
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

func labelled(t *testing.T, s site) {
	root := t.TempDir()
	put(t, root, "/proc/sys/kernel/random/boot_id", bootID(1)+"\n", 0o444)
	node, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-3", InternalIP: "192.0.2.3", BootID: bootID(1)})
	require.NoError(t, err)
	said := s.run(node.Name, root, "--spc-inventory=holdfast-system/machines")
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "has not been read yet") }, soon, 10*time.Millisecond)

	machine := spc.Record{PK: 3, Cluster: 2, InstanceID: "spc2-worker-3", GroupName: "autoscaled", PrivateIP: "192.0.2.3", State: "running"}
	list := spc.Inventory{Organization: 1, Cluster: 2, AsOf: node.CreationTimestamp.UTC(), Records: []spc.Record{machine}}
	lists := s.Client().CoreV1().ConfigMaps("holdfast-system")
	packed, err := spcapi.Encode(&list)
	require.NoError(t, err)
	published, err := lists.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "machines"}, BinaryData: map[string][]byte{spcapi.InventoryKey: packed},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.until(node.Name, "labelled", func(n *corev1.Node) bool { return n.Labels[spc.InstanceIDLabel] == "spc2-worker-3" })
	s.until(node.Name, "in its group", func(n *corev1.Node) bool { return n.Labels[spc.NodeGroupLabel] == "autoscaled" })

	// Its build has failed, of which an autoscaler learns nothing, and kubectl describe does.
	list.Records[0].State, list.Records[0].IsFailed = "building", true
	published.BinaryData[spcapi.InventoryKey], err = spcapi.Encode(&list)
	require.NoError(t, err)
	_, err = lists.Update(t.Context(), published, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		described, err := s.Kubectl(t.Context(), "describe", "node", node.Name)
		require.NoError(t, err)
		return strings.Contains(described, "holdfast.dev/spc-problem: SPC says that its machine spc2-worker-3 (node_id 3) has failed (state building, failed)") &&
			strings.Contains(described, "SPCMachineFailed")
	}, soon, 100*time.Millisecond)
}

func TestHealth(t *testing.T) {
	var ill error
	log, said := slog.New(slog.NewTextHandler(t.Output(), nil)), &transcript{}
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var mu sync.Mutex
	go func() {
		ended <- serveHealth(ctx, address, func(time.Time) error { mu.Lock(); defer mu.Unlock(); return ill }, http.NotFoundHandler(), log)
	}()
	ask := func() int {
		answer, err := http.Get("http://" + address + "/healthz")
		if err != nil {
			return 0
		}
		defer func() { require.NoError(t, answer.Body.Close()) }()
		return answer.StatusCode
	}
	require.Eventually(t, func() bool { return ask() == http.StatusOK }, soon, 10*time.Millisecond)
	mu.Lock()
	ill = errors.New("the node loop has not turned for 1m")
	mu.Unlock()
	require.Equal(t, http.StatusServiceUnavailable, ask())

	taken, other := make(chan error, 1), slog.New(slog.NewTextHandler(said, nil))
	go func() {
		taken <- serveHealth(ctx, address, func(time.Time) error { return nil }, http.NotFoundHandler(), other)
	}()
	require.Eventually(t, func() bool { return strings.Contains(said.String(), "cannot be served") }, soon, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-taken, context.Canceled)
}
