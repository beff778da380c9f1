package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

const (
	// lookEvery is how often the host is looked at if nothing happens there, and lookGap how long it is left alone after
	// a look whatever happens.
	lookEvery = time.Minute
	lookGap   = 250 * time.Millisecond
	// headStart is how long a look waits for its servers to say who they are before it tells what it saw without that. A
	// server that lives answers within it; a node whose server hangs, or has only just been started, is marked all the same.
	headStart = 300 * time.Millisecond
	// lookBudget bounds one look, and one question to a server: a bus that hangs costs a look, never the loop.
	lookBudget = 20 * time.Second
	// lookPatience is how old the last look may be. The budget does not end a read of a file system that hangs.
	lookPatience = 5 * time.Minute
	// asksAtOnce bounds the questions that are under way. More are only if they hang where no budget ends them.
	asksAtOnce = 16
)

// latest is a value that one goroutine replaces and others read. Of a time it keeps the monotonic reading: ages by it are
// right whatever becomes of the wall clock.
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
// writes the Node, since both may take their time; and it asks beside looking, since a server that hangs must not hide
// what happens to another.
type lookout struct {
	etcd     func(context.Context) ([]protect.Sighting, []string)
	identify func(context.Context, protect.Sighting) protect.Answer
	pods     bool
	log      *slog.Logger
	metrics  *metrics
	// woken rings when the host may have changed; told is called when the evidence has.
	woken    bell
	told     func()
	evidence latest[protect.HostEvidence]
	// patience is how old the last look may be; looked is when it ended, or when the first began.
	patience time.Duration
	looked   latest[time.Time]

	// What follows belongs to the goroutine of run.
	look    int        // the number of the last look
	asked   []*inquiry // one for each server of the last look
	unknown []string   // of the last look
	answers chan reply
	delays  wait.Backoff // until a server that runs and is silent is asked again
}

// inquiry is one question to one server of the last look: who are you?
type inquiry struct {
	protect.Found
	look  int // that it was begun after
	began time.Time
	ended bool
	// cancel ends a question whose server looks different by now. It is nil for a server that is not asked.
	cancel context.CancelFunc
}

// reply is the answer to a question.
type reply struct {
	to     *inquiry
	answer protect.Answer
}

// blind says since when no look at the host has ended, empty if that is not too long.
func (l *lookout) blind(now time.Time) string {
	if since, ever := l.looked.take(); ever && now.Sub(since) > l.patience {
		return fmt.Sprintf("no look at the host has ended since %s: a file system of it, or a process, hangs", since.UTC().Format(time.RFC3339))
	}
	return ""
}

// run looks whenever it is woken, every minute, and soon again while a server is silent, until the context ends.
func (l *lookout) run(ctx context.Context) error {
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(asksAtOnce)
	l.answers = make(chan reply, asksAtOnce)
	l.delays = silences()
	l.looked.put(time.Now())
	for {
		if l.survey(ctx, asking); ctx.Err() != nil {
			break
		}
		l.listen(ctx)
	}
	return errors.Join(asking.Wait(), context.Cause(ctx))
}

// silences are the delays until a server that runs and does not say who it is is asked again: it may have just been
// started, or its certificates are being replaced this moment.
func silences() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 10, Cap: lookEvery}
}

// survey takes the servers of the host as it is now, and begins to ask them unless they are being asked already.
func (l *lookout) survey(ctx context.Context, asking *errgroup.Group) {
	began := time.Now()
	budget, cancel := context.WithTimeout(ctx, lookBudget)
	sightings, unknown := l.etcd(budget)
	cancel()
	if ctx.Err() != nil {
		return
	}
	l.looked.put(time.Now())
	l.metrics.looked(time.Since(began), len(unknown))
	before := l.asked
	l.asked, l.unknown = nil, unknown
	l.look++
	if !slices.EqualFunc(before, sightings, func(i *inquiry, s protect.Sighting) bool { return reflect.DeepEqual(i.Sighting, s) }) {
		l.delays = silences()
	}
	for _, s := range sightings {
		l.asked = append(l.asked, l.ask(ctx, asking, s, before))
	}
	for _, i := range before {
		if i.cancel != nil && !slices.Contains(l.asked, i) {
			i.cancel()
		}
	}
}

// ask returns the question to a server: the one that is under way if the server still looks the same, or a new one. What
// the server has said before stands until it says something else.
func (l *lookout) ask(ctx context.Context, asking *errgroup.Group, s protect.Sighting, before []*inquiry) *inquiry {
	asked := &inquiry{Found: protect.Found{Sighting: s}, look: l.look, began: time.Now()}
	if s.InCluster && !l.pods {
		asked.ended = true
		return asked
	}
	asked.Answer = protect.Answer{Problem: "it has only just been found, and is being asked who it is"}
	if i := slices.IndexFunc(before, func(i *inquiry) bool { return reflect.DeepEqual(i.Sighting, s) }); i >= 0 {
		if !before[i].ended {
			return before[i]
		}
		asked.Answer = before[i].Answer
	} else if i := slices.IndexFunc(before, func(i *inquiry) bool { return sameServer(i.Sighting, s) }); i >= 0 && !before[i].Removed {
		// It was started anew, say. One that had left its cluster may be about to join it again.
		asked.Answer = before[i].Answer
	}
	budget, cancel := context.WithTimeout(ctx, lookBudget)
	asked.cancel = cancel
	if !asking.TryGo(func() error {
		defer cancel()
		said := reply{asked, l.identify(budget, s)}
		select {
		case l.answers <- said:
		case <-ctx.Done():
		}
		return nil
	}) {
		cancel()
		asked.ended, asked.Answer = true, protect.Answer{Problem: "it was not asked who it is: too many questions hang"}
	}
	return asked
}

// listen tells what is known, as the answers come, until the next look is due.
func (l *lookout) listen(ctx context.Context) {
	start, gap, next := time.NewTimer(headStart), time.NewTimer(lookGap), time.NewTimer(jittered(lookEvery))
	defer start.Stop()
	defer gap.Stop()
	defer next.Stop()
	told, rested, settled := false, false, false
	for {
		if !told && !l.waiting(func(i *inquiry) bool { return i.look == l.look }) {
			l.tell(ctx)
			told = true
		}
		if !settled && !l.waiting(func(*inquiry) bool { return true }) {
			settled = true
			if l.silent() {
				next.Reset(l.delays.Step())
			} else {
				l.delays = silences()
			}
		}
		woken := l.woken
		if !told || !rested {
			woken = nil
		}
		select {
		case <-ctx.Done():
			return
		case said := <-l.answers:
			said.to.Answer, said.to.ended = said.answer, true
			if told {
				l.tell(ctx)
			}
		case <-start.C:
			l.tell(ctx)
			told = true
		case <-gap.C:
			rested = true
		case <-woken:
			return
		case <-next.C:
			return
		}
	}
}

// waiting says that one of these questions is under way.
func (l *lookout) waiting(of func(*inquiry) bool) bool {
	return slices.ContainsFunc(l.asked, func(i *inquiry) bool { return !i.ended && of(i) })
}

// silent says that a server that runs has not said who it is.
func (l *lookout) silent() bool {
	return slices.ContainsFunc(l.asked, func(i *inquiry) bool { return i.cancel != nil && i.Running() && i.Problem != "" })
}

// tell replaces the evidence if it has changed.
func (l *lookout) tell(ctx context.Context) {
	seen := protect.HostEvidence{Found: make([]protect.Found, len(l.asked)), Unknown: l.unknown}
	for i, asked := range l.asked {
		seen.Found[i] = asked.Found
		if since := time.Since(asked.began); !asked.ended && since > lookBudget {
			seen.Found[i].Answer = protect.Answer{Problem: fmt.Sprintf("it has been asked since %s who it is, and the question hangs: look for a file system that does",
				asked.began.UTC().Format(time.RFC3339))}
		}
	}
	l.metrics.found(seen)
	before, ever := l.evidence.take()
	if ever && reflect.DeepEqual(before, seen) {
		return
	}
	l.report(ctx, seen)
	l.evidence.put(seen)
	l.told()
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
