package etcdprobe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const (
	// maxTextLength is the length of a reason or problem. The API accepts 1024 characters.
	maxTextLength = 1000
	// maxMessageLength is the length of an error message, with gRPC's wrapping, in bytes. The rest is
	// ignored: a server can send any text.
	maxMessageLength = 4 * maxTextLength
)

// probeOutcome classifies the result of a call. It is a label value of a metric.
type probeOutcome string

const (
	outcomeAnswered    probeOutcome = "answered"
	outcomeTimeout     probeOutcome = "timeout"
	outcomeUnreachable probeOutcome = "unreachable"
	// outcomeUnreadable: the credential's files cannot be read, or do not match each other.
	outcomeUnreadable probeOutcome = "unreadable"
	// outcomeExpired: the client certificate has expired or is not valid yet.
	outcomeExpired probeOutcome = "expired"
	// outcomeUntrusted: the client or the server does not accept the other's certificate.
	outcomeUntrusted probeOutcome = "untrusted"
	// outcomeForbidden: the server requires a user, and the certificate names none.
	outcomeForbidden probeOutcome = "forbidden"
	outcomeElection  probeOutcome = "election"
	// outcomeStranger: another server than the probed member responded.
	outcomeStranger probeOutcome = "stranger"
	outcomeFailed   probeOutcome = "failed"
)

// probeError is the reason for a failed call.
type probeError struct {
	message string
	// unreachable reports whether the server could not be reached at all. Another credential
	// would fail in the same way.
	unreachable bool
	outcome     probeOutcome
}

func (e *probeError) Error() string { return e.message }

// newProbeError converts an error of a call to one line of text. The text is the same for the
// same cause: it has no elapsed times and no source ports, so that an observation changes only
// if the cluster does.
func newProbeError(err error, timeout time.Duration, warning string) *probeError {
	f := &probeError{outcome: outcomeFailed}
	var wrongServer wrongServerError
	switch got, ok := status.FromError(err); {
	case ok:
		f.setStatus(got, timeout)
	case errors.As(err, &wrongServer):
		f.message, f.outcome = err.Error(), outcomeStranger
	default:
		f.message = simplifyMessage(err.Error())
	}
	etcdErr := rpctypes.Error(err)
	switch {
	case isElectionError(err):
		f.outcome = outcomeElection
	case warning != "" && !f.unreachable:
		f.outcome = outcomeExpired
	case strings.Contains(f.message, "tls: "), strings.Contains(f.message, "x509: "):
		f.outcome = outcomeUntrusted
	case errors.Is(etcdErr, rpctypes.ErrUserEmpty), errors.Is(etcdErr, rpctypes.ErrPermissionDenied):
		f.outcome = outcomeForbidden
		f.message += " (authentication is enabled: the certificate's common name must be an etcd user)"
	}
	if warning != "" {
		f.message += " (" + warning + ")"
	}
	return f
}

// setStatus sets the fields by the status of a call.
func (e *probeError) setStatus(s *status.Status, timeout time.Duration) {
	e.message = simplifyMessage(s.Message())
	code := s.Code()
	if code == codes.Unknown && s.Message() == context.DeadlineExceeded.Error() {
		// Servers up to 3.4 respond so if the deadline of the request expires there
		// (google.golang.org/grpc v1.26.0, server.go).
		code = codes.DeadlineExceeded
	}
	switch code {
	case codes.DeadlineExceeded:
		e.message, e.unreachable, e.outcome = "no response within "+timeout.String(), true, outcomeTimeout
	case codes.Canceled:
		e.message, e.unreachable = "the probe was canceled", true
	case codes.Unavailable:
		if e.unreachable = strings.Contains(s.Message(), "Error while dialing"); e.unreachable {
			e.outcome = outcomeUnreachable
		}
	default:
	}
}

// simplifyMessage removes gRPC's wrapping from an error message, and the parts that differ
// each time for the same cause. It returns one line of text.
func simplifyMessage(message string) string {
	message = strings.Clone(message[:min(len(message), maxMessageLength)])
	wrapping := regexp.MustCompile(`connection error: desc = |transport: |Error while dialing: |` +
		`authentication handshake failed: |error reading server preface: |etcdserver: |` +
		`grpc: |failed to unmarshal the received message: |` +
		`(dial|read|write) (tcp|unix) [^ ]+: |connect: |["\\]`)
	expiry := regexp.MustCompile(`certificate has expired or is not yet valid: current time \S+ is (after|before) (\S+)`)
	message = expiry.ReplaceAllStringFunc(wrapping.ReplaceAllString(message, ""), func(match string) string {
		parts := expiry.FindStringSubmatch(match)
		if parts[1] == "after" {
			return "the server's certificate expired on " + parts[2]
		}
		return "the server's certificate is not valid before " + parts[2]
	})
	return printable.Line(message)
}

// isElectionError reports whether a request failed because the cluster has no leader at the
// moment. This does not mean that a member is unhealthy.
func isElectionError(err error) bool {
	etcdErr := rpctypes.Error(err)
	return errors.Is(etcdErr, rpctypes.ErrLeaderChanged) || errors.Is(etcdErr, rpctypes.ErrNoLeader) ||
		errors.Is(etcdErr, rpctypes.ErrTimeoutDueToLeaderFail) || errors.Is(etcdErr, rpctypes.ErrNotLeader)
}

// wrongServerError reports that another server than the probed member responded.
type wrongServerError struct{ message string }

func (e wrongServerError) Error() string { return e.message }

// checkHeader returns an error if a response is not from the given member.
func checkHeader(header *pb.ResponseHeader, of evidence.MemberRef) error {
	if err := checkCluster(header, of.Cluster); err != nil {
		return err
	}
	if member := memberID(header.MemberId); member != of.Member {
		return wrongServerError{fmt.Sprintf("responded as member %s, not %s", member, of.Member)}
	}
	return nil
}

// checkCluster returns an error if a response is not from a member of the given cluster.
func checkCluster(header *pb.ResponseHeader, of v1alpha1.ClusterID) error {
	if header == nil {
		return wrongServerError{"responded without its IDs"}
	}
	if cluster := clusterID(header.ClusterId); cluster != of {
		return wrongServerError{fmt.Sprintf("responded as a member of cluster %s, not %s", cluster, of)}
	}
	return nil
}

const (
	// credentialHint is the advice for a server that rejected every credential.
	credentialHint = "; set --etcd-ca, --etcd-cert and --etcd-key to a client certificate that the server accepts"
	// authorityHint is the advice for a server whose certificate was signed by an unknown CA. Whether
	// it wants a client certificate is not known.
	authorityHint = "; set --etcd-ca to the CA of the server's certificate"
)

// attempts collects the failed attempts to query one server.
type attempts struct {
	list []attempt
	// hint is the advice for the credentials that failed, or "".
	hint string
}

// attempt is the failure at one URL, with all credentials for which it was the same.
type attempt struct {
	url, message string
	// origins are the origins of the credentials, empty if the server could not be reached.
	origins     []string
	unreachable bool
}

// add records a failed attempt. It merges attempts with the same URL and the same message.
func (a *attempts) add(e endpoint, err error) {
	this := attempt{url: e.url, message: err.Error()}
	if f := (*probeError)(nil); errors.As(err, &f) {
		this.unreachable = f.unreachable
		rejections := []probeOutcome{outcomeUnreadable, outcomeExpired, outcomeUntrusted, outcomeForbidden}
		switch {
		case f.outcome == outcomeUntrusted && strings.Contains(f.message, "signed by unknown authority"):
			a.hint = cmp.Or(a.hint, authorityHint)
		case strings.Contains(f.message, "failed to verify certificate"):
			// The server's certificate has expired or is that of another host, so no credential helps.
		case slices.Contains(rejections, f.outcome):
			a.hint = credentialHint
		}
	}
	if e.credential.Origin != "" && !this.unreachable {
		this.origins = []string{e.credential.Origin}
	}
	for i, other := range a.list {
		if other.url == this.url && other.message == this.message && len(other.origins) > 0 && len(this.origins) > 0 {
			a.list[i].origins = append(other.origins, this.origins...)
			return
		}
	}
	a.list = append(a.list, this)
}

// isUnreachable reports whether no server was reached at a URL. Further credentials need not
// be tried there.
func (a *attempts) isUnreachable(url string) bool {
	return slices.ContainsFunc(a.list, func(other attempt) bool { return other.unreachable && other.url == url })
}

// String returns all URLs with their failures. URLs with the same failures share one entry.
func (a *attempts) String() string {
	if len(a.list) == 0 {
		return "no client URL is known"
	}
	var urls, entries []string
	failures := map[string]string{}  // by URL
	sharing := map[string][]string{} // the URLs by their failures
	for _, each := range a.list {
		message := each.message
		if len(each.origins) > 0 {
			message = "(" + strings.Join(each.origins, ", ") + "): " + message
		}
		if before, isKnown := failures[each.url]; isKnown {
			message = before + "; " + message
		} else {
			urls = append(urls, each.url)
		}
		failures[each.url] = message
	}
	for _, u := range urls {
		sharing[failures[u]] = append(sharing[failures[u]], u)
	}
	for _, u := range urls {
		if same := sharing[failures[u]]; same[0] == u {
			separator := ": "
			if strings.HasPrefix(failures[u], "(") {
				separator = " "
			}
			entries = append(entries, strings.Join(same, ", ")+separator+failures[u])
		}
	}
	return printable.Clip(strings.Join(entries, "; "), maxTextLength)
}

// withHint returns String, with the hint if a credential failed. It shortens the failures and never
// the hint.
func (a *attempts) withHint() string {
	text := a.String()
	if limit := maxTextLength - len(a.hint); len(text) > limit {
		text = printable.Clip(text, limit-len("…"))
	}
	return text + a.hint
}
