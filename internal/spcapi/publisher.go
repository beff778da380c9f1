package spcapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	// interval is the time between two refreshes: the API's own autoscaler asks at most once a minute.
	interval = time.Minute
	// longest is how many intervals apart refreshes are at most while they fail, unless the API asks for more.
	longest = 10
	// spread is the share of a pause that chance adds to it. It never takes anything off.
	spread = 0.1
)

// ConfigMapWriter is a client for the ConfigMaps of the inventory's namespace.
type ConfigMapWriter interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, m *corev1.ConfigMap, o metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, m *corev1.ConfigMap, o metav1.UpdateOptions) (*corev1.ConfigMap, error)
}

// Publisher asks the API once a minute, keeps the inventory's ConfigMap as the API last told, and takes the census of the
// machines. It must run in one process at a time.
type Publisher struct {
	Client     *Client
	ConfigMaps ConfigMapWriter
	// Name is the inventory's ConfigMap. Beside it is one for people, whose name ends in StatusSuffix.
	Name string
	// Nodes lists the cluster's Nodes.
	Nodes func(context.Context) ([]*corev1.Node, error)
	// Tell makes a warning event about the inventory's ConfigMap. Nil tells nobody.
	Tell    func(about *corev1.ConfigMap, reason, message string)
	Metrics *Metrics
	Log     *slog.Logger
	// Interval is for tests; 0 means a minute.
	Interval time.Duration
}

// Run publishes until ctx ends, and returns its cause. While the API cannot be read the last list stays as it is.
func (p *Publisher) Run(ctx context.Context) error {
	r := &run{Publisher: p, every: p.Interval}
	if r.every == 0 {
		r.every = interval
	}
	r.delays = r.backoff()
	defer p.Metrics.rest()
	if p.Client.plain() {
		p.Log.WarnContext(ctx, "the spc token travels unencrypted, the url begins with http", "advice", "give the https:// url of the api")
	}
	for pause := r.resume(ctx); ; {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		err := r.round(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause = r.next(err)
	}
}

// run is a Publisher at work. What it remembers is of use to itself; what its successor needs stands in the ConfigMaps.
type run struct {
	*Publisher
	every  time.Duration
	delays wait.Backoff

	published *spc.Inventory // as it stands in the ConfigMap
	index     *spc.Index     // of the last good list
	answer    Answer         // the last good one
	success   time.Time      // when that was asked for
	absences  spc.Absences
	up        bool   // a refresh has succeeded
	failure   string // as last said
	partial   string
	told      map[string]bool
}

func (r *run) backoff() wait.Backoff {
	return wait.Backoff{Duration: r.every, Factor: 2, Jitter: spread, Steps: 64, Cap: longest * r.every}
}

// next is how long to leave the API alone after a refresh that ended with err.
func (r *run) next(err error) time.Duration {
	if err == nil {
		r.delays = r.backoff()
		return wait.Jitter(r.every, spread)
	}
	pause := r.delays.Step()
	if status := new(StatusError); errors.As(err, &status) && status.RetryAfter > pause {
		pause = wait.Jitter(status.RetryAfter, spread)
	}
	return pause
}

// round is one refresh with all that follows from it.
func (r *run) round(ctx context.Context) error {
	began := time.Now()
	nodes, err := r.Nodes(ctx)
	if err == nil {
		err = r.refresh(ctx, nodes, began)
	}
	if ctx.Err() != nil {
		return err
	}
	r.Metrics.refreshed(err)
	r.say(ctx, err)
	var census *spc.Census
	if r.index != nil && nodes != nil {
		taken, absences := spc.Take(r.index, r.answer.Pools, nodes, r.absences, began)
		census, r.absences = &taken, absences
		r.tellCensus(ctx, taken)
	}
	r.Metrics.show(census, r.success)
	if failed := r.writeStatus(ctx, status{attempted: began, success: r.success, failure: err, partial: r.answer.Partial, cluster: r.answer.Cluster, census: census}); failed != nil && ctx.Err() == nil {
		r.Log.WarnContext(ctx, "spc status is not written", "err", failed)
	}
	return err
}

// refresh reads the API and publishes what it says.
func (r *run) refresh(ctx context.Context, nodes []*corev1.Node, now time.Time) error {
	answer, err := r.Client.Refresh(ctx)
	if err != nil {
		return err
	}
	inventory := &spc.Inventory{Organization: answer.Organization, Cluster: answer.Cluster.PK, AsOf: newest(nodes), Records: publishable(answer.Machines)}
	if before := r.published; before != nil && before.AsOf.After(inventory.AsOf) {
		inventory.AsOf = before.AsOf // the newest Node has gone
	}
	if answer.Partial != nil {
		answer.Pools = r.answer.Pools // nothing better is known
		if answer.Cluster.Name == "" {
			answer.Cluster = r.answer.Cluster
		}
	}
	full := *inventory
	full.Records = answer.Machines
	r.index, r.answer, r.success = spc.NewIndex(&full), answer, now
	if err := r.publish(ctx, inventory); err != nil {
		return err
	}
	r.published = inventory
	return nil
}

// newest is the creation time of the newest Node.
func newest(nodes []*corev1.Node) time.Time {
	var at time.Time
	for _, n := range nodes {
		if n.CreationTimestamp.After(at) {
			at = n.CreationTimestamp.Time
		}
	}
	return at.UTC()
}

// publishable are the records as agents need them, without what changes for no reason of theirs or takes much room.
func publishable(records []spc.Record) []spc.Record {
	slim := make([]spc.Record, 0, len(records))
	for _, r := range records {
		r.Created = ""
		slim = append(slim, r)
	}
	return slim
}

// say logs and tells what became of a refresh, when that changes.
func (r *run) say(ctx context.Context, err error) {
	switch {
	case err != nil && err.Error() != r.failure:
		r.failure = err.Error()
		r.Log.WarnContext(ctx, "spc inventory is not refreshed, the last list stays", "err", err, "list_age", age(r.success, time.Now()))
		r.tell("SPCNotRefreshed", fmt.Sprintf("the list of machines is not refreshed, the last one stays (%s): %s", age(r.success, time.Now()), r.failure))
	case err == nil && (r.failure != "" || !r.up):
		r.failure, r.up = "", true
		r.Log.InfoContext(ctx, "spc inventory is up to date", "machines", len(r.answer.Machines), "cluster", r.answer.Cluster.Name, "provider", r.answer.Cluster.Provider)
	}
	partial := ""
	if r.answer.Partial != nil {
		partial = strings.ReplaceAll(r.answer.Partial.Error(), "\n", "; ")
	}
	if partial != r.partial && partial != "" {
		r.Log.WarnContext(ctx, "spc node pools or cluster cannot be read, the machines can", "err", r.answer.Partial)
	}
	r.partial = partial
}

func (r *run) tell(reason, message string) {
	if r.Tell == nil {
		return
	}
	about := &corev1.ConfigMap{}
	about.Name = r.Name
	r.Tell(about, reason, message)
}
