package servingcert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"
)

// step is the next thing to do, at most one write.
type step int

const (
	// idle: nothing to do before the plan's time.
	idle step = iota + 1
	// makeAuthority writes a new authority to the Secret. The serving pair stays.
	makeAuthority
	// writeBundle makes every webhook of the configuration trust the Secret's authorities, and nothing else.
	writeBundle
	// makePair writes a new serving pair, signed by the current authority.
	makePair
	// dropPrevious forgets the authorities that have signed nothing valid any more.
	dropPrevious
)

// terms are the validities, and how long a bundle must have stood before anything is served under it.
type terms struct {
	ca, leaf, settle time.Duration
	names            []string
}

// renewal is when a certificate of this validity is replaced: at two thirds.
func renewal(c *x509.Certificate, validity time.Duration) time.Time {
	return c.NotAfter.Add(-validity / 3)
}

// look is everything that a plan is made from.
type look struct {
	now     time.Time
	content content
	// webhooks are the caBundles of the configuration's webhooks; empty if there is no configuration.
	webhooks [][]byte
	// served is what this replica hands out.
	served *tls.Certificate
	// trustedSince is when the current authority was first seen in all webhooks, zero if it is not there.
	trustedSince time.Time
}

// trust is since when this replica has seen an authority in the bundle of every webhook.
type trust struct {
	ca    *x509.Certificate
	since time.Time
}

// seen is the trust after a look.
func (t trust) seen(l look) trust {
	ca := l.content.ca
	switch {
	case ca == nil || !holds(l.bundle(), ca.cert):
		return trust{}
	case t.ca != nil && t.ca.Equal(ca.cert):
		return t
	}
	return trust{ca: ca.cert, since: l.now}
}

// bundle are the certificates that all webhooks of the configuration trust.
func (l look) bundle() []*x509.Certificate {
	if len(l.webhooks) == 0 {
		return nil
	}
	common := decodeCerts(l.webhooks[0])
	for _, w := range l.webhooks[1:] {
		certs := decodeCerts(w)
		common = slices.DeleteFunc(common, func(c *x509.Certificate) bool { return !holds(certs, c) })
	}
	return common
}

// anywhere are the certificates that some webhook of the configuration trusts.
func (l look) anywhere() []*x509.Certificate {
	var certs []*x509.Certificate
	for _, w := range l.webhooks {
		certs = append(certs, decodeCerts(w)...)
	}
	return certs
}

// works says whether an API server accepts the pair now.
func (l look) works(pair *tls.Certificate) bool {
	return pair != nil && l.now.Before(pair.Leaf.NotAfter) && trustedBy(pair, l.bundle())
}

// plan is what to do next and why.
type plan struct {
	step step
	why  string
	// again is when to look again if nothing happens before.
	again time.Time
}

// decide says what to do next. The order keeps every call answered: an authority is in the bundle of all webhooks
// before it signs what is served, and leaves it when nothing valid that it signed can be left.
func decide(l look, t terms) plan {
	ca, pair := l.content.ca, l.content.pair
	if why := authorityDue(l, t); why != "" {
		return plan{step: makeAuthority, why: why}
	}
	if len(l.webhooks) == 0 {
		return plan{step: idle, why: "there is no webhook to be trusted by", again: renewal(ca.cert, t.ca)}
	}
	if want := l.content.bundle(); slices.ContainsFunc(l.webhooks, func(w []byte) bool { return !bytes.Equal(w, want) }) {
		return plan{step: writeBundle, why: "a webhook does not trust exactly the authorities of the secret"}
	}
	why := pairDue(l, t)
	settled := l.trustedSince.Add(t.settle)
	// Someone who has nothing that works gains nothing by waiting for every API server to have read the bundle.
	patient := (l.works(pair) || l.works(l.served)) && l.now.Before(settled)
	switch {
	case why != "" && patient:
		return plan{step: idle, why: "waiting until every API server has read the bundle", again: settled}
	case why != "":
		return plan{step: makePair, why: why}
	}
	again := earliest(renewal(ca.cert, t.ca), renewal(pair.Leaf, t.leaf))
	if serve(l, t) != pair {
		again = earliest(again, settled)
	}
	if len(l.content.previous) == 0 {
		return plan{step: idle, why: "nothing is due", again: again}
	}
	over := ca.since().Add(t.settle + t.leaf)
	if !l.now.Before(over) {
		return plan{step: dropPrevious, why: "what the previous authorities signed has expired"}
	}
	return plan{step: idle, why: "the previous authorities may have signed what is served", again: earliest(again, over)}
}

// advance is the Secret's content after the step.
func advance(l look, s step, t terms) (content, error) {
	next := l.content
	switch s {
	case makeAuthority:
		ca, err := newAuthority(l.now, t.ca)
		if err != nil {
			return content{}, err
		}
		return next.succeed(ca, l.anywhere(), l.now), nil
	case makePair:
		// Names that the last certificate had stay, so that two replicas with different flags do not take turns.
		wanted := slices.Clone(t.names)
		if next.pair != nil {
			wanted = append(wanted, next.pair.Leaf.DNSNames...)
		}
		slices.Sort(wanted)
		pair, err := next.ca.newPair(l.now, t.leaf, slices.Compact(wanted))
		if err != nil {
			return content{}, err
		}
		next.pair = pair
		return next, nil
	case dropPrevious:
		next.previous = nil
		return next, nil
	default:
		return content{}, fmt.Errorf("the step %q does not change the secret", s)
	}
}

// authorityDue says why a new authority is needed, empty if it is not.
func authorityDue(l look, t terms) string {
	ca := l.content.ca
	switch {
	case ca == nil && len(l.content.problems) > 0:
		return "the secret cannot be used: " + strings.Join(l.content.problems, "; ")
	case ca == nil:
		return "the secret holds no authority"
	case !l.now.Before(renewal(ca.cert, t.ca)):
		return fmt.Sprintf("the authority ends %s", ca.cert.NotAfter.Format(time.RFC3339))
	}
	return ""
}

// pairDue says why a new serving pair is needed, empty if it is not.
func pairDue(l look, t terms) string {
	pair := l.content.pair
	switch {
	case pair == nil && len(l.content.problems) > 0:
		return "the secret's serving certificate cannot be used: " + strings.Join(l.content.problems, "; ")
	case pair == nil:
		return "the secret holds no serving certificate"
	case !l.content.ca.issued(pair):
		return "the serving certificate is signed by a previous authority"
	case !l.now.Before(renewal(pair.Leaf, t.leaf)):
		return fmt.Sprintf("the serving certificate ends %s", pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	for _, name := range t.names {
		if !slices.Contains(pair.Leaf.DNSNames, name) {
			return fmt.Sprintf("the serving certificate is not for %s", name)
		}
	}
	return ""
}

// serve chooses what this replica hands out: the Secret's pair, unless the one in use works and that one may not yet
// work with every API server. (Another replica that had nothing may have made it without waiting.)
func serve(l look, t terms) *tls.Certificate {
	pair := l.content.pair
	sure := l.works(pair) && !l.now.Before(l.trustedSince.Add(t.settle))
	if pair == nil || (!sure && l.works(l.served)) {
		return l.served
	}
	return pair
}

// trouble says why a call by an API server would fail, empty if it would not.
func trouble(l look, served *tls.Certificate) string {
	switch {
	case len(l.webhooks) == 0:
		return "there is no webhook configuration to write the certificate authority to"
	case served == nil:
		return "there is no serving certificate yet"
	case !l.now.Before(served.Leaf.NotAfter):
		return fmt.Sprintf("the serving certificate has expired on %s", served.Leaf.NotAfter.Format(time.RFC3339))
	case !trustedBy(served, l.bundle()):
		return "the webhook configuration does not trust the serving certificate yet"
	}
	return ""
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// String names the step for the log.
func (s step) String() string {
	return [...]string{"none", "idle", "make authority", "write bundle", "make serving pair", "drop previous authorities"}[s]
}
