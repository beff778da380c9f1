package spc

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// MachineState describes a machine in three places: in SPC (a Phase or NotListed), at its
// cloud, and in Kubernetes.
type MachineState struct {
	SPC               Phase
	Cloud, Kubernetes string
}

// NotListed is the phase of a machine that SPC does not list.
const NotListed Phase = "none"

// The states of a virtual machine. Holdfast has no access to the cloud and infers the state from
// the record and from the Node.
const (
	// CloudAlive: its kubelet reports.
	CloudAlive = "alive"
	// CloudMade: SPC has an address or a cloud ID of the machine, or a Node of it exists. It
	// may or may not run.
	CloudMade = "made"
	// CloudNone: there is no trace of a machine.
	CloudNone = "none"
)

// The states of a machine in Kubernetes.
const (
	NodeReady    = "ready"
	NodeNotReady = "not_ready"
	NodeAbsent   = "none"
)

// Summary describes all machines of the cluster.
type Summary struct {
	// Machines counts the machines by their state. It counts each machine once: a record with
	// its Node, a record without a Node, or a Node without a record.
	Machines map[MachineState]int
	// Groups counts the machines and Nodes of each group. It includes the group of a pool
	// without machines.
	Groups map[string]*GroupCount
	// MachinesWithoutNode are the machines that SPC lists and that have had no Node for 15 minutes,
	// the oldest first.
	MachinesWithoutNode []MachineWithoutNode
	// NodesWithoutMachine are the Nodes that are older than 5 minutes and match no machine.
	// NodesInConflict are those with conflicting evidence. Both map the Node's name to the
	// reason.
	NodesWithoutMachine, NodesInConflict map[string]string
	// MachinesWithSeveralNodes maps the instance ID of a machine to the Nodes that match it.
	// Such a machine has joined again under another name. To delete the old Node through an
	// autoscaler is to delete the machine.
	MachinesWithSeveralNodes map[string][]string
}

// GroupCount counts the machines of a group in SPC by phase, and the Nodes with the label
// of the group.
type GroupCount struct {
	Phases map[Phase]int
	Nodes  int
}

// MachineWithoutNode is a machine that has no Node.
type MachineWithoutNode struct {
	Record Record
	Since  time.Time
}

// Absences maps the node_id of a record to the time since when SPC lists it and Kubernetes
// has no Node of it.
type Absences map[int64]time.Time

// Summarize compares an inventory with the Nodes. It returns the absences to pass to the
// next call.
//
// A machine counts as absent since its creation in SPC, or since its Node was last seen.
// The time therefore does not start again when the leader changes.
func Summarize(x *Index, pools []Pool, nodes []*corev1.Node, before Absences, now time.Time) (Summary, Absences) {
	s := Summary{
		Machines: map[MachineState]int{}, Groups: map[string]*GroupCount{}, NodesWithoutMachine: map[string]string{},
		NodesInConflict: map[string]string{}, MachinesWithSeveralNodes: map[string][]string{},
	}
	for _, p := range pools {
		if p.Autoscaled && p.Group() != "" {
			s.groupCount(p.Group())
		}
	}
	for _, n := range nodes {
		if group := n.Labels[NodeGroupLabel]; group != "" {
			s.groupCount(group).Nodes++
		}
	}
	matched := s.matchNodes(x, nodes, now)
	after := Absences{}
	for _, r := range x.records {
		if r.GroupName != "" {
			s.groupCount(r.GroupName).Phases[r.Phase()]++
		}
		found := matched[r.PK]
		s.Machines[machineState(r, found)]++
		if len(found) > 1 {
			for _, n := range found {
				s.MachinesWithSeveralNodes[r.InstanceID] = append(s.MachinesWithSeveralNodes[r.InstanceID], n.Name)
			}
		}
		switch {
		case len(found) > 0:
			after[r.PK] = now
		case r.isLive():
			after[r.PK] = absentSince(r, before, now)
			if now.Sub(after[r.PK]) >= nodeExpectedAfter {
				s.MachinesWithoutNode = append(s.MachinesWithoutNode, MachineWithoutNode{Record: *r, Since: after[r.PK]})
			}
		}
	}
	slices.SortFunc(s.MachinesWithoutNode, func(a, b MachineWithoutNode) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Record.PK, b.Record.PK))
	})
	return s, after
}

// matchNodes returns the Nodes by the node_id of the record that they match. It counts the
// others.
func (s *Summary) matchNodes(x *Index, nodes []*corev1.Node, now time.Time) map[int64][]*corev1.Node {
	matched := map[int64][]*corev1.Node{}
	for _, n := range nodes {
		m := x.Find(n)
		if m.Outcome == Matched {
			matched[m.Record.PK] = append(matched[m.Record.PK], n)
			continue
		}
		s.Machines[machineState(nil, []*corev1.Node{n})]++
		switch {
		case m.Outcome == Conflict:
			s.NodesInConflict[n.Name] = m.Message
		case m.Outcome == Gone, m.Outcome == Missing && nodeAge(n, now) >= missingAfter:
			s.NodesWithoutMachine[n.Name] = m.Message
		}
	}
	return matched
}

// groupCount returns the count of a group, and adds the group if it is new.
func (s *Summary) groupCount(name string) *GroupCount {
	if s.Groups[name] == nil {
		s.Groups[name] = &GroupCount{Phases: map[Phase]int{}}
	}
	return s.Groups[name]
}

// absentSince returns the remembered time, else the creation time in SPC, else now.
func absentSince(r *Record, before Absences, now time.Time) time.Time {
	if since, known := before[r.PK]; known {
		return since
	}
	if created, err := time.Parse(time.RFC3339, r.Created); err == nil && created.Before(now) {
		return created
	}
	return now
}

// machineState returns the state of a record with its Nodes. A nil record is not listed.
func machineState(r *Record, nodes []*corev1.Node) MachineState {
	state := MachineState{NotListed, CloudMade, NodeNotReady}
	if r != nil {
		state.SPC = r.Phase()
	}
	switch {
	case slices.ContainsFunc(nodes, isReady):
		state.Cloud, state.Kubernetes = CloudAlive, NodeReady
	case len(nodes) > 0:
	case r.hasMachine():
		state.Kubernetes = NodeAbsent
	default:
		state.Cloud, state.Kubernetes = CloudNone, NodeAbsent
	}
	return state
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
