package etcdprobe

import (
	"net"
	"net/url"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// target is one way to one server.
type target struct {
	url        string
	credential protect.Credential
}

// secure says that the way is TLS.
func (t target) secure() bool {
	u, err := url.Parse(t.url)
	return err == nil && (u.Scheme == "https" || u.Scheme == "unixs")
}

// ways pairs URLs with credentials. Plain URLs need none; a secure one without any is tried with the system's roots, so
// that the answer says what is missing.
func ways(urls []string, credentials []protect.Credential) []target {
	if len(credentials) == 0 {
		credentials = []protect.Credential{{Origin: "no client certificate"}}
	}
	var found []target
	for _, u := range urls {
		if !(target{url: u}).secure() {
			found = append(found, target{url: u})
			continue
		}
		for _, c := range credentials {
			found = append(found, target{url: u, credential: c})
		}
	}
	return found
}

// localURLs are the URLs under which a server can be asked from its own host, loopback first. A running server that names
// none uses etcd's default.
func localURLs(s protect.Sighting) []string {
	listen := s.Config.ListenClientURLs
	if len(listen) == 0 && len(s.Config.AdvertiseClientURLs) == 0 && s.Running() {
		listen = []string{"http://localhost:2379"}
	}
	var loopback, rest []string
	for _, raw := range listen {
		for _, u := range reachable(raw) {
			if isLoopback(u) {
				loopback = append(loopback, u)
			} else {
				rest = append(rest, u)
			}
		}
	}
	for _, raw := range s.Config.AdvertiseClientURLs {
		rest = append(rest, reachable(raw)...)
	}
	return unique(append(loopback, rest...))
}

// reachable turns a URL to listen on into URLs to connect to: "all addresses" are reached over loopback.
func reachable(raw string) []string {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" {
		return nil
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil || !ip.IsUnspecified() {
		return []string{raw}
	}
	found := []string{withHost(u, "127.0.0.1")}
	if ip.To4() == nil {
		found = append(found, withHost(u, "::1"))
	}
	return found
}

// memberURLs are the URLs under which a member can be asked. One that advertises a loopback address to everybody is also
// tried at the host of its peer URLs, which others must be able to reach.
func memberURLs(m *pb.Member) []string {
	// A member list names servers elsewhere. What it says to be a socket of this host, or is no URL, is nobody.
	found := slices.DeleteFunc(slices.Clone(m.ClientURLs), func(raw string) bool {
		u, err := url.Parse(raw)
		return err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"
	})
	found = found[:min(len(found), maxURLs)]
	for _, raw := range slices.Clone(found) {
		u, err := url.Parse(raw)
		if err != nil || !isLoopback(raw) {
			continue
		}
		for _, peer := range m.PeerURLs[:min(len(m.PeerURLs), maxURLs)] {
			if host := hostOf(peer); host != "" {
				found = append(found, withHost(u, host))
			}
		}
	}
	found = unique(found)
	return found[:min(len(found), maxURLs)]
}

// isLoopback says that a URL means the host of whoever reads it.
func isLoopback(raw string) bool {
	host := hostOf(raw)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func withHost(u *url.URL, host string) string {
	changed := *u
	changed.Host = net.JoinHostPort(host, u.Port())
	return changed.String()
}

func unique(urls []string) []string {
	var found []string
	for _, u := range urls {
		if !slices.Contains(found, u) {
			found = append(found, u)
		}
	}
	return found
}

// first moves a target to the front of those that it is among, or puts it there.
func first(t target, rest []target) []target {
	rest = slices.DeleteFunc(slices.Clone(rest), func(other target) bool { return other == t })
	return append([]target{t}, rest...)
}
