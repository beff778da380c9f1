//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// Parts of Holdfast's refusals.
const (
	quorumRefusal     = "would break quorum of etcd cluster"
	oneOfThreeHealthy = "2 of 3 voters must be healthy, and only 1 would remain"
)

// scenarioDeleteEtcdNodes deletes one etcd node after the other. The second deletion needs a
// break-glass override.
func scenarioDeleteEtcdNodes(t *testing.T, c *kindCluster) {
	first, second := c.worker(1), c.worker(2)
	was := c.etcdCluster(t)
	// A dry run may be refused while agents observe: it requests no observation and does not
	// wait for one.
	c.deleteNode(t, shortTimeout, first, "--dry-run=server")
	require.Equal(t, was.Spec.Ledger, c.etcdCluster(t).Spec.Ledger, "a dry run must not be granted")
	require.Empty(t, c.etcdCluster(t).Spec.Grants)

	c.checkMaintenance(t, first, second)
	uid := c.node(t, first).UID
	c.deleteNode(t, longTimeout, first)
	grants := c.etcdCluster(t).Spec.Grants
	require.Len(t, grants, 1)
	require.Equal(t, uid, grants[0].NodeUID)
	require.Equal(t, "kubernetes-admin", grants[0].Delete.User)

	for _, how := range [][]string{{"--dry-run=server"}, nil} {
		c.waitForRefusal(t, []string{
			"deleting node " + second + " would break quorum of etcd cluster " + was.Name + ": " + oneOfThreeHealthy,
			"counts as lost: the deletion of its node " + first + " by kubernetes-admin was allowed at ",
			"on node " + c.worker(3) + ": healthy",
		}, append([]string{"delete", "node", second}, how...)...)
	}
	c.checkBreakGlass(t, second)
	c.rejoin(t, first, second)
}

// checkMaintenance sets lifecycle conditions on a node. While it is under maintenance, no other
// node with etcd may be deleted.
func (c *kindCluster) checkMaintenance(t *testing.T, marked, other string) {
	t.Helper()
	set := func(kind, status string) {
		c.kubectl(t, "patch", "node", marked, "--subresource=status", "-p", fmt.Sprintf(
			`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Exercise","lastTransitionTime":%q}]}}`,
			kind, status, time.Now().UTC().Format(time.RFC3339)))
	}
	set("MaintenancePlanned", "True")
	c.deleteNode(t, shortTimeout, other, "--dry-run=server")
	set("MaintenanceInProgress", "True")
	c.waitForRefusal(t, []string{
		oneOfThreeHealthy,
		"node " + marked + ` is under maintenance \(condition MaintenanceInProgress, since .*, reason Exercise`,
	}, "delete", "node", other)
	for _, kind := range []string{"MaintenancePlanned", "MaintenanceInProgress"} {
		set(kind, "False")
	}
	c.deleteNode(t, shortTimeout, other, "--dry-run=server")
}

// checkBreakGlass sets a break-glass override for a node: only a user with the verb can.
func (c *kindCluster) checkBreakGlass(t *testing.T, name string) {
	t.Helper()
	c.kubectl(t, "create", "clusterrole", "e2e-patches-nodes", "--verb=get,patch", "--resource=nodes")
	c.kubectl(t, "create", "clusterrolebinding", "e2e-patches-nodes", "--clusterrole=e2e-patches-nodes", "--user=alice")
	defer c.kubectl(t, "delete", "clusterrolebinding,clusterrole", "e2e-patches-nodes")
	value := fmt.Sprintf(`{"uid":%q,"until":%q,"reason":"an exercise"}`, c.node(t, name).UID,
		time.Now().UTC().Add(20*time.Minute).Format(time.RFC3339))
	annotate := []string{"annotate", "--overwrite", "node", name, quorum.BreakGlassAnnotation + "=" + value}
	// The authorizer learns of her role with a delay.
	c.waitForRefusal(t, []string{`only users with the verb "breakglass"`}, append(annotate, "--as=alice")...)
	for _, as := range [][]string{{"--as=alice"}, nil} { // the administrator has every verb
		unlabel := append([]string{"label", "node", name, observation.EtcdMemberLabel + "-"}, as...)
		require.Contains(t, c.kubectlFails(t, unlabel...), "first set the break-glass annotation")
	}

	c.kubectl(t, annotate...)
	c.deleteNode(t, longTimeout, name)
	grants := c.etcdCluster(t).Spec.Grants
	require.Len(t, grants, 2)
	for _, g := range grants {
		require.Equal(t, g.Node == name, quorum.Doors(g)[0].BreakGlass)
	}
}

// deleteNode deletes a node. It retries, because an election may be in progress, or agents observe.
func (c *kindCluster) deleteNode(t *testing.T, limit time.Duration, name string, flags ...string) {
	t.Helper()
	c.waitFor(t, "node "+name+" to be deleted", limit, func(ctx context.Context) (bool, string) {
		out, err := c.tryRun(ctx, c.tool("kubectl"), append([]string{"delete", "node", name}, flags...)...)
		return err == nil, out
	})
}

// scenarioReplaceMember stops a member, removes it, and deletes its node. Then a new member
// replaces it.
func scenarioReplaceMember(t *testing.T, c *kindCluster) {
	ours, stopped := c.worker(1), c.worker(3)
	c.resolveGrants(t) // of the first deletions
	c.runOn(t, stopped, "systemctl stop etcd")
	id := c.etcd.memberID(t, 3)
	c.waitForRefusal(t, []string{
		oneOfThreeHealthy,
		`etcd3 \(` + id + `\) on node ` + stopped + `: not confirmed healthy: `,
		`start etcd3 \(` + id + `\) on node ` + stopped + ` if it is down: ` +
			"the agent of node " + stopped + " finds its server",
	}, "delete", "node", ours)
	require.Equal(t, "true", c.node(t, stopped).Labels[observation.EtcdMemberLabel])
	// k3s must not remove a member that runs either, but the one that is stopped.
	const marker = "etcd.k3s.cattle.io/remove=true"
	c.waitForRefusal(t, []string{"would break quorum", "etcd3 .* on node " + stopped}, "annotate", "node", ours, marker)
	c.kubectl(t, "annotate", "node", stopped, marker, "--dry-run=server")

	c.etcd.etcdctl(t, 1, "member remove "+id)
	c.waitForNode(t, stopped, "to be an ordinary node again", longTimeout, isUnmarked)
	c.waitForRefusal(t, []string{"2 of 2 voters must be healthy, and only 1 would remain"}, "delete", "node", ours)
	c.deleteNode(t, longTimeout, stopped)
	c.runOn(t, stopped, "systemctl disable etcd 2>/dev/null; rm -rf /var/lib/etcd")
	c.rejoin(t, stopped)
	c.resolveGrants(t)
	c.waitForNode(t, stopped, "to have no marks", shortTimeout, isUnmarked)

	c.etcd.etcdctl(t, 1, "member add etcd3 --peer-urls=https://"+c.etcd.address(t, 3)+":2380")
	c.etcd.layOut(t, 3, "existing", 1, 2, 3)
	c.runOn(t, stopped, "systemctl start etcd")
	c.waitForNode(t, stopped, "to be protected again", shortTimeout, isMarked)
	c.waitForHealthy(t, 3)
}

// isMarked reports whether a Node has all marks of Holdfast.
func isMarked(n *corev1.Node) bool {
	return n.Labels[observation.EtcdMemberLabel] == "true" &&
		n.Annotations[autoscaler.ClusterAutoscaler] == "true" &&
		n.Annotations[autoscaler.Karpenter] == "true" && n.Annotations[autoscaler.Escalator] != "" &&
		n.Annotations[autoscaler.CastAI] == "true" &&
		conditionIs(n, observation.EtcdMemberCondition, corev1.ConditionTrue)
}

// isUnmarked reports whether a Node has no marks of Holdfast.
func isUnmarked(n *corev1.Node) bool {
	for _, key := range []string{
		autoscaler.ClusterAutoscaler, autoscaler.Karpenter, autoscaler.Escalator,
		autoscaler.CastAI,
		observation.AnnouncementAnnotation, presence.BecauseAnnotation, presence.MarksAnnotation,
		observation.UnverifiedAnnotation,
	} {
		if _, there := n.Annotations[key]; there {
			return false
		}
	}
	return n.Labels[observation.EtcdMemberLabel] == "" &&
		conditionIs(n, observation.EtcdMemberCondition, corev1.ConditionFalse)
}

// scenarioDeleteAll deletes all nodes from two terminals at the same time.
func scenarioDeleteAll(t *testing.T, c *kindCluster) {
	before := c.nodes(t)
	group, ctx := errgroup.WithContext(t.Context())
	answers := make([]string, 2)
	for i := range answers {
		group.Go(func() error {
			var err error
			if answers[i], err = c.tryRun(ctx, c.tool("kubectl"), "delete", "nodes", "--all"); err == nil {
				return fmt.Errorf("all nodes were deleted: %s", answers[i])
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	left := c.nodes(t)
	var lost, lostEtcd []string
	for name := range before {
		if _, there := left[name]; !there {
			lost = append(lost, name)
			if name != c.worker(4) {
				lostEtcd = append(lostEtcd, name)
			}
		}
	}
	require.Contains(t, left, c.controlPlane(), "its etcd has only one voter")
	require.Contains(t, lost, c.worker(4), "the deletion of an ordinary node must be allowed")
	require.Len(t, lostEtcd, 1, "one of three voters may be lost: %s", strings.Join(answers, "\n"))
	require.Contains(t, strings.Join(answers, "\n"), quorumRefusal)
	for number := 1; number <= 3; number++ {
		if c.worker(number) != lostEtcd[0] {
			c.etcd.etcdctl(t, number, "put e2e survives")
			break
		}
	}
	c.rejoin(t, lost...)
}

// scenarioStopEtcd stops, disables and starts a member. Its marks stay, and come back after a
// user has removed them.
func scenarioStopEtcd(t *testing.T, c *kindCluster) {
	name := c.worker(2)
	c.runOn(t, name, "systemctl stop etcd")
	// The agents answer a review at once, and the leader's next probe a minute later.
	c.waitForRefusal(t, []string{oneOfThreeHealthy}, "delete", "node", c.worker(1))
	c.waitForNode(t, name, "to show that its member is down", shortTimeout, func(n *corev1.Node) bool {
		require.True(t, isMarked(n) || condition(n, observation.EtcdMemberCondition).Status == corev1.ConditionTrue,
			describe(n))
		return isMarked(n) && n.Annotations[observation.AnnouncementAnnotation] != "" && c.healthyVoters(t) == 2
	})
	c.runOn(t, name, "systemctl disable etcd 2>/dev/null")
	c.kubectl(t, "annotate", "node", name, autoscaler.Karpenter+"-", autoscaler.ClusterAutoscaler+"-")
	c.waitForNode(t, name, "to have its marks again, with etcd stopped and disabled", shortTimeout, isMarked)
	c.requireFoundData(t, name)
	c.runOn(t, name, "systemctl enable etcd 2>/dev/null; systemctl start etcd")
	c.waitForHealthy(t, 3)
	require.True(t, isMarked(c.node(t, name)))
}

// requireFoundData moves the data of a stopped member to a place that nothing on the host names,
// and starts the agent again. It finds the data by a search of the disks.
func (c *kindCluster) requireFoundData(t *testing.T, name string) {
	t.Helper()
	c.runOn(t, name, "mkdir -p /srv/disk /srv/away && mv /etc/systemd/system/etcd.service /etc/etcd.env /srv/away && "+
		"mv /var/lib/etcd /srv/disk/x && systemctl daemon-reload")
	c.kubectl(t, "-n", namespace, "delete", "pods", "-l", "app.kubernetes.io/name=holdfast-agent",
		"--field-selector", "spec.nodeName="+name)
	c.waitForNode(t, name, "to be protected for data that nothing names", longTimeout, func(n *corev1.Node) bool {
		require.True(t, isMarked(n), describe(n))
		return strings.Contains(condition(n, observation.EtcdMemberCondition).Message, "data directory /srv/disk/x")
	})
	c.runOn(t, name, "mv /srv/away/etcd.service /etc/systemd/system; mv /srv/away/etcd.env /etc; "+
		"mv /srv/disk/x /var/lib/etcd; systemctl daemon-reload")
}

// healthyVoters returns the number of healthy voters in the summary, or -1.
func (c *kindCluster) healthyVoters(t *testing.T) int32 {
	t.Helper()
	if healthy := c.etcdCluster(t).Status.Healthy; healthy != nil {
		return *healthy
	}
	return -1
}

// scenarioLearner adds a fourth member like kubespray, as a learner, and removes it again. An
// annotation that a user set before is not Holdfast's, and stays.
func scenarioLearner(t *testing.T, c *kindCluster) {
	name := c.worker(4)
	c.kubectl(t, "annotate", "node", name, autoscaler.Karpenter+"=true")
	c.etcd.etcdctl(t, 1, "member add etcd4 --learner --peer-urls=https://"+c.etcd.address(t, 4)+":2380")
	c.etcd.layOut(t, 4, "existing", 1, 2, 3, 4)
	c.runOn(t, name, "systemctl start etcd")
	n := c.waitForNode(t, name, "to be protected for its learner", shortTimeout, func(n *corev1.Node) bool {
		return isMarked(n) && n.Annotations[observation.AnnouncementAnnotation] != ""
	})
	require.NotContains(t, n.Annotations[presence.MarksAnnotation], autoscaler.Karpenter)
	c.waitForHealthy(t, 3)

	id := c.etcd.memberID(t, 4)
	c.etcd.promote(t, 1, id)
	c.waitForHealthy(t, 4)
	c.etcd.etcdctl(t, 1, "member remove "+id)
	c.waitForHealthy(t, 3)
	c.runOn(t, name, "systemctl disable --now etcd 2>/dev/null; rm -rf /var/lib/etcd")
	n = c.waitForNode(t, name, "to be an ordinary node again", longTimeout, func(n *corev1.Node) bool {
		return n.Labels[observation.EtcdMemberLabel] == "" && n.Annotations[autoscaler.ClusterAutoscaler] == ""
	})
	require.Equal(t, "true", n.Annotations[autoscaler.Karpenter], "a user set it")
	c.kubectl(t, "annotate", "node", name, autoscaler.Karpenter+"-")
	c.waitForNode(t, name, "to have no marks", shortTimeout, isUnmarked)
}
