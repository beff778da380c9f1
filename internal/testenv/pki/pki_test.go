package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
)

func TestIssue(t *testing.T) {
	ca, err := pki.NewCA("test-ca")
	require.NoError(t, err)
	past := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	old, err := ca.Issue(pki.CertOptions{CommonName: "old", NotBefore: past.Add(-time.Hour), NotAfter: past})
	require.NoError(t, err)
	require.Equal(t, past, parseCertificate(t, old).NotAfter)
	_, err = parseCertificate(t, old).Verify(x509.VerifyOptions{Roots: ca.Pool()})
	require.ErrorContains(t, err, "expired")

	pair, err := ca.Issue(pki.CertOptions{
		CommonName: "system:node:a", Organizations: []string{"system:nodes"},
		Hosts:  []string{"a.example", "127.0.0.1", "::1"},
		Server: true, Client: true,
	})
	require.NoError(t, err)
	cert := parseCertificate(t, pair)
	require.Equal(t, "system:node:a", cert.Subject.CommonName)
	require.Equal(t, []string{"system:nodes"}, cert.Subject.Organization)
	require.NoError(t, cert.VerifyHostname("a.example"))
	require.NoError(t, cert.VerifyHostname("::1"))
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err = cert.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{use}})
		require.NoError(t, err)
	}
	stranger, err := pki.NewCA("stranger")
	require.NoError(t, err)
	_, err = cert.Verify(x509.VerifyOptions{Roots: stranger.Pool()})
	require.ErrorContains(t, err, "unknown authority")

	dir := t.TempDir()
	certPath, keyPath := filepath.Join(dir, "pki", "a.pem"), filepath.Join(dir, "pki", "a-key.pem")
	require.NoError(t, pair.Write(certPath, keyPath))
	_, err = tls.LoadX509KeyPair(certPath, keyPath)
	require.NoError(t, err)
	info, err := os.Stat(keyPath)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func parseCertificate(t *testing.T, pair pki.Pair) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(pair.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}
