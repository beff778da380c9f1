package servingcert

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEncodeAndParse(t *testing.T) {
	ca, old := newCAAt(t, epoch()), newCAAt(t, epoch())
	want := secretContent{ca: ca, previous: []*x509.Certificate{old.cert}, serving: issueAt(t, ca, epoch())}
	data, err := want.encode()
	require.NoError(t, err)
	got := parseSecret(data, nil)
	require.Empty(t, got.problems)
	require.True(t, got.ca.cert.Equal(ca.cert))
	require.True(t, got.ca.key.Equal(ca.key))
	require.True(t, got.serving.PrivateKey.(*ecdsa.PrivateKey).Equal(want.serving.PrivateKey))
	require.Equal(t, want.caBundle(), got.caBundle())
	require.True(t, got.ca.hasIssued(got.serving))
}

func TestParseDamagedSecret(t *testing.T) {
	ca, old := newCAAt(t, epoch()), newCAAt(t, epoch())
	whole := secretContent{ca: ca, previous: []*x509.Certificate{old.cert}, serving: issueAt(t, ca, epoch())}
	other, err := secretContent{ca: old}.encode()
	require.NoError(t, err)
	_, ed25519Key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	encodedKey, err := encodeKey(ed25519Key)
	require.NoError(t, err)
	both, onlyOld := []*x509.Certificate{ca.cert, old.cert}, []*x509.Certificate{old.cert}
	halfValid := append([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), encodeCerts(old.cert)...)

	for name, c := range map[string]struct {
		entry       string
		value       []byte
		ca, serving bool
		previous    []*x509.Certificate
		problems    int
	}{
		"invalid CA certificate":      {caCertEntry, []byte("no"), false, true, onlyOld, 1},
		"invalid CA key":              {caKeyEntry, []byte("no"), false, true, both, 1},
		"key of another CA":           {caKeyEntry, other[caKeyEntry], false, true, both, 1},
		"CA key of another type":      {caKeyEntry, encodedKey, false, true, both, 1},
		"missing serving key":         {servingKeyEntry, nil, true, false, onlyOld, 1},
		"invalid serving certificate": {servingCertEntry, []byte{0xff, 0}, true, false, onlyOld, 1},
		"invalid previous CAs":        {previousCAEntry, []byte("no"), true, true, onlyOld, 1},
		"one invalid previous CA":     {previousCAEntry, halfValid, true, true, onlyOld, 0},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := whole.encode()
			require.NoError(t, err)
			data[c.entry] = c.value
			got := parseSecret(data, both)
			require.Equal(t, c.ca, got.ca != nil)
			require.Equal(t, c.serving, got.serving != nil)
			require.Len(t, got.problems, c.problems)
			require.Equal(t, string(encodeCerts(c.previous...)), string(encodeCerts(got.previous...)))
		})
	}
	leaf, err := secretContent{serving: whole.serving}.encode()
	require.NoError(t, err)
	got := parseSecret(map[string][]byte{caCertEntry: leaf[servingCertEntry], caKeyEntry: leaf[servingKeyEntry]}, nil)
	require.Equal(t, []string{"ca.crt and ca.key: the certificate is not a CA certificate"}, got.problems)
}

func TestIssueServing(t *testing.T) {
	now := epoch()
	ca := newCAAt(t, now)
	serving := issueAt(t, ca, now)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	verify := func(name string, at time.Time) error {
		_, err := serving.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: at})
		return err
	}
	for _, name := range []string{
		"holdfast-webhook", "holdfast-webhook.holdfast-system", "holdfast-webhook.holdfast-system.svc",
		"holdfast-webhook.holdfast-system.svc.cluster.local",
	} {
		require.NoError(t, verify(name, now.Add(-30*time.Minute)), name)
	}
	require.Error(t, verify("other.holdfast-system.svc", now))
	late, err := ca.issueServing(ca.cert.NotAfter.Add(-time.Hour), testLeafValidity, testPolicy().dnsNames)
	require.NoError(t, err)
	require.Equal(t, ca.cert.NotAfter, late.Leaf.NotAfter, "the certificate must not outlive its CA")
}

func TestWithNewCA(t *testing.T) {
	now := epoch()
	next, ca, live := newCAAt(t, now), newCAAt(t, now), newCAAt(t, now)
	expired := newCAAt(t, now.Add(-testCAValidity))
	c := secretContent{ca: ca, previous: []*x509.Certificate{expired.cert}}.withNewCA(
		next, []*x509.Certificate{live.cert, ca.cert, live.cert, issueAt(t, ca, now).Leaf}, now)
	require.Equal(t, string(encodeCerts(next.cert, ca.cert, live.cert)), string(c.caBundle()))

	var many []*x509.Certificate
	for range maxPreviousCAs + 3 {
		many = append(many, newCAAt(t, now).cert)
	}
	require.Len(t, secretContent{}.withNewCA(next, many, now).previous, maxPreviousCAs)
}

func FuzzParseSecret(f *testing.F) {
	ca, err := newCA(epoch(), testCAValidity)
	require.NoError(f, err)
	data, err := secretContent{ca: ca}.encode()
	require.NoError(f, err)
	f.Add(data[caCertEntry], data[caKeyEntry], data[caCertEntry])
	f.Add([]byte(nil), []byte("x"), []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, cert, key, previous []byte) {
		got := parseSecret(map[string][]byte{
			caCertEntry: cert, caKeyEntry: key, previousCAEntry: previous, servingCertEntry: cert, servingKeyEntry: key,
		}, []*x509.Certificate{ca.cert})
		if got.ca != nil {
			require.True(t, got.ca.cert.IsCA)
			require.NotEmpty(t, got.caBundle())
		}
		if len(cert) > 0 && got.ca == nil {
			require.NotEmpty(t, got.problems)
		}
		_, err := got.encode()
		require.NoError(t, err)
		planRotation(rotationState{now: epoch(), content: got, caBundles: [][]byte{previous, cert}}, testPolicy())
	})
}
