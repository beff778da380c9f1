package spc

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// addresses returns a Node's addresses of one type, of all families.
func addresses(n *corev1.Node, of corev1.NodeAddressType) []netip.Addr {
	var found []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type == of {
			found = append(found, canonical(a.Address)...)
		}
	}
	return found
}

// canonical reads the addresses in a text, in any of their spellings: IPv4 in IPv6, with a prefix length, with a zone,
// several of them with commas between. Those that every host has identify none.
func canonical(text string) []netip.Addr {
	var found []netip.Addr
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == ';' }) {
		word, _, _ = strings.Cut(word, "/")
		addr, err := netip.ParseAddr(word)
		if err != nil {
			continue
		}
		addr = addr.Unmap().WithZone("")
		if addr.IsUnspecified() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
			continue
		}
		found = append(found, addr)
	}
	return found
}

// lastSegment is what follows the last slash of a provider ID, in lower case: i-0769aa of aws:///us-west-2a/i-0769aa.
func lastSegment(id string) string {
	id = strings.TrimSpace(id)
	return strings.ToLower(id[strings.LastIndex(id, "/")+1:])
}
