package spc

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Sighting says in which of three places a machine is seen: in SPC (a Phase, or NotSeen), at its cloud, in Kubernetes.
type Sighting struct {
	SPC        Phase
	Cloud      Cloud
	Kubernetes Presence
}

// NotSeen is the phase of a machine that SPC does not list.
const NotSeen Phase = "none"

// Cloud is what is known of the virtual machine. Holdfast has no access to the cloud: it goes by what only a machine that
// is there can have caused.
type Cloud string

// The states of a virtual machine.
const (
	// Alive: its kubelet reports.
	Alive Cloud = "alive"
	// Made: SPC knows its address or its name at the cloud, or it has a Node; whether it runs nobody says.
	Made Cloud = "made"
	// NotMade: nothing is known of it.
	NotMade Cloud = "none"
)

// Presence is how a machine appears in Kubernetes.
type Presence string

// The presences.
const (
	Ready    Presence = "ready"
	NotReady Presence = "not_ready"
	Absent   Presence = "none"
)

// Census is all machines of the cluster and where each is seen.
type Census struct {
	// Sightings counts machines, each once: a record with its Node, a record without, a Node without.
	Sightings map[Sighting]int
	// Groups counts each group's machines and nodes. A group of a pool without machines is there with nothing.
	Groups map[string]GroupCount
	// Late are machines that SPC lists and that are no nodes since Building, oldest first.
	Late []Late
	// Machineless are nodes without a machine, older than Settling; Doubtful those whose machine is in doubt. Both map
	// the Node's name to the reason.
	Machineless, Doubtful map[string]string
	// Doubled are the instances that several Nodes match, with the Nodes: a machine has come back under another name, and
	// who deletes the Node that is left over deletes the machine.
	Doubled map[string][]string
}

// GroupCount is one group's machines in SPC by phase, and the nodes that are labelled as its.
type GroupCount struct {
	Phases map[Phase]int
	Nodes  int
}

// Late is a machine that has not become a node.
type Late struct {
	Record Record
	Since  time.Time
}

// Absences remembers since when a machine is in SPC and not in Kubernetes, by the record's node_id.
type Absences map[int64]time.Time

// Take takes the census of an inventory that was read and the Nodes. It returns the memory for the next one: a machine
// counts as absent from its creation in SPC, or from when its Node was last seen, so that a new start of the leader does
// not make a machine younger.
func Take(x *Index, pools []Pool, nodes []*corev1.Node, before Absences, now time.Time) (Census, Absences) {
	c := Census{
		Sightings: map[Sighting]int{}, Groups: map[string]GroupCount{}, Machineless: map[string]string{}, Doubtful: map[string]string{},
		Doubled: map[string][]string{},
	}
	for _, p := range pools {
		if p.Autoscaled && p.Group() != "" {
			c.group(p.Group())
		}
	}
	for _, n := range nodes {
		if group := n.Labels[NodeGroupLabel]; group != "" {
			g := c.group(group)
			g.Nodes++
			c.Groups[group] = g
		}
	}
	matched := c.nodes(x, nodes, now)
	after := Absences{}
	for _, r := range x.records {
		if r.GroupName != "" {
			c.group(r.GroupName).Phases[r.Phase()]++
		}
		if found := matched[r.PK]; len(found) > 0 {
			if len(found) > 1 {
				for _, n := range found {
					c.Doubled[r.InstanceID] = append(c.Doubled[r.InstanceID], n.Name)
				}
			}
			after[r.PK] = now
			c.Sightings[Sighting{r.Phase(), cloud(found), presence(found)}]++
			continue
		}
		c.Sightings[Sighting{r.Phase(), made(r), Absent}]++
		if !r.Live() {
			continue
		}
		after[r.PK] = absentSince(r, before, now)
		if now.Sub(after[r.PK]) >= Building {
			c.Late = append(c.Late, Late{Record: r, Since: after[r.PK]})
		}
	}
	slices.SortFunc(c.Late, func(a, b Late) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Record.PK, b.Record.PK)) })
	return c, after
}

// nodes sorts the Nodes by the record that they match, and counts those that match none.
func (c *Census) nodes(x *Index, nodes []*corev1.Node, now time.Time) map[int64][]*corev1.Node {
	matched := map[int64][]*corev1.Node{}
	for _, n := range nodes {
		m := x.Find(n)
		if m.Outcome == Matched {
			matched[m.Record.PK] = append(matched[m.Record.PK], n)
			continue
		}
		one := []*corev1.Node{n}
		c.Sightings[Sighting{NotSeen, cloud(one), presence(one)}]++
		switch {
		case m.Outcome == Conflict:
			c.Doubtful[n.Name] = m.Message
		case m.Outcome == Gone, m.Outcome == Missing && age(n, now) >= Settling:
			c.Machineless[n.Name] = m.Message
		}
	}
	return matched
}

func (c *Census) group(name string) GroupCount {
	g, there := c.Groups[name]
	if !there {
		g.Phases = map[Phase]int{}
		c.Groups[name] = g
	}
	return g
}

// absentSince is the memory's answer, else when the machine was made in SPC, else now.
func absentSince(r Record, before Absences, now time.Time) time.Time {
	if since, known := before[r.PK]; known {
		return since
	}
	if created, err := time.Parse(time.RFC3339, r.Created); err == nil && created.Before(now) {
		return created
	}
	return now
}

func made(r Record) Cloud {
	if r.Made() {
		return Made
	}
	return NotMade
}

func cloud(nodes []*corev1.Node) Cloud {
	if presence(nodes) == Ready {
		return Alive
	}
	return Made
}

func presence(nodes []*corev1.Node) Presence {
	for _, n := range nodes {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return Ready
			}
		}
	}
	return NotReady
}
