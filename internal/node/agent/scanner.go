package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

const (
	// scanInterval is the time between two scans if nothing wakes the scanner.
	scanInterval = time.Minute
	// identifyGrace is how long a scan waits for the identities of its servers before it
	// publishes the evidence without them. A healthy server answers within this time. A server
	// that hangs or has just started must not delay the protection of the Node. It is also the least
	// time between the end of a scan and the next one.
	identifyGrace = 300 * time.Millisecond
	// scanTimeout limits one scan, and one request to a server. If the D-Bus hangs, the agent
	// loses one scan and not the loop.
	scanTimeout = 20 * time.Second
	// maxScanTime is the age of a scan at which the scanner stops waiting for it. scanTimeout does not
	// end a read from a file system that hangs.
	maxScanTime = 5 * time.Minute
	// maxScans limits the scans in progress. All but one of them hang.
	maxScans = 4
	// maxIdentifications limits the identifications in progress. The limit is reached only if
	// some of them hang where no timeout ends them.
	maxIdentifications = 16
)

// An etcdScanner finds the etcd servers of the host, and identifies each of them. It runs beside
// the loop that writes the Node, because both steps can take long. It identifies the servers
// side by side, so that a server that hangs does not hide another one.
type etcdScanner struct {
	cfg     Config
	metrics *metrics
	// wake is set when the host may have changed. changed is called when the evidence has.
	wake     loop.Signal
	changed  func()
	evidence latest[evidence.Scan]
	// lastScan is when the last scan ended, or when the first one began.
	lastScan latest[time.Time]

	// The fields below belong to the goroutine of run.
	scans      errgroup.Group
	scanNumber int
	current    []*identification // one for each server of the last scan
	findings   evidence.Scan     // of the last scan
	results    chan func()       // each stores one identity
	retry      *loop.Retry       // while a running server is not identified
}

// identification is the request for the identity of one server of the last scan.
type identification struct {
	evidence.FoundServer
	scanNumber int // of the scan that started the request
	began      time.Time
	done       bool
	// cancel ends a request to a server that has changed since.
	cancel context.CancelFunc
}

func newEtcdScanner(cfg Config, m *metrics, changed func()) *etcdScanner {
	return &etcdScanner{cfg: cfg, metrics: m, wake: loop.NewSignal(), changed: changed}
}

func noScanSince(t time.Time) string {
	return fmt.Sprintf("no scan of the host has completed since %s; check for a file system or a process that hangs",
		t.UTC().Format(time.RFC3339))
}

// run scans until the context ends: whenever it is woken, every minute, and earlier while a
// running server is not identified.
func (s *etcdScanner) run(ctx context.Context) error {
	identifying, ctx := errgroup.WithContext(ctx)
	identifying.SetLimit(maxIdentifications)
	s.results = make(chan func(), maxIdentifications)
	s.retry = loop.NewRetry(identifyBackoff())
	s.scans.SetLimit(maxScans)
	s.lastScan.set(time.Now())
	for {
		if s.scan(ctx, identifying); ctx.Err() != nil {
			break
		}
		s.collect(ctx)
	}
	return errors.Join(s.scans.Wait(), identifying.Wait(), context.Cause(ctx))
}

// identifyBackoff describes the delays between requests to a running server that does not
// answer. It may have just started, or its certificates are being replaced.
func identifyBackoff() wait.Backoff {
	return loop.Backoff(time.Second, scanInterval)
}

func (s *etcdScanner) scan(ctx context.Context, identifying *errgroup.Group) {
	findings, err := s.readHost(ctx)
	if ctx.Err() != nil {
		return // The scan was cut short, and its result is not evidence.
	}
	if err != nil {
		// The servers are those of the last scan. While a place is unknown, they prove no absence.
		s.findings.Unknown = []string{err.Error()}
		s.metrics.unreadable.Set(1)
		return
	}
	s.lastScan.set(time.Now())
	s.metrics.unreadable.Set(float64(len(findings.Unknown)))
	before, servers := s.current, findings.Found
	s.current, s.findings = nil, findings
	s.scanNumber++
	isUnchanged := func(i *identification, found evidence.FoundServer) bool {
		return reflect.DeepEqual(i.Server, found.Server)
	}
	if !slices.EqualFunc(before, servers, isUnchanged) {
		s.retry.Reset()
	}
	for _, found := range servers {
		s.current = append(s.current, s.startIdentification(ctx, identifying, found.Server, before))
	}
	for _, i := range before {
		if !slices.Contains(s.current, i) {
			i.cancel()
		}
	}
}

// readHost scans once, in a goroutine, and fails after maxScanTime. A scan that hangs in the
// kernel keeps its goroutine; a later scan can succeed, for example after an unmount.
func (s *etcdScanner) readHost(ctx context.Context) (evidence.Scan, error) {
	ended := make(chan evidence.Scan, 1)
	isStarted := s.scans.TryGo(func() error {
		ctx, cancel := context.WithTimeout(ctx, scanTimeout)
		defer cancel()
		ended <- s.cfg.Etcd(ctx)
		return nil
	})
	last, _ := s.lastScan.get()
	if !isStarted {
		return evidence.Scan{}, fmt.Errorf("%s; %d scans hang, so no further one is started", noScanSince(last), maxScans)
	}
	limit := time.NewTimer(maxScanTime)
	defer limit.Stop()
	select {
	case findings := <-ended:
		return findings, nil
	case <-limit.C:
		return evidence.Scan{}, errors.New(noScanSince(last))
	case <-ctx.Done():
		return evidence.Scan{}, context.Cause(ctx)
	}
}

// startIdentification returns the identification of a server: the one in progress if the server
// is unchanged, or else a new one. The previous answer of the server stays valid until the next
// answer.
func (s *etcdScanner) startIdentification(
	ctx context.Context, identifying *errgroup.Group, server evidence.Server, before []*identification,
) *identification {
	i := &identification{FoundServer: evidence.FoundServer{Server: server}, scanNumber: s.scanNumber, began: time.Now()}
	i.Identity = evidence.Identity{
		Problem: "it was just found, and the request for its identity is in progress", Pending: true,
	}
	unchanged := func(old *identification) bool { return reflect.DeepEqual(old.Server, server) }
	restarted := func(old *identification) bool { return isSameServer(old.Server, server) }
	if at := slices.IndexFunc(before, unchanged); at >= 0 {
		if !before[at].done {
			return before[at]
		}
		i.Identity = before[at].Identity
	} else if at := slices.IndexFunc(before, restarted); at >= 0 &&
		(!before[at].Removed || server.Stored != nil && *server.Stored == before[at].Ref) {
		// A removed member that was restarted may be about to join the cluster again, with another log.
		i.Identity = before[at].Identity
	}
	request, cancel := context.WithTimeout(ctx, scanTimeout)
	i.cancel = cancel
	if !identifying.TryGo(func() error {
		defer cancel()
		answer := s.cfg.Identify(request, server)
		select {
		case s.results <- func() { i.Identity, i.done = answer, true }:
		case <-ctx.Done():
		}
		return nil
	}) {
		cancel()
		i.done, i.Identity = true, evidence.Identity{Problem: "no request was sent, because too many earlier requests hang"}
	}
	return i
}

// collect gathers the identities and publishes the evidence until the next scan is due. It
// publishes when every server that this scan began to identify has answered, or after
// identifyGrace, and then again after each further answer.
func (s *etcdScanner) collect(ctx context.Context) {
	grace, next := time.NewTimer(identifyGrace), time.NewTimer(jittered(scanInterval))
	defer grace.Stop()
	defer next.Stop()
	published, allAnswered := false, false
	var wake loop.Signal // none before the end of grace
	for {
		if !published && !s.hasPending(s.scanNumber) {
			s.publish(ctx)
			published = true
		}
		if !allAnswered && !s.hasPending(0) {
			allAnswered = true
			if s.hasUnidentified() {
				next.Reset(s.retry.Next())
			} else {
				s.retry.Reset()
			}
		}
		select {
		case <-ctx.Done():
			return
		case store := <-s.results:
			store()
			if published {
				s.publish(ctx)
			}
		case <-grace.C:
			s.publish(ctx)
			published, wake = true, s.wake
		case <-wake:
			return
		case <-next.C:
			return
		}
	}
}

// hasPending reports whether an identification that a scan since this one began is in progress.
func (s *etcdScanner) hasPending(scanNumber int) bool {
	return slices.ContainsFunc(s.current, func(i *identification) bool { return !i.done && i.scanNumber >= scanNumber })
}

func (s *etcdScanner) hasUnidentified() bool {
	return slices.ContainsFunc(s.current, func(i *identification) bool {
		return i.IsRunning() && i.Problem != ""
	})
}

// publish replaces the evidence if it has changed.
func (s *etcdScanner) publish(ctx context.Context) {
	scan := s.findings
	scan.Found, scan.Notes = make([]evidence.FoundServer, len(s.current)), nil // notes are for inspect
	for n, i := range s.current {
		scan.Found[n] = i.FoundServer
		if !i.done && time.Since(i.began) > scanTimeout {
			scan.Found[n].Identity = evidence.Identity{Problem: fmt.Sprintf(
				"the request for its identity hangs since %s; check for a file system that hangs",
				i.began.UTC().Format(time.RFC3339))}
		}
	}
	before, scanned := s.evidence.get()
	if scanned && reflect.DeepEqual(before, scan) {
		return
	}
	s.logEvidence(ctx, scan)
	s.evidence.set(scan)
	s.changed()
}

func (s *etcdScanner) logEvidence(ctx context.Context, scan evidence.Scan) {
	for _, f := range scan.Found {
		s.cfg.Log.InfoContext(ctx, "found etcd on the host", "source", f.Source, "where", f.Where, "running", f.IsRunning(),
			"cluster", f.Ref.Cluster, "member", f.Ref.Member, "removed", f.Removed, "problem", f.Problem, "unread", f.Problems)
	}
	for _, d := range scan.Data {
		s.cfg.Log.InfoContext(ctx, "found data of etcd on the host", "dir", d.Dir, "cluster", d.Ref.Cluster,
			"member", d.Ref.Member, "starter", d.Starter)
	}
	for _, place := range scan.Unknown {
		s.cfg.Log.WarnContext(ctx, "failed to scan a place on the host", "place", place)
	}
	if len(scan.Found)+len(scan.Data) == 0 && !scan.Searching {
		s.cfg.Log.InfoContext(ctx, "found no etcd on the host")
	}
}
