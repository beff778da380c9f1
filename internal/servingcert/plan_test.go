package servingcert

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlanRotation(t *testing.T) {
	start := epoch()
	ca, old := newCAAt(t, start), newCAAt(t, start.Add(-4*365*24*time.Hour))
	early := newCAAt(t, start.Add(2*time.Hour))
	serving, oldServing := issueAt(t, ca, start), issueAt(t, old, start.Add(-time.Hour))
	otherNames, err := ca.issueServing(start, testLeafValidity, []string{"other.default.svc"})
	require.NoError(t, err)
	previous := []*x509.Certificate{old.cert}
	onlyCA, complete := secretContent{ca: ca}, secretContent{ca: ca, serving: serving}
	rotating := secretContent{ca: ca, previous: previous, serving: oldServing}
	rotated := secretContent{ca: ca, previous: previous, serving: serving}
	renewed := secretContent{ca: ca, previous: previous, serving: issueAt(t, ca, start.Add(testLeafValidity/2))}
	damaged := secretContent{problems: []string{"ca.key: no PEM"}}
	renewal, end := start.Add(testLeafValidity*2/3), start.Add(testLeafValidity)
	minute, settled := start.Add(time.Minute), start.Add(testSettle)
	// at returns a state with two webhooks that trust the CAs since the start.
	at := func(now time.Time, content secretContent, cas ...*certAuthority) rotationState {
		var bundle []byte
		for _, ca := range cas {
			bundle = append(bundle, encodeCerts(ca.cert)...)
		}
		return rotationState{now: now, content: content, caBundles: [][]byte{bundle, bundle}, trustedSince: start}
	}
	unconfigured := rotationState{now: start, content: onlyCA}
	oneWebhook := at(start, complete, ca)
	oneWebhook.caBundles[1] = nil
	notSettled := at(end, complete, ca)
	notSettled.trustedSince = end
	lostSecret := at(minute, secretContent{ca: ca, previous: previous}, ca, old)
	lostSecret.served = oldServing
	const (
		differs = "the caBundle of a webhook differs from the CAs in the Secret"
		expires = "the serving certificate expires on 2026-07-30T12:00:00Z"
		waiting = "waiting until every API server has read the caBundles"
	)
	never := time.Time{}

	for name, c := range map[string]struct {
		state     rotationState
		step      rotationStep
		reason    string
		nextCheck time.Time
	}{
		"empty Secret":           {at(start, secretContent{}), stepCreateCA, "the Secret has no CA", never},
		"damaged Secret":         {at(start, damaged), stepCreateCA, "the Secret is unusable: ca.key: no PEM", never},
		"no configuration":       {unconfigured, stepWait, "no webhook is configured", start.Add(testCAValidity * 2 / 3)},
		"first CA":               {at(start, onlyCA), stepWriteBundle, differs, never},
		"one webhook without CA": {oneWebhook, stepWriteBundle, differs, never},
		"no serving certificate": {at(start, onlyCA, ca), stepIssueServing, "the Secret has no serving certificate", never},
		"nothing due":            {at(start, complete, ca), stepWait, "no step is due", renewal},
		"before the renewal":     {at(renewal.Add(-time.Second), complete, ca), stepWait, "no step is due", renewal},
		"renewal":                {at(renewal, complete, ca), stepIssueServing, expires, never},
		"expired, not settled":   {notSettled, stepIssueServing, expires, never},
		"other DNS names": {
			at(settled, secretContent{ca: ca, serving: otherNames}, ca),
			stepIssueServing, "the serving certificate is not valid for holdfast-webhook", never,
		},
		"not valid yet": {
			at(settled, secretContent{ca: ca, serving: issueAt(t, ca, settled.Add(2*time.Hour))}, ca),
			stepIssueServing, "the serving certificate is not valid before 2026-05-01T13:10:00Z", never,
		},
		"CA not valid yet": {
			at(start, secretContent{ca: early, serving: serving}, early),
			stepCreateCA, "the CA is not valid before 2026-05-01T13:00:00Z", never,
		},
		"CA renewal": {
			at(start, secretContent{ca: old, serving: oldServing}, old),
			stepCreateCA, "the CA expires on 2027-05-01T12:00:00Z", never,
		},
		"new CA, not in the caBundles": {at(start, rotating, old), stepWriteBundle, differs, never},
		"new CA, not settled":          {at(minute, rotating, ca, old), stepWait, waiting, settled},
		"lost Secret, still accepted":  {lostSecret, stepWait, waiting, settled},
		"new CA, settled": {
			at(settled, rotating, ca, old), stepIssueServing, "the serving certificate is from a previous CA", never,
		},
		"previous CA in use": {
			at(settled, rotated, ca, old), stepWait, "a served certificate may be from a previous CA", renewal,
		},
		"previous CA unused": {
			at(end.Add(testSettle), renewed, ca, old),
			stepDropPrevious, "all certificates of the previous CAs have expired", never,
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := planRotation(c.state, testPolicy())
			require.Equal(t, c.step.String(), plan.step.String(), plan.reason)
			require.Equal(t, c.reason, plan.reason)
			require.True(t, c.nextCheck.Equal(plan.nextCheck), "next check at %s", plan.nextCheck)
		})
	}
}

func TestSelectServing(t *testing.T) {
	const notTrusted = "the webhook configuration does not trust the serving certificate yet"
	start := epoch()
	ca, nextCA := newCAAt(t, start), newCAAt(t, start)
	current, next := issueAt(t, ca, start), issueAt(t, nextCA, start)
	const notYet = "the serving certificate is not valid before 2026-05-01T13:00:00Z"
	early, earlyCA := issueAt(t, nextCA, start.Add(2*time.Hour)), newCAAt(t, start.Add(2*time.Hour))
	ofEarlyCA := issueAt(t, earlyCA, start)
	for name, c := range map[string]struct {
		served, secret *tls.Certificate
		trusted        *certAuthority // nil for both CAs
		now, since     time.Time
		want           *tls.Certificate
		unready        string
	}{
		"no certificate":                       {nil, nil, ca, start, start, nil, "no serving certificate exists yet"},
		"first":                                {nil, current, ca, start, start, current, ""},
		"first, not trusted":                   {nil, next, ca, start, time.Time{}, next, notTrusted},
		"next":                                 {current, next, nextCA, start, start.Add(-testSettle), next, ""},
		"next, not trusted":                    {current, next, ca, start, time.Time{}, current, ""},
		"next, not settled":                    {current, next, nil, start, start.Add(time.Second - testSettle), current, ""},
		"lost Secret":                          {current, nil, ca, start, start, current, ""},
		"both not trusted":                     {current, next, newCAAt(t, start), start, time.Time{}, next, notTrusted},
		"next, not valid yet":                  {current, early, nextCA, start, time.Time{}, early, notYet},
		"next of the future, current accepted": {current, early, nil, start, start.Add(-testSettle), current, ""},
		"CA not valid yet": {
			current, ofEarlyCA, earlyCA, start, start.Add(-testSettle), ofEarlyCA, notTrusted,
		},
		"expired in use": {
			current, next, ca, start.Add(testLeafValidity),
			time.Time{},
			next,
			"the serving certificate expired on 2026-07-30T12:00:00Z",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := encodeCerts(ca.cert, nextCA.cert)
			if c.trusted != nil {
				bundle = encodeCerts(c.trusted.cert)
			}
			s := rotationState{
				now: c.now, content: secretContent{ca: ca, serving: c.secret}, served: c.served,
				caBundles: [][]byte{bundle}, trustedSince: c.since,
			}
			got := selectServing(s, testPolicy())
			require.Same(t, c.want, got)
			require.Equal(t, c.unready, unreadyReason(s, got))
		})
	}
	require.Equal(t, "no webhook is configured",
		unreadyReason(rotationState{now: start}, current))
}
