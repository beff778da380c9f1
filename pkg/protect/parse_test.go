package protect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestParseBreakGlass(t *testing.T) {
	until := func(d time.Duration) string { return noon().Add(d).Format(time.RFC3339) }
	for name, c := range map[string]struct{ annotation, wrong string }{
		"valid":                   {`{"uid":"u1","until":"` + until(time.Hour) + `","reason":"w1 burns"}`, ""},
		"valid in another zone":   {`{"uid":"u1","until":"2026-05-01T14:30:00+02:00","reason":"w1 burns"}`, ""},
		"another Node":            {`{"uid":"u2","until":"` + until(time.Minute) + `","reason":"x"}`, `names the UID "u2", and this Node's is "u1"`},
		"no UID":                  {`{"until":"` + until(time.Minute) + `","reason":"x"}`, `names the UID ""`},
		"expired":                 {`{"uid":"u1","until":"` + until(0) + `","reason":"x"}`, "expired at 2026-05-01T12:00:00Z"},
		"no expiry":               {`{"uid":"u1","reason":"x"}`, "expired"},
		"too long":                {`{"uid":"u1","until":"` + until(time.Hour+time.Second) + `","reason":"x"}`, "more than 1h0m0s ahead"},
		"no reason":               {`{"uid":"u1","until":"` + until(time.Minute) + `","reason":" "}`, "gives no reason"},
		"not JSON":                {`true`, "parsing annotation"},
		"two values":              {`{} {}`, "parsing annotation"},
		"not a time":              {`{"uid":"u1","until":"tomorrow","reason":"x"}`, "parsing annotation"},
		"empty":                   {``, "parsing annotation"},
		"longer than it could be": {strings.Repeat(" ", 5000), "longer than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := ParseBreakGlass(c.annotation, "u1", noon())
			if c.wrong == "" {
				require.NoError(t, err)
				require.Equal(t, "w1 burns", b.Reason)
				return
			}
			require.ErrorContains(t, err, c.wrong)
			require.ErrorContains(t, err, `write {"uid":"u1","until":"2026-05-01T12:30:00Z","reason":"say why"}`)
		})
	}
	_, err := ParseBreakGlass(`{"uid":"","until":"`+until(time.Minute)+`","reason":"x"}`, "", noon())
	require.Error(t, err, "a Node without a UID is no Node")
}

// TestBreakGlassCommandIsWhatIsParsed runs the printed command as far as a shell would change it.
func TestBreakGlassCommandIsWhatIsParsed(t *testing.T) {
	_, value, found := strings.Cut(breakGlassStep(deletion(0)), BreakGlassAnnotation+"=")
	require.True(t, found)
	value = strings.ReplaceAll(value, "'$(date -u -d +30min +%FT%TZ)'", noon().Add(30*time.Minute).Format("2006-01-02T15:04:05Z"))
	b, err := ParseBreakGlass(strings.Trim(value, "'"), "u1", noon())
	require.NoError(t, err)
	require.Equal(t, "say why", b.Reason)
}

func FuzzParseBreakGlass(f *testing.F) {
	f.Add(`{"uid":"u1","until":"2026-05-01T12:30:00Z","reason":"x"}`)
	f.Add(`{"uid":"u1","until":"9999-12-31T23:59:59Z","reason":"x"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, annotation string) {
		b, err := ParseBreakGlass(annotation, "u1", noon())
		if err != nil {
			return
		}
		require.EqualValues(t, "u1", b.UID)
		require.NotEmpty(t, strings.TrimSpace(b.Reason))
		require.True(t, b.Until.After(noon()) && !b.Until.After(noon().Add(time.Hour)), b.Until)
	})
}

func TestParseAnnouncement(t *testing.T) {
	many := make([]string, mostAnnounced+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"cluster":"a","member":"%x"}`, i+1)
	}
	for name, c := range map[string]struct {
		annotation string
		want       []MemberRef
		wrong      string
	}{
		"not there":         {"", nil, ""},
		"empty list":        {"[]", nil, ""},
		"sorted, each once": {`[{"cluster":"b","member":"2"},{"cluster":"a","member":"3"},{"cluster":"b","member":"2"}]`, []MemberRef{{"a", "3"}, {"b", "2"}}, ""},
		"as many as may be": {"[" + strings.Join(many[1:], ",") + "]", nil, ""},
		"too many":          {"[" + strings.Join(many, ",") + "]", nil, "names 17 members"},
		"leading zero":      {`[{"cluster":"0a","member":"1"}]`, nil, `names cluster "0a"`},
		"zero":              {`[{"cluster":"a","member":"0"}]`, nil, `member "0"`},
		"upper case":        {`[{"cluster":"A","member":"1"}]`, nil, `names cluster "A"`},
		"too long an ID":    {`[{"cluster":"a","member":"12345678901234567"}]`, nil, "1 to 16 digits"},
		"no member":         {`[{"cluster":"a"}]`, nil, `member ""`},
		"not a list":        {`{"cluster":"a","member":"1"}`, nil, "parsing annotation"},
		"longer than sense": {strings.Repeat(" ", 5000), nil, "longer than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			refs, err := ParseAnnouncement(c.annotation)
			if c.wrong != "" {
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			if c.want != nil {
				require.Equal(t, c.want, refs)
			}
		})
	}
}

func TestFormatAnnouncement(t *testing.T) {
	require.Equal(t, "[]", FormatAnnouncement(nil))
	want := `[{"cluster":"a","member":"1"},{"cluster":"b","member":"2"}]`
	require.Empty(t, strings.TrimPrefix(want, FormatAnnouncement([]MemberRef{{"b", "2"}, {"a", "1"}, {"b", "2"}, {"", "x"}})), "these very bytes, or the annotation is written again and again")
	var many []MemberRef
	for i := range 40 {
		many = append(many, MemberRef{"ffffffffffffffff", member(i % 5).ID}, MemberRef{"eeeeeeeeeeeeeeee", v1alpha1.MemberID(fmt.Sprintf("f%x", i))})
	}
	refs, err := ParseAnnouncement(FormatAnnouncement(many))
	require.NoError(t, err, "what is written can be read, however much there is")
	require.Len(t, refs, mostAnnounced)
}

func FuzzParseAnnouncement(f *testing.F) {
	f.Add(`[{"cluster":"cdf818194e3a8c32","member":"3a1575389de83a83"}]`)
	f.Add(`[{"cluster":"a","member":"1"},{"cluster":"a","member":"1"}]`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, annotation string) {
		refs, err := ParseAnnouncement(annotation)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(refs), mostAnnounced)
		again, err := ParseAnnouncement(FormatAnnouncement(refs))
		require.NoError(t, err)
		require.ElementsMatch(t, refs, again)
	})
}
