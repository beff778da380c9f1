package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// TestReviewMachine checks that a machine that is about to end is kept if nothing is known, while
// its deletion would be allowed.
func TestReviewMachine(t *testing.T) {
	object := machine.Object{
		Kind: machine.KindMachine, Namespace: "capi", Name: "m1", ProviderID: "cloud:///1", Deleting: true,
		IsHooked: true, AwaitsHook: true,
	}
	for name, c := range map[string]struct {
		cacheErr   error
		isDeleting bool // the Node
		decision   quorum.Decision
		allowed    bool
		message    string
	}{
		// F69, F72: a finalizer kept an allowed Node, another voter died, and the last request for its
		// Machine or NodeClaim was not decided.
		"F69 Node being deleted": {
			isDeleting: true, decision: quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay"},
			message: "1 of 3 would stay\nMachine capi/m1 stands for node n1: both have the provider ID cloud:///1.",
		},
		"refused": {
			decision: quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay"},
			message:  "1 of 3 would stay\nMachine capi/m1 stands for node n1: both have the provider ID cloud:///1.",
		},
		"allowed": {
			decision: quorum.Decision{Allowed: true, Reason: quorum.QuorumKept, Message: "2 of 3 stay"},
			allowed:  true, message: "2 of 3 stay",
		},
		"no cache": {
			cacheErr: errors.New("not synced"),
			message:  "holdfast cannot list the nodes. The hook stays until this is resolved.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.live.Spec.ProviderID = "cloud:///1"
			f.cacheErr, f.decision = c.cacheErr, c.decision
			if c.isDeleting {
				f.live.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			}
			allowed, message := f.handler.ReviewMachine(t.Context(), object, f.liveNodes, "Cluster API")
			require.Equal(t, c.allowed, allowed)
			require.Equal(t, c.message, message)
		})
	}
}

// TestReviewMachineOfNewNode: the kubelet of the machine has registered again, its agent has not
// set the label yet, and the cache does not have the new Node. This review is the last one before
// the machine ends, so it is about the Node that exists. The live check of package machinehook does
// not see that Node: it is neither labelled nor bound.
func TestReviewMachineOfNewNode(t *testing.T) {
	f := newFixture(t)
	f.live.Spec.ProviderID = "cloud:///1"
	delete(f.live.Labels, observation.EtcdMemberLabel)
	f.cached = []corev1.Node{}
	f.decision = quorum.Decision{Reason: quorum.UnknownMember, Message: "two lists have a member at its address"}
	allowed, message := f.handler.ReviewMachine(t.Context(), machine.Object{
		Kind: machine.KindMachine, Namespace: "capi", Name: "m1", ProviderID: "cloud:///1", Deleting: true,
	}, f.liveNodes, "Cluster API")
	require.False(t, allowed, message)
}

// TestF65LastReview: the last review before a machine ends repeats no earlier one, whose answer may
// be a minute old. It refuses if it fails, also for a Node without the label.
// F65, F70: another voter died after the review of a hook, and the grant answered again, or a
// paused leader removed the hook after the next one had refused.
func TestF65LastReview(t *testing.T) {
	object := machine.Object{Kind: machine.KindMachine, Namespace: "capi", Name: "m1", ProviderID: "cloud:///1"}
	for _, test := range []struct {
		labelled, panics, allowed bool
		err                       error
	}{
		{labelled: true, allowed: true},
		{labelled: true, panics: true},
		{allowed: true},
		{panics: true},
		{err: errors.New("the cache is not synced")},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			f := newFixture(t)
			f.live.Spec.ProviderID, f.live.ResourceVersion = "cloud:///1", "7"
			if !test.labelled {
				delete(f.live.Labels, observation.EtcdMemberLabel)
			}
			f.panics, f.err = test.panics, test.err
			if test.allowed {
				f.decision = quorum.Decision{Allowed: true, Reason: quorum.QuorumKept}
			}
			allowed, message := f.handler.ReviewMachine(t.Context(), object, f.liveNodes, "Cluster API")
			require.Equal(t, test.allowed, allowed, message)
			require.NotContains(t, message, "so its deletion is allowed")
			require.Len(t, f.requests, 1)
			require.Empty(t, f.requests[0].Version)
		})
	}
}

// TestF55MachineRegistersDuringReview: while a review of a machine reviews its Node, that Node is
// deleted, and the kubelet registers again.
// F55, F63, F68: a kubelet registered again during the review of its NodeClaim or drain, and the
// new Node was not reviewed.
func TestF55MachineRegistersDuringReview(t *testing.T) {
	f := newFixture(t)
	f.live.Spec.ProviderID = "cloud:///1"
	f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay"}
	f.during = func() {
		if len(f.requests) == 1 {
			f.live = f.live.DeepCopy()
			f.live.UID = "uid-2"
		}
	}
	allowed, message := f.handler.ReviewMachine(t.Context(), machine.Object{
		Kind: machine.KindNodeClaim, Name: "m1", ProviderID: "cloud:///1",
	}, f.liveNodes, "Karpenter")
	require.False(t, allowed, message)
	require.Contains(t, message, "1 of 3 would stay")
	require.Len(t, f.requests, 2)
	require.Equal(t, types.UID("uid-2"), f.requests[1].UID)

	f.requests, f.during = nil, func() { f.live = nil }
	allowed, message = f.handler.ReviewMachine(t.Context(), machine.Object{
		Kind: machine.KindNodeClaim, Name: "m1", ProviderID: "cloud:///1",
	}, f.liveNodes, "Karpenter")
	require.True(t, allowed, message)
	require.Len(t, f.requests, 1)
}

// TestF63NodeOfMachineUnreadable: while a review of a machine reviews its Node, the kubelet
// registers again, and the new Node cannot be read at first, or until the review ends.
func TestF63NodeOfMachineUnreadable(t *testing.T) {
	for name, isReadable := range map[string]bool{"once": true, "until the end": false} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := newFixture(t)
			f.live.Spec.ProviderID = "cloud:///1"
			f.decision = quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay"}
			f.during = func() {
				f.live = f.live.DeepCopy()
				f.live.UID, f.during = "uid-2", nil
			}
			reads := 0
			f.onRead = func() {
				f.liveErr = nil
				if f.live.UID != "uid-2" {
					return
				}
				// A read before a review fails, and the next one, which the review makes, succeeds.
				if reads++; reads == 2 || !isReadable && reads%2 == 0 && reads < 10 {
					f.liveErr = errors.New("the server is busy")
				}
				if reads == 10 {
					cancel()
				}
			}
			allowed, message := f.handler.ReviewMachine(ctx, machine.Object{
				Kind: machine.KindNodeClaim, Name: "m1", ProviderID: "cloud:///1",
			}, f.liveNodes, "Karpenter")
			require.False(t, allowed, message)
			if isReadable {
				require.Contains(t, message, "1 of 3 would stay")
				require.Equal(t, types.UID("uid-2"), f.requests[len(f.requests)-1].UID)
			} else {
				require.Contains(t, message, "cannot be read")
			}
		})
	}
}
