package spcapi

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	// InventoryKey is the key of the inventory in the ConfigMap's binary data: JSON,
	// compressed with gzip.
	InventoryKey = "inventory.json.gz"
	// maxInventory limits the size of the decompressed inventory.
	maxInventory = 64 << 20
	// watchTime is the minimum duration that a Reader requests for its watch.
	watchTime = 4 * time.Hour
)

// Encode compresses an inventory. Equal inventories result in equal bytes.
func Encode(i *spc.Inventory) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("compressing the SPC inventory: %w", err)
	}
	if err := errors.Join(json.NewEncoder(w).Encode(i), w.Close()); err != nil {
		return nil, fmt.Errorf("compressing the SPC inventory: %w", err)
	}
	return packed.Bytes(), nil
}

// Decode returns the inventory in a ConfigMap that a Publisher wrote.
func Decode(m *corev1.ConfigMap) (*spc.Inventory, error) {
	packed, exists := m.BinaryData[InventoryKey]
	if !exists {
		return nil, fmt.Errorf("the ConfigMap %s/%s has no key %s", m.Namespace, m.Name, InventoryKey)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("decompressing the SPC inventory: %w", err)
	}
	var inventory spc.Inventory
	if err := json.NewDecoder(io.LimitReader(r, maxInventory)).Decode(&inventory); err != nil {
		return nil, fmt.Errorf("reading the SPC inventory: %w", err)
	}
	return &inventory, nil
}

// ConfigMapReader is a client for the ConfigMaps of the inventory's namespace.
type ConfigMapReader interface {
	List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Reader follows the inventory's ConfigMap.
type Reader struct {
	ConfigMaps ConfigMapReader
	Name       string
	Log        *slog.Logger

	latest struct {
		sync.Mutex
		index *spc.Index
	}
}

// Latest returns the inventory that was read last, or nil if none has been read.
func (r *Reader) Latest() *spc.Index {
	r.latest.Lock()
	defer r.latest.Unlock()
	return r.latest.index
}

// Run follows the ConfigMap until ctx ends and returns the cause. It calls notify after
// each change. If the ConfigMap is deleted or cannot be read, the last inventory stays: the
// loss of the list does not change the machines.
func (r *Reader) Run(ctx context.Context, notify func()) error {
	// The watches of an informer last five to ten minutes by default. These last for hours, to
	// save requests, and end at different times on different nodes.
	seconds := int64((watchTime + rand.N(watchTime)).Seconds())
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, r.Name).String()
	changed := func(obj any) {
		m, ok := obj.(*corev1.ConfigMap)
		if !ok {
			return
		}
		inventory, err := Decode(m)
		if err != nil {
			r.Log.Warn("failed to decode spc inventory; using the last one", "err", err)
			return
		}
		index := spc.NewIndex(inventory)
		r.latest.Lock()
		r.latest.index = index
		r.latest.Unlock()
		notify()
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				return r.ConfigMaps.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector, o.TimeoutSeconds = selector, &seconds
				return r.ConfigMaps.Watch(ctx, o)
			},
		},
		ObjectType: &corev1.ConfigMap{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, obj any) { changed(obj) },
		},
	})
	controller.RunWithContext(ctx)
	return context.Cause(ctx)
}

// The keys of the status that are read again or have several lines.
const (
	statusAttempted = "attempted"
	statusSucceeded = "succeeded"
	statusAge       = "age"
	statusProblem   = "problem"
)

const (
	// maxStatusLines limits each list of the status.
	maxStatusLines = 100
	// maxEvents limits the events after one refresh.
	maxEvents = 10
)

// inventoryStatus describes the inventory for operators.
type inventoryStatus struct {
	attempted, success time.Time
	failure, partial   error
	cluster            spc.Cluster
	summary            *spc.Summary
}

// data returns the data of the status ConfigMap.
func (s inventoryStatus) data() map[string]string {
	data := map[string]string{statusAttempted: s.attempted.UTC().Format(time.RFC3339)}
	data[statusAge] = formatAge(s.success, s.attempted)
	if !s.success.IsZero() {
		data[statusSucceeded] = s.success.UTC().Format(time.RFC3339)
	}
	var problems []string
	for _, err := range []error{s.failure, s.partial} {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	data[statusProblem] = strings.Join(problems, "\n")
	if c := s.cluster; c.Name != "" {
		data["cluster"] = fmt.Sprintf("%s (%s, %s, %s)", c.Name, c.InstanceID, c.Provider, c.State)
	}
	if s.summary == nil {
		return data
	}
	data["places"] = formatMachines(s.summary.Machines)
	data["groups"] = formatGroups(s.summary.Groups)
	var unfinished []string
	for _, m := range s.summary.Unfinished {
		unfinished = append(unfinished, describeUnfinished(m))
	}
	data["machines-without-a-node"] = joinLines(unfinished)
	data["nodes-without-a-machine"] = joinLines(sortedPairs(s.summary.NodesWithoutMachine))
	data["nodes-in-doubt"] = joinLines(sortedPairs(s.summary.NodesInDoubt))
	several := s.summary.MachinesWithSeveralNodes
	var doubled []string
	for _, instance := range slices.Sorted(maps.Keys(several)) {
		doubled = append(doubled, instance+": "+strings.Join(several[instance], ", "))
	}
	data["machines-with-several-nodes"] = joinLines(doubled)
	return data
}

// formatAge returns the age of the last good list.
func formatAge(success, now time.Time) string {
	if success.IsZero() {
		return "never read"
	}
	return now.Sub(success).Round(time.Second).String() + " old"
}

func describeUnfinished(m spc.UnfinishedMachine) string {
	r := m.Record
	return fmt.Sprintf("%s (node_id %d, group %s): state %s, no node since %s", r.InstanceID, r.PK,
		cmp.Or(r.GroupName, "none"), cmp.Or(r.State, "unnamed"), m.Since.UTC().Format(time.RFC3339))
}

func sortedPairs(of map[string]string) []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		found = append(found, name+": "+of[name])
	}
	return found
}

func joinLines(all []string) string {
	if more := len(all) - maxStatusLines; more > 0 {
		all = append(slices.Clone(all[:maxStatusLines]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "\n")
}

// formatMachines returns the number of machines in each state, as a table. docs/spc.md
// explains the states.
func formatMachines(machines map[spc.MachineState]int) string {
	rows := []string{fmt.Sprintf("%-10s %-10s %-11s %s", "SPC", "CLOUD", "KUBERNETES", "MACHINES")}
	all := slices.SortedFunc(maps.Keys(machines), func(a, b spc.MachineState) int {
		return cmp.Or(cmp.Compare(a.SPC, b.SPC), cmp.Compare(a.Cloud, b.Cloud), cmp.Compare(a.Kubernetes, b.Kubernetes))
	})
	for _, s := range all {
		rows = append(rows, fmt.Sprintf("%-10s %-10s %-11s %d", s.SPC, s.Cloud, s.Kubernetes, machines[s]))
	}
	return strings.Join(rows, "\n")
}

func formatGroups(counts map[string]spc.GroupCount) string {
	rows := []string{}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		phases := []string{}
		for _, phase := range spc.Phases() {
			if n := counts[name].Phases[phase]; n > 0 {
				phases = append(phases, fmt.Sprintf("%d %s", n, phase))
			}
		}
		rows = append(rows, fmt.Sprintf("%s: machines %s; nodes %d",
			name, cmp.Or(strings.Join(phases, ", "), "0"), counts[name].Nodes))
	}
	return joinLines(rows)
}

// reportSummary records an event for each problem that the last summary did not have.
func (r *publisherRun) reportSummary(ctx context.Context, c spc.Summary) {
	found := map[string]bool{}
	report := func(reason, message string) {
		found[reason+message] = true
		if !r.reported[reason+message] && len(found) <= maxEvents {
			r.recordEvent(reason, message)
		}
	}
	for _, m := range c.Unfinished {
		report("SPCMachineNeverNode",
			"SPC machine "+describeUnfinished(m)+"; check it in SPC, because an autoscaler waits for it")
	}
	for _, instance := range slices.Sorted(maps.Keys(c.MachinesWithSeveralNodes)) {
		report("SPCMachineDoubled", fmt.Sprintf("several Nodes match SPC instance %s: %s; delete the obsolete Node with "+
			"kubectl, because an autoscaler would delete the machine as well",
			instance, strings.Join(c.MachinesWithSeveralNodes[instance], ", ")))
	}
	for _, line := range sortedPairs(c.NodesWithoutMachine) {
		report("SPCNodeWithoutMachine", "node "+line)
	}
	if !maps.Equal(found, r.reported) {
		r.Log.InfoContext(ctx, "spc problems have changed", "machines_never_nodes", len(c.Unfinished),
			"nodes_without_machine", len(c.NodesWithoutMachine), "nodes_in_doubt", len(c.NodesInDoubt),
			"machines_with_several_nodes", len(c.MachinesWithSeveralNodes))
	}
	r.reported = found
}
