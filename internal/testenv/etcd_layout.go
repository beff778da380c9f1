package testenv

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The paths that kubespray gives etcd on a host, roles/etcd/templates/etcd.env.j2 and etcd-host.service.j2, with the name of
// the etcd in the place of %s: etcd or etcd-events.
const (
	envFile  = "/etc/%s.env"
	unitFile = "/etc/systemd/system/%s.service"
	certDir  = "/etc/ssl/%s/ssl"
	dataDir  = "/var/lib/%s"
	bootFile = "/proc/sys/kernel/random/boot_id"
)

// unit is the systemd unit: no flags, everything stands in the environment file.
const unit = `[Unit]
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

// MemberFiles are the TLS files on a member's host.
type MemberFiles struct {
	CA string
	// Cert and Key are the member's own pair, as server and as peer.
	Cert, Key string
	// AdminCert and AdminKey are the pair of clients on this host.
	AdminCert, AdminKey string
}

// kubesprayFiles returns the files as the host itself names them.
func (m *Member) kubesprayFiles() MemberFiles {
	node, dir := m.Node, m.etcd.path(certDir)
	in := func(name string) string { return filepath.Join(dir, name) }
	return MemberFiles{
		CA: in("ca.pem"), Cert: in("member-" + node + ".pem"), Key: in("member-" + node + "-key.pem"),
		AdminCert: in("admin-" + node + ".pem"), AdminKey: in("admin-" + node + "-key.pem"),
	}
}

func (f MemberFiles) under(root string) MemberFiles {
	return MemberFiles{
		CA: filepath.Join(root, f.CA), Cert: filepath.Join(root, f.Cert), Key: filepath.Join(root, f.Key),
		AdminCert: filepath.Join(root, f.AdminCert), AdminKey: filepath.Join(root, f.AdminKey),
	}
}

// layOut writes the member's host: environment file, unit, certificates, data directory and boot ID.
func (m *Member) layOut(state string) error {
	hostView := m.settings("", state)
	if m.etcd.pki != nil {
		if err := m.etcd.pki.issue(m); err != nil {
			return err
		}
	}
	env := strings.Join(lines(hostView), "\n") + "\n"
	err := errors.Join(
		os.MkdirAll(m.DataDir(), 0o700),
		writeFile(filepath.Join(m.Root, m.etcd.path(envFile)), []byte(env), 0o640),
		writeFile(filepath.Join(m.Root, m.etcd.path(unitFile)), fmt.Appendf(nil, unit, m.etcd.name()), 0o644),
	)
	if m.etcd.opts.BootID != nil {
		err = errors.Join(err, writeFile(filepath.Join(m.Root, bootFile), []byte(m.etcd.opts.BootID(m.number)+"\n"), 0o444))
	}
	if err != nil {
		return fmt.Errorf("laying out the host of %s: %w", m.Name, err)
	}
	return nil
}

// environment is what the process gets: the same settings with paths that it can open from here.
func (m *Member) environment() []string {
	state := "existing"
	if m.founder() {
		state = "new"
	}
	settings := m.settings(m.Root, state)
	for name := range settings {
		if strings.HasPrefix(name, "ETCDCTL_") {
			delete(settings, name)
		}
	}
	return lines(settings)
}

// founder says that the member is one of those that the cluster began with.
func (m *Member) founder() bool { return m.number <= m.etcd.opts.Members }

// settings returns the variables of etcd.env, with paths under root.
func (m *Member) settings(root, state string) map[string]string {
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
		"ETCD_UNSAFE_NO_FSYNC":             "true", // a test's disk need not survive a power failure
		"ETCD_HEARTBEAT_INTERVAL":          "50",
		"ETCD_ELECTION_TIMEOUT":            "500",
		"ETCD_STRICT_RECONFIG_CHECK":       strconv.FormatBool(m.etcd.opts.Strict),
		"ETCDCTL_ENDPOINTS":                m.ClientURL,
	}
	if m.etcd.opts.TLS {
		files := m.kubesprayFiles().under(filepath.Join("/", root))
		maps.Copy(s, map[string]string{
			"ETCD_TRUSTED_CA_FILE": files.CA, "ETCD_CERT_FILE": files.Cert, "ETCD_KEY_FILE": files.Key,
			"ETCD_CLIENT_CERT_AUTH":     "true",
			"ETCD_PEER_TRUSTED_CA_FILE": files.CA, "ETCD_PEER_CERT_FILE": files.Cert, "ETCD_PEER_KEY_FILE": files.Key,
			"ETCD_PEER_CLIENT_CERT_AUTH": "true",
			"ETCDCTL_CACERT":             files.CA, "ETCDCTL_CERT": files.AdminCert, "ETCDCTL_KEY": files.AdminKey,
		})
	}
	maps.Copy(s, m.etcd.opts.Settings)
	return s
}

func (o EtcdOptions) suffix() string {
	if o.Events {
		return "-events"
	}
	return ""
}

// name is what the etcd is called on its hosts.
func (e *Etcd) name() string { return "etcd" + e.opts.suffix() }

// path puts the name into one of the paths above.
func (e *Etcd) path(format string) string { return fmt.Sprintf(format, e.name()) }

// ports are those for clients and for peers.
func (o EtcdOptions) ports() (client, peer int) {
	if o.Events {
		return eventsClientPort, eventsPeerPort
	}
	return clientPort, peerPort
}

// initialCluster lists the members as a joining one must name them.
func (e *Etcd) initialCluster() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(lines(e.seen), ",")
}

func lines(settings map[string]string) []string {
	out := make([]string, 0, len(settings))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		out = append(out, name+"="+settings[name])
	}
	return out
}

// showProcess lets the host's /proc show the process while it runs.
func (m *Member) showProcess(pid int) error {
	link := m.procLink(pid)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	return os.Symlink(filepath.Join("/proc", strconv.Itoa(pid)), link)
}

func (m *Member) hideProcess(pid int) {
	_ = os.Remove(m.procLink(pid)) // the link dangles then, which readers of /proc must bear anyway
}

func (m *Member) procLink(pid int) string { return filepath.Join(m.Root, "proc", strconv.Itoa(pid)) }
