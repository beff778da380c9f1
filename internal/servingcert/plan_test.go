package servingcert

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	caValidity   = 5 * 365 * 24 * time.Hour
	leafValidity = 90 * 24 * time.Hour
	settle       = 10 * time.Minute
)

func testTerms() terms {
	return terms{ca: caValidity, leaf: leafValidity, settle: settle, names: names("holdfast-webhook", "holdfast-system")}
}

func epoch() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func authorityAt(t *testing.T, now time.Time) *authority {
	t.Helper()
	ca, err := newAuthority(now, caValidity)
	require.NoError(t, err)
	return ca
}

func pairAt(t *testing.T, ca *authority, now time.Time) *tls.Certificate {
	t.Helper()
	pair, err := ca.newPair(now, leafValidity, testTerms().names)
	require.NoError(t, err)
	return pair
}

func TestDecide(t *testing.T) {
	begin := epoch()
	ca, old := authorityAt(t, begin), authorityAt(t, begin.Add(-4*365*24*time.Hour))
	pair, oldPair := pairAt(t, ca, begin), pairAt(t, old, begin.Add(-time.Hour))
	foreign, err := ca.newPair(begin, leafValidity, []string{"other.default.svc"})
	require.NoError(t, err)
	both := func(certs ...*x509.Certificate) [][]byte {
		return [][]byte{encodeCerts(certs...), encodeCerts(certs...)}
	}
	rotating := content{ca: ca, previous: []*x509.Certificate{old.cert}, pair: oldPair}
	rotated := content{ca: ca, previous: []*x509.Certificate{old.cert}, pair: pair}

	for name, c := range map[string]struct {
		look  look
		step  step
		why   string
		again time.Time
	}{
		"nothing there":       {look{now: begin, webhooks: both()}, makeAuthority, "the secret holds no authority", time.Time{}},
		"a damaged secret":    {look{now: begin, content: content{problems: []string{"ca.crt and ca.key: no PEM"}}}, makeAuthority, "the secret cannot be used: ca.crt and ca.key: no PEM", time.Time{}},
		"no configuration":    {look{now: begin, content: content{ca: ca}}, idle, "there is no webhook to be trusted by", begin.Add(caValidity * 2 / 3)},
		"an authority, first": {look{now: begin, content: content{ca: ca}, webhooks: [][]byte{nil, nil}}, writeBundle, "a webhook does not trust exactly the authorities of the secret", time.Time{}},
		"one webhook behind":  {look{now: begin, content: content{ca: ca, pair: pair}, webhooks: [][]byte{encodeCerts(ca.cert), nil}}, writeBundle, "a webhook does not trust exactly the authorities of the secret", time.Time{}},
		"trusted, no pair":    {look{now: begin, content: content{ca: ca}, webhooks: both(ca.cert), trustedSince: begin}, makePair, "the secret holds no serving certificate", time.Time{}},
		"all well":            {look{now: begin, content: content{ca: ca, pair: pair}, webhooks: both(ca.cert), trustedSince: begin}, idle, "nothing is due", begin.Add(leafValidity * 2 / 3)},
		"just before two thirds": {
			look{now: begin.Add(leafValidity*2/3 - time.Second), content: content{ca: ca, pair: pair}, webhooks: both(ca.cert), trustedSince: begin},
			idle, "nothing is due", begin.Add(leafValidity * 2 / 3),
		},
		"at two thirds": {
			look{now: begin.Add(leafValidity * 2 / 3), content: content{ca: ca, pair: pair}, webhooks: both(ca.cert), trustedSince: begin},
			makePair, "the serving certificate ends 2026-07-30T12:00:00Z",
			time.Time{},
		},
		"expired while nobody was there, no time to settle": {
			look{now: begin.Add(leafValidity), content: content{ca: ca, pair: pair}, webhooks: both(ca.cert), trustedSince: begin.Add(leafValidity)},
			makePair, "the serving certificate ends 2026-07-30T12:00:00Z",
			time.Time{},
		},
		"other names": {
			look{now: begin.Add(settle), content: content{ca: ca, pair: foreign}, webhooks: both(ca.cert), trustedSince: begin},
			makePair, "the serving certificate is not for holdfast-webhook",
			time.Time{},
		},
		"the authority at two thirds": {
			look{now: begin, content: content{ca: old, pair: oldPair}, webhooks: both(old.cert), trustedSince: begin},
			makeAuthority, "the authority ends 2027-05-01T12:00:00Z",
			time.Time{},
		},
		"a new authority, not yet in the bundle": {
			look{now: begin, content: rotating, webhooks: both(old.cert)},
			writeBundle, "a webhook does not trust exactly the authorities of the secret",
			time.Time{},
		},
		"a new authority, in the bundle a moment ago": {
			look{now: begin.Add(time.Minute), content: rotating, webhooks: both(ca.cert, old.cert), trustedSince: begin},
			idle, "waiting until every API server has read the bundle", begin.Add(settle),
		},
		"a lost secret, while we still serve what works": {
			look{now: begin.Add(time.Minute), content: content{ca: ca, previous: rotating.previous}, served: oldPair, webhooks: both(ca.cert, old.cert), trustedSince: begin},
			idle, "waiting until every API server has read the bundle", begin.Add(settle),
		},
		"a new authority that every API server knows": {
			look{now: begin.Add(settle), content: rotating, webhooks: both(ca.cert, old.cert), trustedSince: begin},
			makePair, "the serving certificate is signed by a previous authority",
			time.Time{},
		},
		"the old authority may have signed what is served": {
			look{now: begin.Add(settle), content: rotated, webhooks: both(ca.cert, old.cert), trustedSince: begin},
			idle, "the previous authorities may have signed what is served", begin.Add(leafValidity * 2 / 3),
		},
		"the old authority is over": {
			look{
				now: begin.Add(leafValidity + settle), content: content{ca: ca, previous: rotated.previous, pair: pairAt(t, ca, begin.Add(leafValidity/2))},
				webhooks: both(ca.cert, old.cert), trustedSince: begin,
			},
			dropPrevious, "what the previous authorities signed has expired",
			time.Time{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := decide(c.look, testTerms())
			require.Equal(t, c.step.String(), p.step.String(), p.why)
			require.Equal(t, c.why, p.why)
			require.True(t, c.again.Equal(p.again), "again at %s", p.again)
		})
	}
}

func TestServe(t *testing.T) {
	begin := epoch()
	ca, next := authorityAt(t, begin), authorityAt(t, begin)
	pair, nextPair := pairAt(t, ca, begin), pairAt(t, next, begin)
	for name, c := range map[string]struct {
		served, secret *tls.Certificate
		trusts         *authority
		now, since     time.Time
		want           *tls.Certificate
		trouble        string
	}{
		"nothing yet":                     {nil, nil, ca, begin, begin, nil, "there is no serving certificate yet"},
		"the first":                       {nil, pair, ca, begin, begin, pair, ""},
		"the first, not trusted yet":      {nil, nextPair, ca, begin, time.Time{}, nextPair, "the webhook configuration does not trust the serving certificate yet"},
		"the next":                        {pair, nextPair, next, begin, begin.Add(-settle), nextPair, ""},
		"the next, not trusted yet":       {pair, nextPair, ca, begin, time.Time{}, pair, ""},
		"the next, trusted a moment ago":  {pair, nextPair, nil, begin, begin.Add(time.Second - settle), pair, ""},
		"the secret is gone":              {pair, nil, ca, begin, begin, pair, ""},
		"the one in use has expired":      {pair, nextPair, ca, begin.Add(leafValidity), time.Time{}, nextPair, "the serving certificate has expired on 2026-07-30T12:00:00Z"},
		"neither is trusted, take theirs": {pair, nextPair, authorityAt(t, begin), begin, time.Time{}, nextPair, "the webhook configuration does not trust the serving certificate yet"},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := encodeCerts(ca.cert, next.cert)
			if c.trusts != nil {
				bundle = encodeCerts(c.trusts.cert)
			}
			l := look{now: c.now, content: content{ca: ca, pair: c.secret}, served: c.served, webhooks: [][]byte{bundle}, trustedSince: c.since}
			got := serve(l, testTerms())
			require.Same(t, c.want, got)
			require.Equal(t, c.trouble, trouble(l, got))
		})
	}
	require.Equal(t, "there is no webhook configuration to write the certificate authority to", trouble(look{now: begin}, pair))
}
