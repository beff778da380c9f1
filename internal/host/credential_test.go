package host_test

import (
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestCredentials(t *testing.T) {
	const dir = "/etc/ssl/etcd/ssl/"
	server := map[string]string{
		"ETCD_DATA_DIR": "/var/lib/etcd", "ETCD_TRUSTED_CA_FILE": dir + "ca.pem", "ETCD_CERT_FILE": dir + "member-n1.pem", "ETCD_KEY_FILE": dir + "member-n1-key.pem",
		"ETCD_PEER_TRUSTED_CA_FILE": dir + "ca.pem", "ETCD_PEER_CERT_FILE": dir + "peer.pem", "ETCD_PEER_KEY_FILE": dir + "peer-key.pem",
	}
	all := files{}
	for _, name := range []string{"ca.pem", "member-n1.pem", "member-n1-key.pem", "admin-a0.pem", "admin-a0-key.pem", "admin-n1.pem", "admin-n1-key.pem", "peer.pem", "peer-key.pem"} {
		all[dir+name] = "x"
	}
	kubeadm := files{}
	for _, name := range []string{"ca.crt", "server.crt", "server.key", "healthcheck-client.crt", "healthcheck-client.key"} {
		kubeadm["/etc/kubernetes/pki/etcd/"+name] = "x"
	}
	for name, c := range map[string]struct {
		host files
		env  map[string]string
		want []string
	}{
		"kubespray": {
			host: all, env: server,
			want: []string{"admin-n1.pem client certificate admin-n1.pem", "admin-a0.pem client certificate admin-a0.pem", "member-n1.pem the server's own certificate", "peer.pem the server's peer certificate"},
		},
		"named for etcdctl": {
			host: all, env: with(server, map[string]string{"ETCDCTL_CACERT": dir + "ca.pem", "ETCDCTL_CERT": dir + "admin-a0.pem", "ETCDCTL_KEY": dir + "admin-a0-key.pem"}),
			want: []string{"admin-a0.pem ETCDCTL_CERT in the environment of process 812", "admin-n1.pem client certificate admin-n1.pem", "member-n1.pem the server's own certificate", "peer.pem the server's peer certificate"},
		},
		"kubeadm": {
			host: kubeadm,
			env: map[string]string{
				"ETCD_DATA_DIR": "/var/lib/etcd", "ETCD_TRUSTED_CA_FILE": "/etc/kubernetes/pki/etcd/ca.crt",
				"ETCD_CERT_FILE": "/etc/kubernetes/pki/etcd/server.crt", "ETCD_KEY_FILE": "/etc/kubernetes/pki/etcd/server.key",
			},
			want: []string{"healthcheck-client.crt client certificate healthcheck-client.crt", "server.crt the server's own certificate"},
		},
		"named and not there": {env: server, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := layOut(t, c.host)
			process(t, root, 812, shown{line: []string{"etcd"}, env: c.env})
			found, _ := at(t, root).Etcd(t.Context())
			require.Len(t, found, 1)
			var got []string
			for _, credential := range found[0].Credentials {
				require.FileExists(t, credential.CA)
				require.FileExists(t, credential.Cert)
				require.FileExists(t, credential.Key)
				got = append(got, filepath.Base(credential.Cert)+" "+credential.Origin)
			}
			require.Equal(t, c.want, got)
		})
	}
}

func with(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func TestTheOperatorsCredentialIsTriedFirst(t *testing.T) {
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true, BootID: func(int) string { return bootID }})
	member := etcd.Member(1)
	add(t, member.Root, files{"/etc/operator/mine.pem": "x", "/etc/operator/mine-key.pem": "x"})
	named := protect.Credential{CA: "/etc/ssl/etcd/ssl/ca.pem", Cert: "/etc/operator/mine.pem", Key: "/etc/operator/mine-key.pem", Origin: "--etcd-cert"}
	h, err := host.New(host.Options{Root: member.Root, EtcdCredential: &named})
	require.NoError(t, err)
	found, _ := h.Etcd(t.Context())
	require.Len(t, found, 1)
	require.Equal(t, protect.Credential{
		CA: member.Files.CA, Cert: filepath.Join(member.Root, "etc/operator/mine.pem"), Key: filepath.Join(member.Root, "etc/operator/mine-key.pem"), Origin: "--etcd-cert",
	}, found[0].Credentials[0])
	require.Equal(t, "ETCDCTL_CERT in /etc/etcd.env", found[0].Credentials[1].Origin)
}

func TestLinksBesideACertificateLeadWhereTheyLeadTheServer(t *testing.T) {
	const dir = "/etc/ssl/etcd/ssl/"
	root := layOut(t, files{
		"/containers/c1/secret/ca.pem": "x", "/containers/c1/secret/cert.pem": "x", "/containers/c1/secret/key.pem": "x",
		"/containers/c1" + dir + "member-n1.pem": "x", "/containers/c1" + dir + "ca.pem": "-> /secret/ca.pem",
		"/containers/c1" + dir + "admin-n1.pem": "-> /secret/cert.pem", "/containers/c1" + dir + "admin-n1-key.pem": "-> /secret/key.pem",
		"/secret/ca.pem": "another's", "/secret/cert.pem": "another's", "/secret/key.pem": "another's",
	})
	process(t, root, 812, shown{
		line: []string{"etcd"}, root: "/containers/c1", cgroup: "/docker/" + containerID,
		env: map[string]string{"ETCD_DATA_DIR": "/data", "ETCD_CERT_FILE": dir + "member-n1.pem"},
	})
	found, _ := at(t, root).Etcd(t.Context())
	require.Len(t, found, 1)
	inside := filepath.Join(root, "proc/812/root/secret")
	require.Equal(t, []protect.Credential{{
		CA: filepath.Join(inside, "ca.pem"), Cert: filepath.Join(inside, "cert.pem"), Key: filepath.Join(inside, "key.pem"), Origin: "client certificate admin-n1.pem",
	}}, found[0].Credentials)
}
