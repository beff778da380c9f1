package readiness

import corev1 "k8s.io/api/core/v1"

// Leave says what is to be done with a node that is held when Holdfast itself goes: it is opened, or stays closed for somebody
// else. Stays says for whom, and is empty if the node is to be opened. Of a node that is not held it must not be asked.
func Leave(n *corev1.Node, r Record) (stays string) {
	s := situation{node: n, record: r, recorded: true}
	if s.keepCordoned() {
		return "annotation " + KeepCordonedAnnotation
	}
	if r.Taint != "" {
		return "" // The taint is nobody's but ours.
	}
	if by := cordonedBy(n); by != "" && n.Spec.Unschedulable {
		return by + " has cordoned it"
	}
	return s.mark()
}
