package etcdprobe_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func TestANewAuthorityCountsWithoutANewStart(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true})
	m, p := etcd.Member(1), prober(t)
	ref := identified(t, p, m).Ref

	next, err := testenv.NewCA("next")
	require.NoError(t, err)
	server, err := next.Issue(testenv.CertOptions{CommonName: "etcd1", Server: true, Client: true, Hosts: []string{m.IP, "127.0.0.1"}})
	require.NoError(t, err)
	client, err := next.Issue(testenv.CertOptions{CommonName: "admin", Client: true})
	require.NoError(t, err)
	require.NoError(t, next.Write(m.Files.CA))
	require.NoError(t, server.Write(m.Files.Cert, m.Files.Key))
	require.NoError(t, client.Write(m.Files.AdminCert, m.Files.AdminKey))

	// The server reads its own pair for each connection and the authority of its clients once. A connection that was kept
	// would still be served; what was put in its place would not, and that is what counts.
	refused := p.Identify(t.Context(), sighting(m)).Problem
	require.Contains(t, refused, "unknown certificate authority")
	require.Contains(t, refused, "; name a client certificate that it takes with --etcd-ca, --etcd-cert and --etcd-key")

	require.NoError(t, m.Kill())
	ctx, cancel := context.WithCancel(t.Context())
	var starting errgroup.Group
	starting.Go(func() error { _ = m.Start(ctx); return nil }) // it waits with the old authority until it is told to end
	require.Eventually(t, func() bool { return p.Identify(t.Context(), sighting(m)).Ref == ref }, 20*time.Second, 50*time.Millisecond)
	cancel()
	require.NoError(t, starting.Wait())
}

func TestFilesThatAreBeingReplaced(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true})
	m, p := etcd.Member(1), prober(t)
	// As kubelet and others swap a directory: by one rename of a link.
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "1"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "2"), 0o700))
	swap := func(to string) {
		require.NoError(t, os.Symlink(to, filepath.Join(dir, "new")))
		require.NoError(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "..data")))
	}
	in := func(which string, name string) string { return filepath.Join(dir, which, name) }
	pair := func(ca *testenv.CA) testenv.Pair {
		made, err := ca.Issue(testenv.CertOptions{CommonName: "client", Client: true})
		require.NoError(t, err)
		return made
	}
	stranger, err := testenv.NewCA("stranger")
	require.NoError(t, err)
	require.NoError(t, pair(stranger).Write(in("1", "tls.crt"), in("1", "tls.key")))
	swap("1")
	s := sighting(m)
	s.Credentials = []protect.Credential{{CA: m.Files.CA, Cert: in("..data", "tls.crt"), Key: in("..data", "tls.key"), Origin: "mounted"}}
	require.Contains(t, p.Identify(t.Context(), s).Problem, "unknown certificate authority")

	fresh := pair(etcd.CA())
	require.NoError(t, os.WriteFile(in("2", "tls.crt"), fresh.Cert, 0o600))
	require.NoError(t, os.WriteFile(in("2", "tls.key"), pair(etcd.CA()).Key, 0o600))
	swap("2")
	require.Contains(t, p.Identify(t.Context(), s).Problem, "(mounted): reading the client certificate", "half of it is new")
	require.NoError(t, os.WriteFile(in("2", "tls.key"), fresh.Key, 0o600))
	require.Empty(t, p.Identify(t.Context(), s).Problem)
}

// A server judges a certificate when a connection is made. That one was made in time must not hide that none can be now.
func TestACertificateThatExpiresIsFoundOutAtOnce(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true})
	m, p := etcd.Member(1), prober(t)
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(p))
	require.NotContains(t, numbers(t, registry), "holdfast_agent_etcd_certificate_expiry_timestamp_seconds")
	w := pairs{t: t, dir: t.TempDir(), trust: m.Files.CA}
	until := time.Now().Add(3 * time.Second).Truncate(time.Second)
	s := sighting(m)
	s.Credentials = []protect.Credential{w.issue("short", etcd.CA(), testenv.CertOptions{CommonName: "short", NotAfter: until})}
	answer := p.Identify(t.Context(), s)
	require.Empty(t, answer.Problem)
	require.InDelta(t, until.Unix(), numbers(t, registry)["holdfast_agent_etcd_certificate_expiry_timestamp_seconds"], 0)
	require.Zero(t, numbers(t, registry)["holdfast_agent_etcd_questions_total expired"])

	require.Eventually(t, func() bool { return !p.Identify(t.Context(), s).Answered() }, 10*time.Second, 100*time.Millisecond)
	said := "the client certificate expired on " + until.UTC().Format(time.RFC3339)
	require.Contains(t, p.Identify(t.Context(), s).Problem, said)
	seen := p.Observe(t.Context(), s, answer)
	require.False(t, seen.Linearizable, "unknown, and neither dead nor alive")
	require.Contains(t, seen.Problem, said)
	now := numbers(t, registry)
	require.InDelta(t, until.Unix(), now["holdfast_agent_etcd_certificate_expiry_timestamp_seconds"], 0, "what has expired stays to be seen")
	require.Positive(t, now["holdfast_agent_etcd_questions_total expired"])
	require.Positive(t, now["holdfast_agent_etcd_questions_total answered"])

	later := time.Now().Add(time.Hour)
	w.issue("short", etcd.CA(), testenv.CertOptions{CommonName: "renewed", NotAfter: later})
	require.InDelta(t, later.Unix(), numbers(t, registry)["holdfast_agent_etcd_certificate_expiry_timestamp_seconds"], 1)
}

func TestAnExpiredServerIsToldInWordsThatStandStill(t *testing.T) {
	t.Parallel()
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{TLS: true})
	m, p := etcd.Member(1), prober(t)
	old, err := etcd.CA().Issue(testenv.CertOptions{
		CommonName: "etcd1", Server: true, Client: true, Hosts: []string{m.IP},
		NotBefore: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
	})
	require.NoError(t, err)
	require.NoError(t, old.Write(m.Files.Cert, m.Files.Key))
	require.Contains(t, p.Identify(t.Context(), sighting(m)).Problem, "x509: the server's certificate expired on 2024-02-29T12:00:00Z")
}

// numbers are the values of all counters and gauges, by name and label.
func numbers(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		require.NotEmpty(t, f.GetHelp())
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			found[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return found
}
