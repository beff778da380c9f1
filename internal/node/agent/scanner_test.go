package agent

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// scannerFixture is an etcdScanner in a bubble. The test plays the host.
type scannerFixture struct {
	*etcdScanner
	t        *testing.T
	logs     func() string
	scans    atomic.Int64
	notified atomic.Int64
	// found and unread are the result of a scan.
	found  latest[[]evidence.Server]
	unread latest[[]string]
	begin  loop.Signal
}

// runScanner runs a scanner, and then act. The first scan begins when act first waits, so that
// it finds what act showed before, whichever goroutine the scheduler runs first.
func runScanner(
	t *testing.T, identify func(context.Context, evidence.Server) evidence.Identity, act func(*scannerFixture),
) {
	synctest.Test(t, func(t *testing.T) {
		log, logs := recordLog(t)
		f := &scannerFixture{t: t, logs: logs, begin: loop.NewSignal()}
		f.etcdScanner = newEtcdScanner(Config{
			Etcd: func(context.Context) evidence.Scan {
				f.scans.Add(1)
				// The notes are no part of the evidence.
				scan := evidence.Scan{Notes: []string{fmt.Sprint("scan ", f.scans.Load())}}
				servers, _ := f.found.get()
				for _, server := range servers {
					scan.Found = append(scan.Found, evidence.FoundServer{Server: server})
				}
				scan.Unknown, _ = f.unread.get()
				return scan
			},
			Identify: identify, Log: log,
		}, newMetrics(), func() { f.notified.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1) // has room, because nothing receives if act fails
		go func() {
			<-f.begin
			ended <- f.run(ctx)
		}()
		act(f)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// show changes the host, and notifies the scanner.
func (f *scannerFixture) show(found ...evidence.Server) {
	f.found.set(found)
	f.wake.Notify()
}

func (f *scannerFixture) wait(d time.Duration) {
	f.begin.Notify()
	elapse(f.t, d)
}

// requireAnswers compares the answers of the servers, by their place: the member, or the problem.
func (f *scannerFixture) requireAnswers(want map[string]string, message ...any) {
	f.t.Helper()
	require.Equal(f.t, want, f.answers(), message...)
}

func (f *scannerFixture) answers() map[string]string {
	scan, _ := f.evidence.get()
	found := map[string]string{}
	for _, server := range scan.Found {
		if found[server.Where] = server.Problem; server.HasAnswered() {
			found[server.Where] = string(server.Ref.Member)
		}
	}
	return found
}

const justFound = "it was just found, and the request for its identity is in progress"

func answer(id string) evidence.Identity {
	return evidence.Identity{Ref: evidence.MemberRef{Cluster: testCluster, Member: v1alpha1.MemberID(id)}}
}

func TestScanPace(t *testing.T) {
	runScanner(t, nil, func(f *scannerFixture) {
		for range 100 { // one second of events
			f.wait(10 * time.Millisecond)
			f.wake.Notify()
		}
		onEvents := f.scans.Load()
		require.LessOrEqual(t, onEvents, int64(5))
		require.GreaterOrEqual(t, onEvents, int64(4))
		f.wait(10 * time.Minute)
		require.InDelta(t, 10+1, f.scans.Load()-onEvents, 1)
		require.Equal(t, int64(1), f.notified.Load(), "unchanged evidence causes no notification")
	})
}

// Without --protect-static-pods too, because an EtcdCluster may bind the member (H18).
func TestStaticPodIsIdentified(t *testing.T) {
	identify := func(context.Context, evidence.Server) evidence.Identity { return answer("a") }
	runScanner(t, identify, func(f *scannerFixture) {
		f.show(evidence.Server{Where: "static pod etcd", PID: 7, InCluster: true})
		f.wait(time.Second)
		f.requireAnswers(map[string]string{"static pod etcd": "a"})
	})
}

func TestHangingServer(t *testing.T) {
	runScanner(t, func(ctx context.Context, s evidence.Server) evidence.Identity {
		switch s.Where {
		case "slow":
			if pause(ctx, time.Second) == nil {
				return answer("1")
			}
		case "quick":
			return answer("2")
		}
		<-ctx.Done() // the server accepts the connection and never answers, and the prober has no timeout
		return evidence.Identity{Problem: s.Where + " does not answer"}
	}, func(f *scannerFixture) {
		hung, slow := evidence.Server{Where: "hung", PID: 1}, evidence.Server{Where: "slow", PID: 2}
		f.show(hung, slow)
		f.unread.set([]string{"the bus: refused"})
		f.wait(identifyGrace)
		f.requireAnswers(map[string]string{"hung": justFound, "slow": justFound}, "published without waiting")
		scan, _ := f.evidence.get()
		require.Equal(t, []string{"the bus: refused"}, scan.Unknown)

		// Another server starts while the first still hangs.
		f.show(hung, slow, evidence.Server{Where: "quick", PID: 4})
		f.wait(identifyGrace)
		f.requireAnswers(map[string]string{"hung": justFound, "slow": justFound, "quick": "2"})
		f.wait(time.Second)
		f.requireAnswers(map[string]string{"hung": justFound, "slow": "1", "quick": "2"})
		f.wait(scanTimeout)
		f.requireAnswers(map[string]string{"hung": "hung does not answer", "slow": "1", "quick": "2"})
		f.wait(10 * time.Minute)
		require.Equal(t, 1, strings.Count(f.logs(), "hung does not answer"), "evidence is logged when it changes")
	})
}

// TestRestartedServer checks that a server keeps its identity over a restart, until it has
// answered again.
func TestRestartedServer(t *testing.T) {
	hang := atomic.Bool{}
	runScanner(t, func(ctx context.Context, s evidence.Server) evidence.Identity {
		if hang.Load() {
			<-ctx.Done()
			return evidence.Identity{Problem: "no answer"}
		}
		a := answer("1")
		a.Removed = s.Where == "removed"
		return a
	}, func(f *scannerFixture) {
		f.show(evidence.Server{Where: "etcd", PID: 1}, evidence.Server{Where: "removed"})
		f.wait(identifyGrace)
		f.requireAnswers(map[string]string{"etcd": "1", "removed": "1"})
		hang.Store(true)
		f.show(evidence.Server{Where: "etcd", PID: 2}, evidence.Server{Where: "removed"})
		f.wait(2 * identifyGrace)
		scan, _ := f.evidence.get()
		f.requireAnswers(map[string]string{"etcd": "1", "removed": "1"})
		require.Equal(t, 2, scan.Found[0].PID)
		require.True(t, scan.Found[1].Removed, "this server is unchanged")

		// A removed member that was restarted may be about to join the cluster again. It counts
		// until the agent knows more.
		stored := answer("1").Ref
		f.show(evidence.Server{Where: "etcd", PID: 2}, evidence.Server{Where: "removed", PID: 3, Stored: &stored})
		f.wait(2 * identifyGrace)
		scan, _ = f.evidence.get()
		require.True(t, scan.Found[1].Removed, "its log still names the removed member")
		f.show(evidence.Server{Where: "etcd", PID: 2}, evidence.Server{Where: "removed", PID: 3})
		f.wait(2 * identifyGrace)
		f.requireAnswers(map[string]string{"etcd": "1", "removed": justFound})
		f.wait(scanTimeout)
		f.requireAnswers(map[string]string{"etcd": "no answer", "removed": "no answer"})
	})
}

// TestSilentServer checks the retries: a server that has just started does not answer yet, and
// no event announces when it will.
func TestSilentServer(t *testing.T) {
	identified, up := atomic.Int64{}, atomic.Bool{}
	runScanner(t, func(context.Context, evidence.Server) evidence.Identity {
		identified.Add(1)
		if up.Load() {
			return answer("1")
		}
		return evidence.Identity{Problem: "connection refused"}
	}, func(f *scannerFixture) {
		data := evidence.Server{Where: "data"}
		f.show(evidence.Server{Where: "etcd", PID: 1}, data)
		f.wait(4 * time.Second)
		require.InDelta(t, 2*3, identified.Load(), 2)
		up.Store(true)
		f.wait(4500 * time.Millisecond)
		require.Equal(t, "1", f.answers()["etcd"])

		up.Store(false)
		f.show(evidence.Server{Where: "etcd", PID: 2}, data)
		f.wait(10 * time.Minute)
		before := identified.Load()
		f.wait(10 * time.Minute)
		require.InDelta(t, 2*10, identified.Load()-before, 4, "a server that stays silent is identified every minute")

		f.show(evidence.Server{Where: "etcd", PID: 3}, data)
		f.wait(identifyGrace)
		before = identified.Load()
		f.wait(1500 * time.Millisecond)
		require.Greater(t, identified.Load(), before, "a new process is identified soon")

		f.show(data)
		f.wait(time.Minute)
		before = identified.Load()
		f.wait(10 * time.Minute)
		require.InDelta(t, 10, identified.Load()-before, 2, "a stopped server is not identified soon")
	})
}

func TestHangingIdentifications(t *testing.T) {
	identified, hangs := atomic.Int64{}, (chan struct{})(nil)
	runScanner(t, func(context.Context, evidence.Server) evidence.Identity {
		identified.Add(1)
		<-hangs // a read of a certificate that no context ends
		return answer("1")
	}, func(f *scannerFixture) {
		hangs = make(chan struct{})
		f.show(evidence.Server{Where: "etcd", PID: 1})
		f.wait(10 * time.Minute)
		require.Equal(t, int64(1), identified.Load(), "the identification is still in progress")
		require.Contains(t, f.answers()["etcd"],
			"the request for its identity hangs since 2000-01-01T00:00:00Z")
		for pid := range 40 {
			f.show(evidence.Server{Where: "etcd", PID: pid + 2})
			f.wait(time.Second)
		}
		require.Equal(t, int64(maxIdentifications), identified.Load())
		require.Contains(t, f.answers()["etcd"], "too many earlier requests hang")
		scan, _ := f.evidence.get()
		require.Empty(t, scan.Unknown, "the scans go on")
		close(hangs)
		f.wait(2 * time.Minute)
		require.Equal(t, "1", f.answers()["etcd"])
	})
}

// TestHangingScan checks that the scanner does not wait for a scan that hangs, and that the
// evidence then proves no absence.
func TestHangingScan(t *testing.T) {
	hangs := (chan struct{})(nil)
	runScanner(t, nil, func(f *scannerFixture) {
		hangs = make(chan struct{})
		var isAway atomic.Bool
		f.cfg.Etcd = func(context.Context) evidence.Scan {
			f.scans.Add(1)
			if isAway.Load() {
				<-hangs // a read that no context ends
			}
			return evidence.Scan{}
		}
		unknown := func() []string { scan, _ := f.evidence.get(); return scan.Unknown }
		f.wait(time.Second)
		isAway.Store(true)
		f.wait(4 * time.Minute)
		require.Equal(t, int64(2), f.scans.Load())
		require.Empty(t, unknown())
		f.wait(2*time.Minute + 10*time.Second)
		const stale = "no scan of the host has completed since 2000-01-01T00:00:00Z"
		require.Len(t, unknown(), 1)
		require.Contains(t, unknown()[0], stale)
		require.NoError(t, (&Agent{nodeLoop: &nodeLoop{}, scanner: f.etcdScanner}).Healthy(time.Now()),
			"a restarted agent may hang as well")

		isAway.Store(false) // Its file system was unmounted.
		f.wait(6 * time.Minute)
		require.Empty(t, unknown())

		isAway.Store(true)
		f.wait(time.Hour)
		require.Contains(t, unknown()[0], "4 scans hang")
		before := f.scans.Load()
		f.wait(time.Hour)
		require.Equal(t, before, f.scans.Load())
		isAway.Store(false)
		close(hangs)
		f.wait(2 * time.Minute)
		require.Empty(t, unknown())
	})
}

// TestCutShortScan checks that the result of a scan that was cut short is not evidence.
func TestCutShortScan(t *testing.T) {
	var f *scannerFixture
	runScanner(t, nil, func(running *scannerFixture) {
		f = running
		f.cfg.Etcd = func(ctx context.Context) evidence.Scan { <-ctx.Done(); return evidence.Scan{} }
		f.wait(time.Second)
	})
	_, scanned := f.evidence.get()
	require.False(t, scanned)
}
