package spcapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// The keys of the status.
const (
	statusAttempted = "attempted"
	statusSucceeded = "succeeded"
	statusAge       = "age"
	statusProblem   = "problem"
)

// mostLines bounds each list of the status, mostTold the events of one round.
const (
	mostLines = 100
	mostTold  = 10
)

// status is what there is to tell of the inventory.
type status struct {
	attempted, success time.Time
	failure, partial   error
	cluster            spc.Cluster
	census             *spc.Census
}

// data is the status in words.
func (s status) data() map[string]string {
	data := map[string]string{statusAttempted: s.attempted.UTC().Format(time.RFC3339)}
	data[statusAge] = age(s.success, s.attempted)
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
	if s.cluster.Name != "" {
		data["cluster"] = fmt.Sprintf("%s (%s, %s, %s)", s.cluster.Name, s.cluster.InstanceID, s.cluster.Provider, s.cluster.State)
	}
	if s.census == nil {
		return data
	}
	data["places"] = places(s.census.Sightings)
	data["groups"] = groups(s.census.Groups)
	var late []string
	for _, l := range s.census.Late {
		late = append(late, lateLine(l))
	}
	data["machines-without-a-node"] = lines(late)
	data["nodes-without-a-machine"] = lines(pairs(s.census.Machineless))
	data["nodes-in-doubt"] = lines(pairs(s.census.Doubtful))
	var doubled []string
	for _, instance := range slices.Sorted(maps.Keys(s.census.Doubled)) {
		doubled = append(doubled, instance+": "+strings.Join(s.census.Doubled[instance], ", "))
	}
	data["machines-with-several-nodes"] = lines(doubled)
	return data
}

// age says how old the last good list is.
func age(success, now time.Time) string {
	if success.IsZero() {
		return "never read"
	}
	return now.Sub(success).Round(time.Second).String() + " old"
}

func lateLine(l spc.Late) string {
	r := l.Record
	return fmt.Sprintf("%s (node_id %d, group %s): state %s, no node since %s", r.InstanceID, r.PK,
		cmp.Or(r.GroupName, "none"), cmp.Or(r.State, "unnamed"), l.Since.UTC().Format(time.RFC3339))
}

func pairs(of map[string]string) []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		found = append(found, name+": "+of[name])
	}
	return found
}

func lines(all []string) string {
	if more := len(all) - mostLines; more > 0 {
		all = append(slices.Clone(all[:mostLines]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "\n")
}

// places is the table of docs/spc.md (The three places): where each machine is seen.
func places(sightings map[spc.Sighting]int) string {
	rows := []string{fmt.Sprintf("%-10s %-10s %-11s %s", "SPC", "CLOUD", "KUBERNETES", "MACHINES")}
	all := slices.SortedFunc(maps.Keys(sightings), func(a, b spc.Sighting) int {
		return cmp.Or(cmp.Compare(a.SPC, b.SPC), cmp.Compare(a.Cloud, b.Cloud), cmp.Compare(a.Kubernetes, b.Kubernetes))
	})
	for _, s := range all {
		rows = append(rows, fmt.Sprintf("%-10s %-10s %-11s %d", s.SPC, s.Cloud, s.Kubernetes, sightings[s]))
	}
	return strings.Join(rows, "\n")
}

func groups(counts map[string]spc.GroupCount) string {
	rows := []string{}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		words := []string{}
		for _, phase := range spc.Phases() {
			if n := counts[name].Phases[phase]; n > 0 {
				words = append(words, fmt.Sprintf("%d %s", n, phase))
			}
		}
		rows = append(rows, fmt.Sprintf("%s: machines %s; nodes %d", name, cmp.Or(strings.Join(words, ", "), "0"), counts[name].Nodes))
	}
	return lines(rows)
}

// tellCensus tells what the census has found that the last one had not.
func (r *run) tellCensus(ctx context.Context, c spc.Census) {
	found := map[string]bool{}
	news := func(reason, message string) {
		found[reason+message] = true
		if !r.told[reason+message] && len(found) <= mostTold {
			r.tell(reason, message)
		}
	}
	for _, l := range c.Late {
		news("SPCMachineNeverNode", "SPC machine "+lateLine(l)+"; look at it in SPC, an autoscaler waits for it in vain")
	}
	for _, instance := range slices.Sorted(maps.Keys(c.Doubled)) {
		news("SPCMachineDoubled", fmt.Sprintf("SPC instance %s is the machine of several Nodes: %s; delete the Node that is left over "+
			"with kubectl, for an autoscaler that removes it deletes the machine", instance, strings.Join(c.Doubled[instance], ", ")))
	}
	for _, line := range pairs(c.Machineless) {
		news("SPCNodeWithoutMachine", "node "+line)
	}
	if !maps.Equal(found, r.told) {
		r.Log.InfoContext(ctx, "spc census has changed", "machines_never_nodes", len(c.Late), "nodes_without_machine", len(c.Machineless),
			"nodes_in_doubt", len(c.Doubtful), "machines_with_several_nodes", len(c.Doubled))
	}
	r.told = found
}
