package observation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

func ref(cluster v1alpha1.ClusterID, member v1alpha1.MemberID) evidence.MemberRef {
	return evidence.MemberRef{Cluster: cluster, Member: member}
}

func ExampleParseAnnouncement() {
	refs, err := observation.ParseAnnouncement(`[{"cluster":"cdf818194e3a8c32","member":"3a1575389de83a83"}]`)
	fmt.Println(refs, err)
	_, err = observation.ParseAnnouncement(`[{"cluster":"0xCDF8","member":"1"}]`)
	fmt.Println("error:", err != nil)
	// Output:
	// [{cdf818194e3a8c32 3a1575389de83a83}] <nil>
	// error: true
}

func TestParseAnnouncement(t *testing.T) {
	many := make([]string, observation.MaxAnnounced+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"cluster":"a","member":"%x"}`, i+1)
	}
	unsorted := `[{"cluster":"b","member":"2"},{"cluster":"a","member":"3"},{"cluster":"b","member":"2"}]`
	for name, c := range map[string]struct {
		annotation string
		want       []evidence.MemberRef
		wrong      string
	}{
		"missing":          {"", nil, ""},
		"empty list":       {"[]", nil, ""},
		"unsorted, twice":  {unsorted, []evidence.MemberRef{ref("a", "3"), ref("b", "2")}, ""},
		"maximum":          {"[" + strings.Join(many[1:], ",") + "]", nil, ""},
		"over the maximum": {"[" + strings.Join(many, ",") + "]", nil, "names 17 members"},
		"leading zero":     {`[{"cluster":"0a","member":"1"}]`, nil, `names cluster "0a"`},
		"zero":             {`[{"cluster":"a","member":"0"}]`, nil, `member "0"`},
		"upper case":       {`[{"cluster":"A","member":"1"}]`, nil, `names cluster "A"`},
		"17 digits":        {`[{"cluster":"a","member":"12345678901234567"}]`, nil, "1 to 16 digits"},
		"no member":        {`[{"cluster":"a"}]`, nil, `member ""`},
		"not a list":       {`{"cluster":"a","member":"1"}`, nil, "parsing annotation"},
		"too long":         {strings.Repeat(" ", 5000), nil, "longer than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			refs, err := observation.ParseAnnouncement(c.annotation)
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
	require.Equal(t, "[]", observation.FormatAnnouncement(nil))
	refs := []evidence.MemberRef{ref("b", "2"), ref("a", "1"), ref("b", "2"), ref("", "x")}
	want := `[{"cluster":"a","member":"1"},{"cluster":"b","member":"2"}]`
	require.Equal(t, want, observation.FormatAnnouncement(refs), "the agent would write other bytes again and again")
	var many []evidence.MemberRef
	for i := range 40 {
		many = append(many, ref("ffffffffffffffff", v1alpha1.MemberID("abcde"[i%5:i%5+1])),
			ref("eeeeeeeeeeeeeeee", v1alpha1.MemberID(fmt.Sprintf("f%x", i))))
	}
	refs, err := observation.ParseAnnouncement(observation.FormatAnnouncement(many))
	require.NoError(t, err, "a formatted announcement is valid, however many members there are")
	require.Len(t, refs, observation.MaxAnnounced)
}

func FuzzParseAnnouncement(f *testing.F) {
	f.Add(`[{"cluster":"cdf818194e3a8c32","member":"3a1575389de83a83"}]`)
	f.Add(`[{"cluster":"a","member":"1"},{"cluster":"a","member":"1"}]`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, annotation string) {
		refs, err := observation.ParseAnnouncement(annotation)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(refs), observation.MaxAnnounced)
		again, err := observation.ParseAnnouncement(observation.FormatAnnouncement(refs))
		require.NoError(t, err)
		require.ElementsMatch(t, refs, again)
	})
}

func TestFormatUnverified(t *testing.T) {
	require.Empty(t, observation.FormatUnverified(nil))
	for name, where := range map[string][]string{
		"short":            {"b", "a"},
		"long":             {strings.Repeat("x", 5000), "\xff\n\"<>"},
		"many":             make([]string, 100),
		"many and escaped": strings.Split(strings.Repeat(strings.Repeat("\u2028<&>", 100)+"|", 40), "|"),
	} {
		t.Run(name, func(t *testing.T) {
			text := observation.FormatUnverified(where)
			require.LessOrEqual(t, len(text), observation.MaxAnnotationBytes)
			again, err := observation.ParseUnverified(text)
			require.NoError(t, err)
			require.Len(t, again, min(len(where), observation.MaxAnnounced))
			require.Equal(t, text, observation.FormatUnverified(again), "the agent would write it again and again")
		})
	}
	for _, invalid := range []string{"{", `{"a":1}`, `[1]`, `"x"`, strings.Repeat(" ", 5000)} {
		_, err := observation.ParseUnverified(invalid)
		require.Error(t, err, invalid)
	}
	none, err := observation.ParseUnverified("")
	require.NoError(t, err)
	require.Empty(t, none, "an agent of an older version")
}

func FuzzParseUnverified(f *testing.F) {
	f.Add(`["systemd unit etcd-events.service"]`)
	f.Add(`null`)
	f.Add(`["\u2028","\ud800"]`)
	f.Fuzz(func(t *testing.T, annotation string) {
		where, err := observation.ParseUnverified(annotation)
		if err != nil || len(where) == 0 {
			return
		}
		again, err := observation.ParseUnverified(observation.FormatUnverified(where))
		require.NoError(t, err)
		require.Len(t, again, min(len(where), observation.MaxAnnounced))
	})
}
