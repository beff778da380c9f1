package protect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const eventsUnit = "systemd unit etcd-events.service"

// eventsServer is the server of a second cluster on the same host, which has not answered.
func eventsServer() Found {
	f := unitServer().silentAs(eventsUnit)
	f.Config.Name = "etcd1-events"
	return f
}

// named is a server that was told a name.
func named(f Found, name string) Found {
	f.Config.Name = name
	return f
}

func TestServersThatNothingTellsApart(t *testing.T) {
	a := MemberRef{clusterX, "a"}
	for name, c := range map[string]struct {
		found     []Found
		announced []MemberRef
		want      []string
		reason    string
	}{
		"one answers, the other never did":                  {[]Found{unitServer(), eventsServer()}, []MemberRef{a}, []string{eventsUnit}, "Unverified"},
		"one answers, the other is stopped and has data":    {[]Found{unitServer(), eventsServer().stopped(yes(true))}, []MemberRef{a}, []string{eventsUnit}, "SystemdUnit"},
		"one answers, the other may have data":              {[]Found{unitServer(), eventsServer().stopped(nil)}, []MemberRef{a}, []string{eventsUnit}, "SystemdUnit"},
		"one answers, the other was never started":          {[]Found{unitServer(), eventsServer().stopped(yes(false))}, []MemberRef{a}, nil, "SystemdUnit"},
		"one answers, the other left its cluster":           {[]Found{unitServer(), eventsServer().removed()}, []MemberRef{a}, nil, "SystemdUnit"},
		"both answered before, and hang":                    {[]Found{unitServer().silent(), eventsServer()}, []MemberRef{a, {"abc", "f"}}, nil, "SystemdUnit"},
		"one answered before, and both hang":                {[]Found{named(unitServer().silent(), "etcd1"), eventsServer()}, []MemberRef{a}, []string{eventsUnit}, "Unverified"},
		"the same, found in the other order":                {[]Found{eventsServer(), named(unitServer().silent(), "etcd1")}, []MemberRef{a}, []string{eventsUnit}, "Unverified"},
		"the one announced is not there, the other hangs":   {[]Found{eventsServer()}, []MemberRef{a}, []string{eventsUnit}, "Unverified"},
		"the one announced hangs, whatever its name":        {[]Found{unitServer().silent()}, []MemberRef{a}, nil, "SystemdUnit"},
		"its unit has yet to learn its name":                {[]Found{named(unitServer().silent(), "%m")}, []MemberRef{a}, nil, "SystemdUnit"},
		"it never answered":                                 {[]Found{unitServer().silent()}, nil, []string{"systemd unit etcd.service"}, "Unverified"},
		"it is left over with its data, its member is gone": {[]Found{unitServer().stopped(yes(true))}, []MemberRef{{clusterX, "f"}}, nil, "DataDirectory"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Assess(HostEvidence{Found: c.found}, Known{
				Node: "w9", UID: "u9", ClustersKnown: true, Announced: c.announced, Clusters: []v1alpha1.EtcdCluster{here()},
			})
			require.Equal(t, c.want, p.Unverified)
			require.Equal(t, c.reason, p.Reason)
			annotations, _ := Marks(p, map[string]string{UnverifiedAnnotation: "old"}, nil, nil)
			if c.want == nil {
				require.Nil(t, annotations[UnverifiedAnnotation])
				require.Contains(t, annotations, UnverifiedAnnotation, "it is taken off")
				return
			}
			again, err := ParseUnverified(*annotations[UnverifiedAnnotation])
			require.NoError(t, err)
			require.Equal(t, c.want, again)
		})
	}
	annotations, _ := Marks(Protection{Membership: HoldsNot}, map[string]string{UnverifiedAnnotation: "old"}, nil, nil)
	require.Equal(t, map[string]*string{UnverifiedAnnotation: nil}, annotations)
}

// A server that stands as unverified does not become the member that was announced beside it when that one has left.
func TestWhoNeverAnsweredIsNotExplainedByWhoHasLeft(t *testing.T) {
	gone := MemberRef{clusterX, "f"}
	for name, c := range map[string]struct {
		found      Found
		annotation string
		want       []string
	}{
		"it stands already":                 {eventsServer(), FormatUnverified([]string{eventsUnit}), []string{eventsUnit}},
		"and its name is not known":         {named(eventsServer(), "%m"), FormatUnverified([]string{eventsUnit}), []string{eventsUnit}},
		"the annotation cannot be read":     {eventsServer(), "[", []string{eventsUnit}},
		"another stands there":              {eventsServer(), FormatUnverified([]string{"process 9"}), nil},
		"nothing stands: it may be the one": {eventsServer(), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := Assess(HostEvidence{Found: []Found{c.found}}, Known{
				Node: "w9", UID: "u9", ClustersKnown: true, Announced: []MemberRef{gone}, Clusters: []v1alpha1.EtcdCluster{here()},
				Annotations: map[string]string{UnverifiedAnnotation: c.annotation},
			})
			require.Equal(t, c.want, p.Unverified, p.Message)
		})
	}
}

func TestAServerThatNobodyKnowsIsNotDeleted(t *testing.T) {
	events := []string{eventsUnit}
	earlier := voters(3).Cluster
	earlier.Spec.Members[0].NodeUID = "u0-of-before"
	ofOthers := voters(4).unbound(3).Cluster // d lives at w4, and its own agent has not said so
	for name, c := range map[string]struct {
		cluster    *v1alpha1.EtcdCluster
		node       int
		announced  bool
		unverified []string
		refused    bool
	}{
		"announced, and nothing else there":           {voters(3).Cluster, 0, true, nil, false},
		"announced, and another that is unknown":      {voters(3).Cluster, 0, true, events, true},
		"bound, its announcement lost, and silent":    {voters(3).Cluster, 0, false, events, false},
		"the same, and another that is unknown":       {voters(3).Cluster, 0, false, append(events, "process 9"), true},
		"listed at its address by two, and silent":    {ofOthers, 3, false, events, false},
		"listed at its address, and one more unknown": {ofOthers, 3, false, append(events, "process 9"), true},
		"listed at its address by one, and silent":    {voters(4).unbound(3).blind(1, 2).Cluster, 3, false, events, true},
		"nothing is known to be there, and a server":  {voters(3).Cluster, 8, false, events, true},
		"a member of an earlier Node of the name":     {earlier, 0, false, events, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := deletion(c.node)
			r.Unverified = c.unverified
			if !c.announced {
				r.Announced = nil
			}
			clusters := []*v1alpha1.EtcdCluster{nil, c.cluster}
			missing := Missing(clusters, r)
			require.Equal(t, c.refused, len(missing) > 0, missing)
			if c.refused {
				v := missing[0]
				require.Equal(t, Verdict{Reason: UnknownMember, Final: true, Message: v.Message}, v)
				require.Contains(t, v.Message, eventsUnit)
				require.Contains(t, v.Message, "--etcd-cert")
				require.Contains(t, v.Message, `"uid":"`+string(r.UID)+`"`)
			}
			r.Labelled = false
			r.Node, r.UID, r.Addresses, r.Announced = "w9", "u9", nil, nil
			v := UnlabelledVerdict(clusters, r)
			require.Equal(t, len(c.unverified) > 0, !v.Allowed, v.Message)
		})
	}
}

func TestUnverifiedIsWrittenLegiblyAndInBounds(t *testing.T) {
	require.Empty(t, FormatUnverified(nil))
	for name, where := range map[string][]string{
		"short":        {"b", "a"},
		"long":         {strings.Repeat("x", 5000), "\xff\n\"<>"},
		"many":         make([]string, 100),
		"many and bad": strings.Split(strings.Repeat(strings.Repeat("\u2028<&>", 100)+"|", 40), "|"),
	} {
		t.Run(name, func(t *testing.T) {
			text := FormatUnverified(where)
			require.LessOrEqual(t, len(text), longestAnnotation)
			again, err := ParseUnverified(text)
			require.NoError(t, err)
			require.Len(t, again, min(len(where), mostAnnounced))
			require.Equal(t, text, FormatUnverified(again), "or it is written again and again")
		})
	}
	for _, bad := range []string{"{", `{"a":1}`, `[1]`, `"x"`, strings.Repeat(" ", 5000)} {
		_, err := ParseUnverified(bad)
		require.Error(t, err, bad)
	}
	none, err := ParseUnverified("")
	require.NoError(t, err)
	require.Empty(t, none, "an agent that knows nothing of it")
}

func FuzzParseUnverified(f *testing.F) {
	f.Add(`["systemd unit etcd-events.service"]`)
	f.Add(`null`)
	f.Add(`["\u2028","\ud800"]`)
	f.Fuzz(func(t *testing.T, annotation string) {
		where, err := ParseUnverified(annotation)
		if err != nil || len(where) == 0 {
			return
		}
		again, err := ParseUnverified(FormatUnverified(where))
		require.NoError(t, err)
		require.Len(t, again, min(len(where), mostAnnounced))
	})
}
