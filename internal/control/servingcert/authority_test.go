package servingcert

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEncodeAndParse(t *testing.T) {
	want := authorities{current: newCAAt(t, epoch()), next: newCAAt(t, epoch())}
	got := parseSecret(encode(t, want))
	require.NoError(t, got.problem)
	require.Equal(t, want, got)
}

func TestParseUnusableSecret(t *testing.T) {
	ca, next := newCAAt(t, epoch()), newCAAt(t, epoch())
	leaf := issueAt(t, ca, epoch())
	leafKey, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	require.NoError(t, err)
	_, ed25519Key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	otherKey, err := x509.MarshalPKCS8PrivateKey(ed25519Key)
	require.NoError(t, err)
	ofKey := func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}) }
	for name, c := range map[string]struct {
		damage  map[string][]byte
		problem string // empty if the current CA is usable
	}{
		"invalid certificate": {map[string][]byte{"ca.crt": []byte("no")}, "ca.crt and ca.key: tls: "},
		"missing key":         {map[string][]byte{"ca.key": nil}, "ca.crt and ca.key: tls: "},
		"key of another CA": {
			map[string][]byte{"ca.key": encode(t, authorities{current: next})["ca.key"]}, "ca.crt and ca.key: tls: ",
		},
		"key of another type": {map[string][]byte{"ca.key": ofKey(otherKey)}, "ca.crt and ca.key: tls: "},
		"serving certificate": {
			map[string][]byte{"ca.crt": encodeCerts(leaf.Leaf), "ca.key": ofKey(leafKey)}, "ca.crt is not a CA certificate",
		},
		"other entries": {map[string][]byte{"tls.crt": []byte("x"), "tls.key": nil}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			data := encode(t, authorities{current: ca, next: next})
			for entry, value := range c.damage {
				data[entry] = value
			}
			got := parseSecret(data)
			require.Equal(t, next, got.next)
			if c.problem == "" {
				require.NoError(t, got.problem)
				require.Equal(t, ca, got.current)
				return
			}
			require.ErrorContains(t, got.problem, c.problem)
			require.Nil(t, got.current)
		})
	}
}

func TestIssue(t *testing.T) {
	now := epoch()
	ca := newCAAt(t, now)
	late := now.Add(testLeafValidity)
	serving := issueAt(t, ca, late)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Leaf)
	verify := func(name string, at time.Time) error {
		_, err := serving.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: at})
		return err
	}
	require.NoError(t, verify(serviceHost, now.Add(-30*time.Minute)))
	require.Error(t, verify("other.holdfast-system.svc", now))
	require.NoError(t, verify(serviceHost, late.Add(testLeafValidity-time.Second)))
	require.Error(t, verify(serviceHost, late.Add(testLeafValidity+time.Second)))
	require.Equal(t, ca.Leaf.NotAfter, issueAt(t, ca, ca.Leaf.NotAfter.Add(-time.Hour)).Leaf.NotAfter,
		"the certificate must not outlive its CA")
}

func FuzzParseSecret(f *testing.F) {
	ca, err := newAuthority(epoch(), testCAValidity)
	require.NoError(f, err)
	data, err := authorities{current: ca}.encode()
	require.NoError(f, err)
	f.Add(data["ca.crt"], data["ca.key"], data["ca.crt"])
	f.Add([]byte(nil), []byte("x"), []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, cert, key, bundle []byte) {
		got := parseSecret(map[string][]byte{"ca.crt": cert, "ca.key": key})
		if got.current != nil {
			require.True(t, got.current.Leaf.IsCA)
		}
		require.Equal(t, len(cert)+len(key) > 0 && got.current == nil, got.problem != nil)
		_, err := got.encode()
		require.NoError(t, err)
		s := rotationState{authorities: got, now: epoch(), caBundles: [][]byte{bundle, cert}}
		planRotation(s, testPolicy())
		signer := s.signerOfNew(testPolicy())
		require.True(t, signer == nil || s.isTrusted(signer))
	})
}

func encode(t *testing.T, a authorities) map[string][]byte {
	t.Helper()
	data, err := a.encode()
	require.NoError(t, err)
	return data
}

func newCAAt(t *testing.T, now time.Time) *authority {
	t.Helper()
	ca, err := newAuthority(now, testCAValidity)
	require.NoError(t, err)
	return ca
}

func issueAt(t *testing.T, ca *authority, now time.Time) *tls.Certificate {
	t.Helper()
	serving, err := ca.issue(now, testLeafValidity, serviceHost)
	require.NoError(t, err)
	return serving
}
