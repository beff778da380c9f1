package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func tolerance(t *testing.T, w *world) {
	w.observe()
	r := judge(t, w.book(func(o *Options) { o.MinRemainingTolerance = 1 }), w.question(0))
	require.False(t, r.Allowed)
	require.Equal(t, protect.QuorumWouldBeLost, r.Reason)
	require.Contains(t, r.Message, "of 3 voters 2 must live and 1 more must be expendable")
	require.Empty(t, w.now().Spec.Grants)
	require.True(t, judge(t, w.book(), w.question(0)).Allowed)
}

func unverified(t *testing.T, w *world) {
	w.observe()
	b := w.book()
	q := w.question(0)
	q.Request.Unverified = []string{"systemd unit etcd-events.service"}
	r := judge(t, b, q)
	require.False(t, r.Allowed)
	require.Equal(t, protect.UnknownMember, r.Reason)
	require.Contains(t, r.Message, "systemd unit etcd-events.service")
	require.Empty(t, w.now().Spec.Nonce, "nobody was asked")
	require.Empty(t, w.now().Spec.Grants)
	q.DryRun = true
	require.False(t, judge(t, b, q).Allowed)
}
