package plugin

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// TestStateClock: the clock of the user is wrong. Ages are by the time of the API server: otherwise
// agents that are silent would count, or all agents would seem to be silent.
func TestStateClock(t *testing.T) {
	types := runtime.NewScheme()
	require.NoError(t, clientscheme.AddToScheme(types))
	require.NoError(t, v1alpha1.AddToScheme(types))
	server := time.Now().Add(-time.Hour).Truncate(time.Second)
	kube := fake.NewClientBuilder().WithScheme(types).WithInterceptorFuncs(interceptor.Funcs{Create: func(
		_ context.Context, _ client.WithWatch, review client.Object, _ ...client.CreateOption,
	) error {
		review.SetCreationTimestamp(metav1.NewTime(server))
		return nil
	}}).Build()
	err := (&session{kube: kube}).pollState(t.Context(), func(state report.State) (bool, error) {
		require.Equal(t, server, state.Now)
		return false, nil
	})
	require.NoError(t, err)
}

func TestWebhookFlags(t *testing.T) {
	var both departure.Table
	both = both.Add(departure.ForGood, "example.com/a").Add(departure.ForAWhile, "example.com/b")
	for name, c := range map[string]struct {
		args    []string
		want    report.State
		problem string
	}{
		"none": {args: []string{"--namespace=$(NAMESPACE)", "--guard-drains=false", "--cluster-api"}},
		"values": {
			args: []string{"--min-remaining-tolerance=2", "--stuck-hold-after=30m"},
			want: report.State{MinRemainingTolerance: 2, StuckHoldAfter: 30 * time.Minute},
		},
		"marks": {
			args: []string{"--doomed-taint=example.com/a", "-away-mark", "example.com/b"},
			want: report.State{Departures: both},
		},
		"last value": {
			args: []string{"--min-remaining-tolerance", "1", "--min-remaining-tolerance=3"},
			want: report.State{MinRemainingTolerance: 3},
		},
		"zone label":                 {args: []string{"--zone-label=a.b/rack"}, want: report.State{ZoneLabel: "a.b/rack"}},
		"not a flag":                 {args: []string{"min-remaining-tolerance=2"}},
		"no number":                  {args: []string{"--min-remaining-tolerance=$(N)"}, problem: "invalid value"},
		"variable":                   {args: []string{"--doomed-taint=$(KEY)"}, problem: "the value has a variable"},
		"variable in the zone label": {args: []string{"--zone-label=$(KEY)"}, problem: "the value has a variable"},
		"no value":                   {args: []string{"--away-mark"}, problem: "flag needs an argument"},
	} {
		t.Run(name, func(t *testing.T) {
			var got report.State
			err := setWebhookFlags(&got, c.args)
			if c.problem != "" {
				require.ErrorContains(t, err, c.problem)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}
