package quorum_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

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
	refusal := words.Message(quorum.RefuseUnattributed(quorumtest.Deletion(0)))
	_, value, found := strings.Cut(refusal, quorum.BreakGlassAnnotation+"=")
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
