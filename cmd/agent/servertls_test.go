package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/fakehost"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestServerWithoutClientCertificates has real servers with TLS that want no client certificate and
// name no CA, as in bitnami/charts#8729 and etcd-io/etcd#9785.
func TestServerWithoutClientCertificates(t *testing.T) {
	t.Parallel()
	const dir = "/etc/etcd/pki/"
	certFlags := " --cert-file=" + dir + "server.crt --key-file=" + dir + "server.key"
	ca, err := pki.NewCA("etcd-ca")
	require.NoError(t, err)
	network, err := loopback.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	ip := network.IP(1)
	pair, err := ca.Issue(pki.CertOptions{CommonName: "etcd", Server: true, Hosts: []string{ip}})
	require.NoError(t, err)
	own := selfSigned(t, ip)
	for _, c := range []struct {
		name, flags string
		files       map[string]string
		// ca is the CA of the operator, below dir.
		ca string
		// problem is part of what is missing, "" if the server is identified.
		problem string
	}{
		{name: "CA beside", flags: certFlags, files: map[string]string{
			"server.crt": string(pair.Cert), "server.key": string(pair.Key), "ca.crt": string(ca.PEM()),
		}},
		{
			name: "CA of the peers", flags: certFlags + " --peer-trusted-ca-file=" + dir + "peer/root.pem",
			files: map[string]string{
				"server.crt": string(pair.Cert), "server.key": string(pair.Key), "peer/root.pem": string(ca.PEM()),
				"ca.pem": string(own.Cert),
			},
		},
		{name: "self-signed", flags: certFlags, files: map[string]string{
			"server.crt": string(own.Cert), "server.key": string(own.Key),
		}},
		{name: "no CA on the host", flags: certFlags, files: map[string]string{
			"server.crt": string(pair.Cert), "server.key": string(pair.Key),
		}},
		{name: "auto-tls", flags: " --auto-tls"},
		{
			name: "another certificate in the configuration", flags: certFlags,
			problem: "; set --etcd-ca to the CA of the server's certificate",
			files: map[string]string{
				"server.crt": string(pair.Cert), "server.key": string(pair.Key), "later.crt": string(own.Cert),
			},
		},
		{name: "the same, with the operator's CA", flags: certFlags, ca: dir + "operator.pem", files: map[string]string{
			"server.crt": string(pair.Cert), "server.key": string(pair.Key), "later.crt": string(own.Cert),
			"operator.pem": string(ca.PEM()),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := fakehost.Layout{Files: map[string]string{"/etc/hostname": "n1\n"}}
			for name, content := range c.files {
				l.Files[dir+name] = content
			}
			url, peer := "https://"+ip+":2379", "http://"+ip+":2380"
			l.Processes = []fakehost.Process{{
				PID: 812, Exe: "/usr/bin/etcd", Serves: true, Cgroup: "/system.slice/etcd.service",
				Args: "/usr/bin/etcd --name=n1 --data-dir=/var/lib/etcd --listen-client-urls=" + url +
					" --advertise-client-urls=" + url +
					" --listen-peer-urls=" + peer + " --initial-advertise-peer-urls=" + peer + " --initial-cluster=n1=" + peer +
					c.flags,
			}}
			root, parts := t.TempDir(), fakehost.Parts{CA: ca, Addresses: strings.NewReplacer()}
			l.LayOut(t, root, parts)
			l.ShowProcesses(t, root, parts.Addresses)
			binary, err := process.Binary("etcd")
			require.NoError(t, err)
			_, id := startServer(t, binary, root, l.Processes[0], parts)
			if later := c.files["later.crt"]; later != "" {
				// The configuration names another certificate than the server has.
				line := strings.ReplaceAll(l.Processes[0].Args, "server.crt", "later.crt")
				line = strings.ReplaceAll(line, " ", "\x00") + "\x00"
				require.NoError(t, pki.WriteFile(filepath.Join(root, "proc/812/cmdline"), []byte(line), 0o444))
			}
			var flags []string
			if c.ca != "" {
				flags = append(flags, "--etcd-ca="+c.ca)
			}
			var answer evidence.Identity
			require.Eventually(t, func() bool { // On a busy machine, a server may answer too late.
				found := inspectHost(t, root, flags...).Etcd.Found
				if len(found) == 1 {
					answer = found[0].Answer
				}
				return len(found) == 1 && !strings.Contains(answer.Problem, "no response within")
			}, 30*time.Second, 20*time.Millisecond)
			if c.problem == "" {
				require.Empty(t, answer.Problem)
				require.Equal(t, id, string(answer.Ref.Member))
				return
			}
			require.Contains(t, answer.Problem, c.problem)
			require.NotContains(t, answer.Problem, "--etcd-cert")
			require.NotContains(t, answer.Problem, "server's own certificate")
		})
	}
}

// selfSigned returns a certificate for a server that is no CA and that its own key signs.
func selfSigned(t *testing.T, ip string) pki.Pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(ip)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return pki.Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}
