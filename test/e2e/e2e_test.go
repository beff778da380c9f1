//go:build e2e

// Package e2e_test tests the whole system on a kind cluster: real kubelets, systemd, flannel,
// and etcd as systemd units of the nodes. `make e2e` runs it. It uses no fakes, and every wait
// has a deadline.
package e2e_test

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestHoldfast runs the scenarios in order on one cluster. Each starts with the state that the
// previous one left. After a failure, no other scenario runs, so that the state of the cluster
// is kept, and that state is saved.
func TestHoldfast(t *testing.T) {
	c := newKindCluster(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T, *kindCluster)
	}{
		{"install on a running cluster", scenarioInstall},
		{"detect and describe etcd", scenarioDetectEtcd},
		{"rotate certificates", scenarioRotation},
		{"delete etcd nodes", scenarioDeleteEtcdNodes},
		// A leader must have known the grants for three minutes before they can be resolved by hand.
		{"hold a new worker without network", scenarioJoin},
		{"hold a worker before its reboot", scenarioReboot},
		{"wait for the marker of kubespray", scenarioMarker},
		{"respect drain, cordon and uncordon", scenarioCordon},
		{"limit the rights of an agent", scenarioAgentRights},
		{"replace a stopped member", scenarioReplaceMember},
		{"stop, disable and start etcd", scenarioStopEtcd},
		{"add, promote and remove a learner", scenarioLearner},
		{"drain two etcd nodes at once", scenarioDrain},
		{"isolate an etcd host", scenarioPartition},
		{"reject false observations and forged reviews", scenarioFalseObservations},
		{"stop the webhook", scenarioNoWebhook},
		{"update the agents", scenarioUpdate},
		{"delete all nodes twice at once", scenarioDeleteAll},
		{"uninstall", scenarioUninstall},
		{"install, upgrade and roll back the chart", scenarioChart},
	} {
		start, ran := time.Now(), false
		passed := t.Run(scenario.name, func(t *testing.T) {
			ran = true
			scenario.run(t, c)
		})
		if !ran {
			continue // not selected by -run
		}
		fmt.Fprintf(os.Stdout, "%s  %5.1f s  %s\n", map[bool]string{true: "pass", false: "FAIL"}[passed],
			time.Since(start).Seconds(), scenario.name)
		if !passed {
			return
		}
	}
}
