package ledger

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestWhatIsNotHeardIsCountedAndLoggedOnce(t *testing.T) {
	registry, log := prometheus.NewRegistry(), &bytes.Buffer{}
	m, err := newMetrics(registry)
	require.NoError(t, err)
	l := &Leader{
		book: &Book{metrics: m}, o: LeaderOptions{}.withDefaults(), log: slog.New(slog.NewTextHandler(log, nil)),
		said: changes{}, memories: map[types.UID]*memory{},
	}
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.UID = "c1", "u"
	c.Status.Observations = []v1alpha1.Observation{{Node: "liar", NodeUID: "l", Nonce: "n", LocalMember: "0"}, {Node: "new", NodeUID: "n"}}
	l.forget([]*v1alpha1.EtcdCluster{c})
	counted := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		counts := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "holdfast_webhook_observations_ignored" {
				continue
			}
			for _, metric := range family.GetMetric() {
				if v := metric.GetGauge().GetValue(); v != 0 {
					counts[metric.GetLabel()[0].GetValue()] = v
				}
			}
		}
		return counts
	}
	for range 2 {
		l.heed([]*v1alpha1.EtcdCluster{c})
		require.Equal(t, map[string]float64{string(protect.NotBound): 2, string(protect.BadID): 1, string(protect.NeverAsked): 1}, counted())
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "%s", log)
	require.Contains(t, log.String(), `etcd_cluster=c1 ignored="liar BadID, liar NotBound, new NeverAsked, new NotBound"`)
	c.Status.Observations = nil
	l.heed([]*v1alpha1.EtcdCluster{c})
	require.Empty(t, counted())
}
