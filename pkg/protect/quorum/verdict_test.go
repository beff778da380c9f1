package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func TestReasonText(t *testing.T) {
	for name, c := range map[string]struct {
		reason        quorum.Reason
		message, text string
	}{
		"with a message":    {quorum.QuorumKept, "kept: 2 of 3", "holdfast.dev/QuorumKept: kept: 2 of 3"},
		"without a message": {quorum.Deleting, "", "holdfast.dev/Deleting"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.text, quorum.ReasonText(c.reason, c.message))
			reason, message, isReason := quorum.ParseReasonText(c.text)
			require.True(t, isReason)
			require.Equal(t, c.reason, reason)
			require.Equal(t, c.message, message)
		})
	}
	require.Equal(t, "holdfast.dev/QuorumKept: a b", quorum.ReasonText(quorum.QuorumKept, "a\nb"), "a header has one line")
	_, _, isReason := quorum.ParseReasonText("after the deletion of node w1, remove etcd1")
	require.False(t, isReason)
}

func TestReasonOf(t *testing.T) {
	_, isReason := quorum.ReasonOf(nil)
	require.False(t, isReason)
	_, isReason = quorum.ReasonOf(&metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "DisruptionBudget"}}})
	require.False(t, isReason, "another program refused")
	causes := []metav1.StatusCause{{Type: "other"}, {Type: quorum.CannotSee.Cause()}}
	reason, isReason := quorum.ReasonOf(&metav1.StatusDetails{Causes: causes})
	require.True(t, isReason)
	require.Equal(t, quorum.CannotSee, reason)
}

// Only a decision about etcd is an answer. All other reasons are unknown, as a program must not
// remove a machine because Holdfast could not decide.
func TestAnswerOf(t *testing.T) {
	for reason, want := range map[quorum.Reason]struct{ allowed, refused quorum.Answer }{
		quorum.NothingToProtect:  {quorum.Yes, quorum.Unknown},
		quorum.QuorumKept:        {quorum.Yes, quorum.Unknown},
		quorum.OnlyMember:        {quorum.Yes, quorum.Unknown},
		quorum.Deleting:          {quorum.Yes, quorum.Unknown},
		quorum.BreakGlassUsed:    {quorum.Yes, quorum.Unknown},
		quorum.QuorumWouldBeLost: {quorum.Unknown, quorum.No},
		quorum.UnknownMember:     {quorum.Unknown, quorum.No},
		quorum.NotDraining:       {quorum.Unknown, quorum.No},
		quorum.CannotSee:         {quorum.Unknown, quorum.Unknown},
		quorum.CannotDecide:      {quorum.Unknown, quorum.Unknown},
		"NotKnown":               {quorum.Unknown, quorum.Unknown},
		"Busy":                   {quorum.Unknown, quorum.Unknown},
		"":                       {quorum.Unknown, quorum.Unknown},
	} {
		require.Equal(t, want.allowed, quorum.AnswerOf(reason, true), reason)
		require.Equal(t, want.refused, quorum.AnswerOf(reason, false), reason)
	}
}
