package plugin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/printable"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

const whatIfHelp = `Answer whether the etcd clusters keep quorum if nodes are gone at once, for example a zone.

Exit codes:
  0  yes: each etcd cluster keeps quorum
  1  no: an etcd cluster would lose quorum
  2  unknown: the observations of the agents do not tell, a node does not exist, no node is
     selected, or the command failed. Treat it like no.

The answer is from the last observations of the agents, by the arithmetic of the webhook. Members
that count as lost or away are gone too. The tolerance of the webhook is no part of the question.
The command changes nothing, and does not ask the webhook: whether a node may be removed,
kubectl holdfast can-remove tells.

A node is in the zone of its label topology.kubernetes.io/zone, or of that which --zone-label names
here or for the webhook. Nodes without the label are in no zone, and the output names those with
etcd.

The command needs the verb list on nodes, and on etcdclusters and etcdobservations of holdfast.dev,
and the verb get on deployments.apps, for the flags of the webhook. Without these flags, the answer
is never yes for a node with a voter.`

type whatIfRun struct {
	*session
	nodeSelection
	zone string
}

func (s *session) whatIfCommand() *cobra.Command {
	w := &whatIfRun{session: s}
	command := &cobra.Command{
		Use:   "what-if (--zone ZONE | NODE... | -l SELECTOR)",
		Short: "Ask whether quorum survives the loss of nodes (exit code 0 yes, 1 no, 2 unknown)",
		Long:  whatIfHelp, ValidArgsFunction: s.completeNodes(false),
		Example: `  # Before work on a zone
  kubectl holdfast what-if --zone eu-central-1a
  # Before work on a rack
  kubectl holdfast what-if -l example.com/rack=r7 -o json`,
		PreRunE: func(command *cobra.Command, args []string) error {
			switch isZone := command.Flags().Changed("zone"); {
			case !isZone:
				return w.parse(args)
			case len(args) > 0 || w.expression != "":
				return cli.UsageErrorf("name a zone, or name or select nodes, not both")
			case w.zone == "":
				return cli.UsageErrorf("--zone is empty; to name the nodes without a zone, select them: -l '!%s'",
					defaultZoneLabel)
			}
			return nil
		},
		RunE: s.answered(w.answer),
	}
	s.format.addTo(command)
	flags := command.Flags()
	flags.StringVar(&w.zone, "zone", "", "the nodes in this zone are gone")
	flags.StringVarP(&w.expression, "selector", "l", "", "the nodes with these labels are gone")
	s.addZoneLabel(command)
	return command
}

func (w *whatIfRun) answer(ctx context.Context, names []string) (quorum.Answer, error) {
	var r report.WhatIf
	var now time.Time
	err := w.pollState(ctx, func(state report.State) (_ bool, err error) {
		now = state.Now
		if w.zone != "" {
			r, err = report.NewZoneWhatIf(state, w.zone)
			return r.Answer == quorum.Unknown, err
		}
		nodes, err := w.names(state.Nodes, names)
		if err == nil {
			r, err = report.NewWhatIf(state, nodes)
		}
		return r.Answer == quorum.Unknown, err
	})
	if err != nil {
		return quorum.Unknown, err
	}
	return r.Answer, w.format.write(w.Out, r, formatWhatIf(r, now))
}

func formatWhatIf(r report.WhatIf, now time.Time) string {
	rows := [][]string{{"ETCD CLUSTER", "KEEPS QUORUM", "REASON", "VOTERS", "QUORUM", "REMAIN", "OLDEST ANSWER"}}
	texts := []string{whatIfTitle(r)}
	for _, c := range r.Clusters {
		numbers, oldest := []string{"?", "?", "?"}, "-"
		if c.Quorum > 0 {
			numbers = []string{strconv.Itoa(c.Voters), strconv.Itoa(c.Quorum), strconv.Itoa(c.Remaining)}
		}
		if c.Oldest != nil {
			oldest = report.Age(*c.Oldest, now)
		}
		row := append([]string{string(c.ID), string(c.Answer), string(c.Reason)}, numbers...)
		rows = append(rows, append(row, oldest))
		texts = append(texts, c.Message)
	}
	for _, u := range r.Unknown {
		texts = append(texts, fmt.Sprintf("unknown (%s): %s; kubectl holdfast why %s", u.Reason, u.Message, u.Node))
	}
	for _, note := range r.Notes {
		texts = append(texts, "note: "+note)
	}
	text := strings.Join(texts, "\n") + "\n"
	if table := formatTable(rows); table != "" {
		return table + "\n" + text
	}
	return text
}

// whatIfTitle states the answer. It names the nodes unless they are many.
func whatIfTitle(r report.WhatIf) string {
	what := strings.Join(printable.First(r.Nodes, 8), ", ")
	if r.Zone != "" {
		what = fmt.Sprintf("zone %s (%s)", r.Zone, what)
	}
	switch r.Answer {
	case quorum.No:
		return "quorum would be lost without " + what
	case quorum.Unknown:
		return "it is not known whether quorum is kept without " + what
	case quorum.Yes:
	}
	if len(r.Clusters) == 0 {
		return "no etcd member is known on " + what
	}
	return "quorum is kept without " + what
}
