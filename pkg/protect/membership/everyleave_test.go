package membership

import (
	"cmp"
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestMain adds the flags of TestEveryLeave.
func TestMain(m *testing.M) {
	flag.Int("leave-depth", 3, "how many steps TestEveryLeave takes")
	flag.Duration("leave-time", time.Minute,
		"after which time TestEveryLeave explores no further state, half of it in each mode")
	os.Exit(m.Run())
}

// flagValue returns the value of a flag of TestMain.
func flagValue[T any](t *testing.T, name string) T {
	t.Helper()
	getter, ok := flag.Lookup(name).Value.(flag.Getter)
	require.True(t, ok)
	value, ok := getter.Get().(T)
	require.True(t, ok)
	return value
}

// TestEveryLeave explores every order of a few steps by which the machines of an etcd cluster leave
// and come back, breadth first, with the real functions: Decide, With, Tombstones, Bind, Next and
// Resolve. Observations are true and immediate. Two rules hold in each state: what is allowed
// leaves a quorum of voters that run on machines that stay, and in a state in which nothing is in
// progress and every voter runs, one machine may leave.
//
// The shortest order of steps that breaks a rule is printed. `make test` takes five steps, without
// the race detector, and `make histories` seven.
func TestEveryLeave(t *testing.T) {
	for _, observers := range []v1alpha1.Observers{v1alpha1.NodesWithRole, v1alpha1.AllNodes} {
		t.Run(string(observers), func(t *testing.T) { exploreLeaves(t, newLeaveState(observers)) })
	}
}

func exploreLeaves(t *testing.T, first leaveState) {
	t.Helper()
	began := time.Now()
	seen, layer, transitions := map[[16]byte]bool{first.key(): true}, []leaveState{first}, 0
	depths, limit := flagValue[int](t, "leave-depth"), flagValue[time.Duration](t, "leave-time")/2
	isInTime := func() bool { return time.Since(began) < limit }
	for depth := 1; depth <= depths && isInTime(); depth++ {
		var following []leaveState
		for i, s := range layer {
			if !isInTime() {
				t.Logf("after %s: %d of %d states of the last step are explored", limit, i, len(layer))
				break
			}
			states, wrong := s.next()
			require.Empty(t, wrong)
			transitions += len(states)
			for _, n := range states {
				if k := n.key(); !seen[k] {
					seen[k] = true
					following = append(following, n)
				}
			}
		}
		layer = following
		t.Logf("after %d steps: %d states, %d transitions, %s", depth, len(seen), transitions,
			time.Since(began).Round(time.Millisecond))
	}
	require.Greater(t, len(seen), 500, "the exploration has lost a dimension")
}

const leaveNonce, leaveCluster = "now", "c1"

// A stage is how far the drain of a machine is.
type stage int

const (
	notDrained stage = iota
	drainAllowed
	machineDown
	machineUp // and not yet uncordoned
)

// A leaveMachine is a machine with its Node and its member.
type leaveMachine struct {
	// uid is that of its Node, empty if there is none; version and generation are those of the Node.
	uid                 string
	version, generation int
	cordoned, ended     bool
	// member is the generation of its member, 0 if there is none.
	member  int
	running bool
	// deleteUID and deleteVersion are the Node of the DELETE in progress, since deleteAt.
	deleteUID     string
	deleteVersion int
	deleteAt      time.Time
	// goneAt is when its Node was deleted.
	goneAt time.Time
	stage  stage
	// isEnding is set while its Machine or NodeClaim is being deleted.
	isEnding bool
	// markAt is when the update that marks its member was allowed, while it is in progress.
	markAt   time.Time
	isMarked bool
}

// A leaveState is the state of three machines, and what the webhook knows.
type leaveState struct {
	now      time.Time
	machines [3]leaveMachine
	// voters are members by machine and generation.
	voters  [][2]int
	spec    v1alpha1.EtcdClusterSpec
	proven  map[v1alpha1.MemberID]time.Time
	returns map[types.UID]NodeReturn
	gone    map[types.UID]time.Time
	trace   []string
}

func leaveMember(machine, generation int) v1alpha1.MemberID {
	return v1alpha1.MemberID(fmt.Sprintf("%d%d", machine+1, generation))
}

func leaveNode(machine int) string { return fmt.Sprintf("n%d", machine) }

func leaveAddress(machine int) string { return fmt.Sprintf("10.0.0.%d", machine+1) }

func newLeaveState(observers v1alpha1.Observers) leaveState {
	basis := v1alpha1.BasisAddress
	if observers == v1alpha1.NodesWithRole {
		basis = v1alpha1.BasisRole
	}
	s := leaveState{
		spec: v1alpha1.EtcdClusterSpec{Observers: observers},
		now:  time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), proven: map[v1alpha1.MemberID]time.Time{},
		returns: map[types.UID]NodeReturn{}, gone: map[types.UID]time.Time{},
	}
	for m := range s.machines {
		s.machines[m] = leaveMachine{uid: fmt.Sprintf("u%d-1", m), generation: 1, version: 1, member: 1, running: true}
		s.voters = append(s.voters, [2]int{m, 1})
		s.spec.Members = append(s.spec.Members, v1alpha1.Binding{
			MemberID: leaveMember(m, 1), Node: leaveNode(m), NodeUID: types.UID(s.machines[m].uid), Basis: basis,
		})
	}
	return s
}

func (s leaveState) clone() leaveState {
	s.voters, s.spec, s.trace = slices.Clone(s.voters), *s.spec.DeepCopy(), slices.Clone(s.trace)
	s.proven, s.returns, s.gone = maps.Clone(s.proven), maps.Clone(s.returns), maps.Clone(s.gone)
	return s
}

// key identifies the state: times count from now, in steps of ten seconds, and versions by what
// they are equal to.
func (s leaveState) key() [16]byte {
	var b strings.Builder
	age := func(t time.Time) int {
		if t.IsZero() {
			return -1
		}
		return int(min(s.now.Sub(t), 25*time.Minute) / (10 * time.Second))
	}
	for _, h := range s.machines {
		isCurrent := h.deleteUID == h.uid && h.deleteVersion == h.version
		fmt.Fprint(&b, h.uid, h.cordoned, h.ended, h.member, h.running, h.deleteUID != "", isCurrent, age(h.deleteAt),
			age(h.goneAt), h.stage, h.isEnding, h.version == 3, age(h.markAt), h.isMarked, "|")
	}
	fmt.Fprint(&b, s.voters, s.spec.Members, s.spec.DistinctServers)
	for _, g := range s.spec.Grants {
		fmt.Fprint(&b, g.NodeUID, g.Members, g.Addresses)
		for _, d := range quorum.Doors(g) {
			isCurrent := false
			for _, h := range s.machines {
				isCurrent = isCurrent || h.uid == string(g.NodeUID) && d.Version == fmt.Sprint(h.version)
			}
			fmt.Fprint(&b, d.Kind, age(d.Time.Time), isCurrent)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.proven)) {
		fmt.Fprint(&b, id, age(s.proven[id]))
	}
	for _, uid := range slices.Sorted(maps.Keys(s.gone)) {
		fmt.Fprint(&b, uid, age(s.gone[uid]))
	}
	for _, uid := range slices.Sorted(maps.Keys(s.returns)) {
		r := s.returns[uid]
		fmt.Fprint(&b, uid, age(r.probedAt))
		for _, d := range r.doors {
			fmt.Fprint(&b, d.Kind, age(d.Time.Time), d.Version)
		}
		for _, id := range slices.Sorted(maps.Keys(r.provenSince)) {
			fmt.Fprint(&b, id, age(r.provenSince[id]))
		}
	}
	sum := sha256.Sum256([]byte(b.String()))
	return [16]byte(sum[:16])
}

// serves reports whether a voter runs.
func (s leaveState) serves(v [2]int) bool {
	h := s.machines[v[0]]
	return h.running && !h.ended && h.member == v[1]
}

func (s leaveState) countServing() (count int) {
	for _, v := range s.voters {
		if s.serves(v) {
			count++
		}
	}
	return count
}

func (s leaveState) hasQuorum() bool { return s.countServing() >= len(s.voters)/2+1 }

// mayLeave reports whether the machine may stop or end, or its member may be removed, because of
// what was allowed.
func (s leaveState) mayLeave(m int) bool {
	h := s.machines[m]
	canCommit := h.deleteUID != "" && h.deleteUID == h.uid && h.deleteVersion == h.version
	isGone := !h.goneAt.IsZero() && !h.ended && s.now.Sub(h.goneAt) < quorum.ResolveMovedAfter
	return canCommit || isGone || h.isEnding || h.stage == drainAllowed || h.stage == machineDown ||
		h.isMarked || !h.markAt.IsZero()
}

// countLeft returns how many voters serve on machines that stay, without those of one machine.
func (s leaveState) countLeft(without int) (count int) {
	for _, v := range s.voters {
		if v[0] != without && s.serves(v) && !s.mayLeave(v[0]) {
			count++
		}
	}
	return count
}

// isQuiet reports whether nothing is in progress or remembered, and every voter runs.
func (s leaveState) isQuiet() bool {
	for m, h := range s.machines {
		if s.mayLeave(m) || h.cordoned || h.ended || h.uid == "" || h.stage != notDrained {
			return false
		}
	}
	return len(s.spec.Grants) == 0 && len(s.voters) == len(s.machines) && s.countServing() == len(s.voters) &&
		!slices.ContainsFunc(s.voters, func(v [2]int) bool {
			isBound := func(b v1alpha1.Binding) bool {
				return b.MemberID == leaveMember(v[0], v[1]) && string(b.NodeUID) == s.machines[v[0]].uid
			}
			return !slices.ContainsFunc(s.spec.Members, isBound)
		})
}

// hasRoles reports whether the Nodes have a role, which the machines keep when they register again.
func (s leaveState) hasRoles() bool { return s.spec.Observers == v1alpha1.NodesWithRole }

func (s leaveState) announced(m int) []evidence.MemberRef {
	h := s.machines[m]
	if h.uid == "" || h.member == 0 || h.ended {
		return nil
	}
	return []evidence.MemberRef{{Cluster: leaveCluster, Member: leaveMember(m, h.member)}}
}

func (s leaveState) nodes() (all []observation.AnnouncingNode) {
	for m, h := range s.machines {
		if h.uid != "" {
			all = append(all, observation.AnnouncingNode{
				Node: leaveNode(m), UID: types.UID(h.uid), Addresses: []string{leaveAddress(m)}, Announced: s.announced(m),
				HasRole: s.hasRoles(),
			})
		}
	}
	return all
}

// view returns what the webhook reads, with a new observation of each agent.
func (s leaveState) view() quorum.View {
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: leaveCluster}, Spec: *s.spec.DeepCopy()}
	c.Spec.Nonce, c.CreationTimestamp = leaveNonce, metav1.NewTime(s.now.Add(-time.Hour))
	var list []v1alpha1.MemberStatus
	for _, v := range s.voters {
		url := "https://" + leaveAddress(v[0])
		list = append(list, v1alpha1.MemberStatus{
			ID: leaveMember(v[0], v[1]), Name: leaveNode(v[0]), PeerURLs: []string{url + ":2380"},
			ClientURLs: []string{url + ":2379"}, Healthy: s.hasQuorum() && s.serves(v),
		})
	}
	states := map[string]observation.NodeState{}
	for m, h := range s.machines {
		name := leaveNode(m)
		states[name] = observation.NodeState{Known: true}
		if h.uid == "" {
			continue
		}
		states[name] = observation.NodeState{
			Known: true, UID: types.UID(h.uid), Version: fmt.Sprint(h.version), Cordoned: h.cordoned, HasRole: s.hasRoles(),
			Machine: observation.NewMachine("", "hw"+name), ProviderID: "cloud:///" + name,
		}
		if h.isMarked {
			marked := states[name]
			quorumtest.MarkedForRemoval(&marked)
			states[name] = marked
		}
		if h.ended || h.member == 0 {
			continue
		}
		o := v1alpha1.Observation{
			Node: name, NodeUID: types.UID(h.uid), Nonce: leaveNonce, Time: metav1.NewTime(s.now),
			LocalMember: leaveMember(m, h.member),
		}
		if h.running && slices.Contains(s.voters, [2]int{m, h.member}) && s.hasQuorum() {
			o.Linearizable, o.Members = true, slices.Clone(list)
		}
		c.Observations = append(c.Observations, o)
	}
	return quorum.View{
		Cluster: c, Nonces: []string{leaveNonce}, Nodes: states, Now: s.now,
		PossibleNodes: quorum.PossibleNodes(c, s.nodes()),
	}
}

func (s leaveState) request(m int, door quorum.DoorKind) quorum.Request {
	h := s.machines[m]
	r := quorum.Request{
		Node: leaveNode(m), UID: types.UID(h.uid), Labelled: true, Announced: s.announced(m),
		Addresses: []string{leaveAddress(m)}, User: "alice", Door: door,
	}
	if door == quorum.DoorDelete || door == quorum.DoorRemove {
		r.Version = fmt.Sprint(h.version)
	}
	return r
}

// put adds or replaces a grant.
func (s *leaveState) put(g v1alpha1.Grant) {
	isSame := func(o v1alpha1.Grant) bool { return o.NodeUID == g.NodeUID }
	s.spec.Grants = append(slices.DeleteFunc(s.spec.Grants, isSame), g)
	slices.SortFunc(s.spec.Grants, func(a, b v1alpha1.Grant) int { return cmp.Compare(a.NodeUID, b.NodeUID) })
}

// leaderRound is a round of the leader: package leader has the same order.
func (s *leaveState) leaderRound() {
	v := s.view()
	healthy := SelfProven(v)
	maps.DeleteFunc(s.proven, func(id v1alpha1.MemberID, _ time.Time) bool { return !slices.Contains(healthy, id) })
	for _, id := range healthy {
		if s.proven[id].IsZero() {
			s.proven[id] = s.now
		}
	}
	returns := map[types.UID]NodeReturn{}
	for _, g := range v.Cluster.Spec.Grants {
		if next := s.returns[g.NodeUID].Next(v, g, s.now); !next.probedAt.IsZero() {
			returns[g.NodeUID] = next
		}
	}
	s.returns = returns
	for _, g := range Tombstones(v) {
		if g.Gone != nil && g.Gone.Time.IsZero() {
			g.Gone.Time = metav1.NewTime(s.now)
		}
		s.put(g)
	}
	v.Cluster.Spec.Grants = s.spec.DeepCopy().Grants
	s.spec.Members, _ = Bind(v.Cluster, s.nodes(), v.Nonces, s.now)
	v.Cluster.Spec.Members = s.spec.DeepCopy().Members
	s.resolve(v)
}

// resolve ends grants.
func (s *leaveState) resolve(v quorum.View) {
	var kept []v1alpha1.Grant
	gone := map[types.UID]time.Time{}
	for _, g := range s.spec.Grants {
		e := ResolveEvidence{
			Now: s.now, Opened: quorum.LastOpened(g).Time, ProvenSince: s.proven, Return: s.returns[g.NodeUID],
		}
		if v.Nodes[g.Node].UID != g.NodeUID {
			gone[g.NodeUID] = s.now
			if since, isKnown := s.gone[g.NodeUID]; isKnown {
				gone[g.NodeUID] = since
			}
			if gone[g.NodeUID].After(e.Opened) {
				e.Opened = gone[g.NodeUID]
			}
		}
		for m, h := range s.machines {
			if h.isEnding && leaveNode(m) == g.Node {
				e.Ending = "the Machine of the node is being deleted"
			}
		}
		if isResolved, _ := Resolve(v, g, e); !isResolved {
			kept = append(kept, g)
		}
	}
	s.spec.Grants, s.gone = kept, gone
}
