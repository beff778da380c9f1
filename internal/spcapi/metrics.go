package spcapi

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Metrics are the numbers of a Publisher. They are a prometheus.Collector: whoever does not lead shows the counters alone,
// and a group or a place that is gone is shown no more.
type Metrics struct {
	refreshes *prometheus.CounterVec

	mu      sync.Mutex // guards what follows
	leads   bool
	success time.Time
	bytes   int
	census  *spc.Census
}

// NewMetrics returns Metrics of a Publisher that does not run.
func NewMetrics() *Metrics {
	return &Metrics{refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_spc_refreshes_total", Help: "Times that the SPC API was asked for the list of machines, by what became of it.",
	}, []string{"result"})}
}

// descriptions are the metrics of a leader, by short names.
func descriptions() map[string]*prometheus.Desc {
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("holdfast_spc_"+name, help, labels, nil)
	}
	return map[string]*prometheus.Desc{
		"age":         gauge("inventory_age_seconds", "Time since the SPC API was last asked for the list of machines with success."),
		"bytes":       gauge("inventory_bytes", "Size of the published list, compressed. A ConfigMap holds 1 MiB."),
		"machines":    gauge("machines", "Machines by where they are seen: in SPC, at the cloud, in Kubernetes.", "spc", "cloud", "kubernetes"),
		"late":        gauge("machines_never_nodes", "Machines that SPC lists and that have not been nodes for 15 minutes."),
		"machineless": gauge("nodes_without_machine", "Nodes that no machine of SPC's is, for more than 5 minutes."),
		"doubtful":    gauge("nodes_in_doubt", "Nodes whose machine is in doubt; the Node's annotation holdfast.dev/spc-problem says why."),
		"doubled":     gauge("machines_with_several_nodes", "Machines that several Nodes match."),
		"group":       gauge("group_machines", "Machines of each group, by phase.", "group", "phase"),
		"nodes":       gauge("group_nodes", "Nodes labelled with each group.", "group"),
	}
}

// Describe sends all descriptions.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.refreshes.Describe(to)
	for _, d := range descriptions() {
		to <- d
	}
}

// Collect sends the numbers as they are now.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.refreshes.Collect(to)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leads {
		return
	}
	d := descriptions()
	send := func(name string, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d[name], prometheus.GaugeValue, value, labels...)
	}
	if !m.success.IsZero() {
		send("age", max(0, time.Since(m.success).Seconds()))
	}
	if m.bytes > 0 {
		send("bytes", float64(m.bytes))
	}
	if m.census == nil {
		return
	}
	for s, n := range m.census.Sightings {
		send("machines", float64(n), string(s.SPC), string(s.Cloud), string(s.Kubernetes))
	}
	send("late", float64(len(m.census.Late)))
	send("machineless", float64(len(m.census.Machineless)))
	send("doubtful", float64(len(m.census.Doubtful)))
	send("doubled", float64(len(m.census.Doubled)))
	for _, name := range slices.Collect(maps.Keys(m.census.Groups)) {
		for _, phase := range spc.Phases() {
			send("group", float64(m.census.Groups[name].Phases[phase]), name, string(phase))
		}
		send("nodes", float64(m.census.Groups[name].Nodes), name)
	}
}

// refreshed counts a refresh by what became of it.
func (m *Metrics) refreshed(err error) {
	result := "ok"
	if status := new(StatusError); errors.As(err, &status) {
		result = "refused"
	} else if err != nil {
		result = "failed"
	}
	m.refreshes.WithLabelValues(result).Inc()
}

func (m *Metrics) packed(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes = bytes
}

// show takes over what a round has found; nil leaves the census unknown.
func (m *Metrics) show(c *spc.Census, success time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads, m.census, m.success = true, c, success
}

// rest says that this process leads no more.
func (m *Metrics) rest() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads, m.census = false, nil
}
