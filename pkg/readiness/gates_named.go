package readiness

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// missingUnit says what a systemd unit has still to do. A unit that is active has done it: one of type oneshot becomes active
// when its work is done and not before (systemd.service(5)), and stays so with RemainAfterExit=yes. Without that it is
// inactive again, and has run.
func missingUnit(units []Unit, name string) string {
	i := slices.IndexFunc(units, func(u Unit) bool { return u.Name == name })
	if i < 0 {
		return fmt.Sprintf("systemd unit %s, which was not looked at", name)
	}
	u := units[i]
	switch {
	case u.Problem != "" && u.Presence == Present:
		return fmt.Sprintf("systemd unit %s (%s)", name, u.Problem)
	case u.Problem != "":
		return fmt.Sprintf("systemd unit %s, which could not be looked at (%s)", name, u.Problem)
	case u.Presence == Unknown:
		return fmt.Sprintf("systemd unit %s, which could not be looked at", name)
	case u.Presence == Absent:
		return fmt.Sprintf("systemd unit %s, which is not there", name)
	case u.ActiveState == "active":
		return ""
	case u.ActiveState == "failed":
		return fmt.Sprintf("systemd unit %s to succeed: it failed (%s); `journalctl -b -u %s` has why", name, u.Result, name)
	case u.ActiveState == "inactive" && u.Ran && u.Result == "success":
		return ""
	case u.ActiveState == "inactive":
		return fmt.Sprintf("systemd unit %s, which has not run in this boot", name)
	}
	return fmt.Sprintf("systemd unit %s to finish: it is %s (%s)", name, u.ActiveState, u.SubState)
}

// missingCondition says what a condition of the Node has still to become: False for NetworkUnavailable, True for any other.
// What Holdfast writes there itself is no evidence of anything.
func (s situation) missingCondition(kind corev1.NodeConditionType) string {
	want := corev1.ConditionTrue
	if kind == corev1.NodeNetworkUnavailable {
		want = corev1.ConditionFalse
	}
	c := condition(s.node, kind)
	switch {
	case c == nil:
		return fmt.Sprintf("condition %s=%s, which nobody has written", kind, want)
	case kind == corev1.NodeNetworkUnavailable && (c.Reason == HeldByHoldfast || c.Reason == ReleasedByHoldfast):
		if s.record.State == Held && s.record.NetworkUp != "" && s.record.BootID == s.facts.BootID && s.facts.BootID != "" {
			return ""
		}
		return fmt.Sprintf("condition %s=%s from the network plugin: nobody but Holdfast has written it", kind, want)
	case c.Status != want:
		return fmt.Sprintf("condition %s=%s: it is %s (%s: %s)", kind, want, c.Status, c.Reason, c.Message)
	case s.stale(c):
		return fmt.Sprintf("condition %s=%s from this boot: it stands as it was written at %s, in an earlier one", kind, want, stamp(c))
	}
	return ""
}

// stale says that a condition is provably of another boot: it stands as it stood when that was noted in the record. Times
// are compared for being the same and never for order, so that no clock has to be right. Of who writes the condition once
// for a Node, and not once for a boot, the same time is no proof of anything.
func (s situation) stale(c *corev1.NodeCondition) bool {
	before, noted := s.record.Stamps[string(c.Type)]
	return noted && before.At == stamp(c) && before.BootID != s.facts.BootID && !standing(c)
}

// standing says that NetworkUnavailable has its writer's last word about the Node, boots or not. Cilium puts it back whenever
// it is changed, and guards reboots by a taint of its own (cilium operator/watchers, node_taint.go). A route lies in the
// cloud, where no reboot of the node takes it away; its controller too writes its word again whenever it does not stand.
func standing(c *corev1.NodeCondition) bool {
	return c.Type == corev1.NodeNetworkUnavailable && (c.Reason == CiliumIsUp || c.Reason == RouteCreated)
}

// stamp is when a condition was written last, empty if its writer has not said so.
func stamp(c *corev1.NodeCondition) string {
	last := c.LastTransitionTime
	if c.LastHeartbeatTime.After(last.Time) {
		last = c.LastHeartbeatTime
	}
	if last.IsZero() {
		return ""
	}
	return last.UTC().Format(time.RFC3339)
}

// stamps are those of all conditions that are waited for, as they stand now; nil if there are none. One that was noted
// before stays of the boot in which it was.
func (s situation) stamps() map[string]Stamp {
	var found map[string]Stamp
	for _, kind := range s.policy.named(GateCondition) {
		c := condition(s.node, corev1.NodeConditionType(kind))
		if c == nil || stamp(c) == "" {
			continue
		}
		if found == nil {
			found = map[string]Stamp{}
		}
		found[kind] = Stamp{At: stamp(c), BootID: s.facts.BootID}
		if before := s.record.Stamps[kind]; before.At == stamp(c) {
			found[kind] = before
		}
	}
	return found
}

// cleared is the reason with which the network plugin says in this boot that NetworkUnavailable is false, empty if it does
// not. It is written down whether or not that is waited for: who writes over it may be the leader, who does not know the
// agent's gates.
func (s situation) cleared() string {
	const kind = corev1.NodeNetworkUnavailable
	c := condition(s.node, kind)
	if c == nil || c.Status != corev1.ConditionFalse || c.Reason == ReleasedByHoldfast || s.missingCondition(kind) != "" {
		return ""
	}
	if c.Reason == "" {
		return "Unnamed"
	}
	return c.Reason
}

// noted is the record with the stamps of all conditions that are waited for, if the host is going down and they are not in it
// yet: the next boot begins with the same record, and must know what it finds. After a power cut it may not; a condition
// that nobody has noted is believed.
func (s situation) noted() *Record {
	now := s.stamps()
	if !s.facts.GoingDown || maps.Equal(now, s.record.Stamps) {
		return nil
	}
	record := s.record
	record.Stamps = now
	return &record
}
