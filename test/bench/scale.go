package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// scaleHeartbeat is the interval in which a kubelet writes the status of its Node although
	// nothing changes (nodeStatusReportFrequency).
	scaleHeartbeat = 5 * time.Minute
	scaleTime      = time.Minute
	// scaleMemory limits the memory of a webhook, with its peak during the start.
	scaleMemory = 100 << 20
	scaleStart  = 3 * time.Second
	// scaleClusters is the number of etcd clusters.
	scaleClusters = 7
	// scaleCPU is a share of a core.
	scaleCPU = 0.02
)

// measureScale measures one replica of the webhook, the leader, beside seven etcd clusters of five
// members and up to 15,000 nodes: its start, its memory, and its CPU usage while kubelets write the
// status of their Nodes. Then it measures the webhook beside Machines and NodeClaims that wait. At
// the end it measures deletions of ordinary nodes again.
func measureScale(ctx context.Context, b *benchCluster, t *resultTable) error {
	t.progress("starting etcd clusters until there are %d", scaleClusters)
	if err := b.addEtcdClusters(ctx, scaleClusters); err != nil {
		return err
	}
	s := scaledCluster{benchCluster: b, answers: answerLog{offsets: map[string]int{}}}
	for _, size := range []int{1000, 5000, 15000} {
		t.progress("creating nodes until there are %d", size)
		if err := s.growTo(ctx, size); err != nil {
			return err
		}
		if err := s.measureWebhook(ctx, t, fmt.Sprintf("%d nodes", size)); err != nil {
			return err
		}
	}
	if err := s.measureWaitingMachines(ctx, t); err != nil {
		return err
	}
	if err := b.Webhooks()[1].Start(b.webhookFlags...); err != nil {
		return err
	}
	return measureOrdinary(ctx, b, t)
}

// A scaledCluster is a cluster with many nodes that have no agent.
type scaledCluster struct {
	*benchCluster
	answers answerLog
	names   []string
}

// growTo creates nodes.
func (s *scaledCluster) growTo(ctx context.Context, size int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fleetParallelism)
	for i := len(s.names); i < size; i++ {
		made := realisticNode(fmt.Sprintf("worker-scale-%d", i))
		s.names = append(s.names, made.Name)
		g.Go(func() error {
			_, err := s.nodes.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("creating node %s: %w", made.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// measureWebhook restarts one replica alone and measures it.
func (s *scaledCluster) measureWebhook(ctx context.Context, t *resultTable, beside string) error {
	if err := s.killWebhooks(); err != nil {
		return err
	}
	if _, err := s.answers.readNew(s.benchCluster); err != nil {
		return err
	}
	webhook, begun := s.Webhooks()[0], time.Now()
	if err := webhook.Start(s.webhookFlags...); err != nil {
		return err
	}
	if err := s.WaitUntil(ctx, "a verdict of the new replica", s.checkVerdict); err != nil {
		return err
	}
	started := time.Since(begun)
	t.add(resultRow{
		what:   beside + ": start of a webhook until its first verdict",
		median: ms(started), target: "≤ 3 s", missed: started > scaleStart,
	})
	t.progress("writing the status of nodes for %s", scaleTime)
	since := time.Now()
	before, err := readUsage(webhook.PID())
	if err != nil {
		return err
	}
	if err := s.writeHeartbeats(ctx); err != nil {
		return err
	}
	after, err := readUsage(webhook.PID())
	if err != nil {
		return err
	}
	share := (after.cpu - before.cpu).Seconds() / scaleTime.Seconds()
	t.add(resultRow{
		what:   fmt.Sprintf("%s: CPU of a webhook, kubelets write every %s", beside, scaleHeartbeat),
		median: fmt.Sprintf("%.2f %% of a core", share*100), target: "≤ 2 %", missed: share > scaleCPU,
	})
	t.add(resultRow{
		what:   fmt.Sprintf("%s: memory of a webhook, peak %.1f MiB", beside, float64(after.peak)/(1<<20)),
		median: after.memory(), target: "peak ≤ 100 MiB", missed: after.peak > scaleMemory,
	})
	requests, err := s.API.Requests(webhookAccount)
	if err != nil {
		return err
	}
	t.add(resultRow{
		what:   fmt.Sprintf("%s: requests of a webhook in %s", beside, time.Since(since).Round(time.Second)),
		median: countRequests(requests, since),
	})
	return nil
}

func (s *scaledCluster) killWebhooks() error {
	for _, w := range s.Webhooks() {
		if err := w.Kill(); err != nil {
			return err
		}
	}
	return nil
}

// webhookAccount is the user name of every replica of the webhook in the audit log.
const webhookAccount = "system:serviceaccount:" + fixture.Namespace + ":holdfast-webhook"

// countRequests describes how many requests were answered since then, by verb and resource. Watches
// that began before are not among them.
func countRequests(requests []apiserver.Request, since time.Time) string {
	counts, total := map[string]int{}, 0
	for _, r := range requests {
		if r.Answered.Before(since) {
			continue
		}
		total++
		counts[strings.Trim(r.Verb+" "+r.Resource+"/"+r.Subresource, "/")]++
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

// checkVerdict asks whether an etcd node may be deleted, and returns nil if the webhook answered.
func (s *scaledCluster) checkVerdict(ctx context.Context) error {
	_, refused := s.delete(ctx, nodeName(1), true)
	answers, err := s.answers.readNew(s.benchCluster)
	if err == nil && len(answers) == 0 {
		err = fmt.Errorf("the webhook has not answered: %w", refused)
	}
	return err
}

// writeHeartbeats writes the status of Nodes for scaleTime, as often as their kubelets would.
func (s *scaledCluster) writeHeartbeats(ctx context.Context) error {
	limit := rate.NewLimiter(rate.Limit(float64(len(s.names))/scaleHeartbeat.Seconds()), 1)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fleetParallelism)
	for end := time.Now().Add(scaleTime); time.Now().Before(end); {
		if err := limit.Wait(ctx); err != nil {
			break
		}
		name := s.names[rand.IntN(len(s.names))]
		body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`,
			time.Now().UTC().Format(time.RFC3339))
		g.Go(func() error {
			_, err := s.nodes.CoreV1().Nodes().PatchStatus(ctx, name, body)
			if err != nil {
				return fmt.Errorf("writing the status of node %s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// realisticNode returns a Node of about 12 KB, most of it images, as kubelets report them.
func realisticNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			corev1.LabelInstanceTypeStable: "m5.xlarge",
			corev1.LabelTopologyZone:       "zone-a", corev1.LabelTopologyRegion: "region-a",
		},
		Annotations: map[string]string{
			"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
			"csi.volume.kubernetes.io/nodeid": `{"ebs.csi.aws.com":"i-0123456789abcdef0"}`,
		},
	}}
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	n.Spec.ProviderID, n.Spec.PodCIDR = "aws:///zone-a/"+name, "10.1.2.0/24"
	n.Status = corev1.NodeStatus{
		Capacity: amounts, Allocatable: amounts,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: strings.Repeat("a", 32), SystemUUID: "ec2a0000-0000-4000-8000-" + strings.Repeat("0", 12),
			BootID: "00000000-0000-4000-8000-000000000000", KernelVersion: "6.12.0", OSImage: "Debian GNU/Linux 13",
			ContainerRuntimeVersion: "containerd://2.4.0", KubeletVersion: "v1.37.2",
			OperatingSystem: "linux", Architecture: "amd64",
		},
	}
	for _, kind := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady,
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			Reason: "KubeletHasSufficientResources", Message: "kubelet has sufficient resources available",
		})
	}
	addReportOfAgent(n)
	for i := range 50 { // nodeStatusMaxImages of the kubelet
		image := fmt.Sprintf("registry.example.org/team-%d/service-%d", i%7, i)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names:     []string{image + "@sha256:" + strings.Repeat("0123456789abcdef", 4), image + ":v1.2.3"},
			SizeBytes: 123456789,
		})
	}
	return n
}

// addReportOfAgent adds what an agent writes to an ordinary node after it has released it.
func addReportOfAgent(n *corev1.Node) {
	n.Annotations[readiness.HoldAnnotation] = readiness.Record{
		State: readiness.Released, BootID: n.Status.NodeInfo.BootID, Since: time.Now().UTC(), Reason: readiness.NetworkReady,
	}.Format()
	for kind, message := range map[corev1.NodeConditionType]string{
		readiness.NetworkHeld:           "the network of the node is ready",
		observation.EtcdMemberCondition: "no etcd server and no data of one was found on this host",
		corev1.NodeNetworkUnavailable:   "the network of the node is ready",
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			Reason: readiness.NotHeld, Message: message,
		})
	}
}
