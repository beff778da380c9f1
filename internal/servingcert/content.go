package servingcert

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Keys of the Secret.
const (
	caCertKey     = "ca.crt"
	caKeyKey      = "ca.key"
	previousKey   = "previous-ca.crt"
	servingCert   = "tls.crt"
	servingKey    = "tls.key"
	previousLimit = 10
)

// content is what a Secret holds, as far as it can be used.
type content struct {
	// ca signs; nil if there is none or it cannot be used.
	ca *authority
	// previous are authorities that sign no more and are still trusted, the newest first.
	previous []*x509.Certificate
	// pair is what is to be served; nil if there is none or it cannot be used.
	pair *tls.Certificate
	// problems say what was there and could not be used.
	problems []string
}

// read understands the Secret's data. It never fails: what cannot be used is a problem, and is made anew. The live
// bundle stands in for previous authorities that cannot be read.
func read(data map[string][]byte, bundle []*x509.Certificate) content {
	c := content{previous: decodeCerts(data[previousKey])}
	if len(data[caCertKey])+len(data[caKeyKey]) > 0 {
		ca, err := readAuthority(data[caCertKey], data[caKeyKey])
		if err != nil {
			c.problems = append(c.problems, fmt.Sprintf("%s and %s: %v", caCertKey, caKeyKey, err))
			// Without its key it signs no more, but what it has signed may be in use.
			c.previous = append(decodeCerts(data[caCertKey]), c.previous...)
		}
		c.ca = ca
	}
	if len(data[previousKey]) > 0 && len(c.previous) == 0 {
		c.problems = append(c.problems, previousKey+" holds no certificate")
		for _, b := range bundle {
			if b.IsCA && !holds(c.previous, b) && (c.ca == nil || !c.ca.cert.Equal(b)) {
				c.previous = append(c.previous, b)
			}
		}
	}
	if len(data[servingCert])+len(data[servingKey]) > 0 {
		pair, err := readPair(data[servingCert], data[servingKey])
		if err != nil {
			c.problems = append(c.problems, fmt.Sprintf("%s and %s: %v", servingCert, servingKey, err))
		}
		c.pair = pair
	}
	return c
}

func readAuthority(cert, key []byte) (*authority, error) {
	pair, err := readPair(cert, key)
	if err != nil {
		return nil, err
	}
	private, isECDSA := pair.PrivateKey.(*ecdsa.PrivateKey)
	switch {
	case !isECDSA:
		return nil, errors.New("the key is not an ECDSA key")
	case !pair.Leaf.IsCA:
		return nil, errors.New("the certificate is not that of an authority")
	}
	return &authority{cert: pair.Leaf, key: private}, nil
}

func readPair(cert, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, err
		}
	}
	return &pair, nil
}

// data is the content as a Secret holds it.
func (c content) data() (map[string][]byte, error) {
	data := map[string][]byte{}
	if c.ca != nil {
		key, err := encodeKey(c.ca.key)
		if err != nil {
			return nil, err
		}
		data[caCertKey], data[caKeyKey] = encodeCerts(c.ca.cert), key
	}
	if len(c.previous) > 0 {
		data[previousKey] = encodeCerts(c.previous...)
	}
	if c.pair != nil {
		key, err := encodeKey(c.pair.PrivateKey)
		if err != nil {
			return nil, err
		}
		data[servingCert], data[servingKey] = encodeCerts(c.pair.Leaf), key
	}
	return data, nil
}

// bundle is what the API server must trust, the authority that signs first.
func (c content) bundle() []byte {
	if c.ca == nil {
		return nil
	}
	return encodeCerts(append([]*x509.Certificate{c.ca.cert}, c.previous...)...)
}

// succeed returns the content with a new authority. Everything that may have signed what is being served stays
// trusted: the authority so far, those before it, and those in the live bundle.
func (c content) succeed(ca *authority, bundle []*x509.Certificate, now time.Time) content {
	trusted := c.previous
	if c.ca != nil {
		trusted = append([]*x509.Certificate{c.ca.cert}, trusted...)
	}
	trusted = slices.Concat(trusted, bundle)
	c.ca, c.previous = ca, nil
	for _, t := range trusted {
		if t.IsCA && now.Before(t.NotAfter) && !holds(c.previous, t) && len(c.previous) < previousLimit {
			c.previous = append(c.previous, t)
		}
	}
	return c
}

func holds(certs []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(certs, c.Equal)
}

// trustedBy says whether a verifier with this bundle accepts the pair's signature.
func trustedBy(pair *tls.Certificate, bundle []*x509.Certificate) bool {
	return pair != nil && slices.ContainsFunc(bundle, func(ca *x509.Certificate) bool {
		return ca.IsCA && pair.Leaf.CheckSignatureFrom(ca) == nil
	})
}
