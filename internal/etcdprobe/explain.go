package etcdprobe

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxWords is how long a reason may be: the API takes 1024 characters.
const maxWords = 1000

// outcome is what became of a question, in the classes that the metrics have.
type outcome string

const (
	answered    outcome = "answered"
	timedOut    outcome = "timeout"
	unreachable outcome = "unreachable"
	// unreadable: the files of the credential cannot be read, or do not fit each other.
	unreadable outcome = "unreadable"
	// expired: what the client's certificate says of its own dates rules it out.
	expired outcome = "expired"
	// untrusted: the client or the server does not take the other's certificate.
	untrusted outcome = "untrusted"
	// forbidden: the server demands a user, and takes nobody for one.
	forbidden outcome = "forbidden"
	electing  outcome = "election"
	// stranger: the answer is not from the member that was asked.
	stranger outcome = "stranger"
	failed   outcome = "failed"
)

func outcomes() []outcome {
	return []outcome{answered, timedOut, unreachable, unreadable, expired, untrusted, forbidden, electing, stranger, failed}
}

// failure is why a question got no answer, in words for people.
type failure struct {
	words string
	// deaf says that the server could not be reached at all, so no other credential would fare better.
	deaf    bool
	outcome outcome
	cause   error
}

func (f *failure) Error() string { return f.words }
func (f *failure) Unwrap() error { return f.cause }

// explain turns an error of gRPC into one line. The words are the same for the same trouble, so that an observation
// changes only when the cluster does: no elapsed times, no source ports.
func explain(err error, timeout time.Duration, warning string) *failure {
	f := &failure{cause: err, outcome: failed}
	var foreign strangerError
	switch got, ok := status.FromError(err); {
	case ok:
		f.words = plain(got.Message())
		switch got.Code() {
		case codes.DeadlineExceeded:
			f.words, f.deaf, f.outcome = "no answer within "+timeout.String(), true, timedOut
		case codes.Canceled:
			f.words, f.deaf = "the look was cut short", true
		case codes.Unavailable:
			if f.deaf = strings.Contains(got.Message(), "Error while dialing"); f.deaf {
				f.outcome = unreachable
			}
		default:
		}
	case errors.As(err, &foreign):
		f.words, f.outcome = err.Error(), stranger
	default:
		f.words = plain(err.Error())
	}
	switch tls := strings.Contains(f.words, "tls: ") || strings.Contains(f.words, "x509: "); {
	case election(err):
		f.outcome = electing
	case warning != "" && !f.deaf:
		f.outcome = expired
	case tls:
		f.outcome = untrusted
	case errors.Is(rpctypes.Error(err), rpctypes.ErrUserEmpty), errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied):
		f.words, f.outcome = f.words+" (authentication is on: the certificate's common name must be a user of this etcd)", forbidden
	}
	if warning != "" {
		f.words += " (" + warning + ")"
	}
	return f
}

// plain strips what gRPC wraps around the cause, and what makes the same trouble look different each time. What a server
// says stays one line of text, whatever it is.
func plain(message string) string {
	layers := regexp.MustCompile(`connection error: desc = |transport: |Error while dialing: |authentication handshake failed: |` +
		`error reading server preface: |etcdserver: |(dial|read|write) (tcp|unix) [^ ]+: |connect: |["\\]`)
	clock := regexp.MustCompile(`certificate has expired or is not yet valid: current time \S+ is (after|before) (\S+)`)
	message = clock.ReplaceAllStringFunc(layers.ReplaceAllString(message, ""), func(found string) string {
		parts := clock.FindStringSubmatch(found)
		if parts[1] == "after" {
			return "the server's certificate expired on " + parts[2]
		}
		return "the server's certificate is not valid before " + parts[2]
	})
	return oneLine(message)
}

// oneLine is text that can stand in a line: no control characters, nothing that is no UTF-8.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return strings.Join(strings.Fields(text), " ")
}

// election says that an answer failed because the leader is just changing, which is no sign of death.
func election(err error) bool {
	known := rpctypes.Error(err)
	return errors.Is(known, rpctypes.ErrLeaderChanged) || errors.Is(known, rpctypes.ErrNoLeader) ||
		errors.Is(known, rpctypes.ErrTimeoutDueToLeaderFail) || errors.Is(known, rpctypes.ErrNotLeader)
}

// strangerError says that an answer is from somebody else than was asked.
type strangerError struct{ words string }

func (e strangerError) Error() string { return e.words }

// sameServer returns an error if an answer is not from the member that was asked; member 0 stands for any of the cluster.
func sameServer(header *pb.ResponseHeader, cluster, member uint64) error {
	switch {
	case header == nil:
		return strangerError{"the answer does not say who gave it"}
	case header.ClusterId != cluster:
		return strangerError{fmt.Sprintf("it belongs to cluster %x, not %x", header.ClusterId, cluster)}
	case member != 0 && header.MemberId != member:
		return strangerError{fmt.Sprintf("it is member %x, not %x", header.MemberId, member)}
	}
	return nil
}

// clip shortens text to what the API takes.
func clip(text string) string {
	if len(text) <= maxWords {
		return text
	}
	return strings.ToValidUTF8(text[:maxWords], "") + "…"
}
