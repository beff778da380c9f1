package agent

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	testNode    = "n1"
	testCluster = v1alpha1.ClusterID("cdf818194e3a8c32")
	testMember  = v1alpha1.MemberID("3a1575389de83a83")
	testBoot    = "6f6b9d3c-1f2b-4c3f-9d3e-0a4f5a1d2e3f"
	// soon is the limit for what takes milliseconds on an idle machine.
	soon = time.Minute
)

// closedNetwork returns the facts of a host whose network is not ready.
func closedNetwork() readiness.Facts {
	return readiness.Facts{
		BootID: testBoot, Subnet: readiness.SubnetFile{Presence: readiness.Absent, Path: "/run/flannel/subnet.env"},
		Conflist: readiness.Conflist{Presence: readiness.Absent, Directory: "/etc/cni/net.d"},
	}
}

// openNetwork returns the facts of a host whose network is ready.
func openNetwork() readiness.Facts {
	f := closedNetwork()
	f.Subnet = readiness.SubnetFile{
		Presence: readiness.Present, Volatile: readiness.Present,
		Subnet: "10.244.1.1/24", Network: "10.244.0.0/16", MTU: "1450",
	}
	f.Conflist = readiness.Conflist{
		Presence: readiness.Present, Path: "/etc/cni/net.d/10-flannel.conflist", Name: "cbr0",
		Plugins: []readiness.Plugin{{Type: "flannel", Executable: readiness.Present}},
	}
	return f
}

// bornHeld returns a Node as the born-held policy leaves it.
func bornHeld(name string) *corev1.Node {
	record := readiness.Record{State: readiness.Held, BootID: testBoot, Reason: readiness.NewNode}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{readiness.HoldAnnotation: record.Format()}},
		Spec:       corev1.NodeSpec{Unschedulable: true, PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: readiness.HeldByHoldfast},
		}},
	}
}

// foundMember returns a member as the scanner finds it.
func foundMember(pid int) evidence.FoundServer {
	return evidence.FoundServer{
		Server:   evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: pid},
		Identity: evidence.Identity{Ref: evidence.MemberRef{Cluster: testCluster, Member: testMember}},
	}
}

func status(n *corev1.Node, of corev1.NodeConditionType) corev1.ConditionStatus {
	return condition(n, of).Status
}

// hasReason returns a condition of the test: the Node is held for this reason.
func hasReason(reason string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return condition(n, readiness.NetworkHeld).Reason == reason }
}

// isHeld reports whether the Node explains that it is held.
func isHeld(n *corev1.Node) bool { return status(n, readiness.NetworkHeld) == corev1.ConditionTrue }

func isReleased(n *corev1.Node) bool {
	r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	return err == nil && r.State == readiness.Released
}

// isFree reports whether nothing of a hold is left.
func isFree(n *corev1.Node) bool {
	return isReleased(n) && !n.Spec.Unschedulable && status(n, corev1.NodeNetworkUnavailable) != corev1.ConditionTrue &&
		status(n, readiness.NetworkHeld) == corev1.ConditionFalse
}

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// recordLog returns a logger, and a function that returns what the logger has written.
func recordLog(t *testing.T) (*slog.Logger, func() string) {
	t.Helper()
	lines := &latest[string]{}
	text := func() string { text, _ := lines.get(); return text }
	// The handler makes one write at a time.
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) { lines.set(text() + string(p)) }), nil)), text
}

type writerFunc func([]byte)

func (w writerFunc) Write(p []byte) (int, error) { w(p); return len(p), nil }

// elapse lets time pass in a bubble until all goroutines are blocked again.
func elapse(t *testing.T, d time.Duration) {
	t.Helper()
	require.NoError(t, loop.Wait(t.Context(), d, nil))
	synctest.Wait()
}

// pause waits in a function that the agent calls, unless the context ends first.
func pause(ctx context.Context, d time.Duration) error { return loop.Wait(ctx, d, nil) }
