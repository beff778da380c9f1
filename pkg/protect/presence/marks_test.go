package presence

import (
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// present returns the protection of a node that holds member a.
func present() Protection {
	return Protection{Membership: MemberPresent, Because: "etcd member etcd1 (a)", Announce: refs("a")}
}

// autoscalerKeys returns the keys of the autoscaler annotations, sorted.
func autoscalerKeys() []string { return autoscaler.Keys() }

func TestMarks(t *testing.T) {
	all := strings.Join(autoscalerKeys(), ",")
	allBut := func(key string) string { return strings.ReplaceAll(all, ","+key, "") }
	with := func(m map[string]string, pairs ...string) map[string]string {
		m = apply(m, nil)
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	without := func(m map[string]string, key string) map[string]string { return apply(m, map[string]*string{key: nil}) }
	// marks are the autoscaler annotations alone, marked are all annotations of a node with member a.
	marks := map[string]string{
		autoscaler.ClusterAutoscaler: "true", autoscaler.Karpenter: "true", autoscaler.CastAI: "true",
		autoscaler.Escalator: "etcd member etcd1 (a)",
	}
	marked := with(marks, BecauseAnnotation, "etcd member etcd1 (a)", MarksAnnotation, all,
		observation.AnnouncementAnnotation, `[{"cluster":"cdf818194e3a8c32","member":"a"}]`)
	held := with(marks, autoscaler.Escalator, "held")
	karpenter := map[string]string{autoscaler.Karpenter: "true"}
	two := with(karpenter, autoscaler.ClusterAutoscaler, "true")
	forged := map[string]string{
		MarksAnnotation: "x," + quorum.BreakGlassAnnotation, "x": "y", quorum.BreakGlassAnnotation: "{}",
	}
	unverified := Protection{Membership: MemberPresent, Because: "etcd member etcd1 (a)"}
	const karpenterKey, escalatorKey = autoscaler.Karpenter, autoscaler.Escalator
	p, other, empty := present(), map[string]string{"x": "y"}, map[string]string{}
	ineffective := map[string]string{karpenterKey: "no"}
	ofOne := []string{karpenterKey} // a mark of a hold
	lacking := without(marked, karpenterKey)
	butOne := with(marked, MarksAnnotation, allBut(autoscaler.ClusterAutoscaler))
	absent, unknown := Protection{Membership: MemberAbsent}, Protection{}
	label := map[string]string{observation.EtcdMemberLabel: "true"}
	for name, c := range map[string]struct {
		protection        Protection
		before, after     map[string]string
		labels, newLabels map[string]string
		ownedByHold       []string
	}{
		"new member":      {p, other, with(marked, "x", "y"), nil, label, nil},
		"nothing changes": {p, marked, marked, label, label, nil},
		"label removed":   {p, marked, marked, map[string]string{"z": "1"}, with(label, "z", "1"), nil},
		"foreign mark, ineffective": {
			p, ineffective,
			with(marked, karpenterKey, "no", MarksAnnotation, allBut(karpenterKey)), nil, label, nil,
		},
		"all marks foreign": {
			p, with(marks, escalatorKey, "mine"), without(with(marked, escalatorKey, "mine"), MarksAnnotation), nil, label, nil,
		},
		"reason changed": {
			p, with(marked, BecauseAnnotation, "old", escalatorKey, "old"), marked, nil, label, nil,
		},
		"never verified":          {unverified, nil, without(marked, observation.AnnouncementAnnotation), nil, label, nil},
		"unknown":                 {unknown, lacking, lacking, label, label, nil},
		"absent":                  {absent, with(marked, "x", "y"), other, label, empty, nil},
		"marks of a hold":         {p, held, with(marked, escalatorKey, "held"), nil, label, autoscalerKeys()},
		"marks after a hold":      {p, with(marked, escalatorKey, "held"), marked, nil, label, nil},
		"one mark of a hold":      {p, two, butOne, nil, label, ofOne},
		"unknown, mark of a hold": {unknown, karpenter, karpenter, nil, nil, ofOne},
		"absent, mark of a hold":  {absent, marked, karpenter, label, empty, ofOne},
		"forged record":           {absent, forged, without(forged, MarksAnnotation), nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			annotations, labels := Marks(c.protection, c.before, c.labels, c.ownedByHold)
			require.Equal(t, apply(c.after, nil), apply(c.before, annotations))
			require.Equal(t, apply(c.newLabels, nil), apply(c.labels, labels))
			for key, v := range annotations {
				was, exists := c.before[key]
				require.False(t, (v == nil && !exists) || (v != nil && exists && was == *v), "%s does not change", key)
			}
		})
	}
}

// TestMarksProperties applies random protections to a Node whose annotations others have changed.
func TestMarksProperties(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	own := []string{BecauseAnnotation, observation.AnnouncementAnnotation, MarksAnnotation}
	keys := slices.Concat(autoscalerKeys(), own, []string{quorum.BreakGlassAnnotation, "x/y", "z"})
	values := []string{
		"", "true", "false", "etcd member", autoscaler.Karpenter, autoscaler.Karpenter + "," + autoscaler.Escalator, "z,x/y",
	}
	for range 5000 {
		before := map[string]string{}
		for _, key := range keys {
			if r.Intn(2) == 0 {
				before[key] = values[r.Intn(len(values))]
			}
		}
		p := []Protection{{}, present(), {Membership: MemberAbsent}}[r.Intn(3)]
		changes, _ := Marks(p, before, nil, nil)
		after := apply(before, changes)
		again, _ := Marks(p, after, nil, nil)
		require.Empty(t, again, "a second call changes nothing: %v", before)
		// An autoscaler annotation that Holdfast did not set is foreign.
		isForeign := func(key string) bool {
			_, exists := before[key]
			return exists && !slices.Contains(recordedMarks(before), key)
		}
		for key := range changes {
			isMark := slices.Contains(autoscalerKeys(), key)
			require.True(t, slices.Contains(own, key) || (isMark && !isForeign(key)), "%s is foreign: %v", key, before)
		}
		switch p.Membership {
		case MembershipUnknown:
			require.Empty(t, changes)
		case MemberAbsent:
			for key := range after {
				require.Contains(t, before, key)
			}
		case MemberPresent:
			removed, _ := Marks(Protection{Membership: MemberAbsent}, after, nil, nil)
			left := apply(after, removed)
			for _, key := range autoscalerKeys() {
				require.Contains(t, after, key)
				_, isLeft := left[key]
				require.Equal(t, isForeign(key), isLeft, "only a foreign mark stays: %s", key)
			}
		}
	}
}

func TestIneffectiveMarks(t *testing.T) {
	require.Empty(t, ineffectiveMarks(nil))
	effective := map[string]string{autoscaler.ClusterAutoscaler: "true", autoscaler.Escalator: "mine"}
	require.Empty(t, ineffectiveMarks(effective))
	const advice = ", which does not protect this node: remove the annotation, and Holdfast sets the right value"
	require.Equal(t, []string{
		`annotation atlassian.com/no-delete has the value ""` + advice,
		`annotation cluster-autoscaler.kubernetes.io/scale-down-disabled has the value "True"` + advice,
	}, ineffectiveMarks(map[string]string{
		autoscaler.ClusterAutoscaler: "True", autoscaler.Escalator: "", autoscaler.Karpenter: "false",
		MarksAnnotation: autoscaler.Karpenter,
	}))
}
