package etcdprobe

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

func TestCredentials(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{TLS: true})
	m := etcd.Member(1)
	otherCA := newCA(t, "other")
	d := credentialDir{t: t, path: t.TempDir(), ca: m.Files.CA}
	good := d.issue("good", etcd.CA(), pki.CertOptions{CommonName: "good"})
	expired := d.issue("expired", etcd.CA(), pki.CertOptions{
		CommonName: "expired", NotBefore: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter: time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
	})
	future := d.issue("future", etcd.CA(), pki.CertOptions{
		CommonName: "future", NotBefore: time.Date(2124, 2, 29, 12, 0, 0, 0, time.UTC),
		NotAfter: time.Date(2125, 2, 28, 12, 0, 0, 0, time.UTC),
	})
	foreign := d.issue("foreign", otherCA, pki.CertOptions{CommonName: "foreign"})
	// variant returns the good credential with one file replaced.
	variant := func(name string, replace func(c *evidence.Credential, path string)) evidence.Credential {
		c := good
		c.Origin = name
		replace(&c, filepath.Join(d.path, name))
		return c
	}
	wrongCA := variant("wrong-ca", func(c *evidence.Credential, path string) {
		c.CA = path
		require.NoError(t, otherCA.Write(path))
	})
	noKey := variant("no-key", func(c *evidence.Credential, path string) { c.Key = path })
	wrongKey := variant("wrong-key", func(c *evidence.Credential, _ string) { c.Key = expired.Key })
	emptyCA := variant("empty-ca", func(c *evidence.Credential, path string) {
		c.CA = path
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	})
	// A pod may put any kind of file at a path that its configuration names.
	pipe := variant("pipe", func(c *evidence.Credential, path string) {
		c.CA = path
		require.NoError(t, syscall.Mkfifo(path, 0o600))
	})
	huge := variant("huge", func(c *evidence.Credential, path string) {
		c.Cert = path
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, 400<<20))
	})
	device := variant("device", func(c *evidence.Credential, _ string) { c.Key = "/dev/zero" })
	server := variant("server", func(c *evidence.Credential, path string) {
		c.Cert, c.Key = path+".pem", path+"-key.pem"
		// No client usage.
		pair, err := etcd.CA().Issue(pki.CertOptions{CommonName: "server", Server: true})
		require.NoError(t, err)
		require.NoError(t, pair.Write(c.Cert, c.Key))
	})
	noCert := evidence.Credential{CA: m.Files.CA, Origin: "no-cert"}

	type testCase struct {
		credentials []evidence.Credential
		want        string // a regular expression for the problem, empty if a credential is accepted
	}
	cases := map[string]testCase{
		"none":            {nil, `\(no client certificate\): .*x509: certificate signed by unknown authority`},
		"all rejected":    {[]evidence.Credential{foreign, expired}, `\(foreign\): .*; \(expired\): `},
		"third accepted":  {[]evidence.Credential{server, noKey, good}, ""},
		"second accepted": {[]evidence.Credential{expired, good}, ""},
	}
	for c, want := range map[evidence.Credential]string{
		expired:  "the client certificate expired on 2024-02-29T12:00:00Z",
		future:   "the client certificate is not valid before 2124-02-29T12:00:00Z",
		foreign:  "remote error: tls: unknown certificate authority",
		wrongCA:  "x509: certificate signed by unknown authority",
		noKey:    "reading the client key: .*no such file or directory",
		wrongKey: "reading the client certificate .*private key does not match public key",
		emptyCA:  "reading the CA: no certificate in ",
		pipe:     "reading the CA: .*not a regular file",
		huge:     "reading the client certificate: .*larger than a mebibyte",
		device:   "reading the client key: .*not a regular file",
		noCert:   "remote error: tls: certificate required",
		server:   "remote error: tls: ",
	} {
		cases[c.Origin] = testCase{[]evidence.Credential{c}, `\(` + c.Origin + `\): .*` + want}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			found := foundServer(m)
			found.Credentials = c.credentials
			// The error is that of etcd, also on a slow machine.
			p := New(Options{Timeout: 10 * defaultTimeout})
			t.Cleanup(p.Close)
			identity := p.Identify(t.Context(), found)
			require.NotContains(t, identity.Problem, "\n")
			require.Equal(t, c.want == "", identity.HasAnswered())
			if identity.HasAnswered() {
				require.Equal(t, map[string]string{"etcd1": "healthy"}, health(p.Observe(t.Context(), found, identity)))
				return
			}
			require.Regexp(t, c.want, identity.Problem)
			got := p.Observe(t.Context(), found, evidence.Identity{Ref: identify(t, newTestProber(t), m).Ref})
			require.False(t, got.Linearizable)
			require.Regexp(t, c.want, got.Problem)
		})
	}
}

func TestRenewedCertificate(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{TLS: true})
	m, p, otherCA := etcd.Member(1), newTestProber(t), newCA(t, "other")
	d := credentialDir{t: t, path: t.TempDir(), ca: filepath.Join(t.TempDir(), "ca.pem")}
	server := foundServer(m)
	problem := func() string { return p.Identify(t.Context(), server).Problem }

	require.NoError(t, etcd.CA().Write(d.ca))
	server.Credentials = []evidence.Credential{d.issue("renewed", etcd.CA(), pki.CertOptions{CommonName: "first"})}
	require.Empty(t, problem())
	e := endpoint{m.ClientURL, server.Credentials[0]}
	require.Len(t, p.conns.idle[e], 1)
	dialed := p.conns.idle[e][0].dialed
	require.Empty(t, problem())
	require.Equal(t, dialed, p.conns.idle[e][0].dialed, "with unchanged files the connection is reused")

	// A connection from before must not be reused with the old certificate.
	d.issue("renewed", otherCA, pki.CertOptions{CommonName: "second"})
	require.Contains(t, problem(), "unknown certificate authority")
	d.issue("renewed", etcd.CA(), pki.CertOptions{CommonName: "third"})
	require.Empty(t, problem())
	require.NoError(t, otherCA.Write(d.ca))
	require.Contains(t, problem(), "x509: certificate signed by unknown authority")
	require.NoError(t, etcd.CA().Write(d.ca))
	require.Empty(t, problem())
}

func TestRenewedCA(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{TLS: true})
	m, p, next := etcd.Member(1), newTestProber(t), newCA(t, "next")
	ref := identify(t, p, m).Ref

	server, err := next.Issue(pki.CertOptions{
		CommonName: "etcd1", Server: true, Client: true, Hosts: []string{m.IP, "127.0.0.1"},
	})
	require.NoError(t, err)
	client, err := next.Issue(pki.CertOptions{CommonName: "admin", Client: true})
	require.NoError(t, err)
	require.NoError(t, next.Write(m.Files.CA))
	require.NoError(t, server.Write(m.Files.Cert, m.Files.Key))
	require.NoError(t, client.Write(m.Files.AdminCert, m.Files.AdminKey))

	// etcd reads its own certificate for each connection, but the CA of its clients only once.
	// It still serves old connections and rejects new ones.
	problem := p.Identify(t.Context(), foundServer(m)).Problem
	require.Contains(t, problem, "unknown certificate authority")
	require.Contains(t, problem, credentialHint)

	require.NoError(t, m.Kill())
	ctx, cancel := context.WithCancel(t.Context())
	var start errgroup.Group
	start.Go(func() error {
		_ = m.Start(ctx) // Start checks readiness with the old CA, so it runs until ctx ends
		return nil
	})
	require.Eventually(t, func() bool { return p.Identify(t.Context(), foundServer(m)).Ref == ref },
		20*time.Second, 50*time.Millisecond)
	cancel()
	require.NoError(t, start.Wait())
}

// The kubelet and other tools replace a directory of files by renaming a symbolic link.
func TestPartlyReplacedFiles(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{TLS: true})
	m, p, dir := etcd.Member(1), newTestProber(t), t.TempDir()
	file := func(version, name string) string { return filepath.Join(dir, version, name) }
	linkTo := func(version string) {
		require.NoError(t, os.Symlink(version, filepath.Join(dir, "new")))
		require.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "..data")))
	}
	issue := func(ca *pki.CA) pki.Pair {
		pair, err := ca.Issue(pki.CertOptions{CommonName: "client", Client: true})
		require.NoError(t, err)
		return pair
	}
	server := foundServer(m)
	server.Credentials = []evidence.Credential{{
		CA: m.Files.CA, Cert: file("..data", "tls.crt"), Key: file("..data", "tls.key"), Origin: "mounted",
	}}
	problem := func() string { return p.Identify(t.Context(), server).Problem }

	require.NoError(t, os.Mkdir(filepath.Join(dir, "1"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "2"), 0o700))
	require.NoError(t, issue(newCA(t, "other")).Write(file("1", "tls.crt"), file("1", "tls.key")))
	linkTo("1")
	require.Contains(t, problem(), "unknown certificate authority")

	pair := issue(etcd.CA())
	require.NoError(t, os.WriteFile(file("2", "tls.crt"), pair.Cert, 0o600))
	require.NoError(t, os.WriteFile(file("2", "tls.key"), issue(etcd.CA()).Key, 0o600))
	linkTo("2")
	require.Contains(t, problem(), "(mounted): reading the client certificate", "the key does not match yet")
	require.NoError(t, os.WriteFile(file("2", "tls.key"), pair.Key, 0o600))
	require.Empty(t, problem())
}

// etcd verifies a client certificate only in the handshake. A connection from before the expiry
// must not hide that new connections fail.
func TestExpiringCertificate(t *testing.T) {
	t.Parallel()
	const expiryMetric = "holdfast_agent_etcd_certificate_expiry_timestamp_seconds"
	etcd := etcd.New(t, etcd.Options{TLS: true})
	m := etcd.Member(1)
	d := credentialDir{t: t, path: t.TempDir(), ca: m.Files.CA}
	server := foundServer(m)
	var p *Prober
	var registry *prometheus.Registry
	var identity evidence.Identity
	var expiry time.Time
	// On a busy machine, the certificate can expire before the first answer. Then the next one is
	// valid for longer.
	for validity := 3 * time.Second; !identity.HasAnswered() && validity < time.Minute; validity *= 2 {
		p, registry = newTestProber(t), prometheus.NewRegistry()
		require.NoError(t, registry.Register(p))
		require.NotContains(t, metricValues(t, registry), expiryMetric)
		expiry = time.Now().Add(validity).Truncate(time.Second)
		server.Credentials = []evidence.Credential{
			d.issue("short", etcd.CA(), pki.CertOptions{CommonName: "short", NotAfter: expiry}),
		}
		identity = p.Identify(t.Context(), server)
	}
	require.Empty(t, identity.Problem)
	require.InDelta(t, expiry.Unix(), metricValues(t, registry)[expiryMetric], 0)
	require.Zero(t, metricValues(t, registry)["holdfast_agent_etcd_questions_total expired"])

	require.Eventually(t, func() bool {
		return !p.Identify(t.Context(), server).HasAnswered() && time.Now().After(expiry)
	}, time.Until(expiry)+20*time.Second, 100*time.Millisecond)
	want := "the client certificate expired on " + expiry.UTC().Format(time.RFC3339)
	require.Contains(t, p.Identify(t.Context(), server).Problem, want)
	got := p.Observe(t.Context(), server, identity)
	require.False(t, got.Linearizable, "the failure does not prove that the member is unhealthy")
	require.Contains(t, got.Problem, want)
	values := metricValues(t, registry)
	require.InDelta(t, expiry.Unix(), values[expiryMetric], 0, "the metric remains after the expiry")
	require.Positive(t, values["holdfast_agent_etcd_questions_total expired"])
	require.Positive(t, values["holdfast_agent_etcd_questions_total answered"])

	renewed := time.Now().Add(time.Hour)
	d.issue("short", etcd.CA(), pki.CertOptions{CommonName: "renewed", NotAfter: renewed})
	require.InDelta(t, renewed.Unix(), metricValues(t, registry)[expiryMetric], 1)
}

func TestExpiredServerCertificate(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{TLS: true})
	m, p := etcd.Member(1), newTestProber(t)
	expired, err := etcd.CA().Issue(pki.CertOptions{
		CommonName: "etcd1", Server: true, Client: true, Hosts: []string{m.IP},
		NotBefore: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
	})
	require.NoError(t, err)
	require.NoError(t, expired.Write(m.Files.Cert, m.Files.Key))
	problem := p.Identify(t.Context(), foundServer(m)).Problem
	require.Contains(t, problem, "x509: the server's certificate expired on 2024-02-29T12:00:00Z")
	require.NotContains(t, problem, "set --etcd-c", "no client certificate helps")
}

// enableAuth enables etcd's authentication. Only root has a role.
func enableAuth(t *testing.T, etcd *etcd.Cluster, otherUsers ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := etcdClient(t, etcd)
	for _, user := range append([]string{"root"}, otherUsers...) {
		_, err := client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
		require.NoError(t, err)
	}
	_, err := client.RoleAdd(ctx, "root")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
}

func TestAuthWithoutUser(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{})
	ref := identify(t, newTestProber(t), etcd.Member(1)).Ref
	enableAuth(t, etcd)

	const problem = "user name is empty (authentication is enabled: the certificate's common name must be an etcd user)"
	unidentified := newTestProber(t).Identify(t.Context(), foundServer(etcd.Member(1)))
	require.False(t, unidentified.Removed)
	got := newTestProber(t).Observe(t.Context(), foundServer(etcd.Member(1)), evidence.Identity{Ref: ref})
	require.False(t, got.Linearizable)
	require.True(t, got.AlarmsUnknown)
	if servesAnyone(etcd) {
		require.Equal(t, ref, unidentified.Ref)
		require.Contains(t, got.Problem, problem)
		require.False(t, got.Members[0].Healthy)
		return
	}
	require.False(t, unidentified.HasAnswered())
	require.Contains(t, unidentified.Problem, problem+"; set --etcd-ca")
	require.Empty(t, got.Members)
}

// servesAnyone reports whether the servers respond to requests for their status and for their own
// member list without a user. etcd 3.4 does (server/etcdserver/api/v3rpc).
func servesAnyone(c *etcd.Cluster) bool { return c.Version() == etcd.V34 }

func TestAuthWithoutPermission(t *testing.T) {
	t.Parallel()
	etcd := etcd.New(t, etcd.Options{TLS: true})
	enableAuth(t, etcd, "etcd-admin-etcd-1") // the common name of the client certificate

	p := newTestProber(t)
	got := p.Observe(t.Context(), foundServer(etcd.Member(1)), identify(t, p, etcd.Member(1)))
	require.Equal(t, map[string]string{"etcd1": "healthy"}, health(got))
	require.True(t, got.Linearizable, got.Problem)
}
