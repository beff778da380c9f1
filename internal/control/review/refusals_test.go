package review

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

func remainingTolerance(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	decision := review(t, newReviewer(f, 0, func(o *clusterstore.Options) { o.MinRemainingTolerance = 1 }), f.Request(0))
	require.False(t, decision.Allowed)
	require.Equal(t, quorum.QuorumWouldBeLost, decision.Reason)
	require.Contains(t, decision.Message, "2 of 3 voters must be healthy and 1 more must be in reserve")
	require.Empty(t, f.Cluster().Spec.Grants)
	require.True(t, review(t, newReviewer(f, 0), f.Request(0)).Allowed)
}

func unverifiedServer(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	req := f.Request(0)
	req.Unverified = []string{"systemd unit etcd-events.service"}
	decision := review(t, reviewer, req)
	require.False(t, decision.Allowed)
	require.Equal(t, quorum.UnknownMember, decision.Reason)
	require.Contains(t, decision.Message, "systemd unit etcd-events.service")
	require.Empty(t, f.Cluster().Spec.Nonce, "no probe must be requested")
	require.Empty(t, f.Cluster().Spec.Grants)
	req.DryRun = true
	require.False(t, review(t, reviewer, req).Allowed)
}

func TestCombine(t *testing.T) {
	facts := func(f quorum.Finding) quorum.Facts {
		return quorum.Facts{Finding: f, Request: quorum.Request{Node: "w1"}}
	}
	yes := quorum.Verdict{Allowed: true, Reason: quorum.OnlyMember, Facts: facts(quorum.FoundOnlyMember)}
	no := quorum.Verdict{Reason: quorum.NotDraining, Facts: facts(quorum.FoundOpenNode)}
	blind := quorum.Verdict{Reason: quorum.CannotSee, Facts: facts(quorum.FoundNoCluster)}
	kept, careful, lost := words.Message(yes), words.Warning(yes), words.Message(no)
	for name, test := range map[string]struct {
		verdicts []quorum.Verdict
		allowed  bool
		reason   quorum.Reason
		message  string
		warnings []string
	}{
		"no verdict": {nil, false, "", "", nil},
		"all allow": {
			[]quorum.Verdict{yes, yes}, true, quorum.OnlyMember, kept + "\n" + kept, []string{careful, careful},
		},
		"one refuses":   {[]quorum.Verdict{yes, no}, false, quorum.NotDraining, lost, nil},
		"first refusal": {[]quorum.Verdict{blind, no}, false, quorum.CannotSee, words.Message(blind) + "\n" + lost, nil},
	} {
		t.Run(name, func(t *testing.T) {
			decision := words.Combine(test.verdicts...)
			require.Equal(t, test.allowed, decision.Allowed)
			require.Equal(t, test.reason, decision.Reason)
			require.Equal(t, test.message, decision.Message)
			require.Equal(t, test.warnings, decision.Warnings)
		})
	}
}

func unreachableAPIServer(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	reviewer := newReviewer(f, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	decision, err := reviewer.Review(ctx, f.Request(0))
	require.Error(t, err)
	require.Zero(t, decision)
	require.Empty(t, f.Cluster().Spec.Grants)
}

// A refusingClient refuses the patches that contain a text, as a policy of others does.
type refusingClient struct {
	client.Client
	text string
}

// Patch implements client.Client.
func (c refusingClient) Patch(
	ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption,
) error {
	body, err := p.Data(o)
	if err == nil && bytes.Contains(body, []byte(c.text)) {
		return errors.New("forbidden by a policy of others")
	}
	return c.Client.Patch(ctx, o, p, options...)
}

func refusedWrite(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	for _, text := range []string{"/spec/nonce", "/spec/grants"} {
		reviewer := newReviewer(f, 0, func(o *clusterstore.Options) { o.Client = refusingClient{o.Client, text} })
		decision, err := reviewer.Review(t.Context(), f.Request(0))
		require.ErrorContains(t, err, "forbidden by a policy of others", text)
		require.Zero(t, decision)
	}
}

func coldCache(t *testing.T, f *storetest.Fixture) {
	registry := prometheus.NewRegistry()
	store, err := clusterstore.New(t.Context(), clusterstore.Options{
		Client: f.Client, Reader: f.Client, Cache: f.ColdCache(), Registerer: registry,
	})
	require.NoError(t, err)
	reviewer := testReviewer{Reviewer: New(Options{Store: store}), registry: registry}
	decision, err := reviewer.ReviewUnlabelled(t.Context(), f.Request(0))
	require.NoError(t, err)
	require.Equal(t, quorum.UnknownMember, decision.Reason, "it read the EtcdClusters from the API server")

	// The webhook reads all EtcdClusters and Nodes of a labelled node from the API server, so
	// that a stalled watch cannot hide a deletion.
	f.WriteNonce("last")
	f.PublishAll("last")
	req := f.Request(0)
	req.DryRun = true
	decision = review(t, reviewer, req)
	require.True(t, decision.Allowed, decision.Message)

	// It also reads the addresses of Nodes if a member has no binding.
	c := f.Cluster()
	c.Spec.Members = c.Spec.Members[:2]
	require.NoError(t, f.Client.Update(t.Context(), c))
	f.PatchNode(2, `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`)
	decision = review(t, reviewer, req)
	require.False(t, decision.Allowed)
	require.Contains(t, decision.Message, "is about to be deleted")
	f.PatchNode(2, `{"spec":{"taints":null}}`)
	decision = review(t, reviewer, req)
	require.True(t, decision.Allowed, decision.Message)

	f.DeleteNode(1)
	decision = review(t, reviewer, req)
	require.False(t, decision.Allowed)
	require.Contains(t, decision.Message, "is gone")
}
