package etcdprobe

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

func TestSimplifyMessage(t *testing.T) {
	for name, c := range map[string]struct{ message, want string }{
		"refused": {
			`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused"`,
			"connection refused",
		},
		"reset": {
			`connection error: desc = "error reading server preface: ` +
				`read tcp 127.0.0.1:40312->10.0.0.7:2379: read: connection reset by peer"`,
			"read: connection reset by peer",
		},
		"TLS": {
			`connection error: desc = "transport: authentication handshake failed: ` +
				`tls: failed to verify certificate: x509: certificate signed by unknown authority"`,
			"tls: failed to verify certificate: x509: certificate signed by unknown authority",
		},
		"etcd":  {"etcdserver: leader changed", "leader changed"},
		"other": {"some thing else", "some thing else"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, simplifyMessage(c.message)) })
	}
}

// Every message becomes one line of printable text within the API's limit.
func FuzzSimplifyMessage(f *testing.F) {
	f.Add("tls: failed to verify certificate: x509: certificate has expired or is not yet valid: " +
		"current time 2026-11-20T13:50:32Z is after 2026-11-19T00:00:00Z")
	f.Add(`connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.7:2379: connect: connection refused"`)
	f.Fuzz(func(t *testing.T, message string) {
		got := simplifyMessage(message)
		require.Equal(t, printable.Line(got), got)
	})
}

// A server up to 3.4 reports the expiry of a deadline as an unknown error.
func TestTimeoutOfEtcd34(t *testing.T) {
	f := newProbeError(status.Error(codes.Unknown, "context deadline exceeded"), time.Second, "")
	require.Equal(t, &probeError{message: "no response within 1s", unreachable: true, outcome: outcomeTimeout}, f)
	f = newProbeError(status.Error(codes.Unknown, "another context deadline exceeded"), time.Second, "")
	require.Equal(t, &probeError{message: "another context deadline exceeded", outcome: outcomeFailed}, f)
}

func TestAttempts(t *testing.T) {
	refused := &probeError{message: "connection refused", unreachable: true, outcome: outcomeUnreachable}
	untrusted := &probeError{message: "remote error: tls: unknown certificate authority", outcome: outcomeUntrusted}
	unreadable := &probeError{
		message: "reading the client key: open /etc/etcd/key.pem: permission denied", outcome: outcomeUnreadable,
	}
	at := func(url, origin string) endpoint {
		return endpoint{url: url, credential: evidence.Credential{Origin: origin}}
	}
	const one, two = "https://127.0.0.1:2379", "https://10.0.0.1:2379"
	for name, c := range map[string]struct {
		add  func(*attempts)
		want string
		hint bool
	}{
		"unreachable": {
			func(a *attempts) { a.add(at(one, "a"), refused); a.add(at(two, "a"), refused) },
			one + ", " + two + ": connection refused", false,
		},
		"same failures at all URLs": {
			func(a *attempts) {
				for _, url := range []string{one, two} {
					a.add(at(url, "admin"), untrusted)
					a.add(at(url, "server"), untrusted)
					a.add(at(url, "peer"), unreadable)
				}
			},
			one + ", " + two + " (admin, server): " + untrusted.message + "; (peer): " + unreadable.message, true,
		},
		"different failures": {
			func(a *attempts) {
				a.add(at(one, "a"), untrusted)
				a.add(at(one, "b"), unreadable)
				a.add(at(two, "a"), refused)
			},
			one + " (a): " + untrusted.message + "; (b): " + unreadable.message + "; " + two + ": connection refused", true,
		},
		"no credential": {
			func(a *attempts) { a.add(endpoint{url: one}, errors.New("request timed out")) },
			one + ": request timed out", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var a attempts
			c.add(&a)
			require.Equal(t, c.want, a.String())
			if c.hint {
				c.want += credentialHint
			}
			require.Equal(t, c.want, a.withHint())
		})
	}
}

// TestHint checks that the advice names what is missing: the CA alone for a server whose
// certificate is not trusted, all three files if the server rejected a client certificate.
func TestHint(t *testing.T) {
	unknown := &probeError{
		message: "tls: failed to verify certificate: x509: certificate signed by unknown authority",
		outcome: outcomeUntrusted,
	}
	rejected := &probeError{message: "remote error: tls: certificate required", outcome: outcomeUntrusted}
	otherHost := &probeError{
		message: "tls: failed to verify certificate: x509: certificate is valid for 10.0.0.1, not 127.0.0.1",
		outcome: outcomeUntrusted,
	}
	for name, c := range map[string]struct {
		failures []error
		want     string
	}{
		"bitnami/charts#8729: unknown authority": {[]error{unknown, unknown}, authorityHint},
		"rejected by the server":                 {[]error{rejected}, credentialHint},
		"unknown authority, then rejected":       {[]error{unknown, rejected}, credentialHint},
		"rejected, then unknown authority":       {[]error{rejected, unknown}, credentialHint},
		"certificate of another host":            {[]error{otherHost}, ""},
		"another host, then rejected":            {[]error{otherHost, rejected}, credentialHint},
		"timeout":                                {[]error{&probeError{message: "no response", outcome: outcomeTimeout}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var a attempts
			for _, err := range c.failures {
				a.add(endpoint{url: "https://127.0.0.1:2379"}, err)
			}
			require.Equal(t, a.String()+c.want, a.withHint())
		})
	}
}

func TestHintIsNotTruncated(t *testing.T) {
	var a attempts
	for i := range 100 {
		a.add(endpoint{url: "https://127.0.0.1:2379", credential: evidence.Credential{Origin: fmt.Sprint("file ", i)}},
			&probeError{message: strings.Repeat("\u00fc", i), outcome: outcomeUntrusted})
	}
	require.LessOrEqual(t, len(a.withHint()), maxTextLength)
	require.True(t, strings.HasSuffix(a.withHint(), "\u2026"+credentialHint))
}
