package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// grantReserve is what is kept of the caller's deadline for writing grants.
const grantReserve = 2 * time.Second

// Judge answers whether the Node may be deleted. If it may, and if etcd is lost with it, the grant is written before
// Judge returns. An error always comes with a Ruling that refuses and says so to people.
func (b *Book) Judge(ctx context.Context, q protect.Question) (protect.Ruling, error) {
	ruling, err := b.judge(ctx, q)
	if err != nil {
		ruling = cannotDecide(q, err)
	}
	b.metrics.judged(ruling)
	return ruling, err
}

func (b *Book) judge(ctx context.Context, q protect.Question) (protect.Ruling, error) {
	all, err := clusters(ctx, b.reader)
	if err != nil {
		return protect.Ruling{}, err
	}
	involved := protect.Involved(all, q.Request)
	if q.BreakGlass != nil {
		return b.breakGlass(ctx, q, involved)
	}
	if missing := protect.Missing(all, q.Request); len(missing) > 0 {
		return ruling(missing), nil
	}
	if len(involved) == 0 {
		if q.Request.Labelled {
			return ruling([]protect.Verdict{protect.Unattributed(q.Request)}), nil
		}
		return protect.Ruling{Allowed: true, Reason: protect.NothingToProtect}, nil
	}
	if q.DryRun {
		return b.dryRun(ctx, q, involved)
	}
	return b.askAndGrant(ctx, q, involved)
}

// JudgeUnlabelled answers for a Node without the label: at once, from the cache, and without asking anybody. An error
// comes with the zero Ruling: what it means is the business of a webhook entry that ignores failures.
func (b *Book) JudgeUnlabelled(ctx context.Context, q protect.Question) (protect.Ruling, error) {
	all, err := clusters(ctx, b.cache)
	if err != nil {
		return protect.Ruling{}, err
	}
	answer := ruling([]protect.Verdict{protect.UnlabelledVerdict(all, q.Request)})
	if !answer.Allowed && q.BreakGlass != nil {
		q.Request.Labelled = true // What goes with it is told by its addresses too.
		if answer, err = b.breakGlass(ctx, q, protect.Involved(all, q.Request)); err != nil {
			answer = cannotDecide(q, err)
		}
	}
	b.metrics.judged(answer)
	return answer, err
}

// dryRun answers from what is there: nobody is asked and nothing is written.
func (b *Book) dryRun(ctx context.Context, q protect.Question, involved []*v1alpha1.EtcdCluster) (protect.Ruling, error) {
	verdicts := make([]protect.Verdict, len(involved))
	for i, c := range involved {
		view, err := b.view(ctx, c, lastAsked(c), q.Request.Node)
		if err != nil {
			return protect.Ruling{}, err
		}
		verdicts[i] = protect.Decide(view, q.Request)
	}
	answer := ruling(verdicts)
	answer.Message = "dry run: judged from what was last seen, the agents were not asked to look again: " + answer.Message
	return answer, nil
}

// lastAsked accepts the answers to the last question that anybody asked.
func lastAsked(c *v1alpha1.EtcdCluster) []string {
	if c.Spec.Nonce == "" {
		return nil
	}
	return []string{c.Spec.Nonce}
}

// look is what asking about one cluster gave.
type look struct {
	ask     *ask
	sight   sight
	verdict protect.Verdict
}

// askAndGrant asks the agents of all involved clusters at once. When every cluster agrees, the grants are written in
// the order of cluster ID. A grant stays even if a later cluster then refuses: it can only be too cautious, while
// taking it back could undo one that a second call for the same deletion relies on.
func (b *Book) askAndGrant(ctx context.Context, q protect.Question, involved []*v1alpha1.EtcdCluster) (protect.Ruling, error) {
	looks := make([]look, len(involved))
	defer func() {
		for i, l := range looks {
			if l.ask != nil {
				b.asker.release(involved[i].UID, l.ask)
			}
		}
	}()
	g, asking := errgroup.WithContext(ctx)
	for i, c := range involved {
		g.Go(func() error {
			return caught(func() (err error) {
				looks[i], err = b.look(asking, q.Request, c)
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return protect.Ruling{}, err
	}
	verdicts := make([]protect.Verdict, len(looks))
	for i, l := range looks {
		verdicts[i] = l.verdict
	}
	if answer := ruling(verdicts); !answer.Allowed {
		return answer, nil
	}
	for i, l := range looks {
		asked := func() []string { return b.asker.sight(l.ask).asked }
		verdict, err := b.grant(ctx, q, l.sight.cluster, asked, protect.Decide)
		if err != nil {
			return protect.Ruling{}, err
		}
		verdicts[i] = verdict
		if !verdict.Allowed {
			break
		}
	}
	return ruling(verdicts), nil
}

// look asks the agents of one cluster and decides with each of their answers, until no further one can change the
// verdict or the time is up. The caller releases the ask.
func (b *Book) look(ctx context.Context, r protect.Request, c *v1alpha1.EtcdCluster) (look, error) {
	waiting, cancel := context.WithTimeout(ctx, b.patience(ctx))
	defer cancel()
	question, err := b.asker.ask(ctx, c)
	if err != nil {
		return look{}, err
	}
	l := look{ask: question}
	var view protect.View
	for {
		l.sight = b.asker.sight(question)
		if view.Cluster == nil || moved(view.Cluster, l.sight.cluster) {
			if view, err = b.view(waiting, l.sight.cluster, nil, r.Node); err != nil {
				return l, err
			}
		}
		view.Cluster, view.Asked = l.sight.cluster, l.sight.asked
		l.verdict = protect.Decide(view, r)
		if l.verdict.Final {
			return l, nil
		}
		select {
		case <-l.sight.changed:
		case <-waiting.Done():
			return b.lastLook(ctx, l, view, r), nil
		}
	}
}

// moved says whether other Nodes matter to one version of the object than to the other.
func moved(a, b *v1alpha1.EtcdCluster) bool {
	return !slices.Equal(a.Spec.Members, b.Spec.Members) || !slices.Equal(protect.Unbound(a), protect.Unbound(b))
}

// lastLook decides once more, from what the API server has by now: a watch that hangs must not hide answers.
func (b *Book) lastLook(ctx context.Context, l look, v protect.View, r protect.Request) look {
	if _, err := b.cluster(ctx, v.Cluster.Name); err != nil {
		return l
	}
	now := b.asker.sight(l.ask)
	if now.cluster == l.sight.cluster {
		return l
	}
	v, err := b.view(ctx, now.cluster, now.asked, r.Node)
	if err != nil {
		return l
	}
	l.sight, l.verdict = now, protect.Decide(v, r)
	return l
}

// patience is how long to wait for observers.
func (b *Book) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(b.wait, max(0, time.Until(deadline)-grantReserve))
	}
	return b.wait
}

// breakGlass allows against any verdict, and records what goes with the Node as far as it is known.
func (b *Book) breakGlass(ctx context.Context, q protect.Question, involved []*v1alpha1.EtcdCluster) (protect.Ruling, error) {
	answer := protect.Ruling{
		Allowed: true, Reason: protect.BreakGlassUsed,
		Message:  fmt.Sprintf("the glass was broken for node %q until %s: %s", q.Request.Node, q.BreakGlass.Until.Format(time.RFC3339), q.BreakGlass.Reason),
		Warnings: []string{fmt.Sprintf("node %q is deleted without asking whether its etcd clusters keep their quorum", q.Request.Node)},
	}
	if q.DryRun {
		return answer, nil
	}
	for _, c := range involved {
		verdict, err := b.grant(ctx, q, c, func() []string { return lastAsked(c) }, protect.Force)
		if err != nil {
			return protect.Ruling{}, err
		}
		answer.Verdicts = append(answer.Verdicts, verdict)
	}
	return answer, nil
}

// ruling sums verdicts up. Refusals come first and alone: what was allowed does not help who was refused.
func ruling(verdicts []protect.Verdict) protect.Ruling {
	answer := protect.Ruling{Allowed: len(verdicts) > 0, Verdicts: verdicts}
	for _, v := range verdicts {
		answer.Allowed = answer.Allowed && v.Allowed
	}
	var messages []string
	for _, v := range verdicts {
		if v.Allowed != answer.Allowed {
			continue
		}
		if answer.Reason == "" {
			answer.Reason = v.Reason
		}
		if v.Message != "" {
			messages = append(messages, v.Message)
		}
		if v.Warning != "" {
			answer.Warnings = append(answer.Warnings, v.Warning)
		}
	}
	answer.Message = strings.Join(messages, "\n")
	return answer
}

// cannotDecide refuses because of Holdfast, not because of etcd.
func cannotDecide(q protect.Question, err error) protect.Ruling {
	return protect.Ruling{
		Reason: protect.CannotDecide,
		Message: fmt.Sprintf("holdfast cannot decide whether node %q may be deleted, which says nothing about its etcd: %v. "+
			"Try again; if this lasts, see the log of the holdfast webhook.", q.Request.Node, err),
	}
}
