package monitoring

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
	"github.com/stretchr/testify/require"
)

// rateInterval stands for the variable of Grafana, for series that are scraped every second.
const rateInterval = "10s"

// A recording is what the demo recorded from the real programs (holdfast-demo -record).
type recording struct {
	storage    *teststorage.TestStorage
	engine     *promql.Engine
	start, end time.Time
	// labels are the names of the labels of each metric.
	labels map[string]map[string]bool
}

// unrecordedLabels returns the labels of the metrics that the recording does not have: those of
// kube-apiserver that alerts use, and those of zones, which the nodes of the demo do not have.
func unrecordedLabels() map[string]map[string]bool {
	return map[string]map[string]bool{ // k8s.io/apiserver/pkg/admission/metrics
		"apiserver_admission_webhook_rejection_count": {"__name__": true, "name": true, "error_type": true},
		"apiserver_admission_webhook_fail_open_count": {"__name__": true, "name": true},
		"holdfast_etcd_zone_holds_quorum":             {"__name__": true, "etcd_cluster": true, "zone": true},
		"holdfast_etcd_zone_voters":                   {"__name__": true, "etcd_cluster": true, "zone": true},
	}
}

func newRecording(t *testing.T) *recording {
	t.Helper()
	packed, err := gzip.NewReader(bytes.NewReader(read(t, "testdata/demo.metrics.gz")))
	require.NoError(t, err)
	text, err := io.ReadAll(packed)
	require.NoError(t, err)
	r := &recording{storage: teststorage.New(t), labels: unrecordedLabels()}
	r.engine = promqltest.NewTestEngine(t, false, 5*time.Second, 1_000_000)
	samples := textparse.NewPromParser(text, labels.NewSymbolTable(), false)
	appender := r.storage.Appender(t.Context())
	for {
		entry, err := samples.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, textparse.EntrySeries, entry)
		var set labels.Labels
		_, at, value := samples.Series()
		samples.Labels(&set)
		_, err = appender.Append(0, set, *at, value)
		require.NoError(t, err)
		r.add(set, time.UnixMilli(*at))
	}
	require.NoError(t, appender.Commit())
	require.Greater(t, r.end.Sub(r.start), time.Minute)
	return r
}

func (r *recording) add(set labels.Labels, at time.Time) {
	if r.start.IsZero() {
		r.start = at
	}
	r.end = at
	name := set.Get(labels.MetricName)
	if r.labels[name] == nil {
		r.labels[name] = map[string]bool{}
	}
	set.Range(func(l labels.Label) { r.labels[name][l.Name] = true })
}

// queryRange returns the series of a query over the whole recording, with a point for each second.
func (r *recording) queryRange(t *testing.T, query string) promql.Matrix {
	t.Helper()
	q, err := r.engine.NewRangeQuery(t.Context(), r.storage, nil, query, r.start, r.end, time.Second)
	require.NoError(t, err)
	defer q.Close()
	result := q.Exec(t.Context())
	require.NoError(t, result.Err, query)
	matrix, err := result.Matrix()
	require.NoError(t, err, query)
	return slices.Clone(matrix)
}

// A dashboard contains the parts of Grafana's model that the tests read.
type dashboard struct {
	Title, UID string
	Panels     []struct {
		ID          int
		Type, Title string
		Description string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct{ Expr, RefID string }
	}
}

// queries returns the queries of the dashboard and of the alerts, by where they are.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	var d dashboard
	require.NoError(t, json.Unmarshal(read(t, filepath.Join(component, "dashboard.json")), &d))
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			found["panel "+panel.Title+" "+target.RefID] = strings.ReplaceAll(target.Expr, "$__rate_interval", rateInterval)
		}
	}
	require.Greater(t, len(found), 20)
	for _, group := range parsedRules(t).Spec.Groups {
		for _, rule := range group.Rules {
			found["alert "+rule.Alert] = rule.Expr
		}
	}
	return found
}

// TestDashboard checks that panels have a description and do not overlap.
func TestDashboard(t *testing.T) {
	var d dashboard
	require.NoError(t, json.Unmarshal(read(t, filepath.Join(component, "dashboard.json")), &d))
	require.NotEmpty(t, d.Title)
	require.NotEmpty(t, d.UID)
	cells, ids := map[[2]int]string{}, map[int]bool{}
	for _, panel := range d.Panels {
		require.NotEmpty(t, panel.Description, panel.Title)
		require.False(t, ids[panel.ID], panel.Title)
		ids[panel.ID] = true
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				require.Less(t, x, 24, panel.Title)
				require.Empty(t, cells[[2]int{x, y}], "%s overlaps another panel", panel.Title)
				cells[[2]int{x, y}] = panel.Title
			}
		}
	}
}

// TestQueries checks that each query parses, and names only metrics and labels that the programs
// export.
func TestQueries(t *testing.T) {
	recorded := newRecording(t)
	for place, query := range queries(t) {
		expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		require.NoError(t, err, place)
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				known := recorded.labels[n.Name]
				require.NotNil(t, known, "%s: no program exports %s", place, n.Name)
				for _, matcher := range n.LabelMatchers {
					require.True(t, known[matcher.Name], "%s: %s has no label %s", place, n.Name, matcher.Name)
				}
			case *parser.AggregateExpr:
				requireLabels(t, recorded, place, n)
			}
			return nil
		})
	}
}

// requireLabels checks that the metrics below an aggregation have the labels that it keeps.
func requireLabels(t *testing.T, recorded *recording, place string, aggregation *parser.AggregateExpr) {
	t.Helper()
	parser.Inspect(aggregation.Expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			for _, label := range aggregation.Grouping {
				require.True(t, recorded.labels[selector.Name][label], "%s: %s has no label %s", place, selector.Name, label)
			}
		}
		return nil
	})
}

// TestRecordingIsComplete checks that the recording has every metric that the documents describe.
// Otherwise it is older than the programs: record it again (CONTRIBUTING.md).
func TestRecordingIsComplete(t *testing.T) {
	recorded := newRecording(t)
	for _, page := range []string{"../../docs/metrics.md", "../../docs/spc.md"} {
		for _, name := range regexp.MustCompile(`holdfast(?:_[a-z]+){2,}`).FindAllString(string(read(t, page)), -1) {
			isThere := recorded.labels[name] != nil || recorded.labels[name+"_bucket"] != nil
			require.True(t, isThere, "%s: the recording lacks %s", page, name)
		}
	}
}

// TestEvaluate evaluates each query with the engine of Prometheus over what was recorded.
func TestEvaluate(t *testing.T) {
	recorded := newRecording(t)
	for place, query := range queries(t) {
		series := recorded.queryRange(t, query)
		if strings.HasPrefix(place, "panel ") {
			require.NotEmpty(t, series, "%s shows nothing", place)
		}
	}
	values := func(query string) []float64 {
		seen := map[float64]bool{}
		for _, series := range recorded.queryRange(t, query) {
			for _, point := range series.Floats {
				seen[point.F] = true
			}
		}
		return slices.Sorted(maps.Keys(seen))
	}
	for query, want := range map[string][]float64{
		"max(holdfast_etcd_voters)":                     {3},
		"min(holdfast_etcd_healthy_voters)":             {1, 2, 3},
		"max(holdfast_etcd_quorum_voters)":              {2},
		"min(holdfast_etcd_expendable_voters)":          {0, 1},
		"max(holdfast_etcd_members_unseen)":             {0, 1},
		`sum(holdfast_etcd_grants{reason="Deletion"})`:  {0, 2},
		"sum(holdfast_webhook_leading)":                 {0, 1},
		`count(holdfast_build_info{program="webhook"})`: {1, 2},
	} {
		require.Subset(t, values(query), want, query)
	}
}
