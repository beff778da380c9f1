package leader

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func TestMetrics(t *testing.T) {
	registry, m := prometheus.NewRegistry(), &metrics{}
	require.NoError(t, registry.Register(m))
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *v1alpha1.Door { return &v1alpha1.Door{Time: metav1.NewTime(noon.Add(-d))} }
	seen, unseen := &v1alpha1.EtcdCluster{}, &v1alpha1.EtcdCluster{}
	seen.Name, unseen.Name = "a1", "b2"
	seen.Spec.Grants = []v1alpha1.Grant{
		{Delete: ago(time.Minute)}, {Gone: ago(time.Hour)}, {Drain: ago(time.Second)},
	}
	known := quorum.Summary{
		Known: true, Tally: quorum.Tally{Voters: 3, Healthy: 2, Quorum: 2},
		WithoutNode: []v1alpha1.MemberID{"9"}, Alarms: map[string][]v1alpha1.MemberID{"NOSPACE": {"8", "9"}},
	}
	unknown := quorum.Summary{Unseen: []v1alpha1.MemberID{"7", "8"}}
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1, "a replica that does not lead exports only that")
	require.Equal(t, "holdfast_webhook_leading", families[0].GetName())
	require.Zero(t, families[0].GetMetric()[0].GetGauge().GetValue())

	m.set(&roundResult{
		ignored: map[observation.IgnoredReason]int{observation.Invalid: 2},
		clusters: []clusterResult{
			resultOf(seen, &clusterState{summary: known, zones: []quorum.ZoneShare{
				{Voters: 1}, {Zone: "a", Voters: 2, HoldsQuorum: true}, {Zone: "b"}, {Zone: "c", Voters: 1},
			}}), resultOf(unseen, &clusterState{summary: unknown}),
		},
	})
	requireMetrics(t, m, []string{
		`holdfast_webhook_leading 1`,
		`holdfast_webhook_open_grants 3`,
		`holdfast_webhook_observations_ignored{reason="Invalid"} 2`,
		`holdfast_webhook_observations_ignored{reason="NotBound"} 0`,
		`holdfast_etcd_list_known{etcd_cluster="a1"} 1`,
		`holdfast_etcd_voters{etcd_cluster="a1"} 3`,
		`holdfast_etcd_healthy_voters{etcd_cluster="a1"} 2`,
		`holdfast_etcd_quorum_voters{etcd_cluster="a1"} 2`,
		`holdfast_etcd_expendable_voters{etcd_cluster="a1"} 0`,
		`holdfast_etcd_zone_voters{etcd_cluster="a1",zone="a"} 2`,
		`holdfast_etcd_zone_holds_quorum{etcd_cluster="a1",zone="a"} 1`,
		`holdfast_etcd_zone_holds_quorum{etcd_cluster="a1",zone="c"} 0`,
		`holdfast_etcd_members_without_node{etcd_cluster="a1"} 1`,
		`holdfast_etcd_members_unseen{etcd_cluster="a1"} 0`,
		`holdfast_etcd_alarms{alarm="CORRUPT",etcd_cluster="a1"} 0`,
		`holdfast_etcd_alarms{alarm="NOSPACE",etcd_cluster="a1"} 2`,
		`holdfast_etcd_grants{etcd_cluster="a1",reason="Deletion"} 2`,
		`holdfast_etcd_grants{etcd_cluster="a1",reason="Drain"} 1`,
		fmt.Sprintf(`holdfast_etcd_oldest_grant_timestamp_seconds{etcd_cluster="a1",reason="Deletion"} %d`,
			noon.Add(-time.Hour).Unix()),
		`holdfast_etcd_list_known{etcd_cluster="b2"} 0`,
		`holdfast_etcd_members_unseen{etcd_cluster="b2"} 2`,
		`holdfast_etcd_grants{etcd_cluster="b2",reason="Drain"} 0`,
	}, []string{
		`zone="b"`, `zone=""`,
		`holdfast_etcd_voters{etcd_cluster="b2"}`, `holdfast_etcd_expendable_voters{etcd_cluster="b2"}`,
		`holdfast_etcd_alarms{alarm="CORRUPT",etcd_cluster="b2"}`,
		`holdfast_etcd_oldest_grant_timestamp_seconds{etcd_cluster="b2"`,
	})

	m.set(&roundResult{clusters: []clusterResult{resultOf(unseen, &clusterState{})}})
	requireMetrics(t, m, []string{`holdfast_etcd_list_known{etcd_cluster="b2"} 0`}, []string{`etcd_cluster="a1"`})
}

// TestOldestGrant: a new leader reads an old grant for the first time. Its age must not start
// again.
func TestOldestGrant(t *testing.T) {
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct{ granted, want time.Time }{
		"old":                   {noon.Add(-10 * time.Hour), noon.Add(-10 * time.Hour)},
		"clocks differ":         {noon.Add(maxAhead), noon.Add(maxAhead)},
		"far ahead, by mistake": {noon.Add(time.Hour), noon},
	} {
		t.Run(name, func(t *testing.T) {
			c := &v1alpha1.EtcdCluster{}
			c.Spec.Grants = []v1alpha1.Grant{
				{NodeUID: "u", Delete: &v1alpha1.Door{Time: metav1.NewTime(test.granted)}},
			}
			s := &clusterState{}
			s.noteGrants(c.Spec.Grants, nil, noon)
			require.Equal(t, test.want, resultOf(c, s).grants[grantOfDeletion][0])
		})
	}
}

// requireMetrics checks that the samples of a collector contain these lines, and none of the other
// texts.
func requireMetrics(t *testing.T, c prometheus.Collector, present, absent []string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(c))
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	families, err := registry.Gather()
	require.NoError(t, err)
	var lines []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			lines = append(lines, fmt.Sprintf("%s %.0f", name, metric.GetGauge().GetValue()))
		}
	}
	text := strings.Join(lines, "\n") + "\n"
	for _, line := range present {
		require.Contains(t, text, line+"\n")
	}
	for _, line := range absent {
		require.NotContains(t, text, line)
	}
}
