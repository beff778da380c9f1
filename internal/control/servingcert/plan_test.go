package servingcert

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stateAt returns a state with two webhooks whose caBundles have the CAs since the epoch.
func stateAt(now time.Time, content authorities, trusted ...*authority) rotationState {
	var bundle []byte
	for _, ca := range trusted {
		bundle = append(bundle, encodeCerts(ca.Leaf)...)
	}
	s := rotationState{authorities: content, now: epoch(), caBundles: [][]byte{bundle, bundle}}
	s.trust = caTrust{}.update(s)
	s.now = now
	return s
}

func TestPlanRotation(t *testing.T) {
	start := epoch()
	ca, next, old := newCAAt(t, start), newCAAt(t, start), newCAAt(t, start.Add(-4*365*24*time.Hour))
	early := newCAAt(t, start.Add(2*time.Hour))
	longAgo, older := newCAAt(t, start.Add(-testCAValidity/2)), newCAAt(t, start.Add(-testCAValidity+time.Hour))
	leaf := authority{issueAt(t, next, start)}
	steady, rotating := authorities{current: ca}, authorities{current: old, next: next}
	minute, settled := start.Add(time.Minute), start.Add(testSettle)
	unused := start.Add(testSettle + 2*testLeafValidity)
	unconfigured := rotationState{authorities: steady, now: start}
	oneWebhook := stateAt(settled, rotating, next, old)
	oneWebhook.caBundles[1] = nil
	oneWebhook.trust = oneWebhook.trust.update(oneWebhook)
	const (
		differs = "the caBundle of a webhook differs from the trusted CAs"
		read    = "every API server has read the caBundles"
	)
	for name, c := range map[string]struct {
		state  rotationState
		step   rotationStep
		reason string
		bundle []*authority // the wanted caBundle
	}{
		"empty Secret": {stateAt(start, authorities{}, old), stepCreateNext, "the Secret has no CA", []*authority{old}},
		"damaged Secret": {
			stateAt(start, authorities{problem: errors.New("ca.key: no PEM")}), stepCreateNext,
			"the Secret is unusable: ca.key: no PEM", nil,
		},
		"no configuration":    {unconfigured, stepWait, "", []*authority{ca}},
		"first CA":            {stateAt(start, authorities{next: ca}), stepWriteBundle, differs, []*authority{ca}},
		"first CA in bundles": {stateAt(minute, authorities{next: ca}, ca), stepWait, "", []*authority{ca}},
		"first CA settled":    {stateAt(settled, authorities{next: ca}, ca), stepPromoteNext, read, []*authority{ca}},
		"steady":              {stateAt(settled, steady, ca), stepWait, "", []*authority{ca}},
		"CA renewal": {
			stateAt(start, authorities{current: old}, old), stepCreateNext, "the CA expires on 2027-05-01T12:00:00Z",
			[]*authority{old},
		},
		"next CA":             {stateAt(start, rotating, old), stepWriteBundle, differs, []*authority{next, old}},
		"next CA in bundles":  {stateAt(minute, rotating, next, old), stepWait, "", []*authority{next, old}},
		"next CA settled":     {stateAt(settled, rotating, next, old), stepPromoteNext, read, []*authority{next, old}},
		"one webhook without": {oneWebhook, stepWriteBundle, differs, []*authority{next, old}},
		"next CA not used": {
			stateAt(start.Add(testLeafValidity), rotating, next, old), stepCreateNext,
			"the next CA could not be used for 2160h0m0s",
			[]*authority{next, old},
		},
		"CA not valid yet": {
			stateAt(start, authorities{current: early}, early), stepCreateNext,
			"the CA is not valid before 2026-05-01T13:00:00Z",
			[]*authority{early},
		},
		"lost Secret": {stateAt(settled, authorities{next: next}, old), stepWriteBundle, differs, []*authority{next, old}},
		"previous CA in use": {
			stateAt(unused.Add(-time.Second), steady, ca, old), stepWait, "", []*authority{ca, old},
		},
		"previous CA unused": {stateAt(unused, steady, ca, old), stepWriteBundle, differs, []*authority{ca}},
		"restored Secret of long ago": {
			stateAt(start, authorities{current: longAgo}, ca, older), stepWriteBundle, differs, []*authority{longAgo, ca},
		},
		"expired Secret restored": {
			stateAt(start, authorities{current: older, next: next}, ca, older), stepWriteBundle, differs,
			[]*authority{next, older, ca},
		},
		"not a CA in bundles": {stateAt(settled, steady, ca, &leaf), stepWriteBundle, differs, []*authority{ca}},
		"expired in bundles": {
			stateAt(start.Add(time.Minute), steady, ca, newCAAt(t, start.Add(-testCAValidity))), stepWriteBundle, differs,
			[]*authority{ca},
		},
	} {
		t.Run(name, func(t *testing.T) {
			step, reason := planRotation(c.state, testPolicy())
			require.Equal(t, c.step, step, reason)
			require.Equal(t, c.reason, reason)
			want := stateAt(start, authorities{}, c.bundle...).caBundles[0]
			require.Equal(t, string(want), string(wantedBundle(c.state, testPolicy())))
		})
	}
	var many []*authority
	for range maxTrusted + 3 {
		many = append(many, newCAAt(t, start))
	}
	require.Len(t, decodeCerts(wantedBundle(stateAt(start, steady, many...), testPolicy())), maxTrusted)
}

func TestServed(t *testing.T) {
	const (
		noCertificate = "no serving certificate exists yet"
		notTrusted    = "the webhook configuration does not trust the serving certificate"
		expired       = "the serving certificate expired on 2026-07-30T12:00:00Z"
	)
	start := epoch()
	ca, next, old := newCAAt(t, start), newCAAt(t, start), newCAAt(t, start.Add(-4*365*24*time.Hour))
	lost := newCAAt(t, start)
	served, oldServed := issueAt(t, ca, start), issueAt(t, old, start)
	steady, restored := authorities{current: ca}, authorities{current: next}
	rotating := authorities{current: old, next: next}
	minute, settled, third := start.Add(time.Minute), start.Add(testSettle), start.Add(testLeafValidity/3)
	nearEnd := ca.Leaf.NotAfter.Add(-time.Hour)
	endsWithCA := issueAt(t, ca, nearEnd)
	for name, c := range map[string]struct {
		state   rotationState
		served  *tls.Certificate
		signer  *authority // of a new certificate, nil if there is none
		unready string     // before the new certificate
	}{
		"start":                  {stateAt(minute, steady, ca), nil, ca, noCertificate},
		"start, not trusted":     {stateAt(minute, steady, old), nil, nil, noCertificate},
		"start in a rotation":    {stateAt(settled, rotating, next, old), nil, old, noCertificate},
		"start without a Secret": {stateAt(minute, authorities{next: next}, next, old), nil, next, noCertificate},
		"empty Secret":           {stateAt(minute, authorities{}, ca), served, nil, ""},
		"steady":                 {stateAt(third.Add(-time.Second), steady, ca), served, nil, ""},
		"renewal":                {stateAt(third, steady, ca), served, ca, ""},
		"CA ends, too":           {stateAt(nearEnd.Add(time.Minute), steady, ca), endsWithCA, nil, ""},
		"expired":                {stateAt(start.Add(testLeafValidity), steady, ca), served, ca, expired},
		"expired, not trusted":   {stateAt(start.Add(testLeafValidity), steady, old), served, nil, expired},
		"rotation":               {stateAt(settled, rotating, next, old), oldServed, nil, ""},
		"next CA is used":        {stateAt(settled, restored, next, old), oldServed, next, ""},
		"other CA, not settled":  {stateAt(minute, restored, next, old), oldServed, nil, ""},
		"other CA, not trusted":  {stateAt(settled, restored, old), oldServed, nil, ""},
		"lost Secret":            {stateAt(minute, authorities{next: next}, next, ca), served, nil, ""},
		"lost caBundles":         {stateAt(minute, steady), served, nil, notTrusted},
		"replaced caBundles":     {stateAt(minute, restored, next), issueAt(t, lost, start), next, notTrusted},
		"CA has expired":         {stateAt(old.Leaf.NotAfter, rotating, next, old), oldServed, next, expired},
		"no configuration":       {rotationState{authorities: steady, now: minute}, nil, nil, "no webhook is configured"},
		"clock was ahead":        {stateAt(start, steady, ca), issueAt(t, ca, start.Add(2*time.Hour)), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.state.served = c.served
			require.Equal(t, c.signer, c.state.signerOfNew(testPolicy()))
			require.Equal(t, c.unready, unreadyReason(c.state))
		})
	}
	require.Equal(t, "no webhook is configured", unreadyReason(rotationState{now: start, served: served}))
}
