package stress

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/test/fixture"
)

// sampleCount is the number of samples in a soak of any length.
const sampleCount = 240

// A soakSeries identifies one curve: a quantity of a process, or of the API server.
type soakSeries struct{ quantity, of string }

// The quantities. Memory and sizes are in bytes.
const (
	memory      = "memory"
	goroutines  = "goroutines"
	descriptors = "file descriptors"
	watches     = "watches"
	objectSize  = "object size"
)

// slack returns how much a quantity may grow beside a tenth of its value: the noise of a garbage
// collector and of requests that are under way.
func slack(quantity string) float64 {
	return map[string]float64{
		memory: 3 << 20, goroutines: 10, descriptors: 5, watches: 5, objectSize: 2 << 10,
	}[quantity]
}

// soakSamples are the samples of a soak.
type soakSamples struct {
	test   *soakTest
	values map[soakSeries][]float64
	file   *os.File
	out    *csv.Writer
}

// newSoakSamples creates the file for the samples, unless the path is empty.
func newSoakSamples(s *soakTest, path string) (*soakSamples, error) {
	r := &soakSamples{test: s, values: map[soakSeries][]float64{}, out: csv.NewWriter(io.Discard)}
	if path != "" {
		var err error
		if r.file, err = os.Create(path); err != nil {
			return nil, err
		}
		r.out = csv.NewWriter(r.file)
	}
	return r, r.out.Write([]string{"seconds", "quantity", "of", "value"})
}

// take takes samples until the context ends, and prints the progress.
func (r *soakSamples) take(ctx context.Context, total time.Duration, out io.Writer) error {
	begun, every := time.Now(), total/sampleCount
	for n := 0; fixture.Wait(ctx, every) == nil; n++ {
		now, err := r.sample(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("taking a sample: %w", err)
		}
		for _, key := range sortedSeries(now) {
			r.values[key] = append(r.values[key], now[key])
			err = errors.Join(err, r.out.Write([]string{
				strconv.FormatFloat(time.Since(begun).Seconds(), 'f', 0, 64), key.quantity, key.of,
				strconv.FormatFloat(now[key], 'f', -1, 64),
			}))
		}
		r.out.Flush()
		if err := errors.Join(err, r.out.Error()); err != nil {
			return err
		}
		if n%(sampleCount/24) == 0 {
			fmt.Fprintf(out, "after %s: %v\n", time.Since(begun).Round(time.Second), now)
		}
	}
	return nil
}

func (r *soakSamples) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// sample returns the present values.
func (r *soakSamples) sample(ctx context.Context) (map[soakSeries]float64, error) {
	now := map[soakSeries]float64{}
	s := r.test
	for of, process := range map[string]struct {
		instance string
		pid      int
	}{
		"webhook":                 {"webhook-2", s.Webhooks()[1].PID()},
		"agent of an etcd node":   {steadyNode, s.Agent(steadyNode).PID()},
		"agent of another worker": {steadyWorker, s.Agent(steadyWorker).PID()},
	} {
		p, err := procfs.NewProc(process.pid)
		if err != nil {
			return nil, err
		}
		used, err := p.ProcSMapsRollup()
		if err != nil {
			return nil, err
		}
		open, err := p.FileDescriptorsLen()
		if err != nil {
			return nil, err
		}
		now[soakSeries{memory, of}], now[soakSeries{descriptors, of}] = float64(used.Anonymous), float64(open)
		// A paused agent does not answer.
		if running, err := s.Metric(ctx, process.instance, "go_goroutines"); err == nil {
			now[soakSeries{goroutines, of}] = running
		}
	}
	return now, r.sampleAPIServer(ctx, now)
}

// sampleAPIServer adds the number of watches, and the sizes of the largest objects.
func (r *soakSamples) sampleAPIServer(ctx context.Context, now map[soakSeries]float64) error {
	text, err := r.test.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return err
	}
	open, err := fixture.SumSeries(string(text), "apiserver_longrunning_requests")
	if err != nil {
		return err
	}
	now[soakSeries{watches, "API server"}] = open
	nodes, err := r.test.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name == steadyNode {
			if err := setSize(now, "Node of the agent", &nodes.Items[i]); err != nil {
				return err
			}
		}
	}
	clusters, err := r.test.API.Kubectl(ctx, "get", "etcdclusters,etcdobservations", "-o", "json", "--show-managed-fields")
	if err != nil {
		return err
	}
	now[soakSeries{objectSize, "all EtcdClusters and EtcdObservations"}] = float64(len(clusters))
	return nil
}

func setSize(now map[soakSeries]float64, of string, object any) error {
	text, err := json.Marshal(object)
	now[soakSeries{objectSize, of}] = float64(len(text))
	return err
}

func sortedSeries[V any](of map[soakSeries]V) []soakSeries {
	return slices.SortedFunc(maps.Keys(of), func(a, b soakSeries) int {
		return strings.Compare(a.quantity+a.of, b.quantity+b.of)
	})
}

// checkFlat returns an error for each series that grows: its median in the last quarter is above
// that in the second quarter by more than a tenth and the slack of the quantity. The first quarter
// does not count, because caches fill.
func (r *soakSamples) checkFlat(out io.Writer) error {
	var err error
	for _, key := range sortedSeries(r.values) {
		all := r.values[key]
		quarter := len(all) / 4
		if quarter < 3 {
			err = errors.Join(err, fmt.Errorf("%s of %s: %d samples are too few", key.quantity, key.of, len(all)))
			continue
		}
		before, after := medianOf(all[quarter:2*quarter]), medianOf(all[3*quarter:])
		fmt.Fprintf(out, "%s of %s: %.0f in the second quarter, %.0f in the last\n", key.quantity, key.of, before, after)
		if after > before*1.1+slack(key.quantity) {
			err = errors.Join(err, fmt.Errorf("%s of %s grows: %.0f in the second quarter, %.0f in the last",
				key.quantity, key.of, before, after))
		}
	}
	return err
}

func medianOf(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

func TestCheckFlat(t *testing.T) {
	series := func(value func(int) float64) []float64 {
		var all []float64
		for i := range 40 {
			all = append(all, value(i))
		}
		return all
	}
	for name, c := range map[string]struct {
		values []float64
		want   string
	}{
		"constant":       {values: series(func(int) float64 { return 30 })},
		"filling caches": {values: series(func(i int) float64 { return float64(min(i, 9)) * 100 })},
		"noise":          {values: series(func(i int) float64 { return 30 + float64(i%7) })},
		"one peak":       {values: series(func(i int) float64 { return float64(max(0, i-38)) * 1e6 })},
		"slow growth":    {values: series(func(i int) float64 { return 30 + float64(i)/2 })},
		"growth": {
			series(func(i int) float64 { return 30 + 2*float64(i) }),
			"grows: 60 in the second quarter, 100 in the last",
		},
		"less than slack":    {values: series(func(i int) float64 { return float64(i) / 10 })},
		"too few":            {[]float64{1, 1, 1}, "3 samples are too few"},
		"falling":            {values: series(func(i int) float64 { return 1000 - float64(i) })},
		"doubled in the end": {series(func(i int) float64 { return float64(100 + 100*(i/30)) }), "grows"},
	} {
		t.Run(name, func(t *testing.T) {
			r := soakSamples{values: map[soakSeries][]float64{{goroutines, "webhook"}: c.values}}
			err := r.checkFlat(t.Output())
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}
