package agent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

func TestRetryBackoff(t *testing.T) {
	retry := loop.NewRetry(retryBackoff())
	var before time.Duration
	for i := range 40 {
		d := retry.Next()
		require.Positive(t, d)
		require.LessOrEqual(t, d, 10*time.Second, "attempt %d", i)
		if i < 6 {
			require.Greater(t, d, before, "attempt %d", i)
		}
		before = d
	}
	require.GreaterOrEqual(t, before, 8*time.Second)
}

func TestJittered(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 2000 {
		d := jittered(10 * time.Second)
		low, high = min(low, d), max(high, d)
	}
	require.InDelta(t, 8, low.Seconds(), 0.1)
	require.InDelta(t, 10, high.Seconds(), 0.1)
	require.LessOrEqual(t, high, 10*time.Second)
}

func TestHealthy(t *testing.T) {
	a := &Agent{nodeLoop: &nodeLoop{cfg: Config{Tick: 10 * time.Second, Log: discardLog()}}, scanner: &etcdScanner{}}
	now := time.Now()
	require.NoError(t, a.Healthy(now), "the loop has not started")
	a.nodeLoop.lastPass.set(now)
	require.NoError(t, a.Healthy(now.Add(29*time.Second)))
	require.ErrorContains(t, a.Healthy(now.Add(31*time.Second)), "has completed no pass for 31s")
}

func TestMetrics(t *testing.T) {
	a := &Agent{metrics: newMetrics()}
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(a))
	a.unreadable.Set(2)
	for _, result := range []string{
		resultLabel(v1alpha1.Observation{}), resultLabel(v1alpha1.Observation{Problem: "no leader"}), resultFailed,
	} {
		a.published.WithLabelValues(result).Inc()
	}

	families, err := registry.Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"holdfast_agent_unreadable_places":            2,
		"holdfast_agent_observations_total published": 1, "holdfast_agent_observations_total problem": 1,
		"holdfast_agent_observations_total failed": 1,
	}, got)
}

// TestWakeByClusters checks which changes of the EtcdClusters and of their observations wake the
// node loop, which reads the network of the host each time, and the scanner. Only a scan shows that
// a stopped server was removed: it asks the other members.
func TestWakeByClusters(t *testing.T) {
	a, err := New(Config{Node: testNode, Tick: time.Second, Clusters: &apiaccess.Clusters{}, Log: discardLog()})
	require.NoError(t, err)
	isWoken := func(s loop.Signal) bool {
		select {
		case <-s:
			return true
		default:
			return false
		}
	}
	c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: string(testCluster), UID: "uid-c"}}
	o := &v1alpha1.EtcdObservation{Cluster: testCluster, Observation: v1alpha1.Observation{Node: "n2", NodeUID: "uid-2"}}
	o.Name, o.OwnerReferences = "o", []metav1.OwnerReference{{UID: c.UID}}
	for _, step := range []struct {
		what        string
		change      func()
		want, scans bool
	}{
		{what: "created", change: func() {}, want: true},
		{what: "nonce", change: func() { c.ResourceVersion, c.Spec.Nonce = "2", "x" }},
		{what: "answer", change: func() { o.ResourceVersion, o.Nonce, o.Time = "2", "x", metav1.Now() }},
		{what: "list", change: func() { o.Members = []v1alpha1.MemberStatus{{ID: testMember}} }, want: true},
		{
			what: "binding", want: true, scans: true,
			change: func() { c.Spec.Members = []v1alpha1.Binding{{MemberID: testMember, Node: testNode}} },
		},
		{what: "grant", change: func() { c.Spec.Grants = []v1alpha1.Grant{{NodeUID: "uid-1"}} }, want: true},
		{what: "end of the binding", change: func() { c.Spec.Members = nil }, want: true, scans: true},
	} {
		step.change()
		require.NoError(t, a.clusters.clusters.writer.Replace([]any{c.DeepCopy()}, ""))
		require.NoError(t, a.clusters.observations.writer.Replace([]any{o.DeepCopy()}, ""))
		require.Equal(t, step.want, isWoken(a.nodeLoop.wake), step.what)
		require.True(t, isWoken(a.reporter.wake), step.what)
		require.Equal(t, step.scans, isWoken(a.scanner.wake), step.what)
	}
}
