package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// clusterBefore is what there was before Holdfast.
func clusterBefore(ctx context.Context, w *world, s *story) (err error) {
	s.scene("A cluster without Holdfast")
	s.note("starting kube-apiserver v1.36.3")
	if err = w.Start(ctx, "node-ipam-controller"); err != nil {
		return err
	}
	s.note("starting an etcd of three members with TLS outside it, laid out as kubespray does, one member to a node")
	if w.etcd, err = w.StartEtcd(ctx, testenv.EtcdOptions{Members: 3, Strict: true}); err != nil {
		return err
	}
	for i := range 3 {
		if err := w.register(ctx, fmt.Sprintf("etcd-%d", i+1), w.Net.IP(i+1), true); err != nil {
			return err
		}
	}
	if err := w.register(ctx, "worker-1", workerIP, true); err != nil {
		return err
	}
	nodes, err := w.API.Kubectl(ctx, "get", "nodes")
	s.show("kubectl get nodes", nodes)
	return err
}

// install puts Holdfast on the running cluster.
func install(ctx context.Context, w *world, s *story) error {
	s.scene("Holdfast is installed on the running cluster")
	begun := time.Now()
	if err := w.Install(ctx); err != nil {
		return err
	}
	s.show("kubectl apply -k manifests/", "(all of it in effect after "+took(begun)+")")
	w.spc = &spcserver.Server{Token: spcToken, Organization: "111", Cluster: "23391"}
	w.spc.SetNodes(spc.Record{
		PK: 91192, Cluster: 23391, InstanceID: "netatt9dgn-worker-1", Role: "worker", State: "running", Size: "c4.xlarge",
		PrivateIP: workerIP, GroupName: "autoscaling-netatt9dgn-pool-1", PoolName: "Default Worker Pool",
	})
	if err := w.startWebhooks(ctx); err != nil {
		return err
	}
	for _, node := range []string{"etcd-1", "etcd-2", "etcd-3", "worker-1"} {
		if err := w.StartAgent(ctx, node); err != nil {
			return err
		}
	}
	s.note("two webhooks and an agent on each node have been started")
	if err := w.Until(ctx, "every agent to report", func(ctx context.Context) error {
		out, err := w.API.Kubectl(ctx, "get", "nodes", "-o",
			`jsonpath={range .items[*]}{.status.conditions[?(@.type=="NetworkHeld")].status} {end}`)
		if err == nil && len(strings.Fields(out)) != 4 {
			err = fmt.Errorf("the condition NetworkHeld is on %d nodes of 4", len(strings.Fields(out)))
		}
		return err
	}); err != nil {
		return err
	}
	nodes, err := w.API.Kubectl(ctx, "get", "nodes")
	s.show("kubectl get nodes", nodes)
	s.step(err == nil && !strings.Contains(nodes, "SchedulingDisabled"),
		"no node that was there before is cordoned", describeCordons(nodes))
	return err
}

// protected shows why an etcd node is protected.
func protected(ctx context.Context, w *world, s *story) error {
	s.scene("Why a node is protected")
	var table string
	if err := w.Until(ctx, "the etcd cluster's summary", func(ctx context.Context) (err error) {
		table, err = w.API.Kubectl(ctx, "get", "etcdclusters")
		return errors.Join(err, contains(strings.Join(strings.Fields(table), " "), " 3 3 2 1 "))
	}); err != nil {
		return err
	}
	s.show("kubectl get etcdclusters", table)
	s.step(true, "3 voters, 3 of them healthy, quorum 2: one may be lost", "the table says so")

	because := "etcd member etcd1 (" + w.etcd.Member(1).HexID() + ") of cluster "
	var described string
	err := w.Until(ctx, "etcd-1 to be protected", func(ctx context.Context) (err error) {
		described, err = w.API.Kubectl(ctx, "describe", "node", "etcd-1")
		return errors.Join(err, contains(described, "scale-down-disabled: true"), contains(described, because),
			contains(described, "3 voters"))
	})
	s.show("kubectl describe node etcd-1", excerpt(described, "holdfast.dev/", "scale-down", "do-not-disrupt", "no-delete",
		"removal-disabled", "Type ", underConditions, "EtcdMember"))
	s.step(err == nil, "annotations for every autoscaler, and the member by name and ID, its unit, and how many voters may be lost", outcome(err))
	return nil
}

// machines shows which machine a node is.
func machines(ctx context.Context, w *world, s *story) error {
	s.scene("Which machine a node is")
	var out string
	err := w.Until(ctx, "worker-1 to be matched with its SPC record", func(ctx context.Context) (err error) {
		out, err = w.API.Kubectl(ctx, "get", "node", "worker-1", "-L", "stackpoint.io/instance_id,stackpoint.io/node_group")
		return errors.Join(err, contains(out, "netatt9dgn-worker-1"), contains(out, "autoscaling-netatt9dgn-pool-1"))
	})
	s.show("kubectl get node worker-1 -L stackpoint.io/instance_id,stackpoint.io/node_group", out)
	s.step(err == nil, "the SPC instance ID and group of the machine with this address, on the node", outcome(err))
	return nil
}

// ordinary deletes a node without etcd.
func ordinary(ctx context.Context, w *world, s *story) error {
	s.scene("A worker goes")
	out, err := w.deleteNode(ctx, s, "worker-1")
	s.step(err == nil, "deleted: there is no etcd on it", brief(out))
	return nil
}

// underConditions is in the line below the head of the table of conditions, and of no other table of kubectl describe.
const underConditions = "-----------------"

// learner deletes the node of a learner.
func learner(ctx context.Context, w *world, s *story) error {
	s.scene("A learner's node goes")
	if err := w.register(ctx, "etcd-4", w.Net.IP(4), true); err != nil {
		return err
	}
	s.note("adding etcd4 to the cluster as a learner, on the new node etcd-4 (etcd refuses for the first seconds of a cluster)")
	m, err := w.etcd.AddLearner(ctx)
	if err != nil {
		return err
	}
	if err := w.StartAgent(ctx, "etcd-4"); err != nil {
		return err
	}
	if err := w.Until(ctx, "the learner to be bound to its node", func(ctx context.Context) error {
		out, err := w.API.Kubectl(ctx, "get", "etcdclusters", "-o", "jsonpath={.items[0].spec.members[*].memberID}")
		return errors.Join(err, contains(out, m.HexID()))
	}); err != nil {
		return err
	}
	out, err := w.deleteNode(ctx, s, "etcd-4")
	s.step(err == nil, "deleted: a learner has no vote, and the three voters are healthy", brief(out))
	s.note("its member is removed, as one should: etcdctl member remove %s", m.HexID())
	return w.etcd.RemoveMember(ctx, m)
}

// deletions deletes etcd nodes until quorum stands in the way.
func deletions(ctx context.Context, w *world, s *story) error {
	s.scene("The first etcd node goes")
	out, err := w.deleteNode(ctx, s, "etcd-1")
	s.step(err == nil && strings.Contains(out, "Warning"), "deleted, with the warning that no other voter may be lost", brief(out))

	s.scene("The second etcd node does not")
	out, err = w.deleteNode(ctx, s, "etcd-2")
	refused := err != nil && strings.Contains(out, "quorum") && strings.Contains(out, "what to do, the safest first") &&
		strings.Contains(out, "("+w.etcd.Member(1).HexID()+"): given up: the deletion of its node etcd-1 was allowed")
	s.step(refused, "refused: of three voters one is given up already; the message says which, and what to do next", brief(out))
	left, err := w.API.Kubectl(ctx, "get", "nodes", "-o", "name")
	s.step(err == nil && strings.Contains(left, "node/etcd-2") && !strings.Contains(left, "node/etcd-1\n"),
		"etcd-2 is still there, etcd-1 is not", strings.Join(strings.Fields(left), " "))
	return nil
}

// newNode registers a node and lets its network come up.
func newNode(ctx context.Context, w *world, s *story) error {
	s.scene("A new node is born cordoned, and released when its network works")
	if err := w.register(ctx, "worker-2", secondWorkerIP, false); err != nil {
		return err
	}
	nodes, err := w.API.Kubectl(ctx, "get", "node", "worker-2")
	s.show("kubectl get node worker-2", nodes)
	s.step(err == nil && strings.Contains(nodes, "SchedulingDisabled"), "cordoned in the write that creates it, before any agent runs", describeCordons(nodes))
	if err := w.StartAgent(ctx, "worker-2"); err != nil {
		return err
	}
	if err := w.layCNI("worker-2"); err != nil {
		return err
	}
	var described string
	err = w.Until(ctx, "the condition to name flannel", func(ctx context.Context) (err error) {
		described, err = w.API.Kubectl(ctx, "describe", "node", "worker-2")
		return errors.Join(err, contains(described, "WaitingForFlannel"))
	})
	s.show("kubectl describe node worker-2", excerpt(described, "Type ", underConditions, "NetworkHeld", "NetworkUnavailable"))
	s.step(err == nil, "the CNI is there; the condition says that flannel's subnet file is missing", outcome(err))

	s.note("flanneld writes /run/flannel/subnet.env")
	delay, err := w.release(ctx, "worker-2")
	if err != nil {
		return err
	}
	nodes, err = w.API.Kubectl(ctx, "get", "node", "worker-2")
	s.show("kubectl get node worker-2", nodes)
	s.step(err == nil && !strings.Contains(nodes, "SchedulingDisabled") && delay < time.Second, "released, within a second",
		fmt.Sprintf("schedulable %.1f ms after the file was there", float64(delay.Microseconds())/1000))
	return nil
}
