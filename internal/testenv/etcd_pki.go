package testenv

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
)

// etcdPKI holds the one authority of a cluster's clients, servers and peers, as kubespray has it.
type etcdPKI struct {
	ca    *CA
	admin Pair
}

func newEtcdPKI(dir string) (*etcdPKI, error) {
	ca, err := NewCA("etcd-ca")
	if err != nil {
		return nil, err
	}
	admin, err := ca.Issue(CertOptions{CommonName: "etcd-admin", Client: true})
	if err != nil {
		return nil, err
	}
	if err := ca.Write(filepath.Join(dir, "ca.pem")); err != nil {
		return nil, fmt.Errorf("writing the etcd CA: %w", err)
	}
	return &etcdPKI{ca: ca, admin: admin}, nil
}

// issue writes the files of one member's host. The names of the server are its address, and loopback's because etcd holds
// the certificate of a peer against the address that the connection comes from, which is 127.0.0.1 on any 127.a.b.c.
func (p *etcdPKI) issue(m *Member) error {
	member, err := p.ca.Issue(CertOptions{
		CommonName: "etcd-member-" + m.Node, Server: true, Client: true,
		Hosts: []string{"localhost", m.Node, "127.0.0.1", m.IP},
	})
	if err != nil {
		return err
	}
	admin, err := p.ca.Issue(CertOptions{CommonName: "etcd-admin-" + m.Node, Client: true})
	if err != nil {
		return err
	}
	if err := p.ca.Write(m.Files.CA); err != nil {
		return fmt.Errorf("writing certificates of %s: %w", m.Name, err)
	}
	if err := member.Write(m.Files.Cert, m.Files.Key); err != nil {
		return fmt.Errorf("writing certificates of %s: %w", m.Name, err)
	}
	if err := admin.Write(m.Files.AdminCert, m.Files.AdminKey); err != nil {
		return fmt.Errorf("writing certificates of %s: %w", m.Name, err)
	}
	return nil
}

// clientTLS returns what the cluster's own administrator connects with.
func (p *etcdPKI) clientTLS() (*tls.Config, error) {
	pair, err := p.admin.TLS()
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: p.ca.Pool(), Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}
