package plugin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

const (
	// retryUnknown is how long can-remove asks again without --wait if the answer is unknown: between
	// a probe request and the answers of the agents, a dry run sees nothing.
	retryUnknown, retryInterval = 4 * time.Second, 500 * time.Millisecond
	// waitInterval is how often can-remove --wait asks.
	waitInterval = 2 * time.Second
	// progressInterval is how often can-remove --wait repeats an answer that has not changed.
	progressInterval = 30 * time.Second
	// exitUnknown is the exit code of can-remove for an answer that is unknown.
	exitUnknown = 2
)

const canRemoveHelp = `Ask the Holdfast webhook whether nodes may be removed now, by a dry run of their deletion.

Exit codes:
  0  yes: every node may be removed
  1  no: the removal of a node would break the quorum of its etcd cluster
  2  unknown: there is no answer, for example because no agent or no replica of the webhook
     answered, a node does not exist, or you have no permission. Treat it like no.

Each answer is for one node on its own. Whether several nodes may go, and in which order:
kubectl holdfast plan NODE...

An answer reserves nothing. To remove a node with etcd, delete its Node, and end its machine only
after that: the deletion is reviewed again, with fresh observations, and recorded, so that no
other node goes at the same time.

A node that does not exist is unknown, because its name may be wrong. If a node may be gone
already, for example when a hook runs again, use --ignore-not-found.

The command needs the verbs get and delete on nodes.`

// canRemoveOptions are the flags of can-remove.
type canRemoveOptions struct {
	format         reportFormat
	isWaiting      bool
	timeout        time.Duration
	ignoreNotFound bool
}

// canRemoveReport is the output of can-remove.
type canRemoveReport struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	// Answer is yes if all answers are, and no if one is.
	Answer quorum.Answer    `json:"answer"`
	Nodes  []report.Removal `json:"nodes"`
}

func (s *session) canRemoveCommand() *cobra.Command {
	var o canRemoveOptions
	command := &cobra.Command{
		Use: "can-remove NODE...", Short: "Ask whether nodes may be removed now (exit code 0 yes, 1 no, 2 unknown)",
		Long: canRemoveHelp, Args: nodeArguments, ValidArgsFunction: s.complete(nodeNames, false),
		Example: `  # Before a machine is terminated
  kubectl holdfast can-remove etcd-1 --wait --timeout=15m && kubectl delete node etcd-1
  # For programs
  kubectl holdfast can-remove etcd-1 -o json`,
		RunE: func(command *cobra.Command, args []string) error {
			if command.Flags().Changed("timeout") && !o.isWaiting {
				return cli.UsageErrorf("--timeout needs --wait")
			}
			return s.canRemove(command.Context(), args, o)
		},
	}
	o.format.addTo(command)
	flags := command.Flags()
	flags.BoolVar(&o.isWaiting, "wait", false, "wait until the answer is yes for every node")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Minute, "with --wait, how long to wait")
	flags.BoolVar(&o.ignoreNotFound, "ignore-not-found", false, "a node that does not exist may be removed")
	return command
}

// canRemove asks about the nodes and prints the answers.
func (s *session) canRemove(ctx context.Context, nodes []string, o canRemoveOptions) error {
	kube, err := s.client()
	if err != nil {
		return s.failUnknown(err)
	}
	ask := func(ctx context.Context) []report.Removal {
		answers := make([]report.Removal, len(nodes))
		for i, node := range nodes {
			answers[i] = dryRunDeletion(ctx, kube, node)
			if answers[i].Reason == notFound && o.ignoreNotFound {
				answers[i].Answer, answers[i].Message = quorum.Yes, "there is no node "+node
			}
		}
		return answers
	}
	answers := s.pollAnswers(ctx, ask, o)
	r := canRemoveReport{Version: report.Version, Kind: "CanRemove", Answer: combined(answers), Nodes: answers}
	return s.answer(r.Answer, o.format, r, r.text())
}

// answer prints a report, and returns the error that carries the exit code of its answer, nil for
// yes.
func (s *session) answer(answer quorum.Answer, format reportFormat, r any, text string) error {
	if err := format.write(s.Out, r, text); err != nil {
		return s.failUnknown(err)
	}
	switch answer {
	case quorum.Yes:
		return nil
	case quorum.No:
		return cli.ExitWith(cli.ExitFailure)
	case quorum.Unknown:
	}
	return cli.ExitWith(exitUnknown)
}

// failUnknown prints an error and returns the exit code of an unknown answer.
func (s *session) failUnknown(err error) error {
	fmt.Fprintf(s.ErrOut, "kubectl holdfast: %v\n", err)
	return cli.ExitWith(exitUnknown)
}

// pollAnswers asks until the answers are final: until all are yes or the time is up with --wait,
// and otherwise until none is unknown for a reason that may pass within seconds.
func (s *session) pollAnswers(
	ctx context.Context, ask func(context.Context) []report.Removal, o canRemoveOptions,
) (answers []report.Removal) {
	timeout, interval := retryUnknown, retryInterval
	isFinal := func() bool { return !slices.ContainsFunc(answers, isTransient) }
	p := progress{out: s.ErrOut, begun: time.Now(), timeout: o.timeout}
	if o.isWaiting {
		timeout, interval = o.timeout, waitInterval
		isFinal = func() bool {
			p.print(answers)
			return combined(answers) == quorum.Yes || slices.ContainsFunc(answers, isPermanent)
		}
	}
	// The end of the wait ends no request, and is no error of its own: the last answers count.
	_ = wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(context.Context) (bool, error) {
		answers = ask(ctx)
		return isFinal(), nil
	})
	return answers
}

// combined returns the answer about all nodes, each on its own.
func combined(answers []report.Removal) quorum.Answer {
	has := func(a quorum.Answer) bool {
		return slices.ContainsFunc(answers, func(r report.Removal) bool { return r.Answer == a })
	}
	switch {
	case has(quorum.No):
		return quorum.No
	case has(quorum.Unknown), len(answers) == 0:
		return quorum.Unknown
	}
	return quorum.Yes
}

// isPermanent reports whether waiting cannot change an answer.
func isPermanent(r report.Removal) bool {
	return r.Answer == quorum.Unknown && (r.Reason == notFound || r.Reason == notPermitted)
}

// isTransient reports whether an answer is unknown for a reason that may pass within seconds.
func isTransient(r report.Removal) bool { return r.Answer == quorum.Unknown && !isPermanent(r) }

// A progress prints how a wait goes: each change of the answers, and the same answers now and then.
type progress struct {
	out            io.Writer
	begun, printed time.Time
	timeout        time.Duration
	last           string
}

func (p *progress) print(answers []report.Removal) {
	var texts []string
	for _, r := range answers {
		texts = append(texts, fmt.Sprintf("%s: %s (%s)", r.Node, r.Answer, r.Reason))
	}
	text, now := strings.Join(texts, ", "), time.Now()
	if combined(answers) == quorum.Yes || (text == p.last && now.Sub(p.printed) < progressInterval) {
		return
	}
	p.last, p.printed = text, now
	fmt.Fprintf(p.out, "waiting, %s of %s: %s\n", now.Sub(p.begun).Round(time.Second), p.timeout, text)
}

// text returns the answers for people.
func (r canRemoveReport) text() string {
	rows := [][]string{{"NODE", "MAY GO", "REASON"}}
	var names []string
	for _, n := range r.Nodes {
		rows, names = append(rows, []string{n.Node, string(n.Answer), string(n.Reason)}), append(names, n.Node)
	}
	text := formatTable(rows)
	own, common := foldRefusals(r.Nodes)
	for _, n := range own {
		for _, line := range append([]string{n.Message}, n.Warnings...) {
			if line != "" {
				text += fmt.Sprintf("\n%s: %s\n", n.Node, line)
			}
		}
	}
	if len(names) > 1 {
		text += common + "\nEach answer is for one node on its own. For all of them: kubectl holdfast plan " +
			strings.Join(names, " ") + "\n"
	}
	return text
}
