package departure

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
)

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
	// GoingDown means that the host has announced its shutdown. IsAwaited means that the host will
	// soon tell whether it shuts down.
	GoingDown, IsAwaited bool
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
	case isOfThisBoot && (h.GoingDown || h.IsAwaited):
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
