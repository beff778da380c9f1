package protect

import (
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func holds() Protection {
	return Protection{Membership: Holds, Because: "etcd member etcd1 (a)", Announce: []MemberRef{{clusterX, "a"}}}
}

func TestMarks(t *testing.T) {
	all := strings.Join(slices.Sorted(maps.Keys(autoscalerMarks(""))), ",")
	ours := map[string]string{
		ClusterAutoscalerAnnotation: "true", KarpenterAnnotation: "true", CastAIAnnotation: "true",
		EscalatorAnnotation: "etcd member etcd1 (a)", BecauseAnnotation: "etcd member etcd1 (a)",
		AnnouncementAnnotation: `[{"cluster":"cdf818194e3a8c32","member":"a"}]`, MarksAnnotation: all,
	}
	with := func(m map[string]string, pairs ...string) map[string]string {
		m = maps.Clone(m)
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	without := func(m map[string]string, key string) map[string]string {
		m = maps.Clone(m)
		delete(m, key)
		return m
	}
	label := map[string]string{EtcdMemberLabel: "true"}
	for name, c := range map[string]struct {
		p                 Protection
		before, after     map[string]string
		labels, newLabels map[string]string
		lent              []string
	}{
		"a new member":                  {p: holds(), before: map[string]string{"x": "y"}, after: with(ours, "x", "y"), newLabels: label},
		"nothing to do":                 {p: holds(), before: ours, after: ours, labels: label, newLabels: label},
		"the label was taken off":       {p: holds(), before: ours, after: ours, labels: map[string]string{"z": "1"}, newLabels: map[string]string{"z": "1", EtcdMemberLabel: "true"}},
		"one of ours was taken off":     {p: holds(), before: without(ours, KarpenterAnnotation), after: ours, newLabels: label},
		"one of ours was changed":       {p: holds(), before: with(ours, ClusterAutoscalerAnnotation, "false"), after: ours, newLabels: label},
		"somebody's stays, even if bad": {p: holds(), before: map[string]string{KarpenterAnnotation: "no"}, after: with(ours, KarpenterAnnotation, "no", MarksAnnotation, strings.ReplaceAll(all, ","+KarpenterAnnotation, "")), newLabels: label},
		"all of them are somebody's": {
			p:         holds(),
			before:    map[string]string{ClusterAutoscalerAnnotation: "true", KarpenterAnnotation: "true", CastAIAnnotation: "true", EscalatorAnnotation: "mine"},
			after:     without(with(ours, EscalatorAnnotation, "mine"), MarksAnnotation),
			newLabels: label,
		},
		"a reason that changed":     {p: holds(), before: with(ours, BecauseAnnotation, "old", EscalatorAnnotation, "old"), after: ours, newLabels: label},
		"never verified":            {p: Protection{Membership: Holds, Because: "etcd member etcd1 (a)"}, before: nil, after: without(ours, AnnouncementAnnotation), newLabels: label},
		"unknown changes nothing":   {p: Protection{}, before: without(ours, KarpenterAnnotation), after: without(ours, KarpenterAnnotation), labels: label, newLabels: label},
		"gone":                      {p: Protection{Membership: HoldsNot}, before: with(ours, "x", "y"), after: map[string]string{"x": "y"}, labels: label, newLabels: map[string]string{}},
		"gone, and somebody's stay": {p: Protection{Membership: HoldsNot}, before: with(ours, MarksAnnotation, KarpenterAnnotation), after: map[string]string{ClusterAutoscalerAnnotation: "true", CastAIAnnotation: "true", EscalatorAnnotation: "etcd member etcd1 (a)"}, newLabels: nil},
		"never held":                {p: Protection{Membership: HoldsNot}, before: map[string]string{KarpenterAnnotation: "true"}, after: map[string]string{KarpenterAnnotation: "true"}},
		"a hold has set them, and the member takes them over": {
			p: holds(), lent: []string{CastAIAnnotation, ClusterAutoscalerAnnotation, EscalatorAnnotation, KarpenterAnnotation},
			before: map[string]string{ClusterAutoscalerAnnotation: "true", KarpenterAnnotation: "true", CastAIAnnotation: "true", EscalatorAnnotation: "held"}, after: ours,
			newLabels: label,
		},
		"a hold has set some": {
			p: holds(), lent: []string{KarpenterAnnotation},
			before:    map[string]string{ClusterAutoscalerAnnotation: "true", KarpenterAnnotation: "true"},
			after:     with(ours, MarksAnnotation, strings.ReplaceAll(all, ","+ClusterAutoscalerAnnotation, "")),
			newLabels: label,
		},
		"unknown takes nothing over": {p: Protection{}, lent: []string{KarpenterAnnotation}, before: map[string]string{KarpenterAnnotation: "true"}, after: map[string]string{KarpenterAnnotation: "true"}},
		"gone, and a hold has use for one": {
			p: Protection{Membership: HoldsNot}, lent: []string{KarpenterAnnotation},
			before: ours, after: map[string]string{KarpenterAnnotation: "true"}, labels: label, newLabels: map[string]string{},
		},
		"a forged record gives no leave": {
			p: Protection{Membership: HoldsNot}, before: map[string]string{MarksAnnotation: "x," + BreakGlassAnnotation, "x": "y", BreakGlassAnnotation: "{}"},
			after: map[string]string{"x": "y", BreakGlassAnnotation: "{}"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			annotations, labels := Marks(c.p, c.before, c.labels, c.lent)
			require.Equal(t, orEmpty(c.after), apply(c.before, annotations))
			require.Equal(t, orEmpty(c.newLabels), apply(c.labels, labels))
			for key, v := range annotations {
				was, there := c.before[key]
				require.False(t, (v == nil && !there) || (v != nil && there && was == *v), "%s is no difference", key)
			}
		})
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func apply(to map[string]string, changes map[string]*string) map[string]string {
	result := orEmpty(maps.Clone(to))
	for key, v := range changes {
		if v == nil {
			delete(result, key)
		} else {
			result[key] = *v
		}
	}
	return result
}

// TestMarksProperties drives a Node through random protections and random hands of others.
func TestMarksProperties(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	keys := append(slices.Sorted(maps.Keys(autoscalerMarks(""))), BecauseAnnotation, AnnouncementAnnotation, MarksAnnotation, BreakGlassAnnotation, "x/y", "z")
	values := []string{"", "true", "false", "etcd member", KarpenterAnnotation, KarpenterAnnotation + "," + EscalatorAnnotation, "z,x/y"}
	for range 5000 {
		before := map[string]string{}
		for _, key := range keys {
			if r.Intn(2) == 0 {
				before[key] = values[r.Intn(len(values))]
			}
		}
		p := []Protection{{}, holds(), {Membership: HoldsNot}}[r.Intn(3)]
		changes, _ := Marks(p, before, nil, nil)
		after := apply(before, changes)
		again, _ := Marks(p, after, nil, nil)
		require.Empty(t, again, "a second look changes nothing: %v", before)
		own := ownMarks(before)
		for key := range changes {
			_, mark := autoscalerMarks("")[key]
			_, there := before[key]
			holdfasts := slices.Contains([]string{BecauseAnnotation, AnnouncementAnnotation, MarksAnnotation}, key)
			require.True(t, holdfasts || (mark && (!there || slices.Contains(own, key))), "%s is somebody's: %v", key, before)
		}
		switch p.Membership {
		case MembershipUnknown:
			require.Empty(t, changes)
		case HoldsNot:
			for key := range maps.Keys(after) {
				require.Contains(t, before, key)
			}
		case Holds:
			for key := range autoscalerMarks("") {
				require.Contains(t, after, key)
			}
			gone, _ := Marks(Protection{Membership: HoldsNot}, after, nil, nil)
			for key := range autoscalerMarks("") {
				_, there := before[key]
				left := apply(after, gone)
				require.Equal(t, there && !slices.Contains(own, key), hasKey(left, key), "what was there before, and only that, is left: %s", key)
			}
		}
	}
}

func hasKey(m map[string]string, key string) bool {
	_, there := m[key]
	return there
}

func TestOverruled(t *testing.T) {
	require.Empty(t, Overruled(nil))
	require.Empty(t, Overruled(map[string]string{ClusterAutoscalerAnnotation: "true", EscalatorAnnotation: "mine"}))
	require.Equal(t, []string{
		`somebody has set annotation atlassian.com/no-delete to "", which does not protect this node: remove it, and Holdfast sets it`,
		`somebody has set annotation cluster-autoscaler.kubernetes.io/scale-down-disabled to "True", which does not protect this node: remove it, and Holdfast sets it`,
	}, Overruled(map[string]string{ClusterAutoscalerAnnotation: "True", EscalatorAnnotation: "", KarpenterAnnotation: "false", MarksAnnotation: KarpenterAnnotation}))
}

func FuzzMarks(f *testing.F) {
	f.Add(KarpenterAnnotation+","+EscalatorAnnotation, "true", "false", true)
	f.Add(",,x,"+BreakGlassAnnotation, "", "x", false)
	f.Fuzz(func(t *testing.T, record, karpenter, escalator string, holdsIt bool) {
		before := map[string]string{MarksAnnotation: record, KarpenterAnnotation: karpenter, EscalatorAnnotation: escalator, BreakGlassAnnotation: "{}", record: "x"}
		p := Protection{Membership: HoldsNot}
		if holdsIt {
			p = holds()
		}
		changes, _ := Marks(p, before, nil, nil)
		after := apply(before, changes)
		again, _ := Marks(p, after, nil, nil)
		require.Empty(t, again)
		ours := []string{BecauseAnnotation, AnnouncementAnnotation, UnverifiedAnnotation, MarksAnnotation, ClusterAutoscalerAnnotation, KarpenterAnnotation, EscalatorAnnotation, CastAIAnnotation}
		for key := range changes {
			require.Contains(t, ours, key)
			if value, mark := autoscalerMarks("")[key]; mark && !strings.Contains(record, key) {
				is, there := before[key]
				require.False(t, there, "%s was %q before, not %q, and is nobody's of ours", key, is, value)
			}
		}
		Overruled(before)
	})
}
