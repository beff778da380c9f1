package etcddetect

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// credentials returns the client certificates that the server may accept, the most likely
// first. The order is: the operator's, those that the host names for etcdctl, the
// distribution's client certificates next to the server's own, and the server's own pairs.
// etcd accepts the last ones only if they were made for clients too. For a server that wants no
// client certificate, they are replaced by the CAs of its files. Pairs that do not exist are left
// out.
func (d *Detector) credentials(settings etcdSettings, envOrigin string, find pathFinder) []evidence.Credential {
	var all []evidence.Credential
	add := func(c evidence.Credential) {
		isSame := func(o evidence.Credential) bool { return o.CA == c.CA && o.Cert == c.Cert && o.Key == c.Key }
		if !slices.ContainsFunc(all, isSame) {
			all = append(all, c)
		}
	}
	if c := d.credential; c != nil {
		own := *c
		for _, file := range []*string{&own.CA, &own.Cert, &own.Key} {
			if agentPath, err := d.root.Resolve(*file); *file != "" && err == nil {
				*file = agentPath
			}
		}
		add(own)
	}
	addNamed := func(ca, cert, key, origin string) {
		c := evidence.Credential{Origin: origin}
		c.CA, c.Cert = d.existingPath(find, settings[ca]), d.existingPath(find, settings[cert])
		c.Key = d.existingPath(find, settings[key])
		if c.Cert != "" && c.Key != "" {
			add(c)
		}
	}
	addNamed("ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY", "ETCDCTL_CERT in "+envOrigin)
	if d.existingPath(find, settings["cert-file"]) != "" {
		for _, c := range d.clientCredentials(settings["cert-file"], find) {
			add(c)
		}
	}
	if settings["trusted-ca-file"] == "" && !isTrue(settings["client-cert-auth"]) {
		return append(all, d.serverAuthorities(settings, find, all)...)
	}
	addNamed("trusted-ca-file", "cert-file", "key-file", "the server's own certificate")
	addNamed("peer-trusted-ca-file", "peer-cert-file", "peer-key-file", "the server's peer certificate")
	return all
}

// serverAuthorities returns the CAs by which clients may verify a server that wants no client
// certificate and names no CA (etcd client/pkg/transport, ServerConfig). They are those next to its
// certificate, that of its peers, and the certificate itself, which proves itself. known are the
// credentials whose CA need not be tried again.
func (d *Detector) serverAuthorities(
	settings etcdSettings, find pathFinder, known []evidence.Credential,
) []evidence.Credential {
	cert := settings["cert-file"]
	isServed := d.existingPath(find, settings["key-file"]) != ""
	if dir := settings["data-dir"]; cert == "" && isTrue(settings["auto-tls"]) && dir != "" {
		cert, isServed = filepath.Join(dir, "fixtures/client/cert.pem"), true // etcd embed, SelfCert
	}
	if !isServed || d.existingPath(find, cert) == "" {
		return nil
	}
	var all []evidence.Credential
	beside := func(name string) string { return filepath.Join(filepath.Dir(cert), name) }
	for _, serverPath := range []string{beside("ca.crt"), beside("ca.pem"), settings["peer-trusted-ca-file"], cert} {
		ca := d.existingPath(find, serverPath)
		isKnown := func(c evidence.Credential) bool { return c.CA == ca }
		if ca != "" && !slices.ContainsFunc(slices.Concat(known, all), isKnown) {
			origin := "CA " + filepath.Base(serverPath) + ", no client certificate"
			all = append(all, evidence.Credential{CA: ca, Origin: origin})
		}
	}
	return all
}

func isTrue(setting string) bool {
	isSet, err := strconv.ParseBool(setting)
	isYAML := slices.Contains([]string{"yes", "on"}, strings.ToLower(setting))
	return err == nil && isSet || isYAML
}

// existingPath returns the agent's path for a path of the server, or "" if the file does not
// exist.
func (d *Detector) existingPath(find pathFinder, serverPath string) string {
	if serverPath == "" {
		return ""
	}
	agentPath, err := find(serverPath)
	if err != nil {
		return ""
	}
	root, name := d.root.Split(agentPath)
	if _, err := root.Stat(name); hostfs.IsAbsent(err) {
		return ""
	}
	return agentPath
}

// clientCredentials returns the layouts' client certificates next to the server's
// certificate, by the server's paths: a link leads where it leads the server.
func (d *Detector) clientCredentials(server string, find pathFinder) []evidence.Credential {
	var all []evidence.Credential
	dir := filepath.Dir(server)
	// kubespray: member-<host>.pem, admin-<host>.pem
	_, member, _ := strings.Cut(filepath.Base(server), "-")
	for _, l := range distroLayouts() {
		for _, client := range l.clients {
			serverPath := filepath.Join(dir, strings.Replace(client.cert, "*.pem", member, 1))
			cert, key := d.existingPath(find, serverPath), d.existingPath(find, keyFile(serverPath))
			ca := d.existingPath(find, filepath.Join(dir, client.ca))
			if cert != "" && key != "" && ca != "" {
				origin := "client certificate " + filepath.Base(serverPath)
				all = append(all, evidence.Credential{CA: ca, Cert: cert, Key: key, Origin: origin})
			}
		}
	}
	return all
}

// keyFile returns the key for a certificate.
func keyFile(cert string) string {
	if name, ok := strings.CutSuffix(cert, ".pem"); ok {
		return name + "-key.pem"
	}
	return strings.TrimSuffix(cert, ".crt") + ".key"
}
