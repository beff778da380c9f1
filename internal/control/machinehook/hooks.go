// Package machinehook keeps Cluster API from ending the machines of nodes with etcd. The leader
// sets a pre-terminate hook on the Machine of such a node. Cluster API then deletes a Machine up to
// the point at which it ends the machine, and waits until the hook is removed. The leader removes
// it when a review allows the deletion of the Node.
//
// It also finds which machines are about to end without another request, so that the leader
// keeps their grants.
//
// Package machine decides which step is due. This package reads the objects and makes the step.
package machinehook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// Reasons of the events on Machines.
const (
	refusedEvent = "DeletionRefused"
	allowedEvent = "DeletionAllowed"
)

const (
	// readTimeout limits what one step reads from the API server. It is far more than a list of all
	// Machines takes.
	readTimeout = 30 * time.Second
	// reviewValidity is the longest time until the hook is removed from the start of a review,
	// and from the start of the read of the Nodes that it rests on. A review takes up to eight
	// seconds. Later, another leader may have refused, or the machine may have another Node.
	reviewValidity = 15 * time.Second
)

// Options configure a Controller. All fields but the times are required.
type Options struct {
	// ClusterAPI and Karpenter are true where Machines or NodeClaims end machines. Only Machines have
	// hooks.
	ClusterAPI, Karpenter bool
	Client                dynamic.Interface
	FindResource          ResourceFinder
	// LiveNodes lists the Nodes of the API server for which isWanted returns true.
	LiveNodes func(ctx context.Context, isWanted func(*corev1.Node) bool) ([]*corev1.Node, error)
	// LiveClusters lists the EtcdClusters of the API server.
	LiveClusters func(ctx context.Context) ([]*v1alpha1.EtcdCluster, error)
	// Node reads a Node from the API server.
	Node func(ctx context.Context, name string) (*corev1.Node, error)
	// Review decides whether the machine of a Machine may end. list returns Nodes of the API server,
	// at least those for which the Machine stands. The user is recorded.
	Review func(
		ctx context.Context, m machine.Object, list func(context.Context) ([]*corev1.Node, error), user string,
	) (isAllowed bool, message string)
	// RecordEvent records an event on a Machine.
	RecordEvent func(about *corev1.ObjectReference, eventType, reason, message string)
	Log         *slog.Logger
	// Tick is the time between two rounds if nothing wakes the loop, and the shortest time between two
	// reviews of one Machine. Default 15 s.
	Tick time.Duration
	// Pause is the shortest time between two rounds. Default 1 s.
	Pause time.Duration
}

// A Controller keeps the hooks of all Machines, and finds which machines are about to end.
type Controller struct {
	Options
	wake     loop.Signal
	machines *machineFollower
	// reviewed has the last review of each Machine that waits.
	reviewed map[types.UID]pastReview
}

// New returns a Controller.
func New(o Options) *Controller {
	o.Tick, o.Pause = cmp.Or(o.Tick, 15*time.Second), cmp.Or(o.Pause, time.Second)
	wake := loop.NewSignal()
	return &Controller{
		Options: o, wake: wake, machines: &machineFollower{Options: o, kind: machines(), changed: wake},
		reviewed: map[types.UID]pastReview{},
	}
}

// Controller returns the controller of the hooks.
func (c *Controller) Controller() world.Controller {
	return world.Controller{
		Name: "machines", Round: c.reconcile, Wake: c.wake, Tick: c.Tick, Pause: c.Pause, Watch: c.machines.run,
	}
}

// reconcile makes the step of every Machine. A failure with one does not stop the others.
func (c *Controller) reconcile(ctx context.Context, w world.World) error {
	machines, areKnown := c.machines.list()
	if !areKnown {
		return nil
	}
	maps.DeleteFunc(c.reviewed, func(uid types.UID, _ pastReview) bool {
		return !slices.ContainsFunc(machines, func(m machine.Object) bool { return m.UID == uid })
	})
	var failed []error
	r := c.newRound(w, machines)
	for _, s := range r.steps {
		failed = append(failed, r.do(ctx, s))
	}
	return errors.Join(failed...)
}

// review removes the hook of a Machine that waits for it, if a review allows the deletion of its
// Node.
func (r *round) review(ctx context.Context, s step) error {
	m, past := s.machine, r.reviewed[s.machine.UID]
	next := pastReview{at: time.Now(), basis: s.basis, refusal: past.refusal, wait: r.Tick}
	r.reviewed[m.UID] = next
	live := r.readLive(ctx)
	// The review reads the same cache, which may be old.
	if !s.hasEtcd && (live.err != nil || live.etcd.has(m)) {
		return live.err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, reviewValidity)
	defer cancel()
	list := func(context.Context) ([]*corev1.Node, error) { return live.nodes, live.err }
	isAllowed, message := r.Review(ctx, m, list, fmt.Sprintf("Cluster API (%s)", m))
	if !isAllowed {
		r.reviewed[m.UID] = past.refused(next, message)
		if message != past.refusal {
			r.Log.WarnContext(ctx, "machine is kept by its hook", "machine", m.String(), "message", message)
			r.RecordEvent(r.reference(m), corev1.EventTypeWarning, refusedEvent, "the machine may not end: "+message)
		}
		return nil
	}
	// After a pause of the process, the answer may arrive before the timer of the context.
	if age := time.Since(began); age >= reviewValidity {
		return fmt.Errorf("removing the hook of %s: the review is too old: %w", m, context.DeadlineExceeded)
	}
	if time.Since(live.began) >= reviewValidity {
		r.reviewed[m.UID] = pastReview{refusal: past.refusal}
		r.wake.Notify() // The next round begins with this Machine, and with a new read.
		return nil
	}
	if isWritten, err := r.patch(ctx, m, nil); !isWritten {
		return err // if it is nil, the next round reviews the newer version
	}
	next.refusal = ""
	r.reviewed[m.UID] = next
	r.RecordEvent(r.reference(m), corev1.EventTypeNormal, allowedEvent, "the machine may end: "+message)
	return nil
}

func (c *Controller) reference(m machine.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: c.machines.followed().GroupVersion().String(), Kind: machine.KindMachine,
		Namespace: m.Namespace, Name: m.Name, UID: m.UID,
	}
}

// patch writes the annotation, or removes it if the value is nil. The step was planned for one
// version of the Machine: a Machine that is gone or has changed is not written, and is no error.
func (c *Controller) patch(ctx context.Context, m machine.Object, value any) (isWritten bool, err error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": m.UID, "resourceVersion": m.ResourceVersion,
		"annotations": map[string]any{machine.HookAnnotation: value},
	}})
	if err == nil {
		client := c.Client.Resource(c.machines.followed()).Namespace(m.Namespace)
		_, err = client.Patch(ctx, m.Name, types.MergePatchType, body,
			metav1.PatchOptions{FieldManager: apiaccess.WebhookFieldManager})
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("writing the hook of %s: %w", m, err)
	}
	c.Log.InfoContext(ctx, "changed the hook of a Machine", "machine", m.String(), "is_set", value != nil)
	return true, nil
}
