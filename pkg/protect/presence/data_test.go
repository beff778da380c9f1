package presence

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestData has data that nothing on the host names, by what the EtcdClusters tell about it.
func TestData(t *testing.T) {
	const dir = "/data/etcd"
	member := func(m v1alpha1.MemberID) evidence.Data { return evidence.Data{Dir: dir, Ref: refs(m)[0]} }
	foreign := evidence.Data{Dir: dir, Ref: evidence.MemberRef{Cluster: "abc", Member: "f"}}
	with := func(d evidence.Data, change func(*evidence.Data)) evidence.Data { change(&d); return d }
	recent := func(d *evidence.Data) { d.Recent = true }
	starter := func(d *evidence.Data) { d.Starter = etcdUnit }
	noLists := quorumtest.Voters(3).Unbound(0).WithoutList(0, 1, 2)
	type clusters = []v1alpha1.EtcdCluster
	here, elsewhere := clusters{boundCluster()}, clusters{unboundCluster()}
	nowhere, noList := clusters{*quorumtest.Voters(3).Unbound(0).Cluster}, clusters{*noLists.Cluster}
	a, e := member("a"), member("e")
	none, announced := Inputs{}, Inputs{Announced: refs("a"), Protected: true}
	eventsAnnounced, leftAnnounced := Inputs{Announced: withEvents(nil)}, Inputs{Announced: refs("e"), Protected: true}
	const started = "systemd unit etcd.service may start etcd, and does not tell where its data is"
	const left = dir + " has unused data of etcd: of member e of cluster cdf818194e3a8c32, which has left its cluster"
	const noObject = "there is no EtcdCluster that tells whether it is a member"
	for name, c := range map[string]struct {
		data       evidence.Data
		in         Inputs
		clusters   clusters
		membership Membership
		contains   string
	}{
		"bound here":             {a, announced, here, MemberPresent, "stopped etcd member etcd1 (a)"},
		"bound, not announced":   {a, none, here, MemberPresent, "stopped etcd member etcd1 (a)"},
		"listed, bound nowhere":  {a, none, nowhere, MemberPresent, dir + ", which nothing on the host names"},
		"bound elsewhere":        {a, none, elsewhere, MemberAbsent, "bound to another node: a copy"},
		"moving here":            {with(a, recent), none, elsewhere, MembershipUnknown, "within the last ten minutes"},
		"elsewhere, announced":   {a, announced, elsewhere, MemberPresent, "etcd member etcd1 (a)"},
		"left":                   {e, none, elsewhere, MemberAbsent, left},
		"left, announced":        {e, leftAnnounced, elsewhere, MemberAbsent, "has left its cluster"},
		"joined just now":        {with(e, recent), none, elsewhere, MembershipUnknown, "lists may be older"},
		"no confirmed list":      {e, none, noList, MembershipUnknown, "no confirmed list tells"},
		"unknown cluster":        {foreign, none, elsewhere, MemberAbsent, "which no EtcdCluster describes"},
		"unknown, with starter":  {with(foreign, starter), none, elsewhere, MembershipUnknown, etcdUnit + " may start it"},
		"left, with starter":     {with(e, starter), none, elsewhere, MembershipUnknown, started},
		"elsewhere, starter":     {with(a, starter), none, elsewhere, MembershipUnknown, started},
		"unknown, announced":     {foreign, eventsAnnounced, elsewhere, MemberPresent, "etcd member f of cluster abc"},
		"new installation":       {a, none, nil, MembershipUnknown, noObject},
		"clusters are not known": {e, Inputs{Node: "unread"}, nil, MembershipUnknown, "could not be read"},
	} {
		t.Run(name, func(t *testing.T) {
			in := c.in
			in.ClustersKnown, in.Node, in.UID, in.Clusters = in.Node == "", "w9", "u9", c.clusters
			p := Assess(evidence.Scan{Data: []evidence.Data{c.data}}, in)
			require.Equal(t, c.membership, p.Membership, p.Message)
			require.Contains(t, p.Message, c.contains)
		})
	}
	p := Assess(evidence.Scan{Data: []evidence.Data{a}}, boundInputs(nil))
	require.Equal(t, refs("a"), p.Announce, "the ledger has the member here")
	require.Empty(t, p.Unverified)
}

// TestOpenLog has a server of another program that has the log of a member open and does not
// answer.
func TestOpenLog(t *testing.T) {
	f := storing(unanswered(unitServer()), "a")
	f.IsLocked = true
	in := Inputs{Node: "w9", UID: "u9", ClustersKnown: true}
	in.Clusters = []v1alpha1.EtcdCluster{*quorumtest.Voters(3).Unbound(0).Cluster}
	p := Assess(scanOf(f), in)
	require.Equal(t, MemberPresent, p.Membership)
	require.Equal(t, refs("a"), p.Announce)
	require.Empty(t, p.Unverified)

	f.IsLocked = false
	p = Assess(scanOf(f), in)
	require.Empty(t, p.Announce, "without the lock, the data may be a copy")
	require.Equal(t, []string{etcdUnit}, p.Unverified)
}

// TestCopyBesideServer has a copy of the data of the server that runs here.
func TestCopyBesideServer(t *testing.T) {
	scan := scanOf(unitServer())
	scan.Data = []evidence.Data{{Dir: "/backup", Ref: refs("a")[0]}}
	p := Assess(scan, boundInputs(nil))
	require.Equal(t, "etcd member etcd1 (a) of cluster cdf818194e3a8c32, "+etcdUnit, p.Because)
}

// TestSearching checks that nothing is absent, and no announcement is dropped, before the disks
// have been searched.
func TestSearching(t *testing.T) {
	in := Inputs{Node: "w9", UID: "u9", ClustersKnown: true, Announced: withEvents(nil), Protected: true}
	scan := evidence.Scan{Searching: true}
	p := Assess(scan, in)
	require.Equal(t, MembershipUnknown, p.Membership)
	require.Contains(t, p.Message, "first search for data of etcd has not ended")

	scan.Found = []evidence.FoundServer{unitServer()}
	in.Clusters = []v1alpha1.EtcdCluster{boundCluster()}
	p = Assess(scan, in)
	require.Equal(t, withEvents(refs("a")), p.Announce)
	require.NotContains(t, p.Message, "search", "the message does not change when the search ends")
}

// TestOldData has a stopped server whose data may be old, by what its EtcdCluster tells about it.
func TestOldData(t *testing.T) {
	server := func(m v1alpha1.MemberID, isOld bool) evidence.FoundServer {
		f := serverOfData(evidence.Data{Dir: "/data/etcd", Ref: refs(m)[0]})
		if isOld {
			f.Old = &evidence.Data{Dir: "/data/etcd", Ref: refs(m)[0]}
		}
		return f
	}
	running := server("e", true)
	running.PID = 812
	answered := server("e", true)
	answered.Ref = refs("e")[0]
	noList := []v1alpha1.EtcdCluster{*quorumtest.Voters(3).Unbound(0).WithoutList(0, 1, 2).Cluster}
	here, elsewhere := []v1alpha1.EtcdCluster{boundCluster()}, []v1alpha1.EtcdCluster{unboundCluster()}
	const left = "/data/etcd has unused data of etcd: of member e of cluster cdf818194e3a8c32, which has left its cluster"
	for name, c := range map[string]struct {
		server     evidence.FoundServer
		clusters   []v1alpha1.EtcdCluster
		membership Membership
		contains   string
	}{
		"left":                          {server("e", true), elsewhere, MemberAbsent, left},
		"left, recent or another place": {server("e", false), elsewhere, MemberPresent, "stopped etcd"},
		"running":                       {running, elsewhere, MemberPresent, "etcd"},
		"answered":                      {answered, elsewhere, MemberPresent, "etcd member e"},
		"bound here":                    {server("a", true), here, MemberPresent, "stopped etcd member etcd1 (a)"},
		"bound elsewhere":               {server("a", true), elsewhere, MemberPresent, "stopped etcd"},
		"no confirmed list":             {server("e", true), noList, MemberPresent, "stopped etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Inputs{Node: "w9", UID: "u9", Clusters: c.clusters, ClustersKnown: true, StaticPods: true}
			p := Assess(evidence.Scan{Found: []evidence.FoundServer{c.server}}, in)
			require.Equal(t, c.membership, p.Membership, p.Message)
			require.Contains(t, p.Message, c.contains)
		})
	}
}
