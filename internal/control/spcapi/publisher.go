package spcapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// StatusSuffix ends the name of the ConfigMap with the status of the inventory.
const StatusSuffix = "-status"

const (
	// refreshInterval is the time between two refreshes. The API's own autoscaler also sends
	// at most one request a minute.
	refreshInterval = time.Minute
	// maxPause is the longest pause after failed refreshes. The API can request a longer one.
	maxPause = 10 * time.Minute
	// jitter is the share of a pause that is added at random. The pause never becomes shorter.
	jitter = 0.1
	// maxPacked is the size limit of a ConfigMap (core validation: 1 MiB of data) with a
	// reserve for its metadata.
	maxPacked = 1<<20 - 16<<10
)

// ConfigMapWriter is a client for the ConfigMaps of the inventory's namespace.
type ConfigMapWriter interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, m *corev1.ConfigMap, o metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, m *corev1.ConfigMap, o metav1.UpdateOptions) (*corev1.ConfigMap, error)
}

// Publisher reads the API once a minute, publishes the inventory in ConfigMaps, and
// compares the machines with the Nodes. Run only one Publisher at a time, and each once.
type Publisher struct {
	Client     *Client
	ConfigMaps ConfigMapWriter
	// Namespace and Name are those of the ConfigMap with the whole inventory, which the next leader
	// reads. The ConfigMaps of [PartName] have its parts, which the agents read. The ConfigMap with
	// StatusSuffix has the status for operators, that with GroupsSuffix the groups for a provider of
	// cluster-autoscaler.
	Namespace, Name string
	// Nodes lists the cluster's Nodes.
	Nodes func(context.Context) ([]*corev1.Node, error)
	// RecordEvent records an event about the inventory's ConfigMap.
	RecordEvent func(about *corev1.ObjectReference, eventType, reason, message string)
	Metrics     *Metrics
	Log         *slog.Logger

	// The state of a run. The next leader resumes from the ConfigMaps, not from this state.
	retry  *loop.Retry
	logged loop.LogOnce

	published *spc.Inventory // the content of the ConfigMap
	bytes     int            // the size of the last list, compressed
	index     *spc.Index     // of the last list that was read
	listed    time.Time      // when that list was requested
	result    RefreshResult  // of the API, when that list was read
	success   time.Time      // of the last refresh whose list was published
	absences  spc.Absences
	reported  map[string]bool
}

// Run publishes until ctx ends and returns the cause. While the API cannot be read, the
// last list stays.
func (r *Publisher) Run(ctx context.Context) error {
	r.retry = loop.NewRetry(loop.Backoff(refreshInterval, maxPause))
	defer r.Metrics.leading.Store(nil)
	if r.Client.isTokenUnencrypted() {
		r.Log.WarnContext(ctx, "sending the spc token unencrypted; the url begins with http",
			"advice", "use the https:// url of the api")
	}
	for pause := r.resume(ctx); ; {
		if err := loop.Wait(ctx, pause, nil); err != nil {
			return err
		}
		err := r.refreshAndReport(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause = r.nextPause(err)
	}
}

// nextPause returns the pause after a refresh that ended with err. Without an error, the API may
// have refused the requests for the pools or the cluster.
func (r *Publisher) nextPause(err error) time.Duration {
	pause, refused := wait.Jitter(refreshInterval, jitter), []error{r.result.PoolsErr, r.result.ClusterErr}
	if err == nil {
		r.retry.Reset()
	} else {
		pause, refused = r.retry.Next(), []error{err}
	}
	for _, err := range refused {
		if status := new(StatusError); errors.As(err, &status) && status.RetryAfter > pause {
			pause = wait.Jitter(status.RetryAfter, jitter)
		}
	}
	return pause
}

// resume reads the ConfigMaps of an earlier leader and returns the rest of its pause.
func (r *Publisher) resume(ctx context.Context) time.Duration {
	if have, err := r.ConfigMaps.Get(ctx, r.Name, metav1.GetOptions{}); err == nil {
		if inventory, err := Decode(have); err == nil {
			r.published, r.index = inventory, spc.NewIndex(inventory)
		}
	}
	have, err := r.ConfigMaps.Get(ctx, r.Name+StatusSuffix, metav1.GetOptions{})
	if err != nil {
		return 0
	}
	if at, err := time.Parse(time.RFC3339, have.Data[statusSucceeded]); err == nil {
		if now := time.Now(); at.After(now) { // a clock is wrong, and the age would stay 0 until then
			at = now
		}
		r.success, r.listed = at, at
	}
	attempted, err := time.Parse(time.RFC3339, have.Data[statusAttempted])
	if err != nil {
		return 0
	}
	left := refreshInterval - time.Since(attempted)
	if left > refreshInterval { // the time is in the future: a clock is wrong
		return 0
	}
	return left
}

// refreshAndReport refreshes the inventory once and updates the logs, events, metrics and
// status.
func (r *Publisher) refreshAndReport(ctx context.Context) error {
	began := time.Now()
	nodes, err := r.Nodes(ctx)
	if err == nil {
		err = r.refresh(ctx, nodes, began)
	}
	if ctx.Err() != nil {
		return err
	}
	r.Metrics.countRefresh(err)
	r.reportRefresh(ctx, err)
	var groupsErr error
	if err == nil {
		groupsErr = r.publishGroups(ctx, nodes)
	}
	var summary *spc.Summary
	if r.index != nil && nodes != nil {
		// The machine of a Node that is younger than the list is not known.
		now, absences := spc.Summarize(r.index, r.result.Pools, nodes, r.absences, r.listed)
		summary, r.absences = &now, absences
		r.reportSummary(ctx, now)
	}
	r.Metrics.leading.Store(&refreshed{summary, r.success, r.bytes})
	// The status has a ConfigMap of its own, which does not wake the agents.
	statusErr := r.put(ctx, r.Name+StatusSuffix, func(m *corev1.ConfigMap) error {
		m.Data = r.status(began, errors.Join(err, r.result.partialErr(), groupsErr), summary)
		return nil
	})
	if failed := errors.Join(groupsErr, statusErr); failed != nil && ctx.Err() == nil {
		r.Log.WarnContext(ctx, "failed to write spc groups or status", "err", failed)
	}
	return err
}

// refresh reads the API and publishes the list.
func (r *Publisher) refresh(ctx context.Context, nodes []*corev1.Node, now time.Time) error {
	result, err := r.Client.Refresh(ctx)
	if err != nil {
		return err
	}
	inventory := &spc.Inventory{
		Organization: result.Organization, Cluster: result.Cluster.PK, AsOf: newestCreation(nodes),
		Records: withoutCreated(result.Machines),
	}
	if before := r.published; before != nil && before.AsOf.After(inventory.AsOf) {
		inventory.AsOf = before.AsOf // the newest Node was deleted
	}
	if result.PoolsErr != nil { // keep the last known values
		result.Pools = r.result.Pools
	}
	if result.ClusterErr != nil {
		result.Cluster = r.result.Cluster
	}
	full := *inventory
	full.Records = result.Machines
	r.index, r.result, r.listed = spc.NewIndex(&full), result, now
	if err := r.publish(ctx, inventory, nodes); err != nil {
		return err
	}
	r.published, r.success = inventory, now
	return nil
}

func newestCreation(nodes []*corev1.Node) time.Time {
	var at time.Time
	for _, n := range nodes {
		if n.CreationTimestamp.After(at) {
			at = n.CreationTimestamp.Time
		}
	}
	return at.UTC()
}

// withoutCreated returns the records without their creation times. The agents do not need
// them, and they take much space.
func withoutCreated(records []spc.Record) []spc.Record {
	slim := make([]spc.Record, 0, len(records))
	for _, r := range records {
		r.Created = ""
		slim = append(slim, r)
	}
	return slim
}

// publish writes the whole inventory, and its parts for these Nodes. A part for which there is no
// Node any more stays as it is. No agent uses it.
func (r *Publisher) publish(ctx context.Context, inventory *spc.Inventory, nodes []*corev1.Node) error {
	packed, err := Encode(inventory)
	if err != nil {
		return err
	}
	r.bytes = len(packed)
	if err := r.write(ctx, r.Name, packed); err != nil {
		return fmt.Errorf("publishing the SPC inventory: %w", err)
	}
	var failed []error
	parts := spc.NewIndex(inventory).Split(nodes)
	for _, number := range slices.Sorted(maps.Keys(parts)) {
		packed, err := Encode(parts[number])
		if err == nil {
			err = r.write(ctx, partName(r.Name, number), packed)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("publishing part %d of the SPC inventory: %w", number, err))
		}
	}
	return errors.Join(failed...)
}

func (r *Publisher) write(ctx context.Context, name string, packed []byte) error {
	if len(packed) > maxPacked {
		return fmt.Errorf("the list of SPC machines has %d KiB after compression, too much for ConfigMap %s; "+
			"the last list stays in use", len(packed)>>10, name)
	}
	return r.put(ctx, name, func(m *corev1.ConfigMap) error {
		m.Data, m.BinaryData = nil, map[string][]byte{InventoryKey: packed}
		return nil
	})
}

// put writes a ConfigMap if fill changes it. fill gets an empty one if it does not exist.
func (r *Publisher) put(ctx context.Context, name string, fill func(*corev1.ConfigMap) error) error {
	have, err := r.ConfigMaps.Get(ctx, name, metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	if isNew {
		have, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}
	want := have.DeepCopy()
	if err == nil {
		err = fill(want)
	}
	switch {
	case err != nil:
	case isNew:
		_, err = r.ConfigMaps.Create(ctx, want, metav1.CreateOptions{})
	case !maps.Equal(have.Data, want.Data) || !maps.EqualFunc(have.BinaryData, want.BinaryData, bytes.Equal):
		_, err = r.ConfigMaps.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", name, err)
	}
	return nil
}

// reportRefresh logs the result of a refresh and records an event, if the result has
// changed.
func (r *Publisher) reportRefresh(ctx context.Context, err error) {
	switch {
	case err != nil && r.logged.Changed("refresh", err.Error()):
		listAge := formatAge(r.success, time.Now())
		r.Log.WarnContext(ctx, "failed to refresh spc inventory; using the last list", "err", err, "list_age", listAge)
		r.recordEvent("SPCNotRefreshed", fmt.Sprintf("failed to refresh the list of machines; the last list stays in use "+
			"(%s): %s", listAge, err))
	case err == nil && r.logged.Changed("refresh", "succeeded"):
		r.Log.InfoContext(ctx, "refreshed spc inventory", "machines", len(r.result.Machines),
			"cluster", r.result.Cluster.Name, "provider", r.result.Cluster.Provider)
	}
	if partial := r.result.partialErr(); r.logged.ChangedErrorText("partial", partial) && partial != nil {
		r.Log.WarnContext(ctx, "failed to read spc node pools or cluster; the machines are up to date", "err", partial)
	}
}

func (r *Publisher) recordEvent(reason, message string) {
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: r.Namespace, Name: r.Name}
	r.RecordEvent(about, corev1.EventTypeWarning, reason, message)
}
