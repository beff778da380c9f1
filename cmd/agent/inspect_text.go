package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func (r report) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(cli.EscapingWriter{Out: out})
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// reportWriter writes a report as sections of rows. A row has a label and values.
type reportWriter struct {
	*bytes.Buffer
	isVerbose bool
}

func (r report) writeText(out io.Writer, isVerbose bool) error {
	w := reportWriter{new(bytes.Buffer), isVerbose}
	fmt.Fprintln(w, r.Conclusion)
	fmt.Fprintln(w, "These are the agent's observations and decisions. Nothing was changed.")
	w.host(r.Host)
	w.etcd(r.Etcd)
	w.network(r.Network)
	w.openstack(r.OpenStack)
	w.decision(r.Decision)
	_, err := w.WriteTo(cli.EscapingWriter{Out: out})
	return err
}

func (w reportWriter) section(title string) { fmt.Fprintf(w, "\n%s\n", title) }

// row writes one line for each line of each value, the first with the label. It skips
// empty values.
func (w reportWriter) row(indent int, label string, values ...string) {
	for _, value := range values {
		for line := range strings.Lines(value) {
			fmt.Fprintf(w, "%*s%-*s %s\n", indent, "", 20-indent, label, strings.TrimSpace(line))
			label = ""
		}
	}
}

func (w reportWriter) host(h hostReport) {
	w.section("Host")
	w.row(2, "name", h.Name)
	w.row(2, "root", h.Root)
	w.row(2, "boot ID", cmp.Or(h.BootID, "unknown: cannot read /proc/sys/kernel/random/boot_id"))
	user := "root"
	if h.UserID != 0 {
		user = fmt.Sprintf("%d; what only root can read is unknown; run it with sudo", h.UserID)
	}
	w.row(2, "user", user)
}

func (w reportWriter) etcd(e etcdReport) {
	w.section("etcd")
	if len(e.Found) == 0 {
		w.row(2, "server", "none found")
	}
	for _, found := range e.Found {
		w.server(found)
	}
	for _, d := range e.Data {
		w.row(2, "data", fmt.Sprintf("%s, of member %s of cluster %s", d.Dir, d.Ref.Member, d.Ref.Cluster))
	}
	w.row(2, "unknown", e.Unknown...)
	w.row(2, "note", e.Notes...)
}

func (w reportWriter) server(f foundReport) {
	where := f.Where
	if f.IsRunning() && !strings.Contains(where, "process") {
		where += fmt.Sprintf(", process %d", f.PID)
	}
	source := string(f.Source)
	if f.InCluster {
		source += ", run by Kubernetes"
	}
	w.row(2, "server", where)
	w.row(4, "source", source)
	w.row(4, "name", f.Config.Name)
	w.row(4, "data", strings.Trim(f.Config.DataDir+", "+dataState(f.HasData), ", "))
	w.row(4, "client URLs", strings.Join(f.Config.ListenClientURLs, ", "))
	w.row(4, "peer URLs", strings.Join(f.Config.InitialPeerURLs, ", "))
	w.row(4, "configuration", f.Config.File)
	var certificates []string
	for _, c := range f.Credentials {
		certificates = append(certificates, fmt.Sprintf("%s (%s)", cmp.Or(c.Cert, c.CA), c.Origin))
	}
	w.row(4, "certificates", certificates...)
	w.row(4, "unreadable", f.Problems...)
	w.answer(f)
	if f.Observation != nil {
		w.cluster(*f.Observation)
	}
}

func (w reportWriter) answer(f foundReport) {
	switch {
	case f.HasAnswered():
		state := ""
		if f.Removed {
			state = ", removed from the cluster"
		} else if f.Learner {
			state = ", a learner"
		}
		w.row(4, "answer", fmt.Sprintf("member %s (%s) of cluster %s%s",
			cmp.Or(f.Name, "unnamed"), f.Ref.Member, f.Ref.Cluster, state))
	case f.Problem != "" && !f.IsRunning():
		w.row(4, "no answer", "no process found: "+f.Problem)
	case f.Problem != "":
		w.row(4, "no answer", f.Problem)
	case f.InCluster:
		w.row(4, "no answer", "not probed (--ask-etcd=false or --protect-static-pods=false)")
	default:
		w.row(4, "no answer", "not probed (--ask-etcd=false)")
	}
}

func dataState(hasData *bool) string {
	switch {
	case hasData == nil:
		return "unknown whether it contains a member"
	case *hasData:
		return "contains a member"
	}
	return "contains no member"
}

func (w reportWriter) cluster(o v1alpha1.Observation) {
	if !o.Linearizable {
		w.row(4, "cluster", cmp.Or(o.Problem, "the member list is not confirmed by a quorum"))
	}
	var members []string
	for _, m := range o.Members {
		state := "healthy"
		if !m.Healthy {
			state = "not confirmed healthy: " + cmp.Or(m.Reason, "no reason given")
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
		members = append(members, fmt.Sprintf("%-16s %-10s %s  %s",
			m.ID, cmp.Or(m.Name, "unstarted"), strings.Join(m.PeerURLs, ","), state))
	}
	w.row(4, "members", members...)
}

func (w reportWriter) network(f readiness.Facts) {
	w.section("Network")
	c := f.Conflist
	switch {
	case c.Problem != "":
		w.row(2, "CNI", "unknown: "+c.Problem)
	case c.Presence == readiness.Absent:
		w.row(2, "CNI", "no configuration in "+c.Directory)
	default:
		w.row(2, "CNI", fmt.Sprintf("%s, network %q", c.Path, c.Name))
	}
	var ignored, plugins []string
	for _, path := range c.Ignored {
		ignored = append(ignored, path+" (installed by a package)")
	}
	for _, plugin := range c.Plugins {
		plugins = append(plugins, describePlugin(plugin))
	}
	w.row(4, "ignored", ignored...)
	w.row(4, "plugins", plugins...)
	w.row(2, "flannel", describeSubnetFile(f.Subnet))
	w.row(2, "network_plugin", known(f.Marker.Path+" "+f.Marker.Presence.String(), f.Marker.Problem))
	for _, u := range f.Units {
		state := strings.TrimSpace(u.Presence.String() + " " + u.ActiveState + " " + u.SubState)
		w.row(2, "unit", u.Name+" "+known(state, u.Problem))
	}
	for _, p := range f.Probes {
		answer := "answers"
		if p.Answer != readiness.Present {
			answer = "fails: " + p.Problem
		}
		w.row(2, "probe", p.Gate+" "+answer)
	}
}

func known(text, problem string) string {
	if problem != "" {
		return "unknown: " + problem
	}
	return text
}

func describePlugin(p readiness.Plugin) string {
	text := p.Type
	if p.NeededBy != "" {
		text += ", called by " + p.NeededBy
	}
	text += map[readiness.Presence]string{
		readiness.Present: ": executable",
		readiness.Absent:  ": missing",
		readiness.Unknown: ": unknown",
	}[p.Executable]
	if p.Problem != "" {
		text += " (" + p.Problem + ")"
	}
	return text
}

func describeSubnetFile(s readiness.SubnetFile) string {
	switch {
	case s.Problem != "":
		return "unknown: " + s.Problem
	case s.Presence != readiness.Present:
		return s.Path + " " + s.Presence.String()
	}
	age := map[readiness.Presence]string{
		readiness.Present: "on a tmpfs, so written in this boot",
		readiness.Absent:  "on a disk, so possibly from an earlier boot",
		readiness.Unknown: "unknown whether on a tmpfs",
	}[s.Volatile]
	subnets := slices.DeleteFunc([]string{s.Subnet, s.IPv6Subnet}, func(s string) bool { return s == "" })
	return fmt.Sprintf("%s: subnet %s, MTU %s, %s", s.Path, strings.Join(subnets, ", "), s.MTU, age)
}

func (w reportWriter) openstack(o *openstackReport) {
	if o == nil {
		return
	}
	w.section("OpenStack")
	id := cmp.Or(o.ProviderID, "unknown; set --provider-id=$(kubectl get node NAME -o jsonpath={.spec.providerID})")
	if o.Source != "" {
		id = fmt.Sprintf("%s (from %s)", id, o.Source)
	}
	w.row(2, "provider ID", id)
	w.row(2, "system UUID", cmp.Or(o.SystemUUID, "unknown"))
	w.row(2, "machine ID", cmp.Or(o.MachineID, "unknown"))
	w.row(2, "unreadable", o.Unread...)
	agreement := "the IDs differ: "
	if o.Agree {
		agreement = "the IDs agree: "
	}
	w.row(2, "Magnum", agreement+o.Message)
}

func (w reportWriter) decision(d decisionReport) {
	w.section("Decision")
	protection := map[string]string{
		"true": "yes: ", "false": "no: ", "unknown": "unknown, so nothing changes: ",
	}[d.Protect.HoldsMember]
	w.row(2, "protect the node", protection+d.Protect.Message)
	w.changes(d.Protect.Labels, d.Protect.Annotations)
	for _, deletion := range d.Deletion {
		verdict := "refused"
		if deletion.Allowed {
			verdict = "allowed"
		}
		w.row(2, "delete the node", fmt.Sprintf("%s from the view of this host (%s): %s",
			verdict, deletion.Reason, deletion.Message))
		w.row(4, "warning", deletion.Warning)
	}
	release := "no: "
	if d.Hold.Release {
		release = "yes: "
	}
	w.row(2, "release if held", release+d.Hold.Message)
	for _, g := range d.Hold.Gates {
		state := "open"
		if !g.Open {
			state = "closed, waiting for " + g.Missing
		}
		w.row(4, "gate "+g.Name, state)
	}
}

// changes writes what the agent would write to the Node: every key, or without -v only
// how many there are.
func (w reportWriter) changes(labels, annotations map[string]*string) {
	if !w.isVerbose {
		if len(labels)+len(annotations) > 0 {
			w.row(4, "writes", fmt.Sprintf("labels: %d, annotations: %d (shown with -v)", len(labels), len(annotations)))
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		w.row(4, "label", describeChange(key, labels[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		w.row(4, "annotation", describeChange(key, annotations[key]))
	}
}

func describeChange(key string, value *string) string {
	if value == nil {
		return key + " (removed)"
	}
	return key + "=" + *value
}
