package host

// layout is one way in which etcd lies on hosts. What a process or a unit says of itself always wins; the table tells
// where to look when neither says anything, and which client certificates lie beside the server's. To teach the agent a
// distribution, add a row.
type layout struct {
	name string
	// units are the units that run it.
	units []string
	// dataDirs are data directories: one that holds a member is a member, running or not.
	dataDirs []string
	// envFiles hold its settings. They are read by way of the unit that names them, and here only watched.
	envFiles []string
	// config is the configuration file of the server on dataDirs, for a unit that does not name it.
	config string
	// manifests are static pods.
	manifests []string
	// program is what etcd belongs to, where that has a data directory of its own.
	program program
	// clients are client certificates beside the server's certificate, the likeliest first.
	clients []pair
}

// pair is a client certificate by its place relative to the server's certificate. The key's name follows from the
// certificate's: x.crt and x.key, x.pem and x-key.pem.
type pair struct {
	ca, cert string
}

// layouts is the table (sources: docs of each distribution; kubespray roles/etcd, kubeadm constants.go, k3s
// pkg/etcd/etcd.go, k0s pkg/constant).
func layouts() []layout {
	return []layout{
		{
			name:     "kubespray",
			units:    []string{"etcd.service"},
			dataDirs: []string{"/var/lib/etcd"},
			envFiles: []string{"/etc/etcd.env"},
			clients:  []pair{{"ca.pem", "admin-*.pem"}},
		},
		{
			name:     "kubespray events",
			units:    []string{"etcd-events.service"},
			dataDirs: []string{"/var/lib/etcd-events"},
			envFiles: []string{"/etc/etcd-events.env"},
		},
		{
			name:      "kubeadm",
			manifests: []string{"/etc/kubernetes/manifests/etcd.yaml"},
			dataDirs:  []string{"/var/lib/etcd"},
			clients:   []pair{{"ca.crt", "healthcheck-client.crt"}, {"ca.crt", "../apiserver-etcd-client.crt"}},
		},
		{
			name:    "k3s",
			units:   []string{"k3s.service"},
			program: rancher("k3s", ""),
			clients: []pair{{"server-ca.crt", "client.crt"}},
		},
		{
			name:    "RKE2",
			units:   []string{"rke2-server.service"},
			program: rancher("rke2", "agent/pod-manifests/etcd.yaml"),
		},
		{
			name:    "k0s",
			units:   []string{"k0scontroller.service"},
			program: program{name: "k0s", role: "controller", dataDir: "/var/lib/k0s", etcdDir: "etcd"},
			clients: []pair{{"ca.crt", "../apiserver-etcd-client.crt"}},
		},
		{
			name:     "package",
			units:    []string{"etcd.service", "etcd2.service", "etcd-member.service"},
			dataDirs: []string{"/var/lib/etcd/default", "/var/lib/etcd/default.etcd", "/var/lib/etcd2"},
			envFiles: []string{"/etc/default/etcd", "/etc/etcd/etcd.conf", "/etc/etcd/etcd.env"},
			clients:  []pair{{"ca.pem", "client.pem"}},
		},
		{
			name:    "etcdadm",
			units:   []string{"etcd.service"},
			clients: []pair{{"ca.crt", "etcdctl-etcd-client.crt"}},
		},
		{
			name:     "snap",
			units:    []string{"snap.etcd.etcd.service"},
			dataDirs: []string{"/var/snap/etcd/current", "/var/snap/etcd/common"},
			config:   "/var/snap/etcd/common/etcd.conf.yml",
			clients:  []pair{{"ca.crt", "client.crt"}},
		},
		{
			// By default microk8s has dqlite, which is no etcd and whose directory is no member's.
			name:     "microk8s",
			units:    []string{"snap.microk8s.daemon-etcd.service"},
			dataDirs: []string{"/var/snap/microk8s/common/var/run/etcd"},
		},
		{
			name:    "Talos",
			clients: []pair{{"ca.crt", "admin.crt"}},
		},
	}
}

// serverUnits are the patterns of units that are looked at in search of an etcd server: any with etcd in its name, and
// those of programs with etcd inside.
func serverUnits() []string {
	patterns := []string{"*etcd*.service"}
	for _, l := range layouts() {
		patterns = append(patterns, l.units...)
		if l.program.name != "" { // k3s-<name>.service, if the installer was given one
			patterns = append(patterns, l.program.name+"*.service")
		}
	}
	return patterns
}
