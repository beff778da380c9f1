package protect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// introduce says in one line what was found and where.
func introduce(f Found, ref MemberRef, name string) string {
	where := oneLine(f.Where)
	stopped := !f.Running() && !f.Answered()
	switch {
	case ref != MemberRef{} && stopped:
		return fmt.Sprintf("stopped etcd member %s of cluster %s, %s", describeMember(ref, name), ref.Cluster, where)
	case ref != MemberRef{}:
		return fmt.Sprintf("etcd member %s of cluster %s, %s", describeMember(ref, name), ref.Cluster, where)
	case stopped:
		return "stopped etcd server with the data of a member, " + where
	}
	return "etcd server that has not said who it is, " + where
}

// bounded cuts a sentence that is written into several annotations: what a process names its files is as long as it likes.
func bounded(text string) string {
	const most = 1024
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func describeMember(ref MemberRef, name string) string {
	if name == "" {
		return string(ref.Member)
	}
	return fmt.Sprintf("%s (%s)", oneLine(name), ref.Member)
}

// nameOf looks a member's name up in the cached lists.
func nameOf(ref MemberRef, k Known) string {
	for i := range k.Clusters {
		if clusterID(&k.Clusters[i]) != ref.Cluster {
			continue
		}
		for _, o := range observers(&k.Clusters[i]) {
			if m, found := listed(o, ref.Member); found && m.Name != "" {
				return m.Name
			}
		}
	}
	return ""
}

// troubles are what is wrong with a found server, for the condition's message.
func troubles(f Found) []string {
	var words []string
	if f.Running() && !f.Answered() {
		words = append(words, fmt.Sprintf("%s did not answer: %s", oneLine(f.Where), cmp.Or(bounded(oneLine(f.Problem)), "it was not asked")))
	}
	for _, p := range f.Problems {
		words = append(words, fmt.Sprintf("%s: %s", oneLine(f.Where), clip(p)))
	}
	return words
}

// message is the condition's message of a protected node: why, how its clusters stand, and what is wrong.
func message(because string, refs []MemberRef, details []string, k Known) string {
	words := []string{because}
	var told []v1alpha1.ClusterID
	for _, ref := range refs {
		for i := range k.Clusters {
			c := &k.Clusters[i]
			if clusterID(c) == ref.Cluster && !slices.Contains(told, ref.Cluster) {
				told = append(told, ref.Cluster)
				words = append(words, health(c)...)
			}
		}
	}
	words = append(words, details...)
	return strings.Join(append(words, Overruled(k.Annotations)...), "; ")
}

// health is the leader's summary of a cluster in words, nothing if there is none.
func health(c *v1alpha1.EtcdCluster) []string {
	s := c.Status
	if s.Voters == nil || s.Healthy == nil || s.MayLose == nil {
		return nil
	}
	return []string{fmt.Sprintf("cluster %s has %s, %d healthy, and may lose %d more", clusterID(c), many(int(*s.Voters), "voter"), *s.Healthy, *s.MayLose)}
}

func reasons(problems []string) string {
	if len(problems) == 0 {
		return "no reason given"
	}
	return clip(strings.Join(problems, ", "))
}

// unread heads the message of an unknown membership.
func unread(k Known) string {
	if k.Protected {
		return "no etcd was found, but the look was not complete, and the node stays protected"
	}
	return "no etcd was found, but the look was not complete"
}

func notMember(ev HostEvidence, k Known) string {
	var removed, inCluster int
	for _, f := range ev.Found {
		switch {
		case f.Removed:
			removed++
		case f.InCluster && !k.StaticPods:
			inCluster++
		}
	}
	words := []string{"no etcd member is on this node"}
	if removed > 0 {
		words = append(words, fmt.Sprintf("%s found here left the member list of the cluster", many(removed, "member")))
	}
	if inCluster > 0 {
		words = append(words, fmt.Sprintf("%s found here, run by Kubernetes itself, which this agent was told not to guard", many(inCluster, "etcd static pod")))
	}
	return strings.Join(words, "; ")
}
