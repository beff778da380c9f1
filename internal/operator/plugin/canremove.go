package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/printable"
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
  1  no: the removal of a node would break the quorum of its etcd cluster, or a policy of Holdfast
     refuses it
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

// A canRemoveRun is one run of can-remove. Without flags it asks until no answer is unknown for a
// reason that may pass within seconds.
type canRemoveRun struct {
	*session
	isWaiting      bool
	timeout        time.Duration
	ignoreNotFound bool
	// begun is when the wait began, and printed when it has last printed the answers: last.
	begun, printed time.Time
	last           string
}

type canRemoveReport struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	// Answer is yes if all answers are, and no if one is.
	Answer quorum.Answer    `json:"answer"`
	Nodes  []report.Removal `json:"nodes"`
}

func (s *session) canRemoveCommand() *cobra.Command {
	c := &canRemoveRun{session: s}
	command := &cobra.Command{
		Use: "can-remove NODE...", Short: "Ask whether nodes may be removed now (exit code 0 yes, 1 no, 2 unknown)",
		Long: canRemoveHelp, ValidArgsFunction: s.completeNodes(false),
		Example: `  # Before a machine is terminated
  kubectl holdfast can-remove etcd-1 --wait --timeout=15m && kubectl delete node etcd-1
  # For programs
  kubectl holdfast can-remove etcd-1 -o json`,
		PreRunE: func(command *cobra.Command, nodes []string) error {
			switch {
			case len(nodes) == 0:
				return cli.UsageErrorf("name at least one node")
			case command.Flags().Changed("timeout") && !c.isWaiting:
				return cli.UsageErrorf("--timeout needs --wait")
			}
			return nil
		},
		RunE: s.answered(c.answer),
	}
	s.format.addTo(command)
	flags := command.Flags()
	flags.BoolVar(&c.isWaiting, "wait", false, "wait until the answer is yes for every node")
	flags.DurationVar(&c.timeout, "timeout", 10*time.Minute, "with --wait, how long to wait")
	flags.BoolVar(&c.ignoreNotFound, "ignore-not-found", false, "a node that does not exist may be removed")
	return command
}

func (c *canRemoveRun) answer(ctx context.Context, nodes []string) (quorum.Answer, error) {
	answers := c.poll(ctx, nodes)
	r := canRemoveReport{Version: report.Version, Kind: "CanRemove", Answer: report.Combined(answers), Nodes: answers}
	return r.Answer, c.format.write(c.Out, r, r.text())
}

// answered returns the RunE of a command that prints an answer. The exit code is that of the
// answer, or that of an unknown one if the command fails.
func (s *session) answered(
	ask func(ctx context.Context, args []string) (quorum.Answer, error),
) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		answer, err := quorum.Unknown, s.connect(command.Context())
		if err == nil {
			answer, err = ask(command.Context(), args)
		}
		switch {
		case err != nil:
			fmt.Fprintf(s.ErrOut, "kubectl holdfast: %v\n", err)
		case answer == quorum.Yes:
			return nil
		case answer == quorum.No:
			return cli.ExitWith(cli.ExitFailure)
		}
		return cli.ExitWith(exitUnknown)
	}
}

// poll asks about the nodes until the answers are final: until all are yes or the time is up with
// --wait, and otherwise until none is unknown for a reason that may pass within seconds.
func (c *canRemoveRun) poll(ctx context.Context, nodes []string) []report.Removal {
	answers, timeout, interval := make([]report.Removal, len(nodes)), retryUnknown, retryInterval
	if c.isWaiting {
		timeout, interval, c.begun = c.timeout, waitInterval, time.Now()
	}
	// The end of the wait ends no request, and is no error of its own: the last answers count.
	_ = wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(context.Context) (bool, error) {
		for i, node := range nodes {
			answers[i] = dryRunDeletion(ctx, c.kube, node)
			if answers[i].Reason == notFound && c.ignoreNotFound {
				answers[i].Answer, answers[i].Message = quorum.Yes, "there is no node "+node
			}
		}
		if !c.isWaiting {
			return !slices.ContainsFunc(answers, isTransient), nil
		}
		c.printProgress(answers)
		return report.Combined(answers) == quorum.Yes || slices.ContainsFunc(answers, isPermanent), nil
	})
	return answers
}

// isPermanent reports whether waiting cannot change an answer.
func isPermanent(r report.Removal) bool {
	return r.Answer == quorum.Unknown && (r.Reason == notFound || r.Reason == notPermitted)
}

// isTransient reports whether an answer is unknown for a reason that may pass within seconds.
func isTransient(r report.Removal) bool { return r.Answer == quorum.Unknown && !isPermanent(r) }

// printProgress prints each change of the answers, and the same answers now and then.
func (c *canRemoveRun) printProgress(answers []report.Removal) {
	text, now := printable.Join(answers, ", ", func(r report.Removal) string {
		return fmt.Sprintf("%s: %s (%s)", r.Node, r.Answer, r.Reason)
	}), time.Now()
	if report.Combined(answers) == quorum.Yes || (text == c.last && now.Sub(c.printed) < progressInterval) {
		return
	}
	c.last, c.printed = text, now
	fmt.Fprintf(c.ErrOut, "waiting, %s of %s: %s\n", now.Sub(c.begun).Round(time.Second), c.timeout, text)
}

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
