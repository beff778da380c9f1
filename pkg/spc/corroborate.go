package spc

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// controlPlane says that the node carries the label of the control plane, by its present or its former name.
func controlPlane(n *corev1.Node) bool {
	_, now := n.Labels["node-role.kubernetes.io/control-plane"]
	_, before := n.Labels["node-role.kubernetes.io/master"]
	return now || before
}

// places are the zone and the region that the node is labelled with, by their present or their former names.
func places(n *corev1.Node) []string {
	return addPlace(addPlace(nil, zone(n)), region(n))
}

func zone(n *corev1.Node) string {
	return place(n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelFailureDomainBetaZone])
}

func region(n *corev1.Node) string {
	return place(n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelFailureDomainBetaRegion])
}

// locations are the places that a record names. The API has "nyc1", "us-west1-a", "us-west-2:us-west-2a", "nyc1:nyc1".
func locations(r Record) []string {
	found := addPlace(nil, place(r.Zone))
	for part := range strings.SplitSeq(r.Location, ":") {
		found = addPlace(found, place(part))
	}
	return found
}

// place is the first of the names that is not empty, as all are compared: what one calls East US is eastus to others.
func place(names ...string) string {
	for _, name := range names {
		if name = strings.ToLower(strings.ReplaceAll(name, " ", "")); name != "" {
			return name
		}
	}
	return ""
}

func addPlace(to []string, name string) []string {
	if name == "" || slices.Contains(to, name) {
		return to
	}
	return append(to, name)
}

// elsewhere says that the node and the record name places that have nothing in common, or different zones of one region.
func elsewhere(n *corev1.Node, r Record) bool {
	here, there := places(n), locations(r)
	if len(here) == 0 || len(there) == 0 {
		return false
	}
	related := false
	for _, one := range here {
		for _, other := range there {
			related = related || strings.HasPrefix(one, other) || strings.HasPrefix(other, one)
		}
	}
	within := region(n)
	isZone := func(name string) bool { return within != "" && name != within && strings.HasPrefix(name, within) }
	if isZone(zone(n)) && slices.ContainsFunc(there, isZone) && !slices.Contains(there, zone(n)) {
		return true
	}
	return !related
}

// contradict says that two names for machines at a cloud are of one kind and differ. Where one side has a number and the
// other a name, nothing follows.
func contradict(a, b string) bool {
	return a != "" && b != "" && a != b && kind(a) == kind(b)
}

func kind(id string) string {
	switch {
	case strings.HasPrefix(id, "i-"):
		return "aws"
	case strings.Trim(id, "0123456789") == "":
		return "number"
	case len(id) == 36 && strings.Count(id, "-") == 4 && strings.Trim(id, "0123456789abcdef-") == "":
		return "uuid"
	}
	return "name"
}
