// Package pki issues certificates for tests.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// A CA is a certificate authority for tests.
type CA struct {
	pair        Pair
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// A Pair is a certificate and its key, in PEM.
type Pair struct {
	Cert, Key []byte
}

// CertOptions describe a certificate.
type CertOptions struct {
	CommonName    string
	Organizations []string
	// Hosts are the DNS names and IP addresses of a server.
	Hosts []string
	// Server and Client are the allowed uses of the certificate. An etcd peer needs both.
	Server, Client bool
	// NotBefore and NotAfter limit the validity, by default from an hour ago to a day ahead.
	NotBefore, NotAfter time.Time
}

// NewCA creates an authority with a new key, valid for a day.
func NewCA(commonName string) (*CA, error) {
	template := template(CertOptions{CommonName: commonName})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	key, pair, err := sign(template, template, nil)
	if err != nil {
		return nil, fmt.Errorf("creating CA %q: %w", commonName, err)
	}
	block, _ := pem.Decode(pair.Cert)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("creating CA %q: %w", commonName, err)
	}
	return &CA{pair: pair, certificate: certificate, key: key}, nil
}

// Issue creates and signs a certificate.
func (ca *CA) Issue(opts CertOptions) (Pair, error) {
	template := template(opts)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if opts.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if opts.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	for _, host := range opts.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	_, pair, err := sign(template, ca.certificate, ca.key)
	if err != nil {
		return Pair{}, fmt.Errorf("issuing certificate %q: %w", opts.CommonName, err)
	}
	return pair, nil
}

// PEM returns the authority's certificate.
func (ca *CA) PEM() []byte { return ca.pair.Cert }

// Pair returns the authority's certificate and key, for servers that sign for themselves.
func (ca *CA) Pair() Pair { return ca.pair }

// Pool returns a pool that trusts this authority only.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	return pool
}

// Write writes the authority's certificate to a file.
func (ca *CA) Write(path string) error { return WriteFile(path, ca.pair.Cert, 0o644) }

// Write writes the certificate and the key to files. Only the owner can read the key.
func (p Pair) Write(certPath, keyPath string) error {
	if err := WriteFile(certPath, p.Cert, 0o644); err != nil {
		return err
	}
	return WriteFile(keyPath, p.Key, 0o600)
}

// TLS returns the pair for use with crypto/tls.
func (p Pair) TLS() (tls.Certificate, error) { return tls.X509KeyPair(p.Cert, p.Key) }

func template(opts CertOptions) *x509.Certificate {
	if opts.NotBefore.IsZero() {
		opts.NotBefore = time.Now().Add(-time.Hour)
	}
	if opts.NotAfter.IsZero() {
		opts.NotAfter = time.Now().Add(24 * time.Hour)
	}
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: opts.CommonName, Organization: opts.Organizations},
		NotBefore: opts.NotBefore,
		NotAfter:  opts.NotAfter,
	}
}

// sign creates a key and a certificate. If signer is nil, the new key signs the certificate.
func sign(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, Pair{}, err
	}
	if signer == nil {
		signer = key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, Pair{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, Pair{}, err
	}
	return key, Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// WriteFile writes a file and creates its parent directories.
func WriteFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, mode)
}
