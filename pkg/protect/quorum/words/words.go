// Package words words the verdicts of package quorum for people. It decides nothing: it reads the
// facts of a verdict only.
package words

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A Verb names in texts what was requested. The name of a node, or a word for it, follows.
type Verb struct{ Base, Third, Past, Gerund, Noun string }

// VerbOf returns how texts name what a door allows.
func VerbOf(k quorum.DoorKind) Verb {
	switch k {
	case quorum.DoorDrain:
		return Verb{Base: "drain", Third: "drains", Past: "drained", Gerund: "draining", Noun: "drain"}
	case quorum.DoorRemove:
		return Verb{
			Base: "remove the member of", Third: "removes the member of", Past: "marked for the removal of its member",
			Gerund: "removing the member of", Noun: "removal of the member",
		}
	case quorum.DoorDelete, quorum.DoorMachine, quorum.DoorGone:
	}
	return Verb{Base: "delete", Third: "deletes", Past: "deleted", Gerund: "deleting", Noun: "deletion"}
}

// Combine returns the Decision over all clusters, with its texts.
func Combine(verdicts ...quorum.Verdict) quorum.Decision { return Explain(quorum.Combine(verdicts)) }

// Explain adds the texts to a Decision: those of the verdicts that agree with it.
func Explain(d quorum.Decision) quorum.Decision {
	var messages []string
	for _, v := range d.Deciding() {
		if message := Message(v); message != "" {
			messages = append(messages, message)
		}
		if warning := Warning(v); warning != "" {
			d.Warnings = append(d.Warnings, warning)
		}
	}
	d.Message = strings.Join(messages, "\n")
	return d
}

// A writer words one verdict.
type writer struct {
	quorum.Facts
	// id is the cluster, node the Node of the request, and verb names the request.
	id   v1alpha1.ClusterID
	node string
	verb Verb
}

func newWriter(v quorum.Verdict) writer {
	r := v.Facts.Request
	return writer{Facts: v.Facts, id: v.Cluster, node: r.Node, verb: VerbOf(r.Door)}
}

// Message explains the verdict. The message of a refusal contains the next steps.
func Message(v quorum.Verdict) string { return printable.Text(newWriter(v).message(v)) }

func (w writer) message(v quorum.Verdict) string {
	if w.Together {
		return w.together(v)
	}
	switch w.Finding {
	case quorum.FoundNothing:
		return fmt.Sprintf("no member of etcd cluster %s is on node %s", w.id, w.node)
	case quorum.FoundNothingKnown:
		return fmt.Sprintf("no etcd member is known on node %s", w.node)
	case quorum.FoundOnlyMember:
		return fmt.Sprintf("node %s has the only member of etcd cluster %s, so no quorum can be kept", w.node, w.id)
	case quorum.FoundTally:
		if w.Tally.IsSafe() {
			return w.kept()
		}
		return w.refused()
	default:
		return w.unknown()
	}
}

// Warning is what the user of an allowed deletion should know. It may be empty.
func Warning(v quorum.Verdict) string {
	w, text := newWriter(v), ""
	switch {
	case w.Together:
	case w.Finding == quorum.FoundOnlyMember:
		text = fmt.Sprintf("etcd cluster %s is down until node %s is back, and its data are on that node only", w.id, w.node)
	case w.Finding == quorum.FoundTally && w.Tally.IsSafe():
		text = w.keptWarning()
	}
	return printable.Text(text)
}

// again asks for another attempt.
func (w writer) again() string { return w.verb.Base + " the node again" }

// needsVerb follows the steps that remove the protection of a Node. The policy in
// manifests/base/policies/nodes.yaml allows them only with this verb.
const needsVerb = " (needs the verb breakglass on etcdclusters)"

// StepsTitle is the line above the steps in the refusal of a deletion.
const StepsTitle = "what to do, safest first:"

// refusal joins the facts, the steps from the safest to the last resort, and the break-glass step.
func (w writer) refusal(facts []string, steps ...string) string {
	lines := append(slices.Clone(facts), StepsTitle)
	if w.Request.Door == quorum.DoorDrain {
		lines[len(facts)] = "what to do, safest first (programs that drain nodes try again by themselves):"
	}
	for _, step := range steps {
		lines = append(lines, "  - "+step)
	}
	lines = append(lines, fmt.Sprintf("  - as a last resort, override this refusal "+
		"(needs the verb breakglass on etcdclusters; "+
		"recorded with your name), then %s:\n    kubectl holdfast break-glass %s --reason \"say why\"\n"+
		"    or without the plugin:\n    kubectl annotate --overwrite node %s "+
		`%s='{"uid":"%s","until":"'$(date -u -d +30min +%%FT%%TZ)'","reason":"say why"}'`,
		w.again(), w.node, w.node, quorum.BreakGlassAnnotation, w.Request.UID))
	return strings.Join(lines, "\n")
}

// title returns the name and ID of a member. A member without a name has its first peer URL
// instead.
func title(m quorum.MemberState) string {
	switch {
	case m.Name != "":
		return fmt.Sprintf("%s (%s)", printable.Quote(m.Name), m.ID)
	case len(m.PeerURLs) > 0:
		return fmt.Sprintf("%s (%s)", printable.Quote(m.PeerURLs[0]), m.ID)
	}
	return string(m.ID)
}

func titles(members []quorum.MemberState) string { return printable.Join(members, ", ", title) }

func joinIDs(members []v1alpha1.MemberID) string {
	if len(members) == 1 {
		return "member " + string(members[0])
	}
	return "members " + observation.JoinIDs(members, ", ")
}

// agree returns the words that agree with this number of members.
func agree(n int, one, many string) string {
	if n > 1 {
		return many
	}
	return one
}
