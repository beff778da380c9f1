package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// The nodes are released one after the other, in waves. The agents of a wave start
	// together.
	releases, waveSize = 120, 12
	// pauseBetweenReleases separates the writes that follow a release from the next release.
	pauseBetweenReleases = 100 * time.Millisecond

	// releaseTarget limits the median of a release, as a multiple of a bare patch.
	releaseTarget = 1.3
)

// measureRelease measures the time from the last signal of a host until its node is released,
// with the built agent. The end is the time of the complete response to the agent's patch in
// the API server's audit log: the agent is another process, and a watch reports a write while
// its writer still waits. The measurement excludes the transfer of the response over loopback.
func measureRelease(ctx context.Context, b *benchCluster, t *resultTable) error {
	bare, err := b.newPatchTarget(ctx)
	if err != nil {
		return err
	}
	signals := map[string]time.Time{}
	var patched, patchedAsAgent durations
	for wave := range releases / waveSize {
		prefix := fmt.Sprintf("worker-release-%d-", wave+1)
		names, err := b.startHeld(ctx, prefix, waveSize)
		if err != nil {
			return err
		}
		for _, name := range names {
			for patcher, taken := range map[*apiaccess.Nodes]*durations{bare.admin: &patched, bare.agent: &patchedAsAgent} {
				took, err := bare.patch(ctx, patcher)
				if err != nil {
					return err
				}
				*taken = append(*taken, took)
			}
			if signals[name], err = b.releaseNode(ctx, name); err != nil {
				return err
			}
			if err := fixture.Wait(ctx, pauseBetweenReleases); err != nil {
				return err
			}
		}
		for _, name := range names {
			if err := b.ReplaceMachine(name); err != nil {
				return err
			}
		}
	}
	requests, err := b.API.Requests(agentAccount)
	if err != nil {
		return err
	}
	taken, err := releaseTimes(signals, requests)
	if err != nil {
		return err
	}
	t.add(patched.row("bare patch of a Node by an administrator"))
	t.add(patchedAsAgent.row("bare patch of a Node by its agent, checked by a policy"))
	r := taken.row(fmt.Sprintf("last host signal → release patch acknowledged; ×%.2f of the patch by an agent",
		taken.ratioTo(patchedAsAgent))).judged(taken.ratioTo(patched), releaseTarget)
	t.add(r)
	return nil
}

// startHeld registers new nodes, which are held from birth, starts their agents, and returns
// the names of the nodes when only the last signal is missing.
func (b *benchCluster) startHeld(ctx context.Context, prefix string, count int) ([]string, error) {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", prefix, i+1)
		if err := b.registerHeld(ctx, names[i]); err != nil {
			return nil, err
		}
		if err := b.StartAgent(ctx, names[i]); err != nil {
			return nil, err
		}
	}
	if err := b.waitForHeld(ctx, prefix, count); err != nil {
		return nil, err
	}
	return names, fixture.Wait(ctx, time.Second)
}

// releaseNode writes the last signal of a node's host and waits for the release. It returns the
// time of the signal.
func (b *benchCluster) releaseNode(ctx context.Context, name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	changes, err := b.nodes.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return time.Time{}, err
	}
	defer changes.Stop()
	signalled, err := b.writeSubnetFile(name)
	if err != nil {
		return time.Time{}, err
	}
	for e := range changes.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok && isReleased(n) {
			return signalled, nil
		}
	}
	return time.Time{}, fmt.Errorf("waiting for the release of node %s: %w", name, context.Cause(ctx))
}

// releaseTimes returns the times from the signals to the releases. A release is the first patch
// of the node after its signal.
func releaseTimes(signals map[string]time.Time, requests []apiserver.Request) (durations, error) {
	var taken durations
	for name, signalled := range signals {
		i := slices.IndexFunc(requests, func(r apiserver.Request) bool {
			return r.Node == name && r.Verb == "patch" && r.Resource == "nodes" && r.Answered.After(signalled)
		})
		switch {
		case i < 0:
			return nil, fmt.Errorf("the audit log has no release of node %s", name)
		case requests[i].Subresource != "" || requests[i].Code != 200:
			return nil, fmt.Errorf("the first patch of node %s after the signal is not its release: %+v", name,
				requests[i])
		}
		taken = append(taken, requests[i].Answered.Sub(signalled))
	}
	return taken, nil
}

// A patchTarget is a released node without an agent, and clients like an agent's.
type patchTarget struct {
	name         string
	admin, agent *apiaccess.Nodes
	cordoned     bool
}

func (b *benchCluster) newPatchTarget(ctx context.Context) (*patchTarget, error) {
	names, err := b.startHeld(ctx, "worker-bare-", 1)
	if err != nil {
		return nil, err
	}
	target := &patchTarget{name: names[0]}
	if _, err := b.releaseNode(ctx, target.name); err != nil {
		return nil, err
	}
	account, err := b.API.ServiceAccountConfig(ctx, fixture.Namespace, "holdfast-agent", target.name)
	if err != nil {
		return nil, err
	}
	for config, nodes := range map[*rest.Config]**apiaccess.Nodes{
		b.API.Admin(): &target.admin,
		account:       &target.agent,
	} {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, err
		}
		core, err := apiaccess.NewCore(config, client)
		if err != nil {
			return nil, err
		}
		*nodes = core.Nodes()
	}
	if err := b.ReplaceMachine(target.name); err != nil {
		return nil, err
	}
	for _, nodes := range []*apiaccess.Nodes{target.admin, target.agent} { // establish the connections
		if _, err := target.patch(ctx, nodes); err != nil {
			return nil, err
		}
	}
	return target, nil
}

// patch cordons or uncordons the node, like kubectl.
func (b *patchTarget) patch(ctx context.Context, nodes *apiaccess.Nodes) (time.Duration, error) {
	b.cordoned = !b.cordoned
	body := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, b.cordoned)
	begun := time.Now()
	_, err := nodes.Patch(ctx, b.name, types.MergePatchType, body, metav1.PatchOptions{})
	return time.Since(begun), err
}

// agentAccount is the user name of every agent in the audit log.
const agentAccount = "system:serviceaccount:" + fixture.Namespace + ":holdfast-agent"

// registerHeld registers a node like its kubelet, held from birth. Its host has all files of
// flannel but the subnet file. The directory of the subnet file exists before flanneld, as a
// volume of its pod.
func (b *benchCluster) registerHeld(ctx context.Context, name string) error {
	made, err := b.RegisterNode(ctx, name, "192.0.2.1", false)
	if err != nil {
		return err
	}
	if !made.Spec.Unschedulable {
		return fmt.Errorf("node %s is not held at birth", name)
	}
	return errors.Join(b.WriteHostFile(name, "run/flannel/.volume", "", 0o644), b.WriteCNI(name))
}

// writeSubnetFile writes the last signal of a host and returns the time before the write.
func (b *benchCluster) writeSubnetFile(name string) (time.Time, error) {
	begun := time.Now()
	return begun, b.WriteSubnetFile(name)
}

// waitForHeld waits until every node is held for flannel's subnet file only, and its agent has
// scanned the host for etcd.
func (b *benchCluster) waitForHeld(ctx context.Context, prefix string, count int) error {
	what := fmt.Sprintf("%d agents to wait for flannel's subnet file only", count)
	return b.WaitUntil(ctx, what, func(ctx context.Context) error {
		list, err := b.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		found := 0
		for i := range list.Items {
			n := &list.Items[i]
			if strings.HasPrefix(n.Name, prefix) && n.Spec.Unschedulable &&
				findCondition(n, readiness.NetworkHeld).Reason == readiness.WaitingForFlannel &&
				findCondition(n, observation.EtcdMemberCondition).Status == corev1.ConditionFalse {
				found++
			}
		}
		if found != count {
			return fmt.Errorf("%d agents do", found)
		}
		return nil
	})
}

// isReleased reports whether a hold has ended and all its writes are done.
func isReleased(n *corev1.Node) bool {
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	return err == nil && record.State == readiness.Released && !n.Spec.Unschedulable
}

// hasReleasedConditions reports whether the conditions of a Node have followed its release.
func hasReleasedConditions(n *corev1.Node) bool {
	return findCondition(n, readiness.NetworkHeld).Status == corev1.ConditionFalse &&
		findCondition(n, corev1.NodeNetworkUnavailable).Status == corev1.ConditionFalse
}

func findCondition(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	if c := readiness.FindCondition(n, of); c != nil {
		return *c
	}
	return corev1.NodeCondition{}
}
