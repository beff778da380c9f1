package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// A Page is everything that Holdfast says about one Node.
type Page struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	Node    string `json:"node"`

	Protection Protection  `json:"protection"`
	Hold       *HoldOnPage `json:"hold,omitempty"`
	Drain      Drain       `json:"drain"`
	// Machine is the SPC machine of the Node, in the words of its annotations.
	Machine *Machine `json:"machine,omitempty"`
	// Removal is the answer of the webhook if the Node were deleted now.
	Removal Removal `json:"removal"`
	// Next is what to do next, most important first.
	Next []string `json:"next"`
}

// Protection is what the agent found out about etcd on the node.
type Protection struct {
	// Labelled reports whether the Node has the label that selects the fail-closed webhook.
	Labelled   bool                 `json:"labelled"`
	Announced  []evidence.MemberRef `json:"announced,omitempty"`
	Unverified []string             `json:"unverified,omitempty"`
	// Problem is the reason why the announcement could not be read.
	Problem   string     `json:"problem,omitempty"`
	Because   string     `json:"because,omitempty"`
	Condition *Condition `json:"condition,omitempty"`
	// Members are the members that the EtcdClusters have on this Node.
	Members []MemberStatus `json:"members,omitempty"`
}

// A Condition is a condition of the Node.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// HoldOnPage is the hold of the Node, or how its last one ended.
type HoldOnPage struct {
	// State is held, released or overridden, unreadable, or none without a record.
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Since     string     `json:"since,omitempty"`
	Problem   string     `json:"problem,omitempty"`
	Condition *Condition `json:"condition,omitempty"`
}

// Drain is whether the node is closed for pods, and what has been allowed.
type Drain struct {
	// Closed is how the Node is closed. It is empty for a Node that is open.
	Closed string `json:"closed,omitempty"`
	// GuardPod is the name of the guard pod, empty if there is none, or if GuardProblem is set.
	GuardPod     string        `json:"guardPod,omitempty"`
	GuardProblem string        `json:"guardProblem,omitempty"`
	Grants       []GrantStatus `json:"grants,omitempty"`
}

// Machine is what the Node's annotations and labels say about its SPC machine.
type Machine struct {
	InstanceID string `json:"instanceID,omitempty"`
	Record     string `json:"record,omitempty"`
	Problem    string `json:"problem,omitempty"`
}

// NewPage returns the page about a Node. The removal is the answer of the webhook. isFound is false
// if there is no such Node.
func NewPage(s State, name string, removal Removal) (p Page, isFound bool) {
	s = s.sorted()
	n := s.node(name)
	if n == nil {
		return Page{}, false
	}
	p = Page{
		Version: Version, Kind: "Page", Node: name, Removal: removal, Next: []string{},
		Protection: s.protection(n), Hold: holdOnPage(n), Drain: s.drain(n), Machine: machineOf(n),
	}
	p.Next = append(p.Next, p.nextSteps(n)...)
	return p, true
}

func (s State) protection(n *corev1.Node) Protection {
	r, err := quorum.RequestFor(n)
	p := Protection{
		Labelled: r.Labelled, Announced: r.Announced, Unverified: r.Unverified,
		Because:   printable.Line(n.Annotations[presence.BecauseAnnotation]),
		Condition: conditionOnPage(n, observation.EtcdMemberCondition),
	}
	if err != nil {
		p.Problem = err.Error()
	}
	for _, c := range s.recentClusters() {
		for _, m := range s.clusterStatus(c).Members {
			if m.Node == n.Name {
				p.Members = append(p.Members, m)
			}
		}
	}
	return p
}

func conditionOnPage(n *corev1.Node, kind corev1.NodeConditionType) *Condition {
	c := readiness.FindCondition(n, kind)
	if c == nil {
		return nil
	}
	return &Condition{
		Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: printable.Line(c.Message),
	}
}

// holdOnPage returns nil if Holdfast has never written about a hold of the Node.
func holdOnPage(n *corev1.Node) *HoldOnPage {
	value, isRecorded := n.Annotations[readiness.HoldAnnotation]
	h := &HoldOnPage{State: "none", Condition: conditionOnPage(n, readiness.NetworkHeld)}
	record, err := readiness.ParseRecord(value)
	switch {
	case !isRecorded && h.Condition == nil:
		return nil
	case !isRecorded:
	case err != nil:
		h.State, h.Problem = "unreadable", err.Error()
	default:
		h.State, h.Reason = string(record.State), string(record.Reason)
		if !record.Since.IsZero() {
			h.Since = record.Since.Format(time.RFC3339)
		}
	}
	return h
}

func (s State) drain(n *corev1.Node) Drain {
	d := Drain{Closed: observation.StateOf(n, s.Departures).Closed(), GuardProblem: s.GuardProblem}
	if name := guard.Name(n.Name); slices.Contains(s.GuardPods, name) {
		d.GuardPod = name
	}
	for i := range s.Clusters {
		for _, g := range s.Clusters[i].Spec.Grants {
			if g.NodeUID == n.UID || g.Node == n.Name {
				d.Grants = append(d.Grants, s.grantStatus(g))
			}
		}
	}
	return d
}

func machineOf(n *corev1.Node) *Machine {
	m := Machine{
		InstanceID: n.Labels[spc.InstanceIDLabel], Record: n.Annotations[spc.NodeAnnotation],
		Problem: n.Annotations[spc.ProblemAnnotation],
	}
	if m == (Machine{}) {
		return nil
	}
	return &m
}

// nextSteps returns what to do next. The steps of a refusal are in its message.
func (p Page) nextSteps(n *corev1.Node) []string {
	var steps []string
	if p.Hold != nil && p.Hold.State == string(readiness.Held) {
		step := "the cordon or taint of the hold has been removed; the agent, or else the leader, records the end of the hold"
		if command := readiness.ReleaseCommand(n); command != "" {
			step = "the node is held until its network works; to release it by hand: " +
				"kubectl holdfast release " + p.Node + ", or " + command
		}
		steps = append(steps, step)
	}
	if p.Protection.Problem != "" || len(p.Protection.Unverified) > 0 {
		steps = append(steps, "find out what the agent has found: kubectl describe node "+p.Node+" (condition EtcdMember)")
	}
	if mark := departure.OfOthers(n); mark.Class != departure.None {
		steps = append(steps, fmt.Sprintf("the node %s; if that is no longer true: %s",
			mark.Says, mark.RemoveCommand(p.Node)))
	}
	switch p.Removal.Answer {
	case quorum.Yes:
		if len(p.Protection.Members) > 0 {
			steps = append(steps, "the node may be deleted now; follow the order in the warning above, and end the "+
				"machine only after the deletion of the Node")
		}
	case quorum.No:
		steps = append(steps, "the node must stay for now; the answer above has the steps; to wait: "+
			"kubectl holdfast can-remove "+p.Node+" --wait")
	case quorum.Unknown:
		steps = append(steps, "treat the node as one that must stay, and remove the reason why there is no answer")
	}
	return steps
}

func (p Page) summary() string {
	etcd := "no etcd member is known on it"
	if len(p.Protection.Members) > 0 || p.Protection.Labelled {
		etcd = "it is protected because of etcd"
	}
	hold := ""
	if p.Hold != nil && p.Hold.State == string(readiness.Held) {
		hold = "; it is held"
	}
	return fmt.Sprintf("node %s: %s%s; it may be removed now: %s", p.Node, etcd, hold, p.Removal.Answer)
}

// Text returns the page for people. It has no section without lines, and no empty ones.
func (p Page) Text() string {
	text := p.summary() + "\n"
	for _, section := range []struct {
		title string
		lines []string
	}{
		{"Protection", p.Protection.lines()},
		{"Hold", p.Hold.lines()},
		{"Drain", p.Drain.lines()},
		{"Machine", p.Machine.lines()},
		{
			fmt.Sprintf("If it were deleted now: %s (%s)", p.Removal.Answer, p.Removal.Reason),
			append(strings.Split(p.Removal.Message, "\n"), p.Removal.Warnings...),
		},
		{"What to do next", p.Next},
	} {
		if len(section.lines) > 0 {
			section.lines = slices.DeleteFunc(section.lines, func(line string) bool { return line == "" })
			text += "\n" + section.title + "\n  " + strings.Join(section.lines, "\n  ") + "\n"
		}
	}
	return printable.Text(text)
}

func (p Protection) lines() []string {
	isLabelled := map[bool]string{true: "yes", false: "no"}[p.Labelled]
	lines := []string{"label " + observation.EtcdMemberLabel + ": " + isLabelled, p.Because}
	for _, a := range p.Announced {
		lines = append(lines, fmt.Sprintf("announces member %s of etcd cluster %s", a.Member, a.Cluster))
	}
	for _, place := range p.Unverified {
		lines = append(lines, "has a server that has never identified itself: "+printable.Quote(place))
	}
	lines = append(lines, p.Problem)
	for _, m := range p.Members {
		lines = append(lines, memberTitle(m)+": "+m.Description)
	}
	return append(lines, p.Condition.lines(observation.EtcdMemberCondition)...)
}

func (c *Condition) lines(kind string) []string {
	if c == nil {
		return []string{"condition " + kind + ": none; no agent has reported"}
	}
	return []string{fmt.Sprintf("condition %s: %s (%s): %s", c.Type, c.Status, c.Reason, c.Message)}
}

func (h *HoldOnPage) lines() []string {
	if h == nil {
		return []string{"Holdfast has never held the node"}
	}
	line := fmt.Sprintf("%s (%s)", h.State, cmp.Or(h.Reason, "no reason"))
	switch {
	case h.Problem != "":
		line = h.Problem
	case h.State == "none":
		line = "Holdfast has not held the node"
	case h.Since != "":
		line += ", since " + h.Since
	}
	return append([]string{line}, h.Condition.lines(readiness.NetworkHeld)...)
}

func (d Drain) lines() []string {
	guardPod := cmp.Or(d.GuardPod, "none")
	if d.GuardProblem != "" {
		guardPod = "unknown: " + d.GuardProblem
	}
	lines := []string{"the node " + cmp.Or(d.Closed, "is open"), "guard pod: " + guardPod}
	for _, g := range d.Grants {
		for _, door := range g.Doors {
			of := ""
			if !g.NodeExists {
				of = "of an earlier Node of this name: "
			}
			lines = append(lines, fmt.Sprintf("%s%s; its members count as lost until %s", of, door.line(), door.ShutWhen))
		}
	}
	return lines
}

// line describes how the door was opened. A deletion without a review was found when the Node was
// gone.
func (d DoorStatus) line() string {
	what, at := words.VerbOf(d.Kind).Noun, d.Since.Format(time.RFC3339)
	if d.Kind == quorum.DoorMachine {
		what = "deletion of the machine"
	}
	switch {
	case d.Kind == quorum.DoorGone:
		return fmt.Sprintf("a %s that was not reviewed was detected at %s", what, at)
	case d.BreakGlass:
		return fmt.Sprintf("the %s was forced by %s at %s", what, d.User, at)
	}
	return fmt.Sprintf("the %s by %s was allowed at %s", what, d.User, at)
}

func (m *Machine) lines() []string {
	if m == nil {
		return nil
	}
	record := fmt.Sprintf("SPC machine %s: %s", cmp.Or(m.InstanceID, "unknown"), cmp.Or(m.Record, "no record"))
	return []string{record, m.Problem}
}
