package presence

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// requestAfter returns the deletion of w1 after its agent has marked the Node, which begins with
// the announced members.
func requestAfter(
	t *testing.T, scan evidence.Scan, announced []evidence.MemberRef, clusters ...v1alpha1.EtcdCluster,
) quorum.Request {
	t.Helper()
	annotations := map[string]string{}
	labels := map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue}
	if len(announced) > 0 {
		annotations[observation.AnnouncementAnnotation] = observation.FormatAnnouncement(announced)
	}
	p := Assess(scan, Inputs{
		Node: "w1", UID: "u1", ClustersKnown: true, Clusters: clusters, Announced: announced, Protected: true,
	})
	setAnnotations, setLabels := Marks(p, annotations, labels, nil)
	annotations, labels = apply(annotations, setAnnotations), apply(labels, setLabels)
	announced, err := observation.ParseAnnouncement(annotations[observation.AnnouncementAnnotation])
	require.NoError(t, err)
	unverified, err := observation.ParseUnverified(annotations[observation.UnverifiedAnnotation])
	require.NoError(t, err)
	return quorum.Request{
		Node: "w1", UID: "u1", Announced: announced, Unverified: unverified,
		Labelled: labels[observation.EtcdMemberLabel] == observation.EtcdMemberLabelValue,
	}
}

// The agent has found that the member was removed. Then it restarts, and finds a stopped server.
func TestH19RemovedBeforeRestart(t *testing.T) {
	removed, unlisted := quorumtest.Voters(3).Removed(0).Unbound(0), quorumtest.Voters(3).Removed(0).Unbound(0)
	unlisted.Cluster.Observations = nil
	added := quorumtest.Voters(4).Removed(0).Unbound(0).Unbound(3)
	leftover := stopped(unitServer(), new(true))
	otherCluster := leftover
	otherCluster.Stored = &evidence.MemberRef{Cluster: "fff", Member: "a"}
	for name, c := range map[string]struct {
		cluster   *quorumtest.Cluster
		found     evidence.FoundServer
		announced []evidence.MemberRef
		isAllowed bool
	}{
		"stopped":               {removed, storing(leftover, "a"), refs("a"), true},
		"restarting":            {removed, storing(unanswered(unitServer()), "a"), refs("a"), true},
		"possible rejoin":       {added, storing(leftover, "a"), refs("a"), false},
		"no list":               {unlisted, storing(leftover, "a"), nil, false},
		"log not readable":      {removed, leftover, nil, false},
		"copy of a bound one":   {removed, storing(leftover, "b"), nil, false},
		"copy of a listed one":  {added, storing(leftover, "d"), nil, false},
		"EtcdCluster not found": {removed, otherCluster, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := requestAfter(t, scanOf(removedServer(unitServer())), refs("a"), *removed.Cluster)
			require.False(t, r.Labelled)
			r = requestAfter(t, scanOf(c.found), r.Announced, *c.cluster.Cluster)
			require.True(t, r.Labelled)
			require.Equal(t, c.announced, r.Announced)
			isAssigned := len(quorum.RefuseUndecidable([]*v1alpha1.EtcdCluster{c.cluster.Cluster}, r)) == 0
			require.Equal(t, c.isAllowed, isAssigned && quorum.Decide(c.cluster.View, r).Allowed)
		})
	}
}

// A broken member is removed, and a new one is added on another host, which is bound to its Node
// some minutes later. Until then, the old host may have joined again.
func TestF60ReplacedMemberWithData(t *testing.T) {
	removed := quorumtest.Voters(3).Removed(0).Unbound(0)
	added := quorumtest.Voters(4).Removed(0).Unbound(0).Unbound(3)
	bound := quorumtest.Voters(4).Removed(0).Unbound(0)
	for name, found := range map[string]evidence.FoundServer{
		"stopped": stopped(unitServer(), new(true)), "restarting": unanswered(unitServer()),
	} {
		t.Run(name, func(t *testing.T) {
			announced := refs("a")
			for i, w := range []*quorumtest.Cluster{removed, added, bound, bound} {
				r := requestAfter(t, scanOf(found), announced, *w.Cluster)
				require.Equal(t, refs("a"), r.Announced)
				require.Equal(t, w != added, quorum.Decide(w.View, r).Allowed, i)
				announced = r.Announced
			}
		})
	}
}

// A restore from a snapshot gives the cluster a new ID. The announcement of the old ID ends when no
// EtcdCluster needs it and the scan is complete.
func TestRestoredCluster(t *testing.T) {
	restored := quorumtest.Voters(3)
	restored.Cluster.Name = "fff"
	server := unitServer()
	server.Ref.Cluster = "fff"
	incomplete := evidence.Scan{Found: []evidence.FoundServer{server}, Unknown: []string{"x"}}
	onlyNew := []evidence.MemberRef{server.Ref}
	both := append(refs("a"), server.Ref)
	old, unbound := quorumtest.Voters(3).Silent(0, 1, 2).Cluster, quorumtest.Voters(3).NeverBound().Cluster
	listed, unlisted := quorumtest.Voters(3).Unbound(0).Cluster, quorumtest.Voters(3).Cluster
	unlisted.Observations = nil
	for name, c := range map[string]struct {
		scan evidence.Scan
		old  *v1alpha1.EtcdCluster
		want []evidence.MemberRef
	}{
		"old object exists":           {scanOf(server), old, both},
		"old object deleted":          {scanOf(server), nil, onlyNew},
		"old object created again":    {scanOf(server), unbound, onlyNew},
		"bound, not listed":           {scanOf(server), unlisted, both},
		"listed, not bound":           {scanOf(server), listed, both},
		"incomplete scan":             {incomplete, nil, both},
		"another server is silent":    {scanOf(server, unansweredAt(unitServer(), "process 9")), nil, both},
		"old member answers":          {scanOf(server, unitServer()), nil, both},
		"stopped server, data unread": {scanOf(server, stopped(unitServer(), nil)), nil, both},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := []v1alpha1.EtcdCluster{*restored.Cluster}
			if c.old != nil {
				clusters = append(clusters, *c.old)
			}
			r := requestAfter(t, c.scan, refs("a"), clusters...)
			require.Equal(t, c.want, r.Announced)
			if len(c.want) == 1 {
				all := []*v1alpha1.EtcdCluster{restored.Cluster}
				require.Empty(t, quorum.RefuseUndecidable(all, r))
				require.Equal(t, all, quorum.Select(all, r))
				require.True(t, quorum.Decide(restored.View, r).Allowed)
			}
		})
	}
	p := Assess(scanOf(server), Inputs{Node: "w1", UID: "u1", Announced: refs("a")})
	require.Equal(t, both, p.Announce, "the clusters are not known")
}

func TestUnverifiedServers(t *testing.T) {
	hanging := func(name string) evidence.FoundServer { return named(unanswered(unitServer()), name) }
	events := func(hasData *bool) evidence.FoundServer { return stopped(eventsServer(), hasData) }
	const unit, data = "SystemdUnit", "DataDirectory"
	type servers = []evidence.FoundServer
	old, recorded := stopped(unitServer(), new(true)), map[string]string{observation.UnverifiedAnnotation: "old"}
	for name, c := range map[string]struct {
		found     servers
		announced []evidence.MemberRef
		want      string
		reason    string
	}{
		"one never answered":           {servers{unitServer(), eventsServer()}, refs("a"), eventsUnit, ReasonUnverified},
		"one stopped, data unread":     {servers{unitServer(), events(nil)}, refs("a"), eventsUnit, unit},
		"one never started":            {servers{unitServer(), events(new(false))}, refs("a"), "", unit},
		"one left its cluster":         {servers{unitServer(), removedServer(eventsServer())}, refs("a"), "", unit},
		"both announced, both hang":    {servers{hanging(""), eventsServer()}, withEvents(refs("a")), "", unit},
		"one announced, both hang":     {servers{hanging("etcd1"), eventsServer()}, refs("a"), eventsUnit, ReasonUnverified},
		"the same in reverse order":    {servers{eventsServer(), hanging("etcd1")}, refs("a"), eventsUnit, ReasonUnverified},
		"announced one not found":      {servers{eventsServer()}, refs("a"), eventsUnit, ReasonUnverified},
		"announced one without a name": {servers{hanging("")}, refs("a"), "", unit},
		"the log names the member":     {servers{storing(named(old, "other"), "a")}, refs("a"), "", data},
		"name with a placeholder":      {servers{hanging("%m")}, refs("a"), "", unit},
		"never announced":              {servers{hanging("")}, nil, etcdUnit, ReasonUnverified},
	} {
		t.Run(name, func(t *testing.T) {
			p := Assess(scanOf(c.found...), boundInputs(c.announced))
			require.Equal(t, c.reason, p.Reason)
			annotations, _ := Marks(p, recorded, nil, nil)
			written, isWritten := annotations[observation.UnverifiedAnnotation]
			require.True(t, isWritten)
			if c.want == "" {
				require.Nil(t, p.Unverified)
				require.Nil(t, written)
				return
			}
			require.Equal(t, []string{c.want}, p.Unverified)
			again, err := observation.ParseUnverified(*written)
			require.NoError(t, err)
			require.Equal(t, p.Unverified, again)
		})
	}
	annotations, _ := Marks(Protection{Membership: MemberAbsent}, recorded, nil, nil)
	require.Equal(t, map[string]*string{observation.UnverifiedAnnotation: nil}, annotations)
}

// A recorded unverified server is not assigned to an announced member whose server is gone.
func TestRecordedUnverified(t *testing.T) {
	recorded := observation.FormatUnverified([]string{eventsUnit})
	for name, c := range map[string]struct {
		found      evidence.FoundServer
		annotation string
		want       []string
	}{
		"recorded":            {eventsServer(), recorded, []string{eventsUnit}},
		"recorded, no name":   {named(eventsServer(), "%m"), recorded, []string{eventsUnit}},
		"invalid annotation":  {eventsServer(), "[", []string{eventsUnit}},
		"other one recorded":  {eventsServer(), observation.FormatUnverified([]string{"process 9"}), nil},
		"nothing is recorded": {eventsServer(), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := boundInputs(refs("f"))
			in.Annotations = map[string]string{observation.UnverifiedAnnotation: c.annotation}
			p := Assess(scanOf(c.found), in)
			require.Equal(t, c.want, p.Unverified, p.Message)
		})
	}
}

func TestHasNoMemberOf(t *testing.T) {
	other := unitServer()
	other.Ref = withEvents(nil)[0]
	for name, c := range map[string]struct {
		scan evidence.Scan
		want bool
	}{
		"nothing":                  {evidence.Scan{}, true},
		"left its cluster":         {scanOf(removedServer(unitServer())), true},
		"no data":                  {scanOf(stopped(unitServer(), new(false))), true},
		"another cluster":          {scanOf(other), true},
		"answers":                  {scanOf(other, unitServer()), false},
		"runs, silent":             {scanOf(unanswered(unitServer())), false},
		"runs, silent, no data":    {scanOf(withData(unanswered(unitServer()), new(false))), false},
		"stopped, data":            {scanOf(stopped(unitServer(), new(true))), false},
		"stopped, data unreadable": {scanOf(stopped(unitServer(), nil)), false},
		"incomplete scan":          {evidence.Scan{Unknown: []string{"the process table"}}, false},
		"data":                     {evidence.Scan{Data: []evidence.Data{{Ref: refs("a")[0]}}}, false},
		"data of another cluster":  {evidence.Scan{Data: []evidence.Data{{Ref: withEvents(nil)[0]}}}, true},
		"data that may not be all": {evidence.Scan{Data: []evidence.Data{{Ref: other.Ref, Starter: etcdUnit}}}, false},
		"disks not searched":       {evidence.Scan{Searching: true}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, HasNoMemberOf(quorumtest.ClusterID, c.scan)) })
	}
}

// The condition of a node that is not freed yet names what is awaited.
func TestF30Awaited(t *testing.T) {
	cluster := func() *quorumtest.Cluster { return quorumtest.Voters(3).Silent(0) }
	const remove = "member remove"
	unread := []string{"the process table: denied"}
	const untilLeft = "until the webhook's leader has a new list without the member from node w2 or w3"
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		unknown []string
		want    string
		not     string
	}{
		"not removed, its disk may not be mounted": {cluster().Unhealthy(0), nil, "a disk that is not mounted", "leader"},
		"runs elsewhere, or here unrecognized":     {cluster(), nil, "the member answers, so do not remove it", remove},

		"removed":         {cluster().RemovedFrom(1, 0).RemovedFrom(2, 0), nil, untilLeft, remove},
		"lists differ":    {cluster().RemovedFrom(1, 0), nil, "the list of node w3 does, that of node w2 does not", remove},
		"no other list":   {cluster().WithoutList(1, 2), nil, "until another node reports a confirmed member list", remove},
		"incomplete scan": {cluster().Removed(0), unread, "until a complete scan of the host", remove},
	} {
		t.Run(name, func(t *testing.T) {
			p := Assess(evidence.Scan{Unknown: c.unknown}, announcedOf(c.cluster))
			require.Equal(t, MemberPresent, p.Membership)
			require.Contains(t, p.Message, c.want)
			require.NotContains(t, p.Message, c.not)
		})
	}
}

// TestF30FreedNode is the whole way of a node of which the member was removed and the host wiped,
// in a cluster with one other observer.
func TestF30FreedNode(t *testing.T) {
	w := quorumtest.Voters(3).Unbound(2).Silent(0)
	w.Cluster.Observations = w.Cluster.Observations[:2]
	assess := func() Protection { return Assess(evidence.Scan{}, announcedOf(w)) }
	bind := func() {
		w.Cluster.Spec.Members, _ = membership.Bind(w.Cluster, quorumtest.Nodes(2), w.Nonces, quorumtest.Noon())
	}
	require.True(t, HasNoMemberOf(quorumtest.ClusterID, evidence.Scan{}))
	w.Emptied(0)
	bind()
	require.Equal(t, MemberPresent, assess().Membership, "the member is still in the list")

	w.RemovedFrom(1, 0)
	bind()
	require.Equal(t, MemberAbsent, assess().Membership)
	_, labels := Marks(assess(), nil, map[string]string{observation.EtcdMemberLabel: "true"}, nil)
	require.Equal(t, map[string]*string{observation.EtcdMemberLabel: nil}, labels)
}
