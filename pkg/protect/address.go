package protect

import (
	"net/netip"
	"net/url"
	"strings"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// hosts returns the hosts of a member's URLs in the form in which they are compared. Hosts that are the same on every
// machine (127.0.0.1, 0.0.0.0, localhost) say nothing about where a member runs and are left out: k0s advertises
// 127.0.0.1 for all of its members.
func hosts(m v1alpha1.MemberStatus) []string {
	var found []string
	for _, urls := range [][]string{m.PeerURLs, m.ClientURLs} {
		for _, raw := range urls {
			u, err := url.Parse(raw)
			if err != nil {
				continue
			}
			if h := comparableHost(u.Hostname()); h != "" {
				found = append(found, h)
			}
		}
	}
	return found
}

// comparableHost returns an address or host name in the one form in which two of them can be compared: IPv4 addresses
// that are written as IPv6 as IPv4, no zone, names in lower case without the final dot. Empty if it identifies no host.
func comparableHost(host string) string {
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap().WithZone("")
		if a.IsLoopback() || a.IsUnspecified() {
			return ""
		}
		return a.String()
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" {
		return ""
	}
	return name
}

// livesAt says that one of the member's URLs names one of these addresses.
func livesAt(m v1alpha1.MemberStatus, addresses []string) bool {
	for _, h := range hosts(m) {
		for _, a := range addresses {
			if h == comparableHost(a) {
				return true
			}
		}
	}
	return false
}
