package spcapi

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// Metrics is the prometheus.Collector of a Publisher. A process that does not lead exports
// the counters only. Groups and states without machines are no longer exported.
type Metrics struct {
	refreshes *prometheus.CounterVec
	leading   atomic.Pointer[refreshed] // nil if the process does not lead
}

// refreshed is what a leader knows after a refresh.
type refreshed struct {
	summary *spc.Summary // nil if it is unknown
	success time.Time
	bytes   int
}

// NewMetrics returns the Metrics of a Publisher that does not run yet.
func NewMetrics() *Metrics {
	return &Metrics{refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_spc_refreshes_total",
		Help: "Refreshes of the list of SPC machines, by result.",
	}, []string{"result"})}
}

// descriptions returns the metrics of a leader by their names without holdfast_spc_.
func descriptions() map[string]*prometheus.Desc {
	all := map[string]*prometheus.Desc{}
	gauge := func(name, help string, labels ...string) {
		all[name] = prometheus.NewDesc("holdfast_spc_"+name, help, labels, nil)
	}
	gauge("inventory_age_seconds", "Time since the last successful refresh of the list of SPC machines.")
	gauge("inventory_bytes", "Size of the published list, compressed. A ConfigMap holds 1 MiB.")
	gauge("machines", "Machines by their state in SPC, at the cloud and in Kubernetes.", "spc", "cloud", "kubernetes")
	gauge("machines_never_nodes", "Machines that SPC lists and that have had no Node for 15 minutes.")
	gauge("nodes_without_machine", "Nodes that have matched no SPC machine for more than 5 minutes.")
	gauge("nodes_in_doubt",
		"Nodes with conflicting evidence. The Node's annotation holdfast.dev/spc-problem has the reason.")
	gauge("machines_with_several_nodes", "Machines that several Nodes match.")
	gauge("group_machines", "Machines in each group, by phase.", "group", "phase")
	gauge("group_nodes", "Nodes with the label of each group.", "group")
	return all
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.refreshes.Describe(to)
	for _, d := range descriptions() {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.refreshes.Collect(to)
	last := m.leading.Load()
	if last == nil {
		return
	}
	d := descriptions()
	send := func(name string, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d[name], prometheus.GaugeValue, value, labels...)
	}
	if !last.success.IsZero() {
		send("inventory_age_seconds", max(0, time.Since(last.success).Seconds()))
	}
	if last.bytes > 0 {
		send("inventory_bytes", float64(last.bytes))
	}
	if last.summary == nil {
		return
	}
	for s, n := range last.summary.Machines {
		send("machines", float64(n), string(s.SPC), s.Cloud, s.Kubernetes)
	}
	send("machines_never_nodes", float64(len(last.summary.MachinesWithoutNode)))
	send("nodes_without_machine", float64(len(last.summary.NodesWithoutMachine)))
	send("nodes_in_doubt", float64(len(last.summary.NodesInConflict)))
	send("machines_with_several_nodes", float64(len(last.summary.MachinesWithSeveralNodes)))
	for name, count := range last.summary.Groups {
		for _, phase := range spc.Phases() {
			send("group_machines", float64(count.Phases[phase]), name, string(phase))
		}
		send("group_nodes", float64(count.Nodes), name)
	}
}

func (m *Metrics) countRefresh(err error) {
	result := "ok"
	if status := new(StatusError); errors.As(err, &status) {
		result = "refused"
	} else if err != nil {
		result = "failed"
	}
	m.refreshes.WithLabelValues(result).Inc()
}
