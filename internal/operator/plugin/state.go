package plugin

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// pollState reads the state and calls answer until its answer is not unknown, it fails, or
// retryUnknown has passed: between a probe request and the answers of the agents, nothing can be
// seen. The end of the wait is no error: the last answer counts.
func (s *session) pollState(ctx context.Context, answer func(report.State) (isUnknown bool, err error)) error {
	err := wait.PollUntilContextTimeout(ctx, retryInterval, retryUnknown, true, func(context.Context) (bool, error) {
		state, err := s.readState(ctx)
		if err != nil {
			return false, err
		}
		isUnknown, err := answer(state)
		return !isUnknown, err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil
	}
	return err
}

// readState reads what the reports are about. A zone label of the command line counts instead of
// the webhook's.
func (s *session) readState(ctx context.Context) (report.State, error) {
	now, err := serverTime(ctx, s.kube)
	if err != nil {
		return report.State{}, err
	}
	clusters, observations := &v1alpha1.EtcdClusterList{}, &v1alpha1.EtcdObservationList{}
	nodes := &corev1.NodeList{}
	if err := s.kube.List(ctx, clusters); err != nil {
		return report.State{}, readError("etcdclusters.holdfast.dev", err)
	}
	if err := s.kube.List(ctx, observations); err != nil {
		return report.State{}, readError("etcdobservations.holdfast.dev", err)
	}
	if err := s.kube.List(ctx, nodes); err != nil {
		return report.State{}, readError("nodes", err)
	}
	all := make([]*v1alpha1.EtcdObservation, len(observations.Items))
	for i := range observations.Items {
		all[i] = &observations.Items[i]
	}
	for i := range clusters.Items {
		clusters.Items[i] = *observation.Join(&clusters.Items[i], all)
	}
	state := report.State{Clusters: clusters.Items, Nodes: nodes.Items, Now: now}
	addWebhookFlags(ctx, s.kube, &state)
	state.ZoneLabel = cmp.Or(s.zoneLabel, state.ZoneLabel)
	return state, nil
}

// addGuardPods reads the guard pods. That they cannot be read is part of the state.
func addGuardPods(ctx context.Context, kube client.Reader, s *report.State) {
	pods := &corev1.PodList{}
	if err := kube.List(ctx, pods, client.InNamespace(guard.Namespace)); err != nil {
		s.GuardProblem = readError("pods in namespace "+guard.Namespace, err).Error()
		return
	}
	for _, p := range pods.Items {
		if strings.HasPrefix(p.Name, guard.NamePrefix) && p.DeletionTimestamp == nil {
			s.GuardPods = append(s.GuardPods, p.Name)
		}
	}
}

// readError explains why objects could not be listed.
func readError(what string, err error) error {
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return fmt.Errorf("the API server has no %s: Holdfast is not installed in this cluster "+
			"(check the context: kubectl config current-context)", what)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("listing %s: %w (you need the verb list)", what, err)
	}
	return fmt.Errorf("listing %s: %w", what, err)
}

func getNode(ctx context.Context, c client.Client, name string) (*corev1.Node, error) {
	node := new(corev1.Node)
	err := c.Get(ctx, types.NamespacedName{Name: name}, node)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no node %q; to list the nodes: kubectl get nodes", name)
	case err != nil:
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return node, nil
}

// serverTime returns the time of the API server, to the second, because the clock of the user may
// be wrong. A user without the right to read it gets the time of that clock: the webhook checks it.
func serverTime(ctx context.Context, c client.Client) (time.Time, error) {
	review := &authenticationv1.SelfSubjectReview{}
	switch err := c.Create(ctx, review); {
	case apierrors.IsForbidden(err):
		return time.Now(), nil
	case err != nil:
		return time.Time{}, fmt.Errorf("reading the time of the API server: %w", err)
	}
	return review.CreationTimestamp.Time, nil
}

// addWebhookFlags adds the flags by which the webhook decides otherwise than by default. That they
// cannot be read is part of the state.
func addWebhookFlags(ctx context.Context, kube client.Reader, s *report.State) {
	webhook := webhookDeployment()
	key := client.ObjectKeyFromObject(webhook)
	if err := kube.Get(ctx, key, webhook); err != nil {
		s.FlagsProblem = fmt.Sprintf("the flags of the webhook are not known: reading deployment %s: %v "+
			"(you need the verb get on deployments.apps)", key, err)
		return
	}
	var args []string
	for _, c := range webhook.Spec.Template.Spec.Containers {
		args = append(append(args, c.Command...), c.Args...)
	}
	if err := setWebhookFlags(s, args); err != nil {
		s.FlagsProblem = fmt.Sprintf("the flags of the webhook are not known: deployment %s: %v", key, err)
	}
}

// setWebhookFlags sets what the arguments of the webhook say. All other arguments have no meaning
// for a state.
func setWebhookFlags(s *report.State, args []string) error {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.IntVar(&s.MinRemainingTolerance, "min-remaining-tolerance", 0, "")
	set.DurationVar(&s.StuckHoldAfter, "stuck-hold-after", 0, "")
	for name, setKey := range map[string]func(key string){
		"doomed-taint": func(key string) { s.Departures = s.Departures.Add(departure.ForGood, key) },
		"away-mark":    func(key string) { s.Departures = s.Departures.Add(departure.ForAWhile, key) },
		"zone-label":   func(key string) { s.ZoneLabel = key },
	} {
		set.Func(name, "", func(key string) error {
			if strings.Contains(key, "$(") {
				return errors.New("the value has a variable")
			}
			setKey(key)
			return nil
		})
	}
	for i, arg := range args {
		name, _, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if !strings.HasPrefix(arg, "-") || set.Lookup(name) == nil {
			continue
		}
		given := args[i : i+1]
		if !hasValue {
			given = args[i:min(i+2, len(args))]
		}
		if err := set.Parse(given); err != nil {
			return err
		}
	}
	return nil
}

// defaultZoneLabel is the default of the webhook's flag --zone-label.
const defaultZoneLabel = corev1.LabelTopologyZone

func (s *session) addZoneLabel(command *cobra.Command) {
	command.Flags().StringVar(&s.zoneLabel, "zone-label", "",
		"label with the zone of a node (default: that of the webhook, "+defaultZoneLabel+")")
}
