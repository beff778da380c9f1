package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/site"
)

const (
	// releases happen one after the other, wave by wave: the agents of a wave are started together and left to settle.
	releases, waveSize = 120, 12
	// breath is how long all is left alone before each: what follows a release is no part of the next.
	breath = 100 * time.Millisecond

	releaseMedian, releaseP99, releaseRatio = 8 * time.Millisecond, 25 * time.Millisecond, 3
)

// release measures how long after the last signal of a host its node is open, with the built agent. The end is when the
// API server had given its whole answer to the agent's patch, by its own audit log: the agent is another process, and a
// watch hears of a write while its writer still waits. What this leaves out is the way of the answer over loopback.
func release(ctx context.Context, s *stage, t *table) error {
	bare, err := s.bareNode(ctx)
	if err != nil {
		return err
	}
	signals := map[string]time.Time{}
	var patched, patchedAsAgent times
	for wave := range releases / waveSize {
		prefix := fmt.Sprintf("worker-release-%d-", wave+1)
		names, err := s.held(ctx, prefix, waveSize)
		if err != nil {
			return err
		}
		for _, name := range names {
			for patcher, taken := range map[*apiaccess.Nodes]*times{bare.admin: &patched, bare.agent: &patchedAsAgent} {
				took, err := bare.patch(ctx, patcher)
				if err != nil {
					return err
				}
				*taken = append(*taken, took)
			}
			if signals[name], err = s.open(ctx, name); err != nil {
				return err
			}
			if err := leave(ctx, breath); err != nil {
				return err
			}
		}
		for _, name := range names {
			if err := s.Scrap(name); err != nil {
				return err
			}
		}
	}
	requests, err := s.API.Requests(agentAccount)
	if err != nil {
		return err
	}
	taken, err := acknowledged(signals, requests)
	if err != nil {
		return err
	}
	t.add(patched.row("bare patch of a Node by an administrator"))
	t.add(patchedAsAgent.row("bare patch of a Node by its agent, which a policy judges"))
	r, ratio := taken.row("last host signal → release patch acknowledged"), float64(taken.median())/float64(patched.median())
	r.ratio = fmt.Sprintf("×%.2f of the first, ×%.2f of the second", ratio, float64(taken.median())/float64(patchedAsAgent.median()))
	r.target = "median ≤ 8 ms, p99 ≤ 25 ms, ≤ ×3"
	r.missed = taken.median() > releaseMedian || taken.p99() > releaseP99 || ratio > releaseRatio
	t.add(r)
	return nil
}

// held starts agents on new nodes, which are held from birth, and returns the names once all that is missing is the signal.
func (s *stage) held(ctx context.Context, prefix string, count int) ([]string, error) {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", prefix, i+1)
		if err := s.born(ctx, names[i]); err != nil {
			return nil, err
		}
		if err := s.StartAgent(ctx, names[i]); err != nil {
			return nil, err
		}
	}
	if err := s.waiting(ctx, prefix, count); err != nil {
		return nil, err
	}
	return names, leave(ctx, time.Second)
}

// open gives a node its network, waits until all that follows is written, and returns when the signal was.
func (s *stage) open(ctx context.Context, name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, site.Patience)
	defer cancel()
	changes, err := s.nodes.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return time.Time{}, err
	}
	defer changes.Stop()
	signalled, err := s.signal(name)
	if err != nil {
		return time.Time{}, err
	}
	for e := range changes.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok && released(n) {
			return signalled, nil
		}
	}
	return time.Time{}, fmt.Errorf("waiting for node %s to be released: %w", name, context.Cause(ctx))
}

// acknowledged finds the releases among what the agents asked for: the first patch after the signal, which opens the node.
func acknowledged(signals map[string]time.Time, requests []testenv.Request) (times, error) {
	var taken times
	for name, signalled := range signals {
		i := slices.IndexFunc(requests, func(r testenv.Request) bool {
			return r.Node == name && r.Verb == "patch" && r.Resource == "nodes" && r.Answered.After(signalled)
		})
		switch {
		case i < 0:
			return nil, fmt.Errorf("the audit log has no release of node %s", name)
		case requests[i].Subresource != "" || requests[i].Code != 200:
			return nil, fmt.Errorf("node %s was not opened by the first patch after the signal, which is %+v", name, requests[i])
		}
		taken = append(taken, requests[i].Answered.Sub(signalled))
	}
	return taken, nil
}

// bare is a node like those that are released, without an agent that would look at it, and clients of the kind that an
// agent has.
type bare struct {
	name         string
	admin, agent *apiaccess.Nodes
	cordoned     bool
}

func (s *stage) bareNode(ctx context.Context) (*bare, error) {
	names, err := s.held(ctx, "worker-bare-", 1)
	if err != nil {
		return nil, err
	}
	b := &bare{name: names[0]}
	if _, err := s.open(ctx, b.name); err != nil {
		return nil, err
	}
	account, err := s.API.ServiceAccountConfig(ctx, site.Namespace, "holdfast-agent", b.name)
	if err != nil {
		return nil, err
	}
	for config, nodes := range map[*rest.Config]**apiaccess.Nodes{s.API.Admin(): &b.admin, account: &b.agent} {
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
	if err := s.Scrap(b.name); err != nil {
		return nil, err
	}
	for _, nodes := range []*apiaccess.Nodes{b.admin, b.agent} { // they connect
		if _, err := b.patch(ctx, nodes); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// patch cordons or uncordons the node, as kubectl does.
func (b *bare) patch(ctx context.Context, nodes *apiaccess.Nodes) (time.Duration, error) {
	b.cordoned = !b.cordoned
	body := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, b.cordoned)
	begun := time.Now()
	_, err := nodes.Patch(ctx, b.name, types.MergePatchType, body, metav1.PatchOptions{})
	return time.Since(begun), err
}
