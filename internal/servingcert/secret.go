package servingcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// The entries of the Secret.
const (
	caCertEntry      = "ca.crt"
	caKeyEntry       = "ca.key"
	previousCAEntry  = "previous-ca.crt"
	servingCertEntry = "tls.crt"
	servingKeyEntry  = "tls.key"
)

// maxPreviousCAs limits the previous CAs, in case the Secret is deleted again and again.
const maxPreviousCAs = 10

// secretContent is the parsed content of the Secret.
type secretContent struct {
	// ca is the current CA, nil if there is none or it is unusable.
	ca *certAuthority
	// previous are CAs that sign no more and are still trusted, the newest first.
	previous []*x509.Certificate
	// serving is the serving certificate, nil if there is none or it is unusable.
	serving *tls.Certificate
	// problems describe the unusable entries.
	problems []string
}

// parseSecret parses the Secret's data. It records unusable entries as problems; they will be
// replaced. If the previous CAs are unusable, it uses those of the live caBundles.
func parseSecret(data map[string][]byte, bundle []*x509.Certificate) secretContent {
	c := secretContent{previous: decodeCerts(data[previousCAEntry])}
	if len(data[caCertEntry])+len(data[caKeyEntry]) > 0 {
		ca, err := parseCA(data[caCertEntry], data[caKeyEntry])
		if err != nil {
			c.problems = append(c.problems, fmt.Sprintf("%s and %s: %v", caCertEntry, caKeyEntry, err))
			// A CA without its key cannot sign, but its certificates may still be in use.
			c.previous = append(decodeCerts(data[caCertEntry]), c.previous...)
		}
		c.ca = ca
	}
	if len(data[previousCAEntry]) > 0 && len(c.previous) == 0 {
		c.problems = append(c.problems, previousCAEntry+" has no certificate")
		for _, b := range bundle {
			if b.IsCA && !containsCert(c.previous, b) && (c.ca == nil || !c.ca.cert.Equal(b)) {
				c.previous = append(c.previous, b)
			}
		}
	}
	if len(data[servingCertEntry])+len(data[servingKeyEntry]) > 0 {
		serving, err := parsePair(data[servingCertEntry], data[servingKeyEntry])
		if err == nil {
			c.serving = serving
		} else {
			c.problems = append(c.problems, fmt.Sprintf("%s and %s: %v", servingCertEntry, servingKeyEntry, err))
		}
	}
	return c
}

func parseCA(cert, key []byte) (*certAuthority, error) {
	pair, err := parsePair(cert, key)
	if err != nil {
		return nil, err
	}
	private, isECDSA := pair.PrivateKey.(*ecdsa.PrivateKey)
	switch {
	case !isECDSA:
		return nil, errors.New("the key is not an ECDSA key")
	case !pair.Leaf.IsCA:
		return nil, errors.New("the certificate is not a CA certificate")
	}
	return &certAuthority{cert: pair.Leaf, key: private}, nil
}

// parsePair returns a key pair with its parsed leaf, which tls leaves out with
// GODEBUG=x509keypairleaf=0.
func parsePair(cert, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil && pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	return &pair, err
}

// encode returns the content as the Secret's data.
func (c secretContent) encode() (map[string][]byte, error) {
	data := map[string][]byte{}
	if c.ca != nil {
		key, err := encodeKey(c.ca.key)
		if err != nil {
			return nil, err
		}
		data[caCertEntry], data[caKeyEntry] = encodeCerts(c.ca.cert), key
	}
	if len(c.previous) > 0 {
		data[previousCAEntry] = encodeCerts(c.previous...)
	}
	if c.serving != nil {
		key, err := encodeKey(c.serving.PrivateKey)
		if err != nil {
			return nil, err
		}
		data[servingCertEntry], data[servingKeyEntry] = encodeCerts(c.serving.Leaf), key
	}
	return data, nil
}

// caBundle returns the caBundle for the webhooks, with the current CA first.
func (c secretContent) caBundle() []byte {
	if c.ca == nil {
		return nil
	}
	return encodeCerts(append([]*x509.Certificate{c.ca.cert}, c.previous...)...)
}

// withNewCA returns the content with a new CA. Every CA that may have signed a served
// certificate stays trusted: the current CA, the previous CAs, and those of the live caBundles.
func (c secretContent) withNewCA(ca *certAuthority, bundle []*x509.Certificate, now time.Time) secretContent {
	trusted := c.previous
	if c.ca != nil {
		trusted = append([]*x509.Certificate{c.ca.cert}, trusted...)
	}
	trusted = slices.Concat(trusted, bundle)
	c.ca, c.previous = ca, nil
	for _, t := range trusted {
		isUsable := t.IsCA && now.Before(t.NotAfter) && !containsCert(c.previous, t)
		if isUsable && len(c.previous) < maxPreviousCAs {
			c.previous = append(c.previous, t)
		}
	}
	return c
}

func containsCert(certs []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(certs, c.Equal)
}

// isTrustedBy reports whether a CA of the bundle that is valid has signed a serving certificate.
func isTrustedBy(serving *tls.Certificate, bundle []*x509.Certificate, now time.Time) bool {
	return serving != nil && slices.ContainsFunc(bundle, func(ca *x509.Certificate) bool {
		return ca.IsCA && isInTime(ca, now) && serving.Leaf.CheckSignatureFrom(ca) == nil
	})
}

// isInTime reports whether a certificate is neither expired nor from a clock that is far ahead.
func isInTime(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotAfter)
}

// backdate is the time by which a certificate's validity starts in the past, for API servers
// with a slow clock.
const backdate = time.Hour

// certAuthority is a CA with its key.
type certAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newCA returns a new self-signed CA.
func newCA(now time.Time, validity time.Duration) (*certAuthority, error) {
	key, template, err := newTemplate(now, now.Add(validity))
	if err != nil {
		return nil, err
	}
	// The serial number makes the subject unique, so that a verifier can tell two CAs apart.
	template.Subject = pkix.Name{CommonName: fmt.Sprintf("holdfast webhook CA %x", template.SerialNumber)}
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid, template.IsCA, template.MaxPathLenZero = true, true, true
	cert, err := signCert(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA certificate: %w", err)
	}
	return &certAuthority{cert: cert, key: key}, nil
}

// issueServing returns a new serving certificate. It expires no later than the CA.
func (a *certAuthority) issueServing(now time.Time, validity time.Duration, names []string) (*tls.Certificate, error) {
	key, template, err := newTemplate(now, earliest(now.Add(validity), a.cert.NotAfter))
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "holdfast webhook"}
	template.DNSNames = slices.Clone(names)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.BasicConstraintsValid = true
	leaf, err := signCert(template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing the serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// hasIssued reports whether the CA has signed a serving certificate.
func (a *certAuthority) hasIssued(serving *tls.Certificate) bool {
	return a != nil && serving != nil && serving.Leaf.CheckSignatureFrom(a.cert) == nil
}

// createdAt returns when the CA was created.
func (a *certAuthority) createdAt() time.Time { return a.cert.NotBefore.Add(backdate) }

func newTemplate(now, end time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generating a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("generating a serial number: %w", err)
	}
	return key, &x509.Certificate{SerialNumber: serial, NotBefore: now.Add(-backdate), NotAfter: end}, nil
}

func signCert(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func encodeKey(key any) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// decodeCerts returns the certificates of a PEM text. It skips invalid blocks, so that a
// damaged block does not remove the trust in the other CAs.
func decodeCerts(text []byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return certs
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs = append(certs, c)
		}
	}
}
