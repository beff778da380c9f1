package quorum_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
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
		quorum.Repeated:          {quorum.Yes, quorum.Unknown},
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

func TestParseBreakGlass(t *testing.T) {
	until := func(d time.Duration) string { return quorumtest.Noon().Add(d).Format(time.RFC3339) }
	valid := func(uid string, d time.Duration) string {
		return `{"uid":"` + uid + `","until":"` + until(d) + `","reason":"w1 burns"}`
	}
	for name, c := range map[string]struct{ annotation, problem string }{
		"valid":                 {valid("u1", time.Hour), ""},
		"valid in another zone": {`{"uid":"u1","until":"2026-05-01T14:30:00+02:00","reason":"w1 burns"}`, ""},
		"another Node":          {valid("u2", time.Minute), `names the UID "u2", but this Node has the UID "u1"`},
		"no UID":                {`{"until":"` + until(time.Minute) + `","reason":"x"}`, `names the UID ""`},
		"expired":               {valid("u1", 0), "expired at 2026-05-01T12:00:00Z"},
		"no expiry":             {`{"uid":"u1","reason":"x"}`, "expired"},
		"too long":              {valid("u1", time.Hour+time.Second), "more than 1h0m0s from now"},
		"no reason":             {`{"uid":"u1","until":"` + until(time.Minute) + `","reason":" "}`, "contains no reason"},
		"not JSON":              {`true`, "parsing annotation"},
		"two values":            {`{} {}`, "parsing annotation"},
		"not a time":            {`{"uid":"u1","until":"tomorrow","reason":"x"}`, "parsing annotation"},
		"empty":                 {``, "parsing annotation"},
		"too large":             {strings.Repeat(" ", 5000), "longer than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := quorum.ParseBreakGlass(c.annotation, "u1", quorumtest.Noon())
			if c.problem == "" {
				require.NoError(t, err)
				require.Equal(t, "w1 burns", b.Reason)
				return
			}
			require.ErrorContains(t, err, c.problem)
			require.ErrorContains(t, err, `write {"uid":"u1","until":"2026-05-01T12:30:00Z","reason":"say why"}`)
		})
	}
	_, err := quorum.ParseBreakGlass(valid("", time.Minute), "", quorumtest.Noon())
	require.Error(t, err, "Node without a UID")
}

// TestBreakGlassStep parses the value of the printed command after the shell substitution.
func TestBreakGlassStep(t *testing.T) {
	_, value, found := strings.Cut(quorum.BreakGlassStep(quorumtest.Deletion(0)), quorum.BreakGlassAnnotation+"=")
	require.True(t, found)
	until := quorumtest.Noon().Add(30 * time.Minute).Format("2006-01-02T15:04:05Z")
	value = strings.ReplaceAll(value, "'$(date -u -d +30min +%FT%TZ)'", until)
	b, err := quorum.ParseBreakGlass(strings.Trim(value, "'"), "u1", quorumtest.Noon())
	require.NoError(t, err)
	require.Equal(t, "say why", b.Reason)
}

func FuzzParseBreakGlass(f *testing.F) {
	f.Add(`{"uid":"u1","until":"2026-05-01T12:30:00Z","reason":"x"}`)
	f.Add(`{"uid":"u1","until":"9999-12-31T23:59:59Z","reason":"x"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, annotation string) {
		b, err := quorum.ParseBreakGlass(annotation, "u1", quorumtest.Noon())
		if err != nil {
			return
		}
		require.EqualValues(t, "u1", b.UID)
		require.NotEmpty(t, strings.TrimSpace(b.Reason))
		require.True(t, b.Until.After(quorumtest.Noon()) && !b.Until.After(quorumtest.Noon().Add(time.Hour)), b.Until)
	})
}

// F36: a program that evicts pods from nodes that stay drains nothing.
func TestF36NotDraining(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*observation.NodeState)
		want   quorum.Reason
	}{
		"open":           {func(*observation.NodeState) {}, quorum.NotDraining},
		"cordoned":       {quorumtest.Cordoned, quorum.QuorumKept},
		"marked":         {quorumtest.Departing, quorum.QuorumKept},
		"away":           {quorumtest.Rebooting, quorum.QuorumKept},
		"shutting down":  {quorumtest.ShuttingDown, quorum.QuorumKept},
		"being deleted":  {func(n *observation.NodeState) { n.Deleting = true }, quorum.QuorumKept},
		"other Node now": {func(n *observation.NodeState) { n.UID = "u1-again" }, quorum.QuorumKept},
	} {
		t.Run(name, func(t *testing.T) {
			world := quorumtest.Voters(3).State(0, c.change)
			v := quorum.Decide(world.View, quorumtest.Drain(0))
			require.Equal(t, c.want, v.Reason, v.Message)
			require.Equal(t, c.want == quorum.QuorumKept, v.Allowed)
			require.True(t, quorum.Decide(world.View, quorumtest.Deletion(0)).Allowed, "a deletion needs no cordon")
			forced := quorum.Force(world.View, quorumtest.Drain(0))
			require.True(t, forced.Allowed)
			require.Equal(t, quorumtest.IDs("a"), forced.Members)
		})
	}
}

// F33: a drain and a deletion are decided by the same arithmetic, and each counts for the other.
func TestF33DrainsAndDeletions(t *testing.T) {
	for voters := 1; voters <= 5; voters++ {
		for lost := range 1 << voters {
			for _, isDrained := range []bool{true, false} {
				world := quorumtest.Voters(voters).State(0, quorumtest.Cordoned)
				for i := 1; i < voters; i++ {
					switch {
					case lost&(1<<i) == 0:
					case isDrained:
						world.Drained(i)
					default:
						world.Granted(i)
					}
				}
				drain := quorum.Decide(world.View, quorumtest.Drain(0))
				deletion := quorum.Decide(world.View, quorumtest.Deletion(0))
				require.Equal(t, voters == 1 || deletion.Allowed, drain.Allowed, drain.Message)
				require.Equal(t, deletion.Members, drain.Members)
				require.Equal(t, deletion.Healthy, drain.Healthy)
			}
		}
	}
	two := quorumtest.Voters(2).State(0, quorumtest.Cordoned)
	quorumtest.RequireRefused(t, two, quorumtest.Drain(0), "holdfast.dev/break-glass")
}

func TestDrainOfOnlyMember(t *testing.T) {
	one := func() *quorumtest.Cluster { return quorumtest.Voters(1).State(0, quorumtest.Cordoned) }
	decide := func(c *quorumtest.Cluster, r quorum.Request) quorum.Verdict { return quorum.Decide(c.View, r) }
	v := decide(one(), quorumtest.Drain(0))
	require.True(t, v.Allowed, v.Message)
	require.Equal(t, quorum.OnlyMember, v.Reason)
	require.Equal(t, quorumtest.IDs("a"), v.Members, "the grant names it")
	two := func() *quorumtest.Cluster { return quorumtest.Voters(2).State(0, quorumtest.Cordoned) }
	for name, v := range map[string]quorum.Verdict{
		"deletion":             decide(one(), quorumtest.Deletion(0)),
		"no list":              decide(one().WithoutList(0), quorumtest.Drain(0)),
		"silent":               decide(one().Silent(0), quorumtest.Drain(0)),
		"a learner joins":      decide(two().Learner(1), quorumtest.Drain(0)),
		"another bound member": decide(two().Removed(1).Silent(1), quorumtest.Drain(0)),
		"lists differ":         decide(two().RemovedFrom(0, 1), quorumtest.Drain(0)),
	} {
		require.False(t, v.Allowed, name)
	}
}
