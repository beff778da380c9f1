package spcapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

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

// status returns the data of the status ConfigMap, which describes the inventory for operators.
func (r *Publisher) status(attempted time.Time, problem error, summary *spc.Summary) map[string]string {
	data := map[string]string{
		statusAttempted: attempted.UTC().Format(time.RFC3339), statusAge: formatAge(r.success, attempted), statusProblem: "",
	}
	if !r.success.IsZero() {
		data[statusSucceeded] = r.success.UTC().Format(time.RFC3339)
	}
	if problem != nil {
		data[statusProblem] = problem.Error()
	}
	if c := r.result.Cluster; c.Name != "" {
		data["cluster"] = fmt.Sprintf("%s (%s, %s, %s)", c.Name, c.InstanceID, c.Provider, c.State)
	}
	if summary == nil {
		return data
	}
	data["places"] = formatMachines(summary.Machines)
	data["groups"] = formatGroups(summary.Groups)
	var withoutNode []string
	for _, m := range summary.MachinesWithoutNode {
		withoutNode = append(withoutNode, describeWithoutNode(m))
	}
	data["machines-without-a-node"] = joinLines(withoutNode)
	data["nodes-without-a-machine"] = joinLines(sortedPairs(summary.NodesWithoutMachine))
	data["nodes-in-doubt"] = joinLines(sortedPairs(summary.NodesInConflict))
	data["machines-with-several-nodes"] = joinLines(severalNodes(*summary))
	return data
}

func formatAge(success, now time.Time) string {
	if success.IsZero() {
		return "never published"
	}
	return now.Sub(success).Round(time.Second).String() + " old"
}

func describeWithoutNode(m spc.MachineWithoutNode) string {
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

func severalNodes(s spc.Summary) []string {
	var found []string
	for _, instance := range slices.Sorted(maps.Keys(s.MachinesWithSeveralNodes)) {
		found = append(found, instance+": "+strings.Join(s.MachinesWithSeveralNodes[instance], ", "))
	}
	return found
}

func joinLines(all []string) string {
	return strings.Join(printable.First(all, maxStatusLines), "\n")
}

// formatMachines returns the number of machines in each state, as a table. docs/spc.md
// explains the states.
func formatMachines(machines map[spc.MachineState]int) string {
	const columns = "%-10s %-10s %-11s %v"
	var rows []string
	for s, n := range machines {
		rows = append(rows, fmt.Sprintf(columns, s.SPC, s.Cloud, s.Kubernetes, n))
	}
	slices.Sort(rows)
	return strings.Join(append([]string{fmt.Sprintf(columns, "SPC", "CLOUD", "KUBERNETES", "MACHINES")}, rows...), "\n")
}

func formatGroups(counts map[string]*spc.GroupCount) string {
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

// reportSummary records an event for each problem that has none yet. Beyond maxEvents, the next
// summary records them.
func (r *Publisher) reportSummary(ctx context.Context, c spc.Summary) {
	found, events := map[string]bool{}, 0
	report := func(reason, message string) {
		if !r.reported[reason+message] {
			if events == maxEvents {
				return
			}
			events++
			r.recordEvent(reason, message)
		}
		found[reason+message] = true
	}
	for _, m := range c.MachinesWithoutNode {
		report("SPCMachineNeverNode",
			"SPC machine "+describeWithoutNode(m)+"; check it in SPC, because an autoscaler waits for it")
	}
	for _, line := range severalNodes(c) {
		report("SPCMachineDoubled", "several Nodes match SPC instance "+line+"; delete the obsolete Node with kubectl, "+
			"because an autoscaler would delete the machine as well")
	}
	for _, line := range sortedPairs(c.NodesWithoutMachine) {
		report("SPCNodeWithoutMachine", "node "+line)
	}
	if !maps.Equal(found, r.reported) {
		r.Log.InfoContext(ctx, "spc problems have changed", "machines_never_nodes", len(c.MachinesWithoutNode),
			"nodes_without_machine", len(c.NodesWithoutMachine), "nodes_in_doubt", len(c.NodesInConflict),
			"machines_with_several_nodes", len(c.MachinesWithSeveralNodes))
	}
	r.reported = found
}
