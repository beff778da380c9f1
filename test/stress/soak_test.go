package stress

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// soakPause is the longest pause between two disturbances, and between two deletions.
	soakPause = 20 * time.Second
	// faultTime is the longest time for which a disturbance lasts.
	faultTime = 10 * time.Second
	// steadyNode keeps its machine and its agent during the whole soak. Only the machines of
	// replacedNodes are deleted.
	steadyNode   = "etcd-1"
	steadyWorker = "worker-steady"
	upgradedNode = "etcd-2"
	drainedNode  = "etcd-3"
)

// replacedNodes returns the nodes whose machines are deleted and replaced.
func replacedNodes() []string { return []string{"etcd-4", "etcd-5", "etcd-6"} }

func flagValue[T any](name string) T {
	value, _ := flag.Lookup(name).Value.(flag.Getter).Get().(T)
	return value
}

// A soakTest is a stress test at a slow pace and with more kinds of faults.
type soakTest struct {
	*stressTest
	workers int
}

// A disturbance is something that happens to a cluster in operation.
type disturbance struct {
	name string
	do   func(context.Context, *rand.Rand) error
}

func (s *soakTest) disturbances() []disturbance {
	return []disturbance{
		{"member killed or paused", s.disturbMember},
		{"agent paused", s.pauseAgent},
		{"agent restarted", s.restartAgent},
		{"webhook killed", s.killWebhook},
		{"disk full", s.fillDisk},
		{"certificates replaced", s.replaceCertificates},
		{"worker held and released", s.releaseWorker},
		{"node drained", s.drainNode},
	}
}

// TestSoak runs Holdfast for hours. It fails if its memory, goroutines or file descriptors grow, or
// the watches of the API server, or the size of objects. Meanwhile machines are deleted and
// replaced, and nodes are disturbed in every way that disturbances names.
func TestSoak(t *testing.T) {
	total, record := flagValue[time.Duration]("soak"), flagValue[string]("record")
	if total == 0 {
		t.Skip("SKIPPED: it runs for hours. To run it: make soak HOURS=2")
	}
	s := &soakTest{stressTest: newStressTest(t)}
	defer s.startKubelets(t)()
	s.addAgentPods(t)
	require.NoError(t, s.startWorker(t.Context(), steadyWorker))
	samples, err := newSoakSamples(s, record)
	require.NoError(t, err)

	seed := uint64(time.Now().UnixNano())
	soak, cancel := context.WithTimeout(t.Context(), total)
	defer cancel()
	g, ctx := errgroup.WithContext(t.Context())
	context.AfterFunc(ctx, cancel)
	g.Go(func() error { return s.disturb(ctx, soak, rand.New(rand.NewPCG(seed, 0))) })
	g.Go(func() error { return s.deleteMachines(ctx, soak, rand.New(rand.NewPCG(seed, 1))) })
	for _, node := range replacedNodes() {
		random := rand.New(rand.NewPCG(seed, uint64(s.nodes[node])))
		g.Go(func() error { return s.replaceMachines(ctx, soak, node, random) })
	}
	g.Go(func() error { return samples.take(soak, total, t.Output()) })
	err = g.Wait()

	t.Logf("in %s: %v", total, s.counts)
	require.NoError(t, errors.Join(err, samples.close()))
	require.NoError(t, s.history.verify())
	for _, c := range s.clusters {
		require.NoError(t, c.recoverAll())
		require.NoError(t, c.checkRead(t.Context()))
	}
	require.NoError(t, samples.checkFlat(t.Output()))
}

// disturb causes one disturbance after the other until the context soak ends.
func (s *soakTest) disturb(ctx, soak context.Context, random *rand.Rand) error {
	all := s.disturbances()
	for fixture.Wait(soak, randomBelow(random, soakPause)) == nil {
		d := all[random.IntN(len(all))]
		if err := d.do(ctx, random); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		s.add(d.name)
	}
	return nil
}

// deleteMachines deletes nodes until the context soak ends. A replacement follows each deletion.
func (s *soakTest) deleteMachines(ctx, soak context.Context, random *rand.Rand) error {
	nodes := replacedNodes()
	for number := int64(0); fixture.Wait(soak, randomBelow(random, soakPause)) == nil; number++ {
		err := s.deleteOrdinary(ctx, number)
		if err == nil {
			err = s.deleteEtcd(ctx, nodes[random.IntN(len(nodes))])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *soakTest) add(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// disturbMember kills or pauses a member, and recovers it.
func (s *soakTest) disturbMember(ctx context.Context, random *rand.Rand) error {
	c := s.clusters[random.IntN(len(s.clusters))]
	members := c.liveMembers()
	m := members[random.IntN(len(members))]
	c.faultFree.Lock()
	err := c.injectFault(m, random.IntN(2) == 0)
	c.faultFree.Unlock()
	return errors.Join(err, fixture.Wait(ctx, randomBelow(random, faultTime)), c.recoverSafely(m))
}

func (s *soakTest) pauseAgent(ctx context.Context, random *rand.Rand) error {
	agent := s.Agent([]string{steadyNode, upgradedNode, steadyWorker}[random.IntN(3)])
	return errors.Join(agent.Pause(), fixture.Wait(ctx, randomBelow(random, faultTime)), agent.Resume())
}

// restartAgent restarts an agent, like an upgrade of the DaemonSet.
func (s *soakTest) restartAgent(ctx context.Context, _ *rand.Rand) error {
	return errors.Join(s.StopAgent(ctx, upgradedNode), s.StartAgent(ctx, upgradedNode))
}

// killWebhook kills and restarts the first replica. The second one lives during the whole soak.
func (s *soakTest) killWebhook(ctx context.Context, random *rand.Rand) error {
	webhook := s.Webhooks()[0]
	return errors.Join(s.killReplica(webhook), fixture.Wait(ctx, randomBelow(random, faultTime)), webhook.Start())
}

// fillDisk raises the alarm that a member raises when its disk is full, and disarms it.
func (s *soakTest) fillDisk(ctx context.Context, random *rand.Rand) error {
	c := s.clusters[0]
	change := func(action pb.AlarmRequest_AlarmAction) error {
		return c.callAny(ctx, action.String()+" the alarm", func(ctx context.Context, client *clientv3.Client) error {
			_, err := pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{
				Action: action, MemberID: c.member(steadyNode).ID(), Alarm: pb.AlarmType_NOSPACE,
			})
			return err
		})
	}
	err := change(pb.AlarmRequest_ACTIVATE)
	return errors.Join(err, fixture.Wait(ctx, randomBelow(random, faultTime)), change(pb.AlarmRequest_DEACTIVATE))
}

// replaceCertificates gives a member and its clients new certificates.
func (s *soakTest) replaceCertificates(_ context.Context, random *rand.Rand) error {
	node := []string{steadyNode, upgradedNode, drainedNode}[random.IntN(3)]
	return s.clusters[0].member(node).WriteCertificates()
}

// releaseWorker registers a worker, waits for its release, and removes it.
func (s *soakTest) releaseWorker(ctx context.Context, _ *rand.Rand) error {
	s.workers++
	name := fmt.Sprintf("worker-soak-%d", s.workers)
	if err := s.startWorker(ctx, name); err != nil {
		return err
	}
	if err := s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.ReplaceMachine(name)
}

// startWorker starts a worker with its agent, and waits for its release.
func (s *soakTest) startWorker(ctx context.Context, name string) error {
	if _, err := s.RegisterNode(ctx, name, "192.0.2.1", false); err != nil {
		return err
	}
	err := errors.Join(s.WriteHostFile(name, "run/flannel/.volume", "", 0o644), s.WriteCNI(name),
		s.StartAgent(ctx, name), s.WriteSubnetFile(name))
	if err != nil {
		return err
	}
	return s.WaitUntil(ctx, "the release of "+name, func(ctx context.Context) error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return checkReleased(n)
	})
}

// checkReleased returns nil if the hold of a Node has ended.
func checkReleased(n *corev1.Node) error {
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	if err == nil && (record.State != readiness.Released || n.Spec.Unschedulable) {
		err = fmt.Errorf("the hold is %s, unschedulable %t", record.State, n.Spec.Unschedulable)
	}
	return err
}

// drainNode drains a node, restarts its member, and uncordons the node. A drain that waits for
// longer than faultTime is given up.
func (s *soakTest) drainNode(ctx context.Context, random *rand.Rand) error {
	_, refused := s.API.Kubectl(ctx, "drain", drainedNode, "--ignore-daemonsets", "--timeout="+faultTime.String())
	if refused != nil {
		s.add("drain given up")
		_, err := s.API.Kubectl(ctx, "uncordon", drainedNode)
		return err
	}
	on := slices.DeleteFunc(slices.Clone(s.clusters), func(c *stressCluster) bool { return c.member(drainedNode) == nil })
	stopped := map[*stressCluster]*etcd.Member{}
	var err error
	for _, c := range on {
		stopped[c] = c.member(drainedNode)
		c.faultFree.Lock()
		err = errors.Join(err, c.injectFault(stopped[c], true))
		c.faultFree.Unlock()
	}
	err = errors.Join(err, fixture.Wait(ctx, randomBelow(random, faultTime)))
	for c, m := range stopped {
		err = errors.Join(err, c.recoverSafely(m))
	}
	_, failed := s.API.Kubectl(ctx, "uncordon", drainedNode)
	return errors.Join(err, failed)
}
