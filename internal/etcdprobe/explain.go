package etcdprobe

import (
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
)

// maxWords is how long a reason may be: the API takes 1024 characters.
const maxWords = 1000

// failure is why a question got no answer, in words for people.
type failure struct {
	words string
	// deaf says that the server could not be reached at all, so no other credential would fare better.
	deaf  bool
	cause error
}

func (f *failure) Error() string { return f.words }
func (f *failure) Unwrap() error { return f.cause }

// explain turns an error of gRPC into one line. The words are the same for the same trouble, so that an observation
// changes only when the cluster does: no elapsed times, no source ports.
func explain(err error, timeout time.Duration, warning string) error {
	f := &failure{cause: err}
	if got, ok := status.FromError(err); ok {
		f.words = plain(got.Message())
		switch got.Code() {
		case codes.DeadlineExceeded:
			f.words, f.deaf = "no answer within "+timeout.String(), true
		case codes.Canceled:
			f.words, f.deaf = "the look was cut short", true
		case codes.Unavailable:
			f.deaf = strings.Contains(got.Message(), "Error while dialing")
		default:
		}
	} else {
		f.words = err.Error()
	}
	if warning != "" {
		f.words += " (" + warning + ")"
	}
	return f
}

// plain strips what gRPC wraps around the cause.
func plain(message string) string {
	layers := regexp.MustCompile(`connection error: desc = |transport: |Error while dialing: |authentication handshake failed: |` +
		`error reading server preface: |etcdserver: |(dial|read|write) (tcp|unix) [^ ]+: |connect: |["\\]`)
	return layers.ReplaceAllString(message, "")
}

// election says that an answer failed because the leader is just changing, which is no sign of death.
func election(err error) bool {
	known := rpctypes.Error(err)
	return errors.Is(known, rpctypes.ErrLeaderChanged) || errors.Is(known, rpctypes.ErrNoLeader) ||
		errors.Is(known, rpctypes.ErrTimeoutDueToLeaderFail) || errors.Is(known, rpctypes.ErrNotLeader)
}

// sameServer returns an error if an answer is not from the member that was asked; member 0 stands for any of the cluster.
func sameServer(header *pb.ResponseHeader, cluster, member uint64) error {
	switch {
	case header == nil:
		return errors.New("the answer does not say who gave it")
	case header.ClusterId != cluster:
		return fmt.Errorf("it belongs to cluster %x, not %x", header.ClusterId, cluster)
	case member != 0 && header.MemberId != member:
		return fmt.Errorf("it is member %x, not %x", header.MemberId, member)
	}
	return nil
}

// trail collects what was tried in vain.
type trail struct {
	steps []string
	deaf  []string // URLs
}

func (t *trail) add(way target, err error) {
	f := (*failure)(nil)
	if errors.As(err, &f) && f.deaf {
		t.steps = append(t.steps, way.url+": "+f.words)
		t.deaf = append(t.deaf, way.url)
		return
	}
	at := way.url
	if way.credential.Origin != "" {
		at += " (" + way.credential.Origin + ")"
	}
	t.steps = append(t.steps, at+": "+err.Error())
}

// hopeless says that nobody can be reached at a URL, with whatever credential.
func (t *trail) hopeless(url string) bool { return slices.Contains(t.deaf, url) }

func (t *trail) String() string { return clip(strings.Join(t.steps, "; ")) }

// clip shortens text to what the API takes.
func clip(text string) string {
	if len(text) <= maxWords {
		return text
	}
	return strings.ToValidUTF8(text[:maxWords], "") + "…"
}
