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

func TestContentSurvivesTheSecret(t *testing.T) {
	ca, old := authorityAt(t, epoch()), authorityAt(t, epoch())
	want := content{ca: ca, previous: []*x509.Certificate{old.cert}, pair: pairAt(t, ca, epoch())}
	data, err := want.data()
	require.NoError(t, err)
	got := read(data, nil)
	require.Empty(t, got.problems)
	require.True(t, got.ca.cert.Equal(ca.cert))
	require.True(t, got.ca.key.Equal(ca.key))
	require.True(t, got.pair.PrivateKey.(*ecdsa.PrivateKey).Equal(want.pair.PrivateKey))
	require.Equal(t, want.bundle(), got.bundle())
	require.True(t, got.ca.issued(got.pair))
}

func TestServingCertificateIsForTheService(t *testing.T) {
	now := epoch()
	ca := authorityAt(t, now)
	pair := pairAt(t, ca, now)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	for _, name := range []string{
		"holdfast-webhook", "holdfast-webhook.holdfast-system", "holdfast-webhook.holdfast-system.svc",
		"holdfast-webhook.holdfast-system.svc.cluster.local",
	} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now.Add(-30 * time.Minute)})
		require.NoError(t, err, name)
	}
	_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: "other.holdfast-system.svc", Roots: roots, CurrentTime: now})
	require.Error(t, err)
	late, err := ca.newPair(ca.cert.NotAfter.Add(-time.Hour), leafValidity, testTerms().names)
	require.NoError(t, err)
	require.Equal(t, ca.cert.NotAfter, late.Leaf.NotAfter, "it does not outlive its authority")
}

func TestReadDamaged(t *testing.T) {
	ca, old := authorityAt(t, epoch()), authorityAt(t, epoch())
	whole := content{ca: ca, previous: []*x509.Certificate{old.cert}, pair: pairAt(t, ca, epoch())}
	other, err := content{ca: old, pair: pairAt(t, old, epoch())}.data()
	require.NoError(t, err)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	edwardsKey, err := encodeKey(edwards)
	require.NoError(t, err)

	for name, c := range map[string]struct {
		key      string
		value    []byte
		ca, pair bool
		previous []*x509.Certificate
		problems int
	}{
		"the authority's certificate is garbage": {caCertKey, []byte("no"), false, true, []*x509.Certificate{old.cert}, 1},
		"the authority's key is garbage":         {caKeyKey, []byte("no"), false, true, []*x509.Certificate{ca.cert, old.cert}, 1},
		"the authority's key is another's":       {caKeyKey, other[caKeyKey], false, true, []*x509.Certificate{ca.cert, old.cert}, 1},
		"the authority's key is of another kind": {caKeyKey, edwardsKey, false, true, []*x509.Certificate{ca.cert, old.cert}, 1},
		"the serving key is missing":             {servingKey, nil, true, false, []*x509.Certificate{old.cert}, 1},
		"the serving certificate is garbage":     {servingCert, []byte{0xff, 0}, true, false, []*x509.Certificate{old.cert}, 1},
		"the previous ones are garbage":          {previousKey, []byte("no"), true, true, []*x509.Certificate{old.cert}, 1},
		"half of the previous ones is garbage":   {previousKey, append([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), encodeCerts(old.cert)...), true, true, []*x509.Certificate{old.cert}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := whole.data()
			require.NoError(t, err)
			data[c.key] = c.value
			got := read(data, []*x509.Certificate{ca.cert, old.cert})
			require.Equal(t, c.ca, got.ca != nil)
			require.Equal(t, c.pair, got.pair != nil)
			require.Len(t, got.problems, c.problems)
			require.Equal(t, string(encodeCerts(c.previous...)), string(encodeCerts(got.previous...)))
		})
	}
	leafOnly, err := content{pair: whole.pair}.data()
	require.NoError(t, err)
	got := read(map[string][]byte{caCertKey: leafOnly[servingCert], caKeyKey: leafOnly[servingKey]}, nil)
	require.Equal(t, []string{"ca.crt and ca.key: the certificate is not that of an authority"}, got.problems)
}

func TestSucceedKeepsWhatIsTrusted(t *testing.T) {
	now := epoch()
	next, ca, live := authorityAt(t, now), authorityAt(t, now), authorityAt(t, now)
	expired := authorityAt(t, now.Add(-caValidity))
	c := content{ca: ca, previous: []*x509.Certificate{expired.cert}}.succeed(
		next, []*x509.Certificate{live.cert, ca.cert, live.cert, pairAt(t, ca, now).Leaf}, now)
	require.Equal(t, string(encodeCerts(next.cert, ca.cert, live.cert)), string(c.bundle()))

	var many []*x509.Certificate
	for range previousLimit + 3 {
		many = append(many, authorityAt(t, now).cert)
	}
	require.Len(t, content{}.succeed(next, many, now).previous, previousLimit, "a secret that is deleted again and again")
}

func FuzzRead(f *testing.F) {
	ca, err := newAuthority(epoch(), caValidity)
	require.NoError(f, err)
	data, err := content{ca: ca}.data()
	require.NoError(f, err)
	f.Add(data[caCertKey], data[caKeyKey], data[caCertKey])
	f.Add([]byte(nil), []byte("x"), []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, cert, key, previous []byte) {
		got := read(map[string][]byte{
			caCertKey: cert, caKeyKey: key, previousKey: previous, servingCert: cert, servingKey: key,
		}, []*x509.Certificate{ca.cert})
		if got.ca != nil {
			require.True(t, got.ca.cert.IsCA)
			require.NotEmpty(t, got.bundle())
		}
		if len(cert) > 0 && got.ca == nil {
			require.NotEmpty(t, got.problems)
		}
		_, err := got.data()
		require.NoError(t, err)
		decide(look{now: epoch(), content: got, webhooks: [][]byte{previous, cert}}, testTerms())
	})
}
