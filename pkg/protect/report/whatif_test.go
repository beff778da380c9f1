package report_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	raft "go.etcd.io/raft/v3/quorum"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// inZones returns the state with a Node for each member, in these zones. "" and "-" are none.
func inZones(c *quorumtest.Cluster, zones ...string) report.State {
	s := stateOf(c, len(zones))
	for i, zone := range zones {
		if zone != "" && zone != "-" {
			s.Nodes[i].Labels[corev1.LabelTopologyZone] = zone
		}
	}
	return s
}

// inZone puts the i-th Node in a zone.
func inZone(s report.State, i int, zone string) report.State {
	s.Nodes[i].Labels[corev1.LabelTopologyZone] = zone
	return s
}

func TestZoneWhatIf(t *testing.T) {
	three := func(zones ...string) report.State { return inZones(quorumtest.Voters(3), zones...) }
	fourOfFive := inZones(quorumtest.Voters(5).Unprovable(4), "a", "b", "c", "d")
	racks := withLabel(three("a", "b", "c"), "r1", "r1", "r2")
	const unlabelled = "without the label topology.kubernetes.io/zone, and so in no zone: w3"
	const nodeless = "on no known Node, and so in no zone: members e"
	for name, c := range map[string]struct {
		state report.State
		zone  string
		nodes string
		want  quorum.Answer
		notes string
	}{
		"one voter":               {three("a", "b", "c"), "a", "w1", quorum.Yes, ""},
		"two voters":              {three("a", "a", "c"), "a", "w1 w2", quorum.No, ""},
		"without a label":         {three("a", "b", ""), "a", "w1", quorum.Yes, unlabelled},
		"a member without a Node": {fourOfFive, "a", "w1", quorum.Yes, nodeless},
		"another label":           {racks, "r1", "w1 w2", quorum.No, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := report.NewZoneWhatIf(c.state, c.zone)
			require.NoError(t, err)
			require.Equal(t, c.nodes, strings.Join(w.Nodes, " "))
			require.Equal(t, c.want, w.Answer, "%+v", w)
			require.Equal(t, c.zone, w.Zone)
			require.Equal(t, c.notes, strings.Join(w.Notes, "; "))
		})
	}
	_, err := report.NewZoneWhatIf(three("a", "b", ""), "z")
	require.EqualError(t, err, "no node has the label topology.kubernetes.io/zone=z; the nodes have the zones a, b")
	_, err = report.NewZoneWhatIf(three("", "", ""), "a")
	require.ErrorContains(t, err, "no node has the label topology.kubernetes.io/zone, so no zone is known")
	_, err = report.NewZoneWhatIf(three("", "b", "c"), "")
	require.ErrorContains(t, err, "the nodes have the zones b, c", "the Nodes without a zone are none")
}

func withLabel(s report.State, values ...string) report.State {
	s.ZoneLabel = "example.com/rack"
	for i, value := range values {
		s.Nodes[i].Labels[s.ZoneLabel] = value
	}
	return s
}

func TestWhatIf(t *testing.T) {
	three := func(change func(*report.State)) report.State {
		return changed(stateOf(quorumtest.Voters(3), 3), change)
	}
	anotherOld := old(quorumtest.Voters(3).Unhealthy(2), 2)
	four := stateOf(quorumtest.Voters(3), 4)
	unidentified := changed(stateOf(quorumtest.Voters(3), 4), silentLast)
	later := func(s *report.State) { s.Now = s.Now.Add(observation.SilentAfter) }
	unparsable := func(s *report.State) { s.Nodes[0].Annotations[observation.AnnouncementAnnotation] = "?" }
	unlabelled := func(s *report.State) { s.Nodes[0].Labels, s.Nodes[0].Annotations = nil, nil }
	inOneList := func(s *report.State) {
		o := s.Clusters[0].Observations
		o[0].Members = append(o[0].Members, quorumtest.Member(8))
		s.Nodes = append(s.Nodes, worker("w9"))
		s.Nodes[3].Status.Addresses = node(8).Status.Addresses
	}
	for name, c := range map[string]struct {
		state report.State
		nodes string
		want  string // the answer, the reasons of the clusters, and those of unknown Nodes
	}{
		"a node twice":                  {three(nil), "w1 w1", "yes: QuorumKept |"},
		"all":                           {three(nil), "w1 w2 w3", "no: QuorumWouldBeLost |"},
		"a worker":                      {three(addWorker), "worker", "yes:  |"},
		"a worker too":                  {three(addWorker), "worker w1", "yes: QuorumKept |"},
		"no cluster":                    {report.State{Nodes: []corev1.Node{worker("w9")}}, "w9", "yes:  |"},
		"flags not read":                {three(withoutFlags), "w1", "unknown: CannotDecide |"},
		"flags not read, no quorum":     {three(withoutFlags), "w1 w2", "no: QuorumWouldBeLost |"},
		"flags not read, a worker":      {three(withoutFlags), "worker", "yes:  |"},
		"old observations":              {three(later), "w1", "unknown: CannotSee |"},
		"old observations of another":   {stateOf(anotherOld, 3), "w1", "unknown: QuorumWouldBeLost |"},
		"a reserve does not count":      {three(reserve(1)), "w1", "yes: QuorumKept |"},
		"a label without a member":      {unidentified, "w4", "unknown: | UnknownMember"},
		"an unknown node beside a loss": {unidentified, "w1 w2 w4", "no: QuorumWouldBeLost | UnknownMember"},
		"a member that has left":        {four, "w4", "yes: NothingToProtect |"},
		"an unreadable announcement":    {three(unparsable), "w1", "unknown: | CannotDecide"},
		"no label of etcd":              {three(unlabelled), "w1 w2", "no: QuorumWouldBeLost |"},
		"an address in one list":        {three(inOneList), "w9", "unknown: | UnknownMember"},
		"an address in all lists":       {stateWithUnbound(), "w1 w4", "no: QuorumWouldBeLost |"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := report.NewWhatIf(c.state, strings.Fields(c.nodes))
			require.NoError(t, err)
			text := string(w.Answer) + ":"
			if len(w.Clusters) == 0 && len(w.Unknown) == 0 {
				text += " "
			}
			for _, loss := range w.Clusters {
				text += " " + string(loss.Reason)
			}
			text += " |"
			for _, u := range w.Unknown {
				require.NotContains(t, u.Message, "\n")
				text += " " + string(u.Reason)
			}
			require.Equal(t, c.want, text, "%+v", w)
		})
	}
	_, err := report.NewWhatIf(three(nil), []string{"w1", "w8", "w9"})
	require.ErrorContains(t, err, "there is no node w8, w9")

	s := three(nil)
	s.Clusters[0].Observations[1].Time.Time = quorumtest.Noon().Add(30 * time.Second)
	w, err := report.NewWhatIf(s, []string{"w1", "w2"})
	require.NoError(t, err)
	loss := w.Clusters[0]
	require.Equal(t, "3 2 1 [a b]", fmt.Sprint(loss.Voters, loss.Quorum, loss.Remaining, loss.Members))
	require.Equal(t, quorumtest.Noon(), *loss.Oldest)
}

// silentLast removes the announcement of the last Node.
func silentLast(s *report.State) { s.Nodes[len(s.Nodes)-1].Annotations = nil }

// stateWithUnbound returns four voters, the last of which no Node has announced yet.
func stateWithUnbound() report.State {
	s := stateOf(quorumtest.Voters(4).Unbound(3), 4)
	s.Clusters[0].Observations = s.Clusters[0].Observations[:3]
	s.Nodes[3].Labels, s.Nodes[3].Annotations = nil, nil
	return s
}

// TestZoneWhatIfAgreesWithRaft compares the answers about each zone of random clusters with raft.
// The answer is yes if and only if the voters outside of the zone that are alive win a vote. It is
// no if they lose it although a silent agent, if there is one, proves every voter healthy.
func TestZoneWhatIfAgreesWithRaft(t *testing.T) {
	random := rand.New(rand.NewPCG(29, 4)) //nolint:gosec // The test must be repeatable.
	answers := map[quorum.Answer]int{}
	for range 300 {
		n := 1 + random.IntN(7)
		c := quorumtest.Voters(n)
		alive, hopeful, hasSilent := map[uint64]bool{}, map[uint64]bool{}, false
		zones, voters := make([]string, n), raft.MajorityConfig{}
		for i := range n {
			id := uint64(i) //nolint:gosec // i is small.
			voters[id], alive[id], hopeful[id] = struct{}{}, true, true
			zones[i] = []string{"a", "b", "c", ""}[random.IntN(4)]
			switch random.IntN(8) {
			case 0:
				c.Dead(i) // Its agent is silent.
				alive[id], hasSilent = false, true
			case 1:
				c.Unhealthy(i)
				alive[id] = false
			}
		}
		if voters.VoteResult(alive) != raft.VoteWon {
			continue // No list can be confirmed without quorum.
		}
		for _, zone := range []string{"a", "b", "c"} {
			left := func(votes map[uint64]bool) bool {
				remain := map[uint64]bool{}
				for id, vote := range votes {
					remain[id] = vote && zones[id] != zone
				}
				return voters.VoteResult(remain) == raft.VoteWon
			}
			w, err := report.NewZoneWhatIf(inZones(c, zones...), zone)
			if err != nil {
				require.NotContains(t, zones, zone)
				continue
			}
			want := quorum.Unknown
			switch {
			case left(alive):
				want = quorum.Yes
			case !hasSilent, !left(hopeful):
				want = quorum.No
			}
			answers[w.Answer]++
			require.Equal(t, want, w.Answer, "zones %v, alive %v, hopeful %v, zone %s: %+v", zones, alive, hopeful, zone, w)
		}
	}
	for _, answer := range []quorum.Answer{quorum.Yes, quorum.No, quorum.Unknown} {
		require.Greater(t, answers[answer], 10, "%v", answers)
	}
}

func TestZoneStatus(t *testing.T) {
	zones := func(s report.State) string {
		var all []string
		for _, z := range report.NewStatus(s).Clusters[0].Zones {
			all = append(all, fmt.Sprintf("%s%d%v%v %s", z.Zone, z.Voters, z.Nodes, z.HoldsQuorum, z.Without))
		}
		return strings.Join(all, ", ")
	}
	require.Empty(t, zones(stateOf(quorumtest.Voters(3), 3)), "no Node has a zone")
	require.Equal(t, "a2[w1 w2]true no, b1[w3]false yes", zones(inZones(quorumtest.Voters(3), "a", "a", "b")))
	require.Equal(t, "1[w3]false , a1[w1]false yes, b1[w2]false yes", zones(inZones(quorumtest.Voters(3), "a", "b", "")))
	require.Equal(t, "a1[w1]false no, b1[w2]false no, c1[w3]false yes",
		zones(inZones(quorumtest.Voters(3).Unhealthy(2), "a", "b", "c")), "the loss of a healthy zone breaks quorum now")
	unidentified := inZones(quorumtest.Voters(3), "a", "b", "c", "a")
	silentLast(&unidentified)
	require.Equal(t, "a1[w1]false unknown, b1[w2]false yes, c1[w3]false yes", zones(unidentified),
		"w4 has the label of etcd, and no member")
	blind := inZones(quorumtest.Voters(3).Silent(0, 1, 2), "a", "b", "c")
	require.Empty(t, zones(blind))

	second := *quorumtest.Voters(5).Cluster.DeepCopy()
	second.Name, second.Spec.Nonce = "e0", quorumtest.Nonce
	two := inZones(quorumtest.Voters(3), "a", "a", "b", "c", "c")
	two.Clusters = append([]v1alpha1.EtcdCluster{second}, two.Clusters...)
	require.Equal(t, "a2[w1 w2]true no, b1[w3]false yes", zones(two), "each cluster has its own answer")
}

// TestSpreadPlan: a plan keeps the voters spread.
func TestSpreadPlan(t *testing.T) {
	const holds = "after this step, zone a holds a quorum of etcd cluster cdf818194e3a8c32"
	for name, c := range map[string]struct {
		zones      string // of the members; - is none
		spare      string // that of a worker, empty if there is none
		nodes      string
		isReplaced bool
		want       string
		text       string
	}{
		"each in its zone":           {"a b c", "z", "w2", true, "yes: w2", "as a voter in zone b, with"},
		"no zone":                    {"- b c", "z", "w1", true, "yes: w1", "as a voter, with"},
		"out of a zone with two":     {"a a b", "z", "w1", true, "yes: w1", "as a voter in zone z, with"},
		"two zones":                  {"a a b", "", "w1", true, "yes: w1", "as a voter in zone a, with"},
		"both of a zone":             {"a a a", "b", "w1 w2", true, "yes: w1 w2", "as a voter in zone b, with"},
		"the fullest zone first":     {"a b b c c", "z", "w1 w4", false, "yes: w4 w1", ""},
		"no order with a replaced":   {"a b b c c", "z", "w1 w4", true, "yes: w1 w4", ""},
		"a zone holds a quorum then": {"a a b b c", "z", "w5", false, "yes: w5", holds},
		"a zone held one before":     {"a a a b c", "", "w5", false, "yes: w5", ""},
	} {
		t.Run(name, func(t *testing.T) {
			zones := strings.Fields(c.zones)
			s := inZones(quorumtest.Voters(len(zones)), zones...)
			if c.spare != "" {
				s.Nodes = append(s.Nodes, worker("worker"))
				s.Nodes[len(zones)].Labels = map[string]string{corev1.LabelTopologyZone: c.spare}
			}
			p, err := report.NewPlan(s, strings.Fields(c.nodes), c.isReplaced)
			require.NoError(t, err)
			require.Equal(t, c.want, order(p))
			text := strings.Join(append(p.Steps[0].Then, p.Steps[0].Warnings...), "\n")
			require.Contains(t, text, c.text)
			switch name {
			case "both of a zone":
				require.Contains(t, p.Steps[1].Then[1], "in zone a", "zone b has one voter by then")
			case "a zone held one before":
				require.NotContains(t, text, "after this step")
			}
		})
	}
}
