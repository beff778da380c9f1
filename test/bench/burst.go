package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// burstSize is the number of requests at once, and burstRounds how often they are repeated.
	burstSize, burstRounds = 30, 3
	// burstTarget limits the last answer of a burst, as a multiple of the answer to a single request.
	burstTarget = 3.0
	// singleVerdicts is the number of single requests before the bursts.
	singleVerdicts = 7
	// answerLimit is the API server's timeout for the webhook.
	answerLimit = 10 * time.Second
)

// measureBurst deletes and drains all nodes of an etcd cluster of seven members several times at
// once. The nodes stay.
func measureBurst(ctx context.Context, b *benchCluster, t *resultTable) error {
	if err := b.prepareDrains(ctx); err != nil {
		return err
	}
	var single durations
	for range singleVerdicts {
		taken, _, err := b.burst(ctx, 1)
		if err != nil {
			return err
		}
		single = append(single, taken...)
	}
	t.add(single.row(fmt.Sprintf("one deletion of a node of %d members", b.members)))
	for range burstRounds {
		since := time.Now()
		taken, answers, err := b.burst(ctx, burstSize)
		if err != nil {
			return err
		}
		last, sums := durations{taken.quantile(1)}, countAnswers(answers)
		decided := sums["allowed QuorumKept"] + sums["refused QuorumWouldBeLost"]
		undecided := max(0, burstSize-decided)
		r := taken.row(fmt.Sprintf("%d deletions and drains of nodes of %d members at once, the last answer; %d undecided",
			burstSize, b.members, undecided)).judged(last.ratioTo(single), burstTarget)
		r.missed = r.missed || undecided > 0 || last.median() > answerLimit
		t.add(r)
		if err := b.reportRequests(t, since); err != nil {
			return err
		}
	}
	return nil
}

// reportRequests adds the requests of webhooks and agents since then to the table.
func (b *benchCluster) reportRequests(t *resultTable, since time.Time) error {
	for who, account := range map[string]string{"webhooks": webhookAccount, "agents": agentAccount} {
		requests, err := b.API.Requests(account)
		if err != nil {
			return err
		}
		t.add(resultRow{what: "  requests of the " + who + ": " + countRequests(requests, since)})
	}
	return nil
}

// burst sends requests at once, when the previous ones have no effect any more. It returns how long
// each took, and the answers of the webhooks.
func (b *benchCluster) burst(ctx context.Context, count int) (durations, []loggedAnswer, error) {
	if err := fixture.Wait(ctx, verdictInterval); err != nil {
		return nil, nil, err
	}
	answers := answerLog{offsets: map[string]int{}}
	if _, err := answers.readNew(b); err != nil {
		return nil, nil, err
	}
	taken := make(durations, count)
	var clients errgroup.Group
	for i := range count {
		clients.Go(func() error {
			// Each node is either deleted or drained, each time by another user: a grant for one would
			// answer, or rewrite, requests for the other, because the stub refuses both.
			if at := i%b.members + 1; at%2 == 1 {
				taken[i] = b.deleteAs(ctx, fmt.Sprintf("user-%d-%d", time.Now().UnixNano(), i), nodeName(at))
			} else {
				taken[i] = b.drain(ctx, nodeName(at))
			}
			return nil
		})
	}
	_ = clients.Wait() // the functions return no error
	found, err := answers.readNew(b)
	return taken, found, err
}
