package agent

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const (
	// lookEvery is how often the host is looked at if nothing happens there, and lookGap how long it is left alone after
	// a look whatever happens.
	lookEvery = time.Minute
	lookGap   = 250 * time.Millisecond
	// lookBudget bounds one look: a bus that hangs costs a look, never the loop.
	lookBudget = 20 * time.Second
	// lookPatience is how old the last look may be. The budget does not end a read of a file system that hangs.
	lookPatience = 5 * time.Minute
)

// latest is a value that one goroutine replaces and others read.
type latest[T any] struct {
	mu    sync.Mutex
	value T
	set   bool
}

func (l *latest[T]) put(value T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value, l.set = value, true
}

// take returns the value, and whether there ever was one.
func (l *latest[T]) take() (value T, ever bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.set
}

// lookout looks at the host for etcd and asks each server that it finds who it is. It does this beside the loop that
// writes the Node, since a server that hangs takes its time.
type lookout struct {
	etcd     func(context.Context) ([]protect.Sighting, []string)
	identify func(context.Context, protect.Sighting) protect.Answer
	pods     bool
	log      *slog.Logger
	// woken rings when the host may have changed; told is called after every look.
	woken    bell
	told     func()
	evidence latest[protect.HostEvidence]
	// patience is how old the last look may be; looked is when it ended, in Unix nanoseconds, or when the first began.
	patience time.Duration
	looked   atomic.Int64
}

// blind says since when no look at the host has ended, empty if that is not too long.
func (l *lookout) blind(now time.Time) string {
	last := l.looked.Load()
	if since := time.Unix(0, last); last != 0 && now.Sub(since) > l.patience {
		return fmt.Sprintf("no look at the host has ended since %s: a file system of it, or a process, hangs", since.UTC().Format(time.RFC3339))
	}
	return ""
}

// run looks whenever it is woken and every minute, until the context ends.
func (l *lookout) run(ctx context.Context) error {
	l.looked.Store(time.Now().UnixNano())
	for {
		before, ever := l.evidence.take()
		seen := l.look(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !ever || !reflect.DeepEqual(before, seen) {
			l.report(ctx, seen)
		}
		l.evidence.put(seen)
		l.looked.Store(time.Now().UnixNano())
		l.told()
		if pause(ctx, lookGap) != nil {
			return context.Cause(ctx)
		}
		l.await(ctx)
	}
}

func (l *lookout) await(ctx context.Context) {
	timer := time.NewTimer(jittered(lookEvery))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-l.woken:
	case <-timer.C:
	}
}

// look takes the evidence of the host as it is now.
func (l *lookout) look(ctx context.Context) protect.HostEvidence {
	ctx, cancel := context.WithTimeout(ctx, lookBudget)
	defer cancel()
	sightings, unknown := l.etcd(ctx)
	seen := protect.HostEvidence{Found: make([]protect.Found, len(sightings)), Unknown: unknown}
	var asking sync.WaitGroup
	for i, s := range sightings {
		seen.Found[i].Sighting = s
		if s.InCluster && !l.pods {
			continue
		}
		asking.Go(func() { seen.Found[i].Answer = l.identify(ctx, s) })
	}
	asking.Wait()
	return seen
}

// report logs what a look has shown. It is called when that changed.
func (l *lookout) report(ctx context.Context, seen protect.HostEvidence) {
	for _, f := range seen.Found {
		l.log.InfoContext(ctx, "etcd seen on the host", "source", f.Source, "where", f.Where, "running", f.Running(),
			"cluster", f.Ref.Cluster, "member", f.Ref.Member, "removed", f.Removed, "problem", f.Problem, "unread", f.Problems)
	}
	for _, place := range seen.Unknown {
		l.log.WarnContext(ctx, "a place on the host cannot be looked at", "place", place)
	}
	if len(seen.Found) == 0 {
		l.log.InfoContext(ctx, "no etcd seen on the host")
	}
}

// subject is a local member that is observed.
type subject struct {
	sighting protect.Sighting
	answer   protect.Answer
}

// subjects returns the local members to observe, by cluster. A server that does not answer now is observed as the member
// that it said it was before, or as the only one that the Node announces and that is not accounted for: what its cluster
// looks like from here is wanted most when it is ill.
func subjects(seen protect.HostEvidence, before map[v1alpha1.ClusterID]subject, announced []protect.MemberRef, pods bool) map[v1alpha1.ClusterID]subject {
	found := map[v1alpha1.ClusterID]subject{}
	var silent []protect.Found
	for _, f := range seen.Found {
		switch {
		case f.InCluster && !pods, f.Removed:
		case f.Answered():
			found[f.Ref.Cluster] = subject{f.Sighting, f.Answer}
		default:
			silent = append(silent, f)
		}
	}
	for _, f := range silent {
		for cluster, was := range before {
			if _, taken := found[cluster]; !taken && sameServer(was.sighting, f.Sighting) {
				found[cluster] = subject{f.Sighting, silently(f, was.answer.Ref)}
			}
		}
	}
	var missing []protect.MemberRef
	for _, ref := range announced {
		if _, taken := found[ref.Cluster]; !taken {
			missing = append(missing, ref)
		}
	}
	if len(silent) == 1 && len(missing) == 1 && len(found) == len(announced)-1 {
		found[missing[0].Cluster] = subject{silent[0].Sighting, silently(silent[0], missing[0])}
	}
	return found
}

// sameServer says whether two looks saw one server. What was a process may be a data directory at the next look.
func sameServer(a, b protect.Sighting) bool {
	if a.Config.DataDir != "" && b.Config.DataDir != "" {
		return a.Config.DataDir == b.Config.DataDir
	}
	return a.Where == b.Where
}

// silently is the answer of a server that gave none, with who it is known to be.
func silently(f protect.Found, ref protect.MemberRef) protect.Answer {
	answer := f.Answer
	answer.Ref = ref
	return answer
}

// known gathers what membership is assessed from besides the host. Announcements that cannot be read count as none.
func known(n *corev1.Node, clusters *mirror[*v1alpha1.EtcdCluster], pods bool) (protect.Known, error) {
	announced, err := protect.ParseAnnouncement(n.Annotations[protect.AnnouncementAnnotation])
	k := protect.Known{
		Node: n.Name, UID: n.UID, Annotations: n.Annotations, StaticPods: pods,
		Announced: announced,
		Protected: isMember(n),
	}
	objects, there := clusters.all()
	k.ClustersKnown = there
	for _, o := range objects {
		k.Clusters = append(k.Clusters, *o)
	}
	return k, err
}
