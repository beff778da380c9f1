package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// answerLimit is what the API server gives the webhook.
const answerLimit = 10 * time.Second

// burst deletes nodes of an etcd of seven members, many within a second.
func burst(ctx context.Context, s *stage, t *table) error {
	said := logs{read: map[string]int{}}
	for _, size := range []int{1, 3, 10, 30} {
		if _, err := said.news(s); err != nil {
			return err
		}
		taken := make(times, size)
		var clients errgroup.Group
		pace := time.NewTicker(time.Second / time.Duration(size))
		for i := range size {
			clients.Go(func() error {
				taken[i], _ = s.delete(ctx, node(i%s.members+1), false) // the stub has refused it
				return nil
			})
			<-pace.C
		}
		pace.Stop()
		_ = clients.Wait() // nothing above returns an error
		answers, err := said.news(s)
		if err != nil {
			return err
		}
		sums := count(answers)
		decided := sums["allowed QuorumKept"] + sums["refused QuorumWouldBeLost"]
		r := taken.row(fmt.Sprintf("%d deletions of nodes of 7 members within a second", size))
		r.ratio = fmt.Sprintf("%v, longest %s", sums, ms(taken.quantile(1)))
		r.target, r.missed = "all decided", decided < size || taken.quantile(1) >= answerLimit
		t.add(r)
	}
	return nil
}
