package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// conditionsHeading is the line below the heading of the conditions, and of no other table, in
// the output of kubectl describe.
const conditionsHeading = "-----------------"

// startCluster starts a cluster without Holdfast.
func (d *demo) startCluster(ctx context.Context) (err error) {
	d.section("A cluster without Holdfast")
	if err = d.Start(ctx); err != nil {
		return err
	}
	version, err := d.API.Client().Discovery().ServerVersion()
	if err != nil {
		return err
	}
	d.note("kube-apiserver %s runs", version.GitVersion)
	d.note("the addresses of the nodes are in %s", d.Net)
	if d.etcd, err = d.StartEtcd(ctx, etcd.Options{Members: 3, Strict: true}); err != nil {
		return err
	}
	d.note("an etcd cluster outside Kubernetes runs: 3 members with TLS on 3 nodes, as kubespray installs it")
	for i := range 3 {
		if _, err := d.RegisterNode(ctx, fmt.Sprintf("etcd-%d", i+1), d.Net.IP(i+1), true); err != nil {
			return err
		}
	}
	if _, err := d.RegisterNode(ctx, "worker-1", workerIP, true); err != nil {
		return err
	}
	nodes, err := d.kubectl(ctx, "get", "nodes")
	d.step(err == nil && strings.Count(nodes, " Ready ") == 4, "4 nodes are Ready: etcd-1, etcd-2, etcd-3 and worker-1",
		firstLine(nodes))
	return nil
}

// install installs Holdfast on the running cluster.
func (d *demo) install(ctx context.Context) error {
	d.section("Install Holdfast on the running cluster")
	begun := time.Now()
	if err := d.Install(ctx); err != nil {
		return err
	}
	d.show("kubectl apply --server-side -k manifests/overlays/born-held", "")
	d.note("the manifests are in effect after %s", time.Since(begun).Round(100*time.Millisecond))
	d.spc = &spcserver.Server{Token: spcToken, Organization: "111", Cluster: "23391"}
	d.spc.SetNodes(spc.Record{
		PK: 91192, Cluster: 23391, InstanceID: "netatt9dgn-worker-1", Role: "worker", State: "running",
		Size: "c4.xlarge", PrivateIP: workerIP, GroupName: "autoscaling-netatt9dgn-pool-1",
		PoolName: "Default Worker Pool",
	})
	if err := d.startWebhooks(ctx); err != nil {
		return err
	}
	for _, node := range []string{"etcd-1", "etcd-2", "etcd-3", "worker-1"} {
		if err := d.StartAgent(ctx, node); err != nil {
			return err
		}
	}
	if err := d.WaitUntil(ctx, "every agent to report", func(ctx context.Context) error {
		out, err := d.API.Kubectl(ctx, "get", "nodes", "-o",
			`jsonpath={range .items[*]}{.status.conditions[?(@.type=="NetworkHeld")].status} {end}`)
		if err == nil && len(strings.Fields(out)) != 4 {
			err = fmt.Errorf("%d of 4 nodes have the condition NetworkHeld", len(strings.Fields(out)))
		}
		return err
	}); err != nil {
		return err
	}
	d.note("2 webhooks run, and an agent on each node")
	nodes, err := d.kubectl(ctx, "get", "nodes")
	d.step(err == nil && !strings.Contains(nodes, "SchedulingDisabled"), "no existing node is cordoned",
		countCordoned(nodes))
	return nil
}

// explainProtection shows why an etcd node is protected.
func (d *demo) explainProtection(ctx context.Context) error {
	d.section("Detect and protect etcd")
	if err := d.WaitUntil(ctx, "the summary of the etcd cluster", func(ctx context.Context) error {
		table, err := d.API.Kubectl(ctx, "get", "etcdclusters")
		return errors.Join(err, requireContains(strings.Join(strings.Fields(table), " "), " 3 3 2 1 "))
	}); err != nil {
		return err
	}
	table, err := d.kubectl(ctx, "get", "etcdclusters")
	d.step(err == nil, "the etcd cluster has 3 voters, 3 are healthy, quorum is 2, and 1 may be lost", firstLine(table))

	because := "etcd member etcd1 (" + d.etcd.Member(1).HexID() + ") of cluster "
	var described string
	err = d.WaitUntil(ctx, "the protection of etcd-1", func(ctx context.Context) (err error) {
		described, err = d.API.Kubectl(ctx, "describe", "node", "etcd-1")
		return errors.Join(err, requireContains(described, "scale-down-disabled: true"),
			requireContains(described, because), requireContains(described, "kubectl get etcdclusters"))
	})
	d.show("kubectl describe node etcd-1", excerpt(described, "holdfast.dev/", "scale-down", "do-not-disrupt",
		"no-delete", "removal-disabled", "Type ", conditionsHeading, "EtcdMember"))
	d.step(err == nil, "etcd-1 has the annotations of every autoscaler, and a condition that names its member",
		fmt.Sprint(err))
	return nil
}

// identifyMachines shows the mapping of a node to its machine.
func (d *demo) identifyMachines(ctx context.Context) error {
	d.section("Map a node to its machine")
	args := []string{"get", "node", "worker-1", "-L", "stackpoint.io/instance_id,stackpoint.io/node_group"}
	var out string
	err := d.WaitUntil(ctx, "the match of worker-1 with its SPC record", func(ctx context.Context) (err error) {
		out, err = d.API.Kubectl(ctx, args...)
		return errors.Join(err, requireContains(out, "netatt9dgn-worker-1"),
			requireContains(out, "autoscaling-netatt9dgn-pool-1"))
	})
	d.show("kubectl "+strings.Join(args, " "), out)
	d.step(err == nil, "worker-1 has the SPC instance ID and group of the machine with its address", fmt.Sprint(err))
	return nil
}

// deleteWorker deletes a node without etcd.
func (d *demo) deleteWorker(ctx context.Context) error {
	d.section("Delete nodes")
	out, err := d.kubectl(ctx, "delete", "node", "worker-1")
	d.step(err == nil, "worker-1 can be deleted: it has no etcd", firstLine(out))
	return nil
}

// deleteLearner deletes the node of a learner.
func (d *demo) deleteLearner(ctx context.Context) error {
	if _, err := d.RegisterNode(ctx, "etcd-4", d.Net.IP(4), true); err != nil {
		return err
	}
	d.note("adding the learner etcd4 on the new node etcd-4 (etcd accepts it a few seconds after its start)")
	m, err := d.etcd.AddLearner(ctx)
	if err != nil {
		return err
	}
	if err := d.StartAgent(ctx, "etcd-4"); err != nil {
		return err
	}
	if err := d.WaitUntil(ctx, "the binding of the learner to its node", func(ctx context.Context) error {
		out, err := d.API.Kubectl(ctx, "get", "etcdclusters", "-o", "jsonpath={.items[0].spec.members[*].memberID}")
		return errors.Join(err, requireContains(out, m.HexID()))
	}); err != nil {
		return err
	}
	out, err := d.kubectl(ctx, "delete", "node", "etcd-4")
	d.step(err == nil, "etcd-4 can be deleted: a learner has no vote, and 3 voters are healthy", firstLine(out))
	d.show("etcdctl member remove "+m.HexID(), "")
	return d.etcd.RemoveMember(ctx, m)
}

// deleteEtcdNodes deletes etcd nodes until a deletion would break quorum.
func (d *demo) deleteEtcdNodes(ctx context.Context) error {
	out, err := d.kubectl(ctx, "delete", "node", "etcd-1")
	d.step(err == nil && strings.Contains(out, "Warning"),
		"etcd-1 can be deleted, with a warning: no other voter may be lost", firstLine(out))

	out, err = d.kubectl(ctx, "delete", "node", "etcd-2")
	refused := err != nil && strings.Contains(out, "quorum") && strings.Contains(out, "what to do, safest first") &&
		strings.Contains(out, "("+d.etcd.Member(1).HexID()+"): counts as lost: the deletion of its node etcd-1 by")
	d.step(refused, "etcd-2 cannot be deleted: etcd-1 counts as lost; the message says so and lists what to do",
		firstLine(out))
	left, err := d.kubectl(ctx, "get", "nodes", "-o", "name")
	d.step(err == nil && strings.Contains(left, "node/etcd-2") && !strings.Contains(left, "node/etcd-1\n"),
		"etcd-2 still exists, etcd-1 does not", strings.Join(strings.Fields(left), " "))
	return nil
}

// holdNewNode registers a node and installs its network.
func (d *demo) holdNewNode(ctx context.Context) error {
	d.section("Hold a new node until its network works")
	if _, err := d.RegisterNode(ctx, "worker-2", secondWorkerIP, false); err != nil {
		return err
	}
	nodes, err := d.kubectl(ctx, "get", "node", "worker-2")
	d.step(err == nil && strings.Contains(nodes, "SchedulingDisabled"),
		"worker-2 is cordoned from its creation, before an agent runs", countCordoned(nodes))
	if err := d.StartAgent(ctx, "worker-2"); err != nil {
		return err
	}
	if err := d.WriteCNI("worker-2"); err != nil {
		return err
	}
	var described string
	err = d.WaitUntil(ctx, "the condition to name flannel", func(ctx context.Context) (err error) {
		described, err = d.API.Kubectl(ctx, "describe", "node", "worker-2")
		return errors.Join(err, requireContains(described, "WaitingForFlannel"))
	})
	d.show("kubectl describe node worker-2",
		excerpt(described, "Type ", conditionsHeading, "NetworkHeld", "NetworkUnavailable"))
	d.step(err == nil, "the condition of worker-2 names the file that flannel has not written yet",
		fmt.Sprint(err))

	delay, err := d.releaseNode(ctx, "worker-2")
	if err != nil {
		return err
	}
	took := fmt.Sprintf("%.1f ms", float64(delay.Microseconds())/1000)
	nodes, err = d.kubectl(ctx, "get", "node", "worker-2")
	d.step(err == nil && !strings.Contains(nodes, "SchedulingDisabled") && delay < time.Second,
		"when flannel writes the file, worker-2 becomes schedulable within a second: "+took,
		countCordoned(nodes)+" after "+took)
	d.note("worker-2 stays NotReady: only its kubelet sets the condition Ready, and the demo runs no kubelets")
	return nil
}
