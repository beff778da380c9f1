//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// unit is etcd's unit as kubespray writes it: all settings stand in /etc/etcd.env.
const unit = `[Unit]
Description=etcd
After=network.target

[Service]
Type=notify
User=root
EnvironmentFile=/etc/etcd.env
ExecStart=/usr/local/bin/etcd
NotifyAccess=all
Restart=always
RestartSec=10s
LimitNOFILE=40000

[Install]
WantedBy=multi-user.target
`

// certs is where kubespray puts certificates and keys.
const certs = "/etc/ssl/etcd/ssl/"

// etcd is a cluster of systemd units on nodes, outside Kubernetes, in kubespray's layout and with its TLS.
type etcd struct {
	c         *cluster
	authority *testenv.CA
}

func newEtcd(t *testing.T, c *cluster) *etcd {
	t.Helper()
	authority, err := testenv.NewCA("etcd-ca")
	require.NoError(t, err)
	return &etcd{c: c, authority: authority}
}

// equip brings etcd and certificates for it onto a node. Members are numbered as the workers are.
func (e *etcd) equip(t *testing.T, number int) {
	t.Helper()
	node, root := e.c.worker(number), t.TempDir()
	ip, dir := e.address(t, number), filepath.Join(root, certs)
	member, err := e.authority.Issue(testenv.CertOptions{CommonName: "etcd-member-" + node, Server: true, Client: true, Hosts: []string{"localhost", node, "127.0.0.1", ip}})
	require.NoError(t, err)
	admin, err := e.authority.Issue(testenv.CertOptions{CommonName: "etcd-admin-" + node, Client: true})
	require.NoError(t, err)
	require.NoError(t, e.authority.Write(filepath.Join(dir, "ca.pem")))
	require.NoError(t, member.Write(filepath.Join(dir, "member-"+node+".pem"), filepath.Join(dir, "member-"+node+"-key.pem")))
	require.NoError(t, admin.Write(filepath.Join(dir, "admin-"+node+".pem"), filepath.Join(dir, "admin-"+node+"-key.pem")))
	e.c.run(t, "docker", "cp", filepath.Join(root, "etc"), node+":/")
	for _, program := range []string{"etcd", "etcdctl"} {
		e.c.run(t, "docker", "cp", filepath.Join(e.c.tools, program), node+":/usr/local/bin/"+program)
	}
	e.c.on(t, node, "chown -R root:root /etc/ssl/etcd; chmod 0700 "+certs)
}

// layOut writes settings and unit of a member that is one of these, as kubespray does before it starts it. Its data is empty.
func (e *etcd) layOut(t *testing.T, number int, state string, members ...int) {
	t.Helper()
	node, name, root := e.c.worker(number), "etcd"+strconv.Itoa(number), t.TempDir()
	ip := e.address(t, number)
	var initial []string
	for _, m := range members {
		initial = append(initial, fmt.Sprintf("etcd%d=https://%s:2380", m, e.address(t, m)))
	}
	pair := func(use, what string) string { return certs + use + "-" + node + what + ".pem" }
	write(t, filepath.Join(root, "etc/etcd.env"), strings.Join([]string{
		"ETCD_NAME=" + name, "ETCD_DATA_DIR=/var/lib/etcd",
		"ETCD_ADVERTISE_CLIENT_URLS=https://" + ip + ":2379",
		"ETCD_INITIAL_ADVERTISE_PEER_URLS=https://" + ip + ":2380",
		"ETCD_LISTEN_CLIENT_URLS=https://" + ip + ":2379,https://127.0.0.1:2379",
		"ETCD_LISTEN_PEER_URLS=https://" + ip + ":2380",
		"ETCD_INITIAL_CLUSTER=" + strings.Join(initial, ","), "ETCD_INITIAL_CLUSTER_STATE=" + state,
		"ETCD_INITIAL_CLUSTER_TOKEN=k8s_etcd", "ETCD_HEARTBEAT_INTERVAL=100", "ETCD_ELECTION_TIMEOUT=1000",
		"ETCD_UNSAFE_NO_FSYNC=true", "ETCD_STRICT_RECONFIG_CHECK=false", "ETCD_LOG_LEVEL=warn",
		"ETCD_TRUSTED_CA_FILE=" + certs + "ca.pem", "ETCD_CLIENT_CERT_AUTH=true",
		"ETCD_CERT_FILE=" + pair("member", ""), "ETCD_KEY_FILE=" + pair("member", "-key"),
		"ETCD_PEER_TRUSTED_CA_FILE=" + certs + "ca.pem", "ETCD_PEER_CLIENT_CERT_AUTH=true",
		"ETCD_PEER_CERT_FILE=" + pair("member", ""), "ETCD_PEER_KEY_FILE=" + pair("member", "-key"),
		"ETCDCTL_ENDPOINTS=https://127.0.0.1:2379", "ETCDCTL_CACERT=" + certs + "ca.pem",
		"ETCDCTL_CERT=" + pair("admin", ""), "ETCDCTL_KEY=" + pair("admin", "-key"),
	}, "\n")+"\n")
	write(t, filepath.Join(root, "etc/systemd/system/etcd.service"), unit)
	e.c.run(t, "docker", "cp", filepath.Join(root, "etc"), node+":/")
	e.c.on(t, node, "chown root:root /etc/etcd.env; rm -rf /var/lib/etcd; mkdir -m 0700 /var/lib/etcd; systemctl daemon-reload; systemctl enable etcd 2>/dev/null")
}

func (e *etcd) address(t *testing.T, number int) string {
	t.Helper()
	for _, a := range e.c.node(t, e.c.worker(number)).Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	require.FailNow(t, "the node has no address", e.c.worker(number))
	return ""
}

// ctl runs etcdctl on a member's node, as its administrator does.
func (e *etcd) ctl(t *testing.T, number int, command string) string {
	t.Helper()
	out, err := e.tryCtl(t.Context(), number, command)
	require.NoError(t, err)
	return out
}

func (e *etcd) tryCtl(ctx context.Context, number int, command string) (string, error) {
	return e.c.try(ctx, "docker", "exec", e.c.worker(number), "sh", "-ec",
		"set -a; . /etc/etcd.env; unset ETCD_NAME; exec etcdctl --command-timeout=30s "+command)
}

// promote makes a learner a voter as soon as it has caught up.
func (e *etcd) promote(t *testing.T, asked int, id string) {
	t.Helper()
	e.c.eventually(t, "learner "+id+" has caught up", soon, func(ctx context.Context) (bool, string) {
		_, err := e.tryCtl(ctx, asked, "member promote "+id)
		return err == nil, fmt.Sprint(err)
	})
}

// id returns the ID of a member in hex, as the first member's list has it.
func (e *etcd) id(t *testing.T, number int) string {
	t.Helper()
	var list struct {
		Members []struct {
			ID       uint64   `json:"ID"`
			PeerURLs []string `json:"peerURLs"`
		} `json:"members"`
	}
	require.NoError(t, json.Unmarshal([]byte(e.ctl(t, 1, "member list -w json")), &list))
	for _, m := range list.Members {
		if len(m.PeerURLs) == 1 && m.PeerURLs[0] == "https://"+e.address(t, number)+":2380" {
			return strconv.FormatUint(m.ID, 16)
		}
	}
	require.FailNow(t, "no such member", "etcd%d: %+v", number, list)
	return ""
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
