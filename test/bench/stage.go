package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/agent"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/site"
)

// stage is a cluster with Holdfast on it and an etcd of some members, one to a node, or of none.
type stage struct {
	*site.Site
	members  int
	etcd     *testenv.Etcd
	clusters *agent.Clusters
	// nodes is the client that deletes: without limits of its own, over connections of its own.
	nodes kubernetes.Interface
	stub  *stub
}

func newStage(ctx context.Context, members int, t *table) (_ *stage, err error) {
	begun := time.Now()
	if members == 0 {
		t.note("starting kube-apiserver with the manifests")
	} else {
		t.note("starting kube-apiserver, an etcd of %d members with TLS, two webhooks and %d agents", members, members)
	}
	s := &stage{members: members}
	if s.Site, err = site.New(site.Options{Name: "bench", Out: t.out}); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx), false))
	}
	t.note("ready after %s", time.Since(begun).Round(100*time.Millisecond))
	return s, nil
}

func (s *stage) start(ctx context.Context) error {
	if err := s.Start(ctx); err != nil {
		return err
	}
	admin := s.API.Admin()
	admin.WarningHandler = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(admin)
	if err != nil {
		return err
	}
	if s.clusters, err = agent.NewClusters(admin, client); err != nil {
		return err
	}
	if s.nodes, err = kubernetes.NewForConfigAndClient(admin, client); err != nil {
		return err
	}
	if s.members == 0 {
		return s.Install(ctx)
	}
	return s.startEtcd(ctx)
}

// startEtcd starts the etcd, and all that runs beside it.
func (s *stage) startEtcd(ctx context.Context) (err error) {
	if s.etcd, err = s.StartEtcd(ctx, testenv.EtcdOptions{Members: s.members}); err != nil {
		return err
	}
	for i := range s.members {
		if _, err = s.Register(ctx, node(i+1), s.Net.IP(i+1), true); err != nil {
			return err
		}
	}
	if err = s.Install(ctx); err != nil {
		return err
	}
	if err = s.StartWebhooks(ctx); err != nil {
		return err
	}
	for i := range s.members {
		if err = s.StartAgent(ctx, node(i+1)); err != nil {
			return err
		}
	}
	if s.stub, err = s.startStub(ctx); err != nil {
		return err
	}
	return s.Until(ctx, "every member to be bound to its node and proven healthy", s.settled)
}

// settled is nil once every member is bound, and both replicas know it.
func (s *stage) settled(ctx context.Context) error {
	c, err := s.cluster(ctx)
	if err != nil {
		return err
	}
	if bound := len(c.Spec.Members); bound != s.members || c.Status.Healthy == nil || int(*c.Status.Healthy) != s.members {
		return fmt.Errorf("%d of %d members are bound, and the summary is %+v", bound, s.members, c.Status.Healthy)
	}
	nodes, err := s.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "holdfast.dev/etcd-member=true"})
	if err == nil && len(nodes.Items) != s.members {
		err = fmt.Errorf("%d of %d nodes are labelled", len(nodes.Items), s.members)
	}
	return err
}

// cluster reads the one EtcdCluster that there is.
func (s *stage) cluster(ctx context.Context) (*v1alpha1.EtcdCluster, error) {
	list, err := s.clusters.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("there are %d EtcdClusters, want 1", len(list.Items))
	}
	return &list.Items[0], nil
}

// Close stops everything, the stub too.
func (s *stage) Close(ctx context.Context, well bool) error {
	var err error
	if s.stub != nil {
		err = s.stub.close(ctx)
	}
	return errors.Join(err, s.Site.Close(ctx, well))
}

// workers creates nodes without etcd, and returns their names.
func (s *stage) workers(ctx context.Context, prefix string, count int, labels map[string]string) ([]string, error) {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i+1)
		made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: names[i], Labels: labels}}
		if _, err := s.nodes.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("creating node %s: %w", names[i], err)
		}
	}
	return names, nil
}

// delete deletes a node as a person does, and returns how long the answer took.
func (s *stage) delete(ctx context.Context, name string, dryRun bool) (time.Duration, error) {
	var o metav1.DeleteOptions
	if dryRun {
		o.DryRun = []string{metav1.DryRunAll}
	}
	begun := time.Now()
	err := s.nodes.CoreV1().Nodes().Delete(ctx, name, o)
	return time.Since(begun), err
}

func node(i int) string { return fmt.Sprintf("etcd-%d", i) }
