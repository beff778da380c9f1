// Package departure reads the marks by which programs announce on a Node that its machine goes
// for good, or is away for a while. The verdict on deletions and the holding of nodes read the
// same table.
//
// A cordon is no such mark: a machine whose Node is cordoned usually stays.
package departure

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/printable"
)

// A Class is what a mark announces.
type Class int

// The classes.
const (
	// None is the class of a Node without a mark.
	None Class = iota
	// ForAWhile means that the machine is restarted, repaired or maintained, and comes back. A
	// member on it is not healthy now, even if it still answers.
	ForAWhile
	// ForGood means that the machine, or its member, is about to be removed. A member on it is lost.
	ForGood
)

// A Kind is the part of a Node that carries a mark, as kubectl names it.
type Kind string

// The kinds.
const (
	Taint      Kind = "taint"
	Annotation Kind = "annotation"
	Label      Kind = "label"
)

// A Mark is what is announced on one Node. The zero value announces nothing.
type Mark struct {
	Class Class
	Kind  Kind
	Key   string
	// Says continues a sentence that begins with the name of the Node.
	Says string
	// Since is when the mark was set. It is zero if the mark does not tell.
	Since time.Time
	// Reason is that of a condition, as its owner wrote it.
	Reason string
}

// String returns the kind, key, time and reason of the mark.
func (m Mark) String() string {
	text := fmt.Sprintf("%s %s", m.Kind, m.Key)
	if !m.Since.IsZero() {
		text += ", since " + m.Since.UTC().Format(time.RFC3339)
	}
	if m.Reason != "" {
		text += ", reason " + printable.Quote(m.Reason)
	}
	return text
}

// RemoveCommand returns the command that removes the mark from the Node.
func (m Mark) RemoveCommand(node string) string {
	verb := string(m.Kind)
	switch m.Kind {
	case Annotation:
		verb = "annotate"
	case Condition:
		return fmt.Sprintf("kubectl patch node %s --subresource=status "+
			`--patch '{"status":{"conditions":[{"type":"%s","status":"False"}]}}'`, node, m.Key)
	case Taint, Label:
	}
	return fmt.Sprintf("kubectl %s node %s %s-", verb, node, m.Key)
}

// A markRow is one row of a table.
type markRow struct {
	class Class
	kind  Kind
	// key is the key of the mark. If it ends with a slash, it is the prefix of the key.
	key  string
	says string
	// ifCordoned limits the row to Nodes that are cordoned as well.
	ifCordoned bool
	// onlyTrue limits the row to the value "true" in any case. Without it, every other value than
	// "false" counts.
	onlyTrue bool
	// unless is the key of an annotation that ends the mark.
	unless string
	// stopsFirst means that the member may stop before it is removed.
	stopsFirst bool
}

func builtIn() [][]markRow { return [][]markRow{programRows(), removalRows(), conditionRows()} }

// goes returns a taint of a machine that goes for good, comesBack one of a machine that comes
// back, and reboots the annotation of a program that reboots cordoned nodes.
func goes(key, says string) markRow {
	return markRow{class: ForGood, kind: Taint, key: key, says: says}
}

func comesBack(key, says string) markRow {
	return markRow{class: ForAWhile, kind: Taint, key: key, says: says}
}

func reboots(key, program string) markRow {
	return markRow{class: ForAWhile, kind: Annotation, key: key, says: "is being rebooted by " + program, ifCordoned: true}
}

// programRows returns the taints and annotations of programs.
//
// It does not list marks that name only a candidate: DeletionCandidateOfClusterAutoscaler, and
// the taint of Escalator, which an etcd node may carry without ever being removed.
func programRows() []markRow {
	const deleted = "is about to be deleted"
	return []markRow{
		// cluster-autoscaler terminates the machine within seconds without another request
		// (utils/taints, ToBeDeletedTaint).
		goes("ToBeDeletedByClusterAutoscaler", deleted),
		// Karpenter's taint stays from the decision to disrupt until the machine is gone (apis/v1,
		// DisruptedTaintKey). Up to Karpenter 1.0 it has the second key.
		goes("karpenter.sh/disrupted", deleted),
		goes("karpenter.sh/disruption", deleted),
		// Elastisys' kubeaware-cloudpool-proxy (NodeAboutToBeDrainedTaint).
		goes("node-about-to-be-drained", deleted),
		// A person or a program states that the machine is off (core/v1, TaintNodeOutOfService).
		goes(corev1.TaintNodeOutOfService, "is out of service"),
		// GKE, before it preempts a machine or maintains its host.
		goes("cloud.google.com/impending-node-termination", "is about to be terminated"),
		// aws-node-termination-handler with --taint-node: spot-itn, asg-lifecycle-termination,
		// rebalance-recommendation, scheduled-maintenance.
		goes("aws-node-termination-handler/", "is about to be interrupted by AWS"),
		// kured with --annotate-nodes. The annotation alone means that a reboot is wanted, perhaps for
		// days. kured cordons the node that it drains and reboots, and uncordons it before it removes
		// the annotation (cmd/kured/main.go, rebootAsRequired).
		reboots("weave.works/kured-reboot-in-progress", "kured"),
		// Flatcar Linux Update Operator, and the operator of CoreOS that it comes from. Its agent sets
		// the annotation to "true", cordons and drains the node, and reboots even if the drain was
		// refused (flatcar-linux-update-operator#188). Afterwards the value is "false".
		reboots("flatcar-linux-update.v1.flatcar-linux.net/reboot-in-progress", "flatcar-linux-update-operator"),
		reboots("container-linux-update.v1.coreos.com/reboot-in-progress", "container-linux-update-operator"),
		// medik8s: node-maintenance-operator, self-node-remediation, and fence-agents-remediation with
		// its earlier key.
		comesBack("medik8s.io/drain", "is under maintenance by node-maintenance-operator"),
		comesBack("medik8s.io/remediation", "is being restarted by self-node-remediation"),
		comesBack("remediation.medik8s.io/fence-agents-remediation", "is being restarted by fence-agents-remediation"),
		comesBack("medik8s.io/fence-agents-remediation", "is being restarted by fence-agents-remediation"),
	}
}

// OfOthers returns the mark of another program on the Node.
func OfOthers(n *corev1.Node) Mark { return firstMark(n, builtIn()) }

// A Table has the marks that count for the verdict. The zero value has the built-in marks and
// that of the agent about its own host.
type Table struct{ added []markRow }

// ConditionPrefix precedes the type of a condition in a key for Add.
const ConditionPrefix = "condition:"

// Add returns the table with another key. A key that ends with a slash stands for all keys with
// this prefix. A mark ForGood is a taint. A mark ForAWhile is a taint, an annotation or a label, or
// with the ConditionPrefix a condition. An annotation or label with the value "false" is no mark.
func (t Table) Add(class Class, key string) Table {
	kinds, says := []Kind{Taint}, "is marked by --doomed-taint as going for good"
	if class == ForAWhile {
		kinds, says = []Kind{Taint, Annotation, Label}, "is marked by --away-mark as away"
	}
	if condition, is := strings.CutPrefix(key, ConditionPrefix); is {
		kinds, key = []Kind{Condition}, condition
	}
	added := slices.Clone(t.added)
	for _, kind := range kinds {
		added = append(added, markRow{class: class, kind: kind, key: key, says: says})
	}
	return Table{added: added}
}

// Of returns the mark on the Node. A mark ForGood takes precedence.
func (t Table) Of(n *corev1.Node) Mark {
	if len(n.Spec.Taints)+len(n.Annotations)+len(n.Labels)+len(n.Status.Conditions) == 0 {
		return Mark{} // Most Nodes of a cache. It spares building the table for each.
	}
	m := firstMark(n, append(builtIn(), t.added))
	if m.Class == None {
		return shutdownMark(n)
	}
	return m
}

func firstMark(n *corev1.Node, tables [][]markRow) Mark {
	var found Mark
	for _, rows := range tables {
		for i := range rows {
			if m := rows[i].on(n); m.Class > found.Class {
				found = m
			}
		}
	}
	return found
}

func (r markRow) on(n *corev1.Node) Mark {
	if r.ifCordoned && !n.Spec.Unschedulable {
		return Mark{}
	}
	if r.unless != "" {
		if _, isOver := n.Annotations[r.unless]; isOver {
			return Mark{}
		}
	}
	m := Mark{Class: r.class, Kind: r.kind, Says: r.says}
	switch r.kind {
	case Taint:
		for _, t := range n.Spec.Taints {
			if r.hasKey(t.Key) {
				m.Key = t.Key
				if t.TimeAdded != nil {
					m.Since = t.TimeAdded.UTC()
				}
				return m
			}
		}
	case Annotation:
		return r.among(n.Annotations, m)
	case Label:
		return r.among(n.Labels, m)
	case Condition:
		return r.onConditions(n, m, corev1.ConditionTrue)
	}
	return Mark{}
}

// among completes the mark from annotations or labels.
func (r markRow) among(values map[string]string, m Mark) Mark {
	for key, value := range values {
		isSet := value != "false"
		if r.onlyTrue {
			isSet = strings.EqualFold(value, "true")
		}
		if r.hasKey(key) && isSet && (m.Key == "" || key < m.Key) {
			m.Key, m.Since = key, time.Time{}
			if at, err := time.Parse(time.RFC3339, value); err == nil {
				m.Since = at.UTC()
			}
		}
	}
	if m.Key == "" {
		return Mark{}
	}
	return m
}

func (r markRow) hasKey(key string) bool {
	return key == r.key || strings.HasSuffix(r.key, "/") && strings.HasPrefix(key, r.key)
}

// ShutdownAnnotation is set by the agent of a node with etcd while its host shuts down. Its value
// is a hostShutdown in JSON.
const ShutdownAnnotation = "holdfast.dev/shutdown"

// A hostShutdown is the value of ShutdownAnnotation.
type hostShutdown struct {
	// BootID is the boot that ends.
	BootID string    `json:"bootID"`
	Since  time.Time `json:"since"`
}

// A Host is what its agent knows about the shutdown of a host.
type Host struct {
	// BootID is the current boot, empty if it could not be read.
	BootID string
	// GoingDown means that the host has announced its shutdown. AwaitsLogind means that logind will
	// soon report whether the host is shutting down.
	GoingDown, AwaitsLogind bool
	// HasEtcd is false only if the host provably holds no etcd.
	HasEtcd bool
}

// AnnounceShutdown returns the value of ShutdownAnnotation for a host, empty to remove the
// annotation. Without the boot ID, the current value stays.
func AnnounceShutdown(current string, h Host, now time.Time) string {
	var s hostShutdown
	isOfThisBoot := json.Unmarshal([]byte(current), &s) == nil && s.BootID == h.BootID
	switch {
	case h.BootID == "":
		return current
	case !h.HasEtcd:
		return ""
	case isOfThisBoot && (h.GoingDown || h.AwaitsLogind):
		return current
	case !h.GoingDown:
		return ""
	}
	value, err := json.Marshal(hostShutdown{BootID: h.BootID, Since: now.UTC().Truncate(time.Second)})
	if err != nil {
		return current // The times that cannot be encoded are after the year 9999.
	}
	return string(value)
}

// shutdownMark returns the mark of the agent on a Node whose host shuts down. The mark ends when
// the kubelet reports another boot. A value that cannot be parsed is a mark without a time.
func shutdownMark(n *corev1.Node) Mark {
	value, found := n.Annotations[ShutdownAnnotation]
	if !found {
		return Mark{}
	}
	m := Mark{Class: ForAWhile, Kind: Annotation, Key: ShutdownAnnotation, Says: "is shutting down or rebooting"}
	var s hostShutdown
	if json.Unmarshal([]byte(value), &s) != nil {
		return m
	}
	if now := n.Status.NodeInfo.BootID; s.BootID != "" && now != "" && s.BootID != now {
		return Mark{}
	}
	m.Since = s.Since.UTC()
	return m
}
