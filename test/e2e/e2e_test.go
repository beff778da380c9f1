//go:build e2e

// Package e2e_test runs the whole system on a kind cluster: real kubelets, systemd, flannel, and etcd as units of the nodes.
// `make e2e` runs it. Nothing here is faked, and nothing waits without a deadline.
package e2e_test

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestHoldfast runs the scenarios on one cluster in their order, each from where the one before left it. The first that
// fails is the last that runs: the cluster is then as it was when it failed, and what there is to see is saved.
func TestHoldfast(t *testing.T) {
	c := newCluster(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"it is installed on a cluster that runs, and touches none of its nodes", install},
		{"etcd is found within a second, and people see why a node is protected", found},
		{"of three etcd nodes one may go, and the next may not", deletions},
		{"a member that stops protects its node until it has left", gone},
		{"marks follow etcd as it is stopped, disabled and started, and what people wrote stays", following},
		{"a learner joins, is promoted and is removed, and the marks follow", learner},
		{"a worker that joins without its network takes no pod, nor does it after a reboot", joining},
		{"a worker that is told to reboot is held before it goes down", goingDown},
		{"kubespray's marker is the last gate", marker},
		{"whoever drains, cordons or uncordons is left alone", people},
		{"all nodes are deleted twice at once, and quorum survives", storm},
		{"an etcd host without a network is not taken for a healthy one", partition},
		{"without the webhook only ordinary nodes can be deleted", without},
		{"certificates are replaced and no request is refused for it", rotation},
		{"an update of the agent changes no node", update},
		{"an agent's token is good for its own node only", rights},
		{"neither a liar on a worker nor a forged question costs a member", lies},
		{"uninstalled, it leaves nothing behind", uninstall},
	} {
		start, ran := time.Now(), false
		passed := t.Run(scenario.name, func(t *testing.T) {
			ran = true
			scenario.run(t, c)
		})
		if !ran {
			continue // -run asked for others
		}
		fmt.Fprintf(os.Stdout, "%s  %5.1f s  %s\n", map[bool]string{true: "pass", false: "FAIL"}[passed], time.Since(start).Seconds(), scenario.name)
		if !passed {
			return
		}
	}
}
