package etcddetect_test

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/node/etcddetect"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const certDir = "/etc/ssl/etcd/ssl/"

func TestCredentials(t *testing.T) {
	kubespray := hosttest.Files{}
	for _, name := range []string{"ca", "member-n1", "admin-a0", "admin-n1", "peer"} {
		kubespray[certDir+name+".pem"], kubespray[certDir+name+"-key.pem"] = "x", "x"
	}
	server := map[string]string{
		"ETCD_DATA_DIR": "/var/lib/etcd", "ETCD_TRUSTED_CA_FILE": certDir + "ca.pem",
		"ETCD_CERT_FILE": certDir + "member-n1.pem", "ETCD_KEY_FILE": certDir + "member-n1-key.pem",
		"ETCD_PEER_TRUSTED_CA_FILE": certDir + "ca.pem",
		"ETCD_PEER_CERT_FILE":       certDir + "peer.pem", "ETCD_PEER_KEY_FILE": certDir + "peer-key.pem",
	}
	withCtl := maps.Clone(server)
	maps.Copy(withCtl, map[string]string{
		"ETCDCTL_CACERT": certDir + "ca.pem",
		"ETCDCTL_CERT":   certDir + "admin-a0.pem", "ETCDCTL_KEY": certDir + "admin-a0-key.pem",
	})
	for name, c := range map[string]struct {
		host hosttest.Files
		env  map[string]string
		want []string
	}{
		"for etcdctl": {
			host: kubespray, env: withCtl,
			want: []string{
				"admin-a0.pem ETCDCTL_CERT in the environment of process 812", "admin-n1.pem client certificate admin-n1.pem",
				"member-n1.pem the server's own certificate", "peer.pem the server's peer certificate",
			},
		},
		"absent files": {env: server, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, c.host)
			hosttest.AddProcess(t, root, 812, hosttest.Process{Line: []string{"etcd"}, Env: c.env})
			found := detect(t, root).Found
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

// TestServerAuthorities has servers that name no CA.
func TestServerAuthorities(t *testing.T) {
	const dir = "/etc/etcd/"
	files := hosttest.Files{}
	for _, name := range []string{
		"server.crt", "server.key", "ca.crt", "ca.pem", "peer-ca.crt", "client.pem",
		"client-key.pem",
	} {
		files[dir+name] = name
	}
	files["/var/lib/etcd/fixtures/client/cert.pem"] = "x"
	const own = "--cert-file=/etc/etcd/server.crt --key-file=/etc/etcd/server.key "
	const peer = "--peer-trusted-ca-file=/etc/etcd/peer-ca.crt "
	for name, c := range map[string]struct {
		flags string
		want  []string
	}{
		"no client certificates": {own, []string{"ca.pem client.pem", "ca.crt", "server.crt"}},
		"with a CA of the peers": {own + peer, []string{"ca.pem client.pem", "ca.crt", "peer-ca.crt", "server.crt"}},
		"auto-tls":               {"--auto-tls", []string{"cert.pem"}},
		"no TLS":                 {peer, nil},
		"client certificates of the system's CAs": {
			own + "--client-cert-auth", []string{"ca.pem client.pem", " server.crt"},
		},
		"trusted CA": {own + "--trusted-ca-file=/etc/etcd/ca.crt", []string{"ca.pem client.pem", "ca.crt server.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.New(t, files)
			line := append([]string{"etcd", "--data-dir=/var/lib/etcd"}, strings.Fields(c.flags)...)
			hosttest.AddProcess(t, root, 812, hosttest.Process{Line: line})
			found := detect(t, root).Found
			require.Len(t, found, 1)
			var got []string
			for _, credential := range found[0].Credentials {
				text := strings.TrimPrefix(filepath.Base(credential.CA), ".")
				if credential.Cert != "" {
					text += " " + filepath.Base(credential.Cert)
				}
				got = append(got, text)
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestOperatorCredentialIsFirst(t *testing.T) {
	const cert, key = "/etc/operator/mine.pem", "/etc/operator/mine-key.pem"
	etcd := etcd.New(t, etcd.Options{TLS: true, BootID: func(int) string { return hosttest.BootID }})
	member := etcd.Member(1)
	hosttest.Add(t, member.Root, hosttest.Files{cert: "x", key: "x"})
	named := evidence.Credential{CA: certDir + "ca.pem", Cert: cert, Key: key, Origin: "--etcd-cert"}
	found := etcddetect.New(hostfs.Root(member.Root), &named).Detect().Found
	require.Len(t, found, 1)
	require.Equal(t, evidence.Credential{
		CA: member.Files.CA, Origin: "--etcd-cert",
		Cert: filepath.Join(member.Root, cert), Key: filepath.Join(member.Root, key),
	}, found[0].Credentials[0])
	require.Equal(t, "client certificate admin-etcd-1.pem", found[0].Credentials[1].Origin)
}

// Links next to a certificate are resolved in the root directory of the server.
func TestCredentialLinksInContainer(t *testing.T) {
	const inside = "/containers/c1" + certDir
	root := hosttest.New(t, hosttest.Files{
		"/containers/c1/secret/ca.pem": "x", "/containers/c1/secret/cert.pem": "x", "/containers/c1/secret/key.pem": "x",
		inside + "member-n1.pem": "x", inside + "ca.pem": "-> /secret/ca.pem",
		inside + "admin-n1.pem": "-> /secret/cert.pem", inside + "admin-n1-key.pem": "-> /secret/key.pem",
		"/secret/ca.pem": "other", "/secret/cert.pem": "other", "/secret/key.pem": "other",
	})
	hosttest.AddProcess(t, root, 812, hosttest.Process{
		Line: []string{"etcd"}, Root: "/containers/c1", Cgroup: "/docker/" + hosttest.ContainerID,
		Env: map[string]string{"ETCD_DATA_DIR": "/data", "ETCD_CERT_FILE": certDir + "member-n1.pem"},
	})
	found := detect(t, root).Found
	require.Len(t, found, 1)
	secret := filepath.Join(root, "proc/812/root/secret")
	require.Equal(t, []evidence.Credential{{
		CA: filepath.Join(secret, "ca.pem"), Cert: filepath.Join(secret, "cert.pem"), Key: filepath.Join(secret, "key.pem"),
		Origin: "client certificate admin-n1.pem",
	}}, found[0].Credentials)
}
