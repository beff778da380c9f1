package host

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// credentials are the client certificates that may open the server, the likeliest first: the operator's, those that the
// host names for etcdctl, the distribution's client certificates beside the server's own, and last the server's own pairs,
// which open etcd only where they were made for clients too. Pairs that are not there are left out.
func (h *Host) credentials(t settings, envOrigin string, find func(string) (string, error)) []protect.Credential {
	var all []protect.Credential
	add := func(c protect.Credential) {
		if !slices.ContainsFunc(all, func(o protect.Credential) bool { return sameFiles(o, c) }) {
			all = append(all, c)
		}
	}
	if c := h.opts.EtcdCredential; c != nil {
		named := *c
		for _, file := range []*string{&named.CA, &named.Cert, &named.Key} {
			if at, err := h.root.locate(*file); *file != "" && err == nil {
				*file = at
			}
		}
		add(named)
	}
	named := func(ca, cert, key, origin string) {
		c := protect.Credential{CA: located(find, t[ca]), Cert: located(find, t[cert]), Key: located(find, t[key]), Origin: origin}
		if c.Cert != "" && c.Key != "" {
			add(c)
		}
	}
	named("ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY", ctlOrigin+envOrigin)
	if located(find, t["cert-file"]) != "" {
		for _, c := range beside(t["cert-file"], find) {
			add(c)
		}
	}
	named("trusted-ca-file", "cert-file", "key-file", "the server's own certificate")
	named("peer-trusted-ca-file", "peer-cert-file", "peer-key-file", "the server's peer certificate")
	return all
}

const (
	// ctlOrigin begins the origin of a pair that the host names for etcdctl.
	ctlOrigin = "ETCDCTL_CERT in "
	// besideOrigin begins the origin of a pair that was found where distributions keep one for clients. Of which distribution
	// it is cannot be told from the name: several have the same.
	besideOrigin = "client certificate "
)

// prefer puts c before all others but the operator's, and takes a later mention of the same files away.
func (h *Host) prefer(all []protect.Credential, c protect.Credential) []protect.Credential {
	first := 0
	if h.opts.EtcdCredential != nil {
		first = 1
	}
	same := func(o protect.Credential) bool { return sameFiles(o, c) }
	if slices.ContainsFunc(all[:first], same) {
		return all
	}
	return slices.Concat(all[:first], []protect.Credential{c}, slices.DeleteFunc(slices.Clone(all[first:]), same))
}

func sameFiles(a, b protect.Credential) bool {
	return a.CA == b.CA && a.Cert == b.Cert && a.Key == b.Key
}

// located is empty if nothing is named, or the file is certainly not there.
func located(find func(string) (string, error), named string) string {
	if named == "" {
		return ""
	}
	at, err := find(named)
	if err != nil {
		return ""
	}
	if _, err := os.Stat(at); absent(err) {
		return ""
	}
	return at
}

// beside returns the clients' pairs of the layouts that lie beside the server's certificate, by the names that the server
// has for them: a link among them leads to where it leads the server. kubespray makes one admin certificate for each
// member and may leave those of others there: the one that shares the member's name is first.
func beside(server string, find func(string) (string, error)) []protect.Credential {
	var all []protect.Credential
	dir, member := filepath.Dir(server), afterDash(server)
	for _, l := range layouts() {
		for _, client := range l.clients {
			certs := matching(dir, client.cert, find)
			slices.SortStableFunc(certs, func(a, b string) int {
				return -cmp.Compare(b2i(afterDash(a) == member), b2i(afterDash(b) == member))
			})
			for _, named := range certs {
				cert, key := located(find, named), located(find, keyOf(named))
				ca := located(find, filepath.Join(dir, client.ca))
				if cert == "" || key == "" || ca == "" {
					continue
				}
				all = append(all, protect.Credential{CA: ca, Cert: cert, Key: key, Origin: besideOrigin + filepath.Base(named)})
			}
		}
	}
	return all
}

// mostNames is how many names of a directory are looked through: one of certificates has a few dozen.
const mostNames = 4096

// matching returns the names below dir that fit the pattern, of which only the last part may be one.
func matching(dir, pattern string, find func(string) (string, error)) []string {
	wanted := filepath.Join(dir, pattern)
	if !strings.Contains(pattern, "*") {
		return []string{wanted}
	}
	at, err := find(filepath.Dir(wanted))
	if err != nil {
		return nil
	}
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()      // nothing was written
	names, _ := f.Readdirnames(mostNames) // what was read before an error counts
	var found []string
	for _, name := range names {
		if fits, err := filepath.Match(filepath.Base(pattern), name); fits && err == nil {
			found = append(found, filepath.Join(filepath.Dir(wanted), name))
		}
	}
	slices.Sort(found)
	return found
}

// afterDash is the part of a file's name that kubespray takes from the inventory: member-<host>.pem, admin-<host>.pem.
func afterDash(file string) string {
	_, host, _ := strings.Cut(filepath.Base(file), "-")
	return host
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// keyOf is empty for a file that is a key itself.
func keyOf(cert string) string {
	if name, ok := strings.CutSuffix(cert, ".pem"); ok && !strings.HasSuffix(name, "-key") {
		return name + "-key.pem"
	}
	if name, ok := strings.CutSuffix(cert, ".crt"); ok {
		return name + ".key"
	}
	return ""
}
