package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const (
	verdicts = 40
	// apart is the time between two verdicts. The agents are asked twice a second at most, and the leader of the webhooks
	// asks them as well after each grant.
	apart = 1200 * time.Millisecond
	// verdictTarget is for the median with three healthy members.
	verdictTarget = 50 * time.Millisecond
	// hungVerdicts are judged while a member hangs. hungTarget is the 1.5 s that a probe may take and what the rest of a
	// verdict may take.
	hungVerdicts = 8
	hungTarget   = 1500*time.Millisecond + 2*verdictTarget
)

// judged is one verdict.
type judged struct {
	given
	// whole is how long the client waited.
	whole time.Duration
	// The others are when what was there, as somebody sees it who watches the EtcdCluster: the nonce, the first answer to it,
	// the grant.
	asked, answered, granted time.Duration
}

// verdict measures deletions of a node with etcd that are allowed: ask, look, probe, publish, grant.
func verdict(ctx context.Context, s *stage, t *table) error {
	all, err := s.judge(ctx, verdicts, node(1), "allowed")
	if err != nil {
		return err
	}
	var whole, own times
	parts := [4]times{}
	for _, j := range all {
		whole, own = append(whole, j.whole), append(own, j.took)
		at := time.Duration(0)
		for i, end := range []time.Duration{j.asked, j.answered, j.granted, j.whole} {
			parts[i], at = append(parts[i], end-at), end
		}
	}
	r := whole.row(fmt.Sprintf("full verdict over %d healthy TLS members, allowed", s.members))
	if s.members == 3 {
		r.target, r.missed = "median ≤ 50 ms", whole.median() > verdictTarget
	}
	t.add(r)
	for i, what := range []string{
		"request → the nonce is there", "nonce → the first agent has answered", "first answer → the grant is there", "grant → the client has its answer",
	} {
		t.add(parts[i].row("  " + what))
	}
	t.add(own.row("  all of it as the webhook sees it"))
	return nil
}

// hung measures verdicts while a member hangs: over its own node, which may go, and over another, which may not.
func hung(ctx context.Context, s *stage, t *table) (err error) {
	if err := s.settleAll(ctx); err != nil {
		return err
	}
	if err := s.etcd.Member(3).Pause(); err != nil {
		return err
	}
	defer func() {
		if resumed := s.etcd.Member(3).Resume(); err == nil {
			err = resumed
		}
	}()
	for _, one := range []struct{ what, node, verdict string }{
		{"a healthy member's node, refused", node(1), "refused"},
		{"the hung member's own node, allowed", node(3), "allowed"},
	} {
		all, err := s.judge(ctx, hungVerdicts, one.node, one.verdict)
		if err != nil {
			return err
		}
		var whole times
		for _, j := range all {
			whole = append(whole, j.whole)
		}
		r := whole.row("one of 3 members hangs: " + one.what)
		r.target, r.missed = "median ≤ "+ms(hungTarget), whole.median() > hungTarget
		t.add(r)
	}
	return nil
}

// settleAll ends all grants, as an operator does whose nodes live.
func (s *stage) settleAll(ctx context.Context) error {
	return s.Until(ctx, "all grants to be settled", func(ctx context.Context) error {
		c, err := s.cluster(ctx)
		if err != nil || len(c.Spec.Grants) == 0 {
			return err
		}
		_, err = s.API.Kubectl(ctx, "annotate", "--overwrite", "etcdcluster", c.Name, "holdfast.dev/settle="+string(c.Spec.Grants[0].NodeUID))
		return errors.Join(err, fmt.Errorf("%d grants are open", len(c.Spec.Grants)))
	})
}

// judge deletes a node again and again, which the stub prevents, and expects the same verdict each time.
func (s *stage) judge(ctx context.Context, times int, name, expected string) ([]judged, error) {
	c, err := s.cluster(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := s.clusters.Watch(ctx, metav1.ListOptions{ResourceVersion: c.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer changes.Stop()
	said := logs{read: map[string]int{}}
	if _, err := said.news(s); err != nil {
		return nil, err
	}
	tick := time.NewTicker(apart)
	defer tick.Stop()
	var all []judged
	for len(all) < times {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		var j judged
		j, c = s.once(ctx, name, changes, c)
		answers, err := said.news(s)
		switch {
		case err != nil:
			return nil, err
		case len(answers) == 0:
			return nil, fmt.Errorf("the deletion of %s was not answered; see the logs of the webhooks", name)
		case len(answers) > 1:
			continue // the Node was written meanwhile, so that the API server asked again: two verdicts in one
		case answers[0].verdict != expected:
			return nil, fmt.Errorf("the deletion of %s was %s (%s), want %s; see the logs of the webhooks", name, answers[0].verdict, answers[0].reason, expected)
		}
		j.given = answers[0]
		all = append(all, j)
	}
	return all, nil
}

// once deletes a node and notes when the EtcdCluster, which is c before, shows what.
func (s *stage) once(ctx context.Context, name string, changes watch.Interface, c *v1alpha1.EtcdCluster) (judged, *v1alpha1.EtcdCluster) {
	var j judged
	var deleting errgroup.Group
	answered := make(chan struct{})
	before := skip(changes, c)
	c = before
	begun := time.Now()
	deleting.Go(func() error {
		defer close(answered)
		j.whole, _ = s.delete(ctx, name, false) // the stub has refused it; what Holdfast said is in its log
		return nil
	})
	var seen judged
	for open := true; open; {
		select {
		case <-answered:
			open = false
		case e := <-changes.ResultChan():
			if now, ok := e.Object.(*v1alpha1.EtcdCluster); ok {
				seen.see(time.Since(begun), before, now)
				c = now
			}
		}
	}
	_ = deleting.Wait() // it returns no error
	seen.whole = j.whole
	return seen, c
}

// skip reads what still comes of the last verdict, and returns the newest version.
func skip(changes watch.Interface, c *v1alpha1.EtcdCluster) *v1alpha1.EtcdCluster {
	const silence = 50 * time.Millisecond
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case e := <-changes.ResultChan():
			now, ok := e.Object.(*v1alpha1.EtcdCluster)
			if !ok {
				return c
			}
			c = now
			timer.Reset(silence)
		case <-timer.C:
			return c
		}
	}
}

// see notes what a version of the EtcdCluster shows that the one before the request did not.
func (j *judged) see(at time.Duration, before, now *v1alpha1.EtcdCluster) {
	if now.Spec.Nonce == before.Spec.Nonce {
		return
	}
	note := func(moment *time.Duration, come bool) {
		if come && *moment == 0 {
			*moment = at
		}
	}
	note(&j.asked, true)
	note(&j.answered, slices.ContainsFunc(now.Status.Observations, func(o v1alpha1.Observation) bool { return o.Nonce == now.Spec.Nonce }))
	note(&j.granted, now.Spec.Ledger > before.Spec.Ledger)
}
