package agent

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestWriteTurn checks when a node writes its answer to nonce b, if its probe takes 10 ms. The
// cluster has members on four nodes, and this one is the third by name. All but the silent ones
// have answered nonce a.
func TestWriteTurn(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		silent []string
		// answers has the times at which the other nodes answer.
		answers map[string]time.Duration
		probe   time.Duration
		// grant is when a grant is written, if at all.
		grant  time.Duration
		wantAt time.Duration
	}{
		"others write first":       {nil, map[string]time.Duration{"0": 20 * ms, "1": 40 * ms}, 10 * ms, 0, 40 * ms},
		"others are done":          {nil, map[string]time.Duration{"0": 2 * ms, "1": 4 * ms}, 10 * ms, 0, 10 * ms},
		"later node not awaited":   {[]string{"0", "1"}, nil, 10 * ms, 0, 10 * ms},
		"no answer":                {nil, nil, 10 * ms, 0, 10*ms + 2*writeSlot},
		"one answer":               {nil, map[string]time.Duration{"0": 20 * ms}, 10 * ms, 0, 10*ms + 2*writeSlot},
		"second of two":            {[]string{"0"}, map[string]time.Duration{"1": 40 * ms}, 10 * ms, 0, 40*ms + grantTime},
		"second, and a grant":      {[]string{"0"}, map[string]time.Duration{"1": 40 * ms}, 10 * ms, 60 * ms, 60 * ms},
		"second, first is late":    {[]string{"0"}, map[string]time.Duration{"1": 100 * ms}, 10 * ms, 0, 10*ms + writeSlot},
		"silent, and no answer":    {[]string{"0"}, nil, 10 * ms, 0, 10*ms + writeSlot},
		"time counts from a probe": {nil, nil, 1500 * ms, 0, 1500*ms + 2*writeSlot},
	} {
		t.Run(name, func(t *testing.T) {
			runReporter(t, func(ctx context.Context, _ *reporterFixture) v1alpha1.Observation {
				_ = pause(ctx, c.probe)
				return v1alpha1.Observation{Linearizable: true}
			}, func(f *reporterFixture) {
				answered, ledger := map[string]string{}, int64(0)
				deliver := func(nonce string) {
					cluster := &v1alpha1.EtcdCluster{
						ObjectMeta: metav1.ObjectMeta{Name: string(testCluster), UID: "c1"},
						Spec:       v1alpha1.EtcdClusterSpec{Nonce: nonce, Ledger: ledger},
					}
					for _, node := range []string{"0", "1", testNode, testNode + "-later"} {
						cluster.Spec.Members = append(cluster.Spec.Members, v1alpha1.Binding{Node: node})
						cluster.Status.Observations = append(cluster.Status.Observations,
							v1alpha1.Observation{Node: node, Nonce: cmp.Or(answered[node], "a")})
					}
					replace(t, f.clusters, cluster)
				}
				deliver("a")
				f.wait(2 * time.Second)
				written := len(f.published())
				for _, node := range c.silent {
					answered[node] = "older"
				}
				deliver("b")
				began := f.elapsed()
				for at := range 2 * time.Second / ms {
					for node, when := range c.answers {
						if when == at*ms {
							answered[node] = "b"
							deliver("b")
						}
					}
					if at > 0 && c.grant == at*ms {
						ledger++
						deliver("b")
					}
					f.wait(ms)
				}
				require.Len(t, f.published(), written+1)
				require.Equal(t, c.wantAt, f.published()[written].at-began)
			})
		})
	}
}

// TestWriteTurnIncomplete: an incomplete answer waits for any answers of the nodes before, and a
// complete one for complete answers.
func TestWriteTurnIncomplete(t *testing.T) {
	now := time.Now()
	c := &v1alpha1.EtcdCluster{Status: v1alpha1.EtcdClusterStatus{Observations: []v1alpha1.Observation{
		{Node: "0", Nonce: "b"}, {Node: "1", Nonce: "b", Incomplete: true},
	}}}
	turn := writeTurn{predecessors: []string{"0", "1"}, previousNonce: "a", deadline: now.Add(time.Second)}
	require.Zero(t, turn.remaining(c, now))
	turn.awaitsComplete = true
	require.Equal(t, time.Second, turn.remaining(c, now))
	c.Status.Observations[1].Incomplete = false
	require.Zero(t, turn.remaining(c, now))
}

// TestWriteTurnTimes: the times of a turn grow with the time of a write, up to a limit.
func TestWriteTurnTimes(t *testing.T) {
	for writeTime, want := range map[time.Duration]writeTurn{
		0:                     {slot: writeSlot, grantTime: grantTime},
		10 * time.Millisecond: {slot: writeSlot, grantTime: grantTime},
		40 * time.Millisecond: {slot: 200 * time.Millisecond, grantTime: 120 * time.Millisecond},
		5 * time.Second:       {slot: maxWriteSlot, grantTime: maxGrantTime},
	} {
		got := newWriteTurn(testNode, &v1alpha1.EtcdCluster{}, writeTime)
		require.Equal(t, []time.Duration{want.slot, want.grantTime}, []time.Duration{got.slot, got.grantTime})
	}
}

// TestReporterWriteTime: a busy API server leaves more room for the grant after the first answer.
func TestReporterWriteTime(t *testing.T) {
	const write = 40 * time.Millisecond
	runReporter(t, healthyCluster, func(f *reporterFixture) {
		bound := func(nonce, answered string) {
			replace(t, f.clusters, &v1alpha1.EtcdCluster{
				ObjectMeta: metav1.ObjectMeta{Name: string(testCluster), UID: "c1"},
				Spec:       v1alpha1.EtcdClusterSpec{Nonce: nonce, Members: []v1alpha1.Binding{{Node: "0"}, {Node: testNode}}},
				Status: v1alpha1.EtcdClusterStatus{Observations: []v1alpha1.Observation{
					{Node: "0", Nonce: answered}, {Node: testNode, Nonce: "a"},
				}},
			})
		}
		f.slow.set(write)
		bound("a", "a")
		f.wait(time.Second)
		bound("b", "a")
		f.wait(time.Millisecond)
		bound("b", "b")
		began := f.elapsed()
		f.wait(time.Second)
		last := f.published()[len(f.published())-1]
		require.Equal(t, "b", last.observation.Nonce)
		require.Equal(t, grantWrites*write+write, last.at-began)
	})
}
