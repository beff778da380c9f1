package protect

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// ParseUnverified reads UnverifiedAnnotation: where on the host there are servers that have never said who they are. The
// empty string is an annotation that is not there, as agents of versions that know nothing of it leave it.
func ParseUnverified(annotation string) ([]string, error) {
	if annotation == "" {
		return nil, nil
	}
	if len(annotation) > longestAnnotation {
		return nil, fmt.Errorf("annotation %s is longer than %d bytes", UnverifiedAnnotation, longestAnnotation)
	}
	var where []string
	if err := json.Unmarshal([]byte(annotation), &where); err != nil {
		return nil, fmt.Errorf("parsing annotation %s: %w", UnverifiedAnnotation, err)
	}
	return where, nil
}

// FormatUnverified writes UnverifiedAnnotation, and nothing that ParseUnverified refuses. Empty if there is no such
// server. How many there are counts, so that places which are too long are given up before their number is.
func FormatUnverified(where []string) string {
	if len(where) == 0 {
		return ""
	}
	places := make([]string, min(len(where), mostAnnounced))
	for i := range places {
		places[i] = place(where[i])
	}
	slices.Sort(places)
	text, err := json.Marshal(places)
	if err != nil || len(text) > longestAnnotation {
		text = []byte(`["an etcd server"` + strings.Repeat(`,"an etcd server"`, len(places)-1) + `]`)
	}
	return string(text)
}

// unverified returns where the servers are of which nothing says which member they are: they do not answer, and no
// announced member that is unaccounted for can be told to be theirs. A member that was announced by its own answer is
// still known when it hangs; one that never answered may be of a cluster that nobody has heard of. One that stands as
// such on the Node already is no announced member for want of another: it leaves by its own answer, or by its name.
func unverified(found []Found, announced []MemberRef, k Known) []string {
	open := unaccounted(found, announced)
	stands := written(k)
	left := slices.DeleteFunc(slices.Clone(found), func(f Found) bool { return f.Answered() })
	// The surest first: the same name; then a name that nothing contradicts; then no name at all.
	for _, fits := range []func(f Found, r MemberRef) bool{
		func(f Found, r MemberRef) bool { return toldName(f) != "" && nameOf(r, k) == toldName(f) },
		func(f Found, r MemberRef) bool { return !stands(f) && toldName(f) != "" && nameOf(r, k) == "" },
		func(f Found, _ MemberRef) bool { return !stands(f) && toldName(f) == "" },
	} {
		left = slices.DeleteFunc(left, func(f Found) bool {
			at := slices.IndexFunc(open, func(r MemberRef) bool { return fits(f, r) })
			if at >= 0 {
				open = slices.Delete(open, at, at+1)
			}
			return at >= 0
		})
	}
	var where []string
	for _, f := range left {
		where = append(where, f.Where)
	}
	return where
}

// written tells the servers that UnverifiedAnnotation names. One that cannot be read may name any.
func written(k Known) func(Found) bool {
	before, err := ParseUnverified(k.Annotations[UnverifiedAnnotation])
	return func(f Found) bool { return err != nil || slices.Contains(before, place(f.Where)) }
}

// place is how the annotation names the place of a server.
func place(where string) string { return clip(strings.ToValidUTF8(where, "\uFFFD")) }

// unaccounted returns the announced members that no server has answered to be.
func unaccounted(found []Found, announced []MemberRef) []MemberRef {
	return slices.DeleteFunc(slices.Clone(announced), func(r MemberRef) bool {
		return slices.ContainsFunc(found, func(f Found) bool { return f.Ref == r })
	})
}

// otherName says that the server is configured with another name than the member has in its cluster's lists.
func otherName(f Found, ref MemberRef, k Known) bool {
	name := nameOf(ref, k)
	return name != "" && toldName(f) != "" && name != toldName(f)
}

// toldName is the name that the server was told, empty if that is not known for what it is: a stopped unit may show
// what systemd or a shell has yet to replace (Flatcar's units say %m, Debian's %H).
func toldName(f Found) string {
	if strings.ContainsAny(f.Config.Name, "%$`{") {
		return ""
	}
	return f.Config.Name
}

// unidentified refuses for servers on the node that have never said who they are, unless as many members as there are such
// servers are known to be there by something else than the node's own word: a binding to this very Node, or an unbound
// member that two others list at its address. Those are judged like any. What was bound to an earlier Node of the name may
// have gone with another machine. Nil if there is nothing to refuse.
func unidentified(clusters []*v1alpha1.EtcdCluster, r Request) *Verdict {
	known := map[MemberRef]bool{}
	for _, c := range clusters {
		if c == nil {
			continue
		}
		for _, b := range c.Spec.Members {
			if b.Node == r.Node && b.NodeUID == r.UID {
				known[MemberRef{Cluster: clusterID(c), Member: b.MemberID}] = true
			}
		}
		for _, id := range unseenAt(c, r) {
			known[MemberRef{Cluster: clusterID(c), Member: id}] = true
		}
	}
	for _, a := range r.Announced {
		delete(known, a)
	}
	if len(r.Unverified) <= len(known) {
		return nil
	}
	return &Verdict{Reason: UnknownMember, Final: true, Message: strings.Join([]string{
		fmt.Sprintf("node %s has an etcd server that has never said which member of which cluster it is (%s): nobody can tell what its deletion would cost", r.Node, places(r.Unverified)),
		nextSteps,
		fmt.Sprintf("  - see why, and what the agent has tried: kubectl describe node %s (condition %s)", r.Node, EtcdMemberCondition),
		"  - give the agent there a client certificate that this etcd accepts (--etcd-ca, --etcd-cert, --etcd-key); it then says who it is within seconds, and the deletion is judged",
		"  - if it is a leftover and no member of anything: stop it, move its data directory away, and delete the node again",
		breakGlassStep(r),
	}, "\n")}
}

// places lists, for people, where such servers are.
func places(where []string) string {
	const most = 4
	words := make([]string, min(len(where), most))
	for i := range words {
		words[i] = clip(where[i])
	}
	if len(where) > most {
		words = append(words, fmt.Sprintf("and %d more", len(where)-most))
	}
	return strings.Join(words, ", ")
}
