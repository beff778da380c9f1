package etcd

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

// The paths of kubespray's etcd on a host (roles/etcd/templates/etcd.env.j2 and
// etcd-host.service.j2). %s is the name of the etcd: etcd or etcd-events.
const (
	envFile  = "/etc/%s.env"
	unitFile = "/etc/systemd/system/%s.service"
	certDir  = "/etc/ssl/%s/ssl"
	dataDir  = "/var/lib/%s"
)

const unitTemplate = `[Unit]
Description=%[1]s
After=network.target

[Service]
Type=notify
User=root
EnvironmentFile=-/etc/%[1]s.env
ExecStart=/usr/local/bin/etcd
NotifyAccess=all
Restart=always
RestartSec=10s
LimitNOFILE=40000

[Install]
WantedBy=multi-user.target
`

// MemberFiles are the paths of the TLS files on a member's host.
type MemberFiles struct {
	CA string
	// Cert and Key are the member's own pair, for its server and its peers.
	Cert, Key string
	// AdminCert and AdminKey are the pair for clients on this host.
	AdminCert, AdminKey string
}

// KubesprayFiles returns the paths of kubespray for a node and its etcd, which is etcd or
// etcd-events, below root.
func KubesprayFiles(root, name, node string) MemberFiles {
	in := func(file string) string { return filepath.Join(root, fmt.Sprintf(certDir, name), file) }
	return MemberFiles{
		CA: in("ca.pem"), Cert: in("member-" + node + ".pem"), Key: in("member-" + node + "-key.pem"),
		AdminCert: in("admin-" + node + ".pem"), AdminKey: in("admin-" + node + "-key.pem"),
	}
}

// Write issues certificates for a node and its addresses, and writes the files.
func (f MemberFiles) Write(ca *pki.CA, node string, ips ...string) error {
	member, err := ca.Issue(pki.CertOptions{
		CommonName: "etcd-member-" + node, Server: true, Client: true,
		Hosts: append([]string{"localhost", node, "127.0.0.1"}, ips...),
	})
	if err != nil {
		return err
	}
	admin, err := ca.Issue(pki.CertOptions{CommonName: "etcd-admin-" + node, Client: true})
	if err != nil {
		return err
	}
	return errors.Join(ca.Write(f.CA), member.Write(f.Cert, f.Key), admin.Write(f.AdminCert, f.AdminKey))
}

// Unit returns kubespray's systemd unit of an etcd, which is etcd or etcd-events. It has no
// flags; all settings are in the environment file.
func Unit(name string) string { return fmt.Sprintf(unitTemplate, name) }

// layOut writes the files of the member's host: environment file, unit, certificates, data
// directory and boot ID.
func (m *Member) layOut(state string) error {
	if m.etcd.ca != nil {
		if err := m.WriteCertificates(); err != nil {
			return err
		}
	}
	env := strings.Join(EnvLines(m.settings("", state, m.Version())), "\n") + "\n"
	unit := []byte(Unit(m.etcd.name()))
	err := errors.Join(
		os.MkdirAll(m.DataDir(), 0o700),
		pki.WriteFile(filepath.Join(m.Root, m.etcd.path(envFile)), []byte(env), 0o640),
		pki.WriteFile(filepath.Join(m.Root, m.etcd.path(unitFile)), unit, 0o644),
	)
	if m.etcd.opts.BootID != nil {
		bootID := []byte(m.etcd.opts.BootID(m.number) + "\n")
		err = errors.Join(err, pki.WriteFile(filepath.Join(m.Root, hosttest.BootIDFile), bootID, 0o444))
	}
	if err != nil {
		return fmt.Errorf("laying out the host of %s: %w", m.Name, err)
	}
	return nil
}

// WriteCertificates issues new certificates for the member and the clients on its host, and writes
// them. The cluster must have TLS.
func (m *Member) WriteCertificates() error {
	source, err := sourceOf(m.IP)
	if err == nil {
		err = m.Files.Write(m.etcd.ca, m.Node, m.IP, source)
	}
	if err != nil {
		return fmt.Errorf("writing certificates of %s: %w", m.Name, err)
	}
	return nil
}

// sourceOf returns the source address of connections to a member. All members have the same,
// because they share an interface, and etcd compares the certificate of a peer with it.
func sourceOf(ip string) (string, error) {
	connection, err := net.Dial("udp", net.JoinHostPort(ip, "1")) // sends nothing
	if err != nil {
		return "", err
	}
	source, _, err := net.SplitHostPort(connection.LocalAddr().String())
	return source, errors.Join(err, connection.Close())
}

// environment returns the variables of the process: the settings, with paths below the host's
// root.
func (m *Member) environment(version Version) []string {
	state := "existing"
	if m.isInitialMember() {
		state = "new"
	}
	settings := m.settings(m.Root, state, version)
	for name := range settings {
		if strings.HasPrefix(name, "ETCDCTL_") {
			delete(settings, name)
		}
	}
	return EnvLines(settings)
}

// isInitialMember reports whether the cluster started with this member.
func (m *Member) isInitialMember() bool { return m.number <= m.etcd.opts.Members }

// settings returns the variables of etcd.env, with paths below root.
func (m *Member) settings(root, state string, version Version) map[string]string {
	s := map[string]string{
		"ETCD_NAME":                        m.Name,
		"ETCD_DATA_DIR":                    filepath.Join("/", root, m.etcd.path(dataDir)),
		"ETCD_ADVERTISE_CLIENT_URLS":       strings.Join(m.advertise, ","),
		"ETCD_INITIAL_ADVERTISE_PEER_URLS": m.PeerURL,
		"ETCD_LISTEN_CLIENT_URLS":          strings.Join(m.listen, ","),
		"ETCD_LISTEN_PEER_URLS":            m.PeerURL,
		"ETCD_INITIAL_CLUSTER":             m.etcd.initialCluster(),
		"ETCD_INITIAL_CLUSTER_TOKEN":       clusterToken + m.etcd.opts.suffix(),
		"ETCD_INITIAL_CLUSTER_STATE":       state,
		"ETCD_METRICS":                     "basic",
		"ETCD_LOG_LEVEL":                   "warn",
		"ETCD_UNSAFE_NO_FSYNC":             "true", // the data need not survive a power failure
		"ETCD_HEARTBEAT_INTERVAL":          "50",
		"ETCD_ELECTION_TIMEOUT":            "500",
		"ETCD_STRICT_RECONFIG_CHECK":       strconv.FormatBool(m.etcd.opts.Strict),
		"ETCDCTL_ENDPOINTS":                m.ClientURL,
	}
	if m.etcd.opts.TLS {
		files := KubesprayFiles(filepath.Join("/", root), m.etcd.name(), m.Node)
		maps.Copy(s, map[string]string{
			"ETCD_TRUSTED_CA_FILE": files.CA, "ETCD_CERT_FILE": files.Cert, "ETCD_KEY_FILE": files.Key,
			"ETCD_CLIENT_CERT_AUTH":     "true",
			"ETCD_PEER_TRUSTED_CA_FILE": files.CA, "ETCD_PEER_CERT_FILE": files.Cert, "ETCD_PEER_KEY_FILE": files.Key,
			"ETCD_PEER_CLIENT_CERT_AUTH": "true",
			"ETCDCTL_CACERT":             files.CA, "ETCDCTL_CERT": files.AdminCert, "ETCDCTL_KEY": files.AdminKey,
		})
	}
	maps.Copy(s, m.etcd.opts.Settings)
	version.Adjust(s)
	return s
}

func (o Options) suffix() string {
	if o.Events {
		return "-events"
	}
	return ""
}

// name returns the name of the etcd on its hosts.
func (c *Cluster) name() string { return "etcd" + c.opts.suffix() }

// path inserts the name into one of the paths above.
func (c *Cluster) path(format string) string { return fmt.Sprintf(format, c.name()) }

// ports returns the ports for clients and for peers.
func (o Options) ports() (client, peer int) {
	if o.Events {
		return eventsClientPort, eventsPeerPort
	}
	return clientPort, peerPort
}

// initialCluster returns the value of ETCD_INITIAL_CLUSTER.
func (c *Cluster) initialCluster() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(EnvLines(c.initialMembers), ",")
}

// EnvLines returns NAME=value for each variable, sorted.
func EnvLines(settings map[string]string) []string {
	out := make([]string, 0, len(settings))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		out = append(out, name+"="+settings[name])
	}
	return out
}

// showProcess adds the process to the host's /proc while it runs.
func (m *Member) showProcess(pid int) error {
	link := m.procLink(pid)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	return os.Symlink(filepath.Join("/proc", strconv.Itoa(pid)), link)
}

func (m *Member) hideProcess(pid int) {
	_ = os.Remove(m.procLink(pid)) // a dangling link is harmless: readers of /proc must handle it
}

func (m *Member) procLink(pid int) string { return filepath.Join(m.Root, "proc", strconv.Itoa(pid)) }
