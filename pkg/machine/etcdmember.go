package machine

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// The group and the kind of an EtcdMember.
const (
	K0sGroup       = "etcd.k0sproject.io"
	EtcdMemberKind = "EtcdMember"
)

// An EtcdMember is the object with which k0s shows an etcd member, and removes it if spec.leave is
// true (k0s, pkg/apis/etcd/v1beta1 and pkg/component/controller/etcd_member_reconciler.go). Later
// releases stop the controller of the member first. Its name is the hostname of the controller.
type EtcdMember struct {
	Name, PeerAddress string
	Member            v1alpha1.MemberID
	Leaves            bool
}

// ParseEtcdMember parses the JSON form of an EtcdMember.
func ParseEtcdMember(raw []byte) (EtcdMember, error) {
	var content struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Leave bool `json:"leave"`
		} `json:"spec"`
		Status struct {
			PeerAddress string `json:"peerAddress"`
			MemberID    string `json:"memberID"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &content); err != nil {
		return EtcdMember{}, fmt.Errorf("parsing the %s: %w", EtcdMemberKind, err)
	}
	return EtcdMember{
		Name: content.Name, PeerAddress: content.Status.PeerAddress,
		Member: v1alpha1.MemberID(content.Status.MemberID), Leaves: content.Spec.Leave,
	}, nil
}

// MayBeOn reports whether the member may be on the Node: by its name, its address or the
// announcement of the Node. An announcement that cannot be parsed may name it.
func (m EtcdMember) MayBeOn(n *corev1.Node) bool {
	if m.Name == n.Name {
		return true
	}
	announced, err := observation.AnnouncedOn(n)
	return err != nil || slices.Contains(observation.AddressesOf(n), m.PeerAddress) ||
		slices.ContainsFunc(announced, func(ref evidence.MemberRef) bool { return ref.Member == m.Member })
}
