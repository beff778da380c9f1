package quorum_test

import (
	"cmp"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

// FuzzDecide generates objects from a small set of names, so that they refer to each other.
// Every byte is one choice.
func FuzzDecide(f *testing.F) {
	f.Add([]byte("\x03\x01\x02\x03 holdfast \x00\x01\x02\x03\x04\x05\x06\x07"))
	f.Add([]byte(strings.Repeat("\x01\x02\x00\x03\x05\x07", 40)))
	f.Add([]byte(strings.Repeat("\x02\x04\x01\x00", 80)))
	f.Fuzz(func(t *testing.T, choices []byte) {
		if d := (&byteSource{choices}); len(choices) < 4096 {
			checkProperties(t, d.view(), d.request())
		}
	})
}

// TestDecideRandom runs the same checks without the fuzzer.
func TestDecideRandom(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 1000 {
		choices := make([]byte, 300)
		r.Read(choices)
		d := &byteSource{choices}
		checkProperties(t, d.view(), d.request())
	}
}

// checkProperties checks Decide for one view and request.
func checkProperties(t *testing.T, v quorum.View, r quorum.Request) {
	t.Helper()
	before := quorumtest.CopyOf(v)
	verdict := quorum.Decide(v, r)
	require.Equal(t, verdict, quorum.Decide(v, r), "not deterministic")
	checkVerdict(t, v, r, verdict)
	checkWithoutObservations(t, v, r)
	checkUnboundObserver(t, v, r, verdict)
	checkFinal(t, v, r, verdict)
	callAll(v, r)
	require.Equal(t, before, quorumtest.CopyOf(v), "arguments modified")
}

// A byteSource takes each choice from the next byte. Without bytes it takes the first possibility.
type byteSource struct{ left []byte }

func (d *byteSource) choose(n int) int {
	if len(d.left) == 0 {
		return 0
	}
	b := d.left[0]
	d.left = d.left[1:]
	return int(b) % n
}

func (d *byteSource) one(in ...string) string { return in[d.choose(len(in))] }
func (d *byteSource) yes() bool               { return d.choose(2) == 1 }
func (d *byteSource) id() v1alpha1.MemberID {
	return v1alpha1.MemberID(d.one("a", "b", "c", "d", "a", "b", "c", "d", "e", "0", "", "etcd"))
}
func (d *byteSource) node() string    { return d.one("w1", "w2", "w3", "w4", "") }
func (d *byteSource) uid() types.UID  { return types.UID(d.one("u1", "u2", "u3", "u4", "")) }
func (d *byteSource) address() string { return d.one("10.0.0.1", "10.0.0.2", "[::1]", "127.0.0.1", "") }

// nodeAndUID returns a Node and usually the UID that belongs to it.
func (d *byteSource) nodeAndUID() (string, types.UID) {
	node := d.node()
	if d.choose(8) == 7 {
		return node, d.uid()
	}
	return node, types.UID(strings.Replace(node, "w", "u", 1))
}

func (d *byteSource) refs() []evidence.MemberRef {
	var refs []evidence.MemberRef
	for range d.choose(3) {
		cluster := v1alpha1.ClusterID(d.one(quorumtest.ClusterID, "abc"))
		refs = append(refs, evidence.MemberRef{Cluster: cluster, Member: d.id()})
	}
	return refs
}

func (d *byteSource) request() quorum.Request {
	node, uid := d.nodeAndUID()
	r := quorum.Request{
		Node: node, UID: uid, Labelled: d.yes(), Announced: d.refs(),
		Addresses: []string{d.address()}, Unverified: make([]string, d.choose(2)),
	}
	if d.yes() {
		r.Door = quorum.DoorDrain
	}
	return r
}

func (d *byteSource) view() quorum.View {
	v := quorum.View{
		Cluster: &v1alpha1.EtcdCluster{}, Nonces: []string{d.one(quorumtest.Nonce, "before", "")},
		Nodes: map[string]observation.NodeState{}, MinRemainingTolerance: d.choose(3) - 1,
	}
	v.Cluster.Name, v.Cluster.Spec.Nonce = quorumtest.ClusterID, quorumtest.Nonce
	v.Cluster.Spec.Observers = v1alpha1.Observers(d.one(string(v1alpha1.NodesWithRole), string(v1alpha1.AllNodes), ""))
	for range d.choose(6) {
		node, uid := d.nodeAndUID()
		v.Cluster.Spec.Members = append(v.Cluster.Spec.Members, v1alpha1.Binding{
			MemberID: d.id(), Node: node, NodeUID: uid,
			Basis: v1alpha1.BindingBasis(d.one(string(v1alpha1.BasisRole), string(v1alpha1.BasisRole),
				string(v1alpha1.BasisAddress), "", string(v1alpha1.BasisClaim), string(v1alpha1.BasisDisputed))),
		})
	}
	for range d.choose(3) {
		g := v1alpha1.Grant{
			NodeUID: d.uid(), Node: d.node(), Members: quorumtest.IDs(d.id()),
		}
		for _, door := range []**v1alpha1.Door{&g.Delete, &g.Machine, &g.Drain, &g.Gone} {
			if d.yes() {
				*door = &v1alpha1.Door{User: d.one("alice", ""), BreakGlass: d.yes(), Version: d.one("", "9")}
			}
		}
		v.Cluster.Spec.Grants = append(v.Cluster.Spec.Grants, g)
	}
	for range d.choose(9) {
		node, uid := d.nodeAndUID()
		state := observation.NodeState{Known: d.choose(8) < 7, UID: uid, Deleting: d.choose(8) == 1, Cordoned: d.yes()}
		switch d.choose(8) {
		case 1:
			quorumtest.Departing(&state)
		case 2:
			quorumtest.Rebooting(&state)
		}
		v.Nodes[node] = state
	}
	for range d.choose(5) {
		node, uid := d.nodeAndUID()
		o := v1alpha1.Observation{
			Node: node, NodeUID: uid, Nonce: d.one(quorumtest.Nonce, "before", ""), LocalMember: d.id(),
			Linearizable: !d.yes(), AlarmsUnknown: d.yes(), Problem: d.one("", "tls"),
		}
		for range d.choose(7) {
			o.Members = append(o.Members, v1alpha1.MemberStatus{
				ID: d.id(), Name: d.one("etcd1", "etcd2", ""), Healthy: !d.yes(), Learner: d.choose(4) == 1,
				PeerURLs: []string{"https://" + d.address() + ":2380"},
				Alarms:   []string{d.one("", "", "", "", "", "CORRUPT", "NOSPACE")},
			})
		}
		v.Cluster.Observations = append(v.Cluster.Observations, o)
	}
	return v
}

// checkVerdict checks the invariants of a verdict.
func checkVerdict(t *testing.T, v quorum.View, r quorum.Request, verdict quorum.Verdict) {
	t.Helper()
	require.NotEmpty(t, words.Message(verdict))
	require.Equal(t, observation.ClusterIDOf(v.Cluster), verdict.Cluster)
	require.True(t, slices.IsSorted(verdict.Members))
	tally := verdict.Facts.Tally
	if tally.Voters > 0 {
		require.Equal(t, tally.Voters/2+1, tally.Quorum)
		require.Less(t, tally.Healthy, tally.Voters, "a lost member counts as healthy")
	}
	switch {
	case !verdict.Allowed:
		require.Contains(t, words.Message(verdict), quorum.BreakGlassAnnotation+`='{"uid":"`+string(r.UID)+`"`)
	case verdict.Reason == quorum.QuorumKept:
		require.GreaterOrEqual(t, tally.Healthy, tally.Quorum+max(0, v.MinRemainingTolerance))
		require.NotEmpty(t, verdict.Members, "a grant must name the members")
		require.NotEmpty(t, v.Nonces[0], "no probe was requested")
	case verdict.Reason == quorum.OnlyMember:
		require.Equal(t, quorum.DoorDrain, r.Door)
		require.Len(t, verdict.Members, 1, "a grant must name the member")
		require.NotEmpty(t, v.Nonces[0], "no probe was requested")
	default:
		require.Equal(t, quorum.NothingToProtect, verdict.Reason)
	}
	require.True(t, quorum.Force(v, r).Allowed)
	if n := v.Nodes[r.Node]; r.Door == quorum.DoorDrain && n.Known && n.UID == r.UID && n.Closed() == "" {
		require.Equal(t, quorum.NotDraining, verdict.Reason)
	}
}

// checkWithoutObservations removes all observations. Then no node with a bound or announced
// member may be deleted.
func checkWithoutObservations(t *testing.T, v quorum.View, r quorum.Request) {
	t.Helper()
	v = quorumtest.CopyOf(v)
	v.Cluster.Observations = nil
	isBound := slices.ContainsFunc(v.Cluster.Spec.Members, func(b v1alpha1.Binding) bool {
		return b.Node == r.Node || r.UID != "" && b.NodeUID == r.UID
	})
	isAnnounced := slices.ContainsFunc(r.Announced, func(a evidence.MemberRef) bool {
		return a.Cluster == observation.ClusterIDOf(v.Cluster)
	})
	if isBound || isAnnounced {
		require.False(t, quorum.Decide(v, r).Allowed, "without observations")
	}
	if isAnnounced {
		unlabelled := quorum.Request{Node: r.Node, UID: r.UID, Announced: r.Announced}
		verdict := quorum.DecideUnlabelled([]*v1alpha1.EtcdCluster{v.Cluster}, unlabelled)
		require.False(t, verdict.Allowed, "without the label")
	}
}

// checkUnboundObserver adds the observation of another Node without a binding. The verdict must
// stay the same.
func checkUnboundObserver(t *testing.T, v quorum.View, r quorum.Request, verdict quorum.Verdict) {
	t.Helper()
	stranger := r.Node + "-" + strings.Repeat("x", 300)
	isStranger := func(b v1alpha1.Binding) bool { return b.Node == stranger }
	if len(v.Cluster.Observations) == 0 || slices.ContainsFunc(v.Cluster.Spec.Members, isStranger) {
		return
	}
	v = quorumtest.CopyOf(v)
	forged := *v.Cluster.Observations[0].DeepCopy()
	forged.Node, forged.NodeUID, forged.Nonce = stranger, types.UID(stranger), v.Nonces[0]
	forged.Linearizable, forged.AlarmsUnknown = true, false
	for i := range forged.Members {
		m := &forged.Members[i]
		m.Healthy, m.Learner, m.Alarms = true, i > 0, []string{quorum.CorruptAlarm}[:i%2]
	}
	v.Cluster.Observations = append(v.Cluster.Observations, forged)
	require.Equal(t, verdict, quorum.Decide(v, r))
}

// checkFinal lets all pending observers answer and prove all members healthy. A final refusal
// must stay a refusal.
func checkFinal(t *testing.T, v quorum.View, r quorum.Request, verdict quorum.Verdict) {
	t.Helper()
	if verdict.Allowed || !verdict.Final || v.Nonces[0] == "" {
		return
	}
	v = quorumtest.CopyOf(v)
	pending := quorum.NewSnapshot(v).Pending()
	var all []v1alpha1.MemberStatus
	for _, o := range v.Cluster.Observations {
		all = append(all, o.Members...)
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.MemberStatus) int { return cmp.Compare(a.ID, b.ID) })
	all = slices.CompactFunc(all, func(a, b v1alpha1.MemberStatus) bool { return a.ID == b.ID })
	all = slices.DeleteFunc(all, func(m v1alpha1.MemberStatus) bool { return !observation.IsValidID(string(m.ID)) })
	for i := range all {
		all[i].Healthy, all[i].Alarms = true, nil
	}
	for _, b := range v.Cluster.Spec.Members {
		if slices.Contains(pending, b.Node) {
			v.Cluster.Observations = append(v.Cluster.Observations, v1alpha1.Observation{
				Node: b.Node, NodeUID: b.NodeUID, Nonce: v.Nonces[0], Linearizable: true, Members: quorumtest.CopyMembers(all),
			})
		}
	}
	after := quorum.Decide(v, r)
	require.False(t, after.Allowed, "before: %s\nafter: %s", words.Message(verdict), words.Message(after))
}

// callAll calls the other functions that read such objects. They must not panic.
func callAll(v quorum.View, r quorum.Request) {
	all := []*v1alpha1.EtcdCluster{v.Cluster}
	nodes := []observation.AnnouncingNode{{Node: r.Node, UID: r.UID, Addresses: r.Addresses, Announced: r.Announced}}
	quorum.Select(all, r)
	quorum.RefuseUndecidable(all, r)
	quorum.DecideUnlabelled(all, r)
	quorum.Summarize(v)
	membership.SelfProven(v)
	observation.Ignored(v.Cluster, quorumtest.Noon())
	membership.Tombstones(v)
	membership.DistinctServers(v, nodes)
	quorum.PossibleNodes(v.Cluster, nodes)
	membership.Bind(v.Cluster, nodes, v.Nonces, quorumtest.Noon())
	for _, g := range v.Cluster.Spec.Grants {
		now := quorumtest.Noon()
		returned := membership.NodeReturn{}.Next(v, g, now).Next(v, g, now)
		membership.Resolve(v, g, membership.ResolveEvidence{Now: now, Return: returned})
		membership.ResolveByHand(v.Cluster, g.NodeUID, v.Nodes)
	}
	server := evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: 812}
	presence.Assess(evidence.Scan{Found: []evidence.FoundServer{{Server: server}}}, presence.Inputs{
		Node: r.Node, UID: r.UID, Announced: r.Announced, Clusters: []v1alpha1.EtcdCluster{*v.Cluster}, ClustersKnown: true,
	})
}
