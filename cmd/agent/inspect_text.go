package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// page is a report being laid out: sections of rows, each a label and what is to be said of it.
type page struct{ *bufio.Writer }

func (p page) section(title string) { fmt.Fprintf(p, "\n%s\n", title) }

// row prints a label and one line for each value; rows without values are left out.
func (p page) row(indent int, label string, values ...string) {
	for _, value := range values {
		for line := range strings.Lines(value) {
			fmt.Fprintf(p, "%*s%-*s %s\n", indent, "", 20-indent, label, strings.TrimSpace(line))
			label = ""
		}
	}
}

// print lays the report out for people.
func (r report) print(out io.Writer) error {
	p := page{bufio.NewWriter(out)}
	fmt.Fprintln(p, "What Holdfast's agent sees on this host, and what it would do. Nothing was changed.")
	p.host(r.Host)
	p.etcd(r.Etcd)
	p.network(r.Network)
	p.machine(r.OpenStack)
	p.decision(r)
	if err := p.Flush(); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return nil
}

func (p page) host(h hostReport) {
	p.section("Host")
	p.row(2, "name", h.Name)
	p.row(2, "root", h.Root)
	p.row(2, "boot", or(h.BootID, "unknown: /proc/sys/kernel/random/boot_id could not be read"))
	if h.UserID != 0 {
		p.row(2, "seen by", fmt.Sprintf("user %d: what only root may read is shown as unknown; run it with sudo to see all", h.UserID))
		return
	}
	p.row(2, "seen by", "root")
}

func (p page) etcd(e etcdReport) {
	p.section("etcd")
	if len(e.Found) == 0 {
		p.row(2, "found", "none")
	}
	for _, found := range e.Found {
		p.found(found)
	}
	p.row(2, "unknown", e.Unknown...)
	p.row(2, "note", e.Notes...)
}

func (p page) found(f foundReport) {
	where := f.Where
	if f.Running() && !strings.Contains(where, "process") {
		where += fmt.Sprintf(", process %d", f.PID)
	}
	p.row(2, "found", where)
	p.row(4, "source", string(f.Source)+map[bool]string{true: ", run by Kubernetes itself"}[f.InCluster])
	p.row(4, "name", orNone(f.Config.Name)...)
	p.row(4, "data", orNone(strings.Trim(f.Config.DataDir+", "+holds(f.HasData), ", "))...)
	p.row(4, "clients at", orNone(strings.Join(f.Config.ListenClientURLs, ", "))...)
	p.row(4, "peers at", orNone(strings.Join(f.Config.InitialPeerURLs, ", "))...)
	p.row(4, "settings from", orNone(f.Config.File)...)
	for i, c := range f.Credentials {
		p.row(4, map[bool]string{true: "certificates"}[i == 0], fmt.Sprintf("%s (%s)", c.Cert, c.Origin))
	}
	p.row(4, "unread", f.Problems...)
	switch {
	case f.Answered():
		p.row(4, "answers", fmt.Sprintf("as member %s (%s) of cluster %s%s", or(f.Name, "unnamed"), f.Ref.Member, f.Ref.Cluster, manner(f.Answer)))
	case f.Problem != "" && !f.Running():
		p.row(4, "does not answer", "it does not run, as far as the host shows: "+f.Problem)
	case f.Problem != "":
		p.row(4, "does not answer", f.Problem)
	default:
		p.row(4, "does not answer", "it was not asked (--ask-etcd=false"+map[bool]string{true: " or --protect-static-pods=false"}[f.InCluster]+")")
	}
	if f.Observation != nil {
		p.cluster(*f.Observation)
	}
}

func manner(a protect.Answer) string {
	switch {
	case a.Removed:
		return ", which has removed it"
	case a.Learner:
		return ", as a learner"
	}
	return ""
}

func (p page) cluster(o v1alpha1.Observation) {
	if !o.Linearizable {
		p.row(4, "cluster", or(o.Problem, "its member list was not confirmed by a quorum"))
	}
	for i, m := range o.Members {
		state := "healthy"
		if !m.Healthy {
			state = "not proven healthy: " + or(m.Reason, "no reason given")
		}
		if m.Learner {
			state += ", learner"
		}
		if m.ID == o.Leader {
			state += ", leader"
		}
		if len(m.Alarms) > 0 {
			state += ", alarm " + strings.Join(m.Alarms, ", ")
		}
		p.row(4, map[bool]string{true: "members"}[i == 0], fmt.Sprintf("%-16s %-10s %s  %s", m.ID, or(m.Name, "unstarted"), strings.Join(m.PeerURLs, ","), state))
	}
}

func (p page) network(f readiness.Facts) {
	p.section("Network")
	c := f.Conflist
	switch {
	case c.Problem != "":
		p.row(2, "CNI", "unknown: "+c.Problem)
	case c.Presence == readiness.Absent:
		p.row(2, "CNI", "no configuration in "+c.Directory)
	default:
		p.row(2, "CNI", fmt.Sprintf("%s, network %q", c.Path, c.Name))
	}
	for i, path := range c.PassedOver {
		p.row(4, map[bool]string{true: "passed over"}[i == 0], path+", which comes with a package")
	}
	for i, plugin := range c.Plugins {
		said := plugin.Type
		if plugin.NeededBy != "" {
			said += ", called by " + plugin.NeededBy
		}
		state := map[readiness.Presence]string{readiness.Present: "executable", readiness.Absent: "missing", readiness.Unknown: "unknown"}[plugin.Executable]
		p.row(4, map[bool]string{true: "plugins"}[i == 0], strings.TrimSuffix(fmt.Sprintf("%s: %s (%s", said, state, plugin.Problem), " (")+map[bool]string{true: ")"}[plugin.Problem != ""])
	}
	p.row(2, "flannel", subnet(f.Subnet))
	marker := f.Marker.Path + " " + f.Marker.Presence.String()
	if f.Marker.Problem != "" {
		marker = "unknown: " + f.Marker.Problem
	}
	p.row(2, "network_plugin", marker)
	for _, u := range f.Units {
		state := strings.TrimSpace(u.Presence.String() + " " + u.ActiveState + " " + u.SubState)
		if u.Problem != "" {
			state = "unknown: " + u.Problem
		}
		p.row(2, "unit", u.Name+" "+state)
	}
}

func subnet(s readiness.SubnetFile) string {
	switch {
	case s.Problem != "":
		return "unknown: " + s.Problem
	case s.Presence != readiness.Present:
		return s.Path + " " + s.Presence.String()
	}
	where := map[readiness.Presence]string{
		readiness.Present: "on a tmpfs, so of this boot",
		readiness.Absent:  "on a disk, so perhaps of an earlier boot",
		readiness.Unknown: "whether on a tmpfs is unknown",
	}[s.Volatile]
	subnets := strings.Join(slices.DeleteFunc([]string{s.Subnet, s.IPv6Subnet}, func(s string) bool { return s == "" }), ", ")
	return fmt.Sprintf("%s: subnet %s, MTU %s, %s", s.Path, subnets, s.MTU, where)
}

func (p page) decision(r report) {
	d := r.Decision
	p.section("Decision")
	said := map[string]string{"true": "yes: ", "false": "no: ", "unknown": "nothing changes, for it is unknown: "}[d.Protect.HoldsMember]
	p.row(2, "protect the node", said+d.Protect.Message)
	for _, key := range slices.Sorted(maps.Keys(d.Protect.Labels)) {
		p.row(4, "label", setting(key, d.Protect.Labels[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(d.Protect.Annotations)) {
		p.row(4, "annotation", setting(key, d.Protect.Annotations[key]))
	}
	for _, deletion := range d.Deletion {
		said := map[bool]string{true: "allowed", false: "refused"}[deletion.Allowed]
		p.row(2, "its deletion", fmt.Sprintf("%s (%s), as this host alone sees it: %s", said, deletion.Reason, deletion.Message))
		p.row(4, "warning", orNone(deletion.Warning)...)
	}
	said = "would stay held: "
	if d.Hold.Release {
		said = "would be released: "
	}
	p.row(2, "if it is held", said+d.Hold.Message)
	for _, g := range d.Hold.Gates {
		state := "open"
		if !g.Open {
			state = "closed, waiting for " + g.Missing
		}
		p.row(4, "gate "+g.Name, state)
	}
}

func setting(key string, value *string) string {
	if value == nil {
		return key + " (removed)"
	}
	return key + "=" + *value
}

func holds(has *bool) string {
	switch {
	case has == nil:
		return "whether it holds a member is unknown"
	case *has:
		return "holds a member"
	}
	return "holds no member"
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// orNone is no row for an empty value.
func orNone(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}
