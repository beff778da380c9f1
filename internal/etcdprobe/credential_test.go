package etcdprobe_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// assertCollector is the T of conditions that are tried again.
type assertCollector = assert.CollectT

// pairs writes client pairs of all sorts and returns their credentials by name.
type pairs struct {
	t     *testing.T
	dir   string
	trust string
}

func (w pairs) issue(name string, ca *testenv.CA, opts testenv.CertOptions) protect.Credential {
	w.t.Helper()
	opts.Client = true
	pair, err := ca.Issue(opts)
	require.NoError(w.t, err)
	c := protect.Credential{CA: w.trust, Cert: filepath.Join(w.dir, name+".pem"), Key: filepath.Join(w.dir, name+"-key.pem"), Origin: name}
	require.NoError(w.t, pair.Write(c.Cert, c.Key))
	return c
}

func TestCredentialsThatFailSayWhy(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true})
	m := etcd.Member(1)
	stranger, err := testenv.NewCA("stranger")
	require.NoError(t, err)
	w := pairs{t: t, dir: t.TempDir(), trust: m.Files.CA}
	good := w.issue("good", etcd.CA(), testenv.CertOptions{CommonName: "good"})
	expired := w.issue("expired", etcd.CA(), testenv.CertOptions{
		CommonName: "expired", NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
	})
	early := w.issue("early", etcd.CA(), testenv.CertOptions{CommonName: "early", NotBefore: time.Date(2124, 2, 29, 12, 0, 0, 0, time.UTC), NotAfter: time.Date(2125, 2, 28, 12, 0, 0, 0, time.UTC)})
	foreign := w.issue("foreign", stranger, testenv.CertOptions{CommonName: "foreign"})
	distrustful := good
	distrustful.CA, distrustful.Origin = filepath.Join(w.dir, "stranger.pem"), "distrustful"
	require.NoError(t, stranger.Write(distrustful.CA))
	keyless, swapped, empty := good, good, good
	keyless.Key, keyless.Origin = filepath.Join(w.dir, "absent-key.pem"), "keyless"
	swapped.Key, swapped.Origin = expired.Key, "swapped"
	empty.CA, empty.Origin = filepath.Join(w.dir, "empty.pem"), "empty"
	require.NoError(t, os.WriteFile(empty.CA, nil, 0o600))
	// What a pod may put where its server's certificates are said to be.
	pipe, huge, device := good, good, good
	pipe.CA, pipe.Origin = filepath.Join(w.dir, "pipe"), "pipe"
	require.NoError(t, syscall.Mkfifo(pipe.CA, 0o600))
	huge.Cert, huge.Origin = filepath.Join(w.dir, "huge"), "huge"
	require.NoError(t, os.WriteFile(huge.Cert, nil, 0o600))
	require.NoError(t, os.Truncate(huge.Cert, 400<<20))
	device.Key, device.Origin = "/dev/zero", "device"
	// The usual server pair, which was not made for clients.
	servers, err := etcd.CA().Issue(testenv.CertOptions{CommonName: "server", Server: true})
	require.NoError(t, err)
	serving := protect.Credential{CA: m.Files.CA, Cert: filepath.Join(w.dir, "server.pem"), Key: filepath.Join(w.dir, "server-key.pem"), Origin: "serving"}
	require.NoError(t, servers.Write(serving.Cert, serving.Key))
	anonymous := protect.Credential{CA: m.Files.CA, Origin: "anonymous"}

	for name, c := range map[string]struct {
		credentials []protect.Credential
		want        []string
	}{
		"expired":                 {[]protect.Credential{expired}, []string{"(expired): ", "the client certificate expired on 2024-02-29T12:00:00Z"}},
		"not valid yet":           {[]protect.Credential{early}, []string{"(early): ", "the client certificate is not valid before 2124-02-29T12:00:00Z"}},
		"of another authority":    {[]protect.Credential{foreign}, []string{"(foreign): ", "remote error: tls: unknown certificate authority"}},
		"trusts another server":   {[]protect.Credential{distrustful}, []string{"(distrustful): ", "x509: certificate signed by unknown authority"}},
		"the key is missing":      {[]protect.Credential{keyless}, []string{"(keyless): reading the client key: ", "no such file or directory"}},
		"the key is another's":    {[]protect.Credential{swapped}, []string{"(swapped): reading the client certificate ", "private key does not match public key"}},
		"the authority is empty":  {[]protect.Credential{empty}, []string{"(empty): reading the CA: there is no certificate in "}},
		"the authority is a pipe": {[]protect.Credential{pipe}, []string{"(pipe): reading the CA: ", "not a regular file"}},
		"the certificate is huge": {[]protect.Credential{huge}, []string{"(huge): reading the client certificate: ", "larger than a mebibyte"}},
		"the key is a device":     {[]protect.Credential{device}, []string{"(device): reading the client key: ", "not a regular file"}},
		"no client certificate":   {[]protect.Credential{anonymous}, []string{"(anonymous): ", "remote error: tls: certificate required"}},
		"none at all":             {nil, []string{"(no client certificate): ", "x509: certificate signed by unknown authority"}},
		"all fail":                {[]protect.Credential{foreign, expired}, []string{"(foreign): ", "; ", "(expired): "}},
		"not for clients":         {[]protect.Credential{serving}, []string{"(serving): ", "remote error: tls: "}},
		"not for clients, then":   {[]protect.Credential{serving, keyless, good}, nil},
		"the second is good":      {[]protect.Credential{expired, good}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := sighting(m)
			s.Credentials = c.credentials
			p := prober(t)
			answer := p.Identify(t.Context(), s)
			for _, words := range c.want {
				require.Contains(t, answer.Problem, words)
			}
			require.NotContains(t, answer.Problem, "\n")
			require.Equal(t, len(c.want) == 0, answer.Answered())
			if answer.Answered() {
				seen := p.Observe(t.Context(), s, answer)
				require.Equal(t, map[string]string{"etcd1": "healthy"}, health(seen))
			} else {
				seen := p.Observe(t.Context(), s, protect.Answer{Ref: identified(t, prober(t), m).Ref})
				require.False(t, seen.Linearizable)
				require.Contains(t, seen.Problem, c.want[0])
			}
		})
	}
}

func TestRenewedCertificatesCountAtTheNextLook(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true})
	m, p := etcd.Member(1), prober(t)
	w := pairs{t: t, dir: t.TempDir(), trust: filepath.Join(t.TempDir(), "trust.pem")}
	s := sighting(m)
	stranger, err := testenv.NewCA("stranger")
	require.NoError(t, err)

	require.NoError(t, etcd.CA().Write(w.trust))
	s.Credentials = []protect.Credential{w.issue("renewed", etcd.CA(), testenv.CertOptions{CommonName: "first"})}
	require.Empty(t, p.Identify(t.Context(), s).Problem)

	// A kept connection must not hide that a new one would fail.
	w.issue("renewed", stranger, testenv.CertOptions{CommonName: "second"})
	require.Contains(t, p.Identify(t.Context(), s).Problem, "unknown certificate authority")
	w.issue("renewed", etcd.CA(), testenv.CertOptions{CommonName: "third"})
	require.Empty(t, p.Identify(t.Context(), s).Problem)
	require.NoError(t, stranger.Write(w.trust))
	require.Contains(t, p.Identify(t.Context(), s).Problem, "x509: certificate signed by unknown authority")
	require.NoError(t, etcd.CA().Write(w.trust))
	require.Empty(t, p.Identify(t.Context(), s).Problem)
}

func TestAServerThatDemandsAUserSaysSo(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := etcd.Client(ctx)
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	_, err = client.UserAdd(ctx, "root", "secret")
	require.NoError(t, err)
	_, err = client.RoleAdd(ctx, "root")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	ref := identified(t, prober(t), etcd.Member(1)).Ref
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)

	said := prober(t).Identify(t.Context(), sighting(etcd.Member(1)))
	require.False(t, said.Answered())
	require.False(t, said.Removed)
	require.Contains(t, said.Problem, "user name is empty (authentication is on: the certificate's common name must be a user of this etcd); name a client certificate")
	seen := prober(t).Observe(t.Context(), sighting(etcd.Member(1)), protect.Answer{Ref: ref})
	require.False(t, seen.Linearizable)
	require.Empty(t, seen.Members)
	require.True(t, seen.AlarmsUnknown)
}

func TestRefusalForWantOfPermissionIsAnAnswer(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := etcd.Client(ctx)
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	// With TLS the user is the certificate's common name.
	for _, user := range []string{"root", "etcd-admin-etcd-1"} {
		_, err = client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
		require.NoError(t, err)
	}
	_, err = client.RoleAdd(ctx, "root")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)

	p := prober(t)
	answer := identified(t, p, etcd.Member(1))
	seen := p.Observe(t.Context(), sighting(etcd.Member(1)), answer)
	require.Equal(t, map[string]string{"etcd1": "healthy"}, health(seen))
	require.True(t, seen.Linearizable, seen.Problem)
}
