package plugin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

const (
	// watchInterval is how often status --watch reads. It lists all Nodes.
	watchInterval = 5 * time.Second
	// clearScreen moves the cursor of a terminal to the top, and clears the rest.
	clearScreen = "\x1b[H\x1b[2J"
)

const statusHelp = `Show the etcd clusters, which nodes may go, what is held, and what needs attention.

MAY GO is the answer for each node on its own, from the last observations of the agents and by the
rules of the webhook. It is yes, no or unknown. kubectl holdfast can-remove asks the webhook.

If nodes have zones, QUORUM WITHOUT IT is the answer for all nodes of the zone at once:
kubectl holdfast what-if --zone ZONE explains it.

The command needs the verb list on nodes, and on etcdclusters and etcdobservations of holdfast.dev,
and the verb get on deployments.apps, for the flags of the webhook. Without these flags, no voter
may go.`

func (s *session) statusCommand() *cobra.Command {
	var isWatching bool
	command := &cobra.Command{
		Use: "status", Short: "Show etcd clusters, which nodes may go, what is held, and warnings", Long: statusHelp,
		Args: noArguments,
		Example: `  kubectl holdfast status
  kubectl holdfast status --watch`,
		RunE: s.connected(func(ctx context.Context, _ []string) error {
			if isWatching {
				return s.watchStatus(ctx)
			}
			return s.status(ctx)
		}),
	}
	s.format.addTo(command)
	s.addZoneLabel(command)
	command.Flags().BoolVarP(&isWatching, "watch", "w", false, "show the status again whenever it changes, until Ctrl-C")
	return command
}

// status prints the status once. If a cluster cannot be seen, it reads again for a few seconds.
func (s *session) status(ctx context.Context) error {
	var state report.State
	err := s.pollState(ctx, func(now report.State) (bool, error) {
		state = now
		isUnseen := func(c report.ClusterStatus) bool { return !c.Known }
		return slices.ContainsFunc(report.NewStatus(state).Clusters, isUnseen), nil
	})
	if err != nil {
		return err
	}
	return printStatus(s.Out, state, s.format)
}

func printStatus(out io.Writer, state report.State, format reportFormat) error {
	status := report.NewStatus(state)
	return format.write(out, status, formatStatus(status, state.Now))
}

// watchStatus prints the status when it has changed, until the context ends, which is no error. It
// reads from the API server each time: a cache would go on to show what it has when it is cut off.
func (s *session) watchStatus(ctx context.Context) error {
	for shown := ""; ; {
		var text bytes.Buffer
		state, err := s.readState(ctx)
		if err == nil {
			err = printStatus(&text, state, s.format)
		}
		now := text.String()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && shown == "": // for example without the rights
			return err
		case err != nil:
			if now = err.Error(); now != shown {
				fmt.Fprintf(s.ErrOut, "kubectl holdfast: %s; trying again\n", now)
			}
		case now != shown:
			switch {
			case s.format == asTable && isTerminal(s.terminal):
				fmt.Fprint(s.terminal, clearScreen)
			case s.format == asYAML && shown != "":
				fmt.Fprintln(s.Out, "---")
			}
			if _, err := io.WriteString(s.Out, now); err != nil {
				return fmt.Errorf("writing the status: %w", err)
			}
		}
		shown = now
		if loop.Wait(ctx, watchInterval, nil) != nil {
			return nil
		}
	}
}

// formatStatus returns the status for people. An empty line separates its tables.
func formatStatus(status report.Status, now time.Time) string {
	var text strings.Builder
	if len(status.Clusters) == 0 {
		fmt.Fprintln(&text, "There is no EtcdCluster. If etcd was found on a node, a warning below tells more.")
	}
	clusters := [][]string{{"ETCD CLUSTER", "VOTERS", "HEALTHY", "QUORUM", "MAY LOSE", "OBSERVERS"}}
	members := [][]string{{"MEMBER", "ID", "ETCD CLUSTER", "NODE", "COUNTS", "MAY GO", "REASON"}}
	zones := [][]string{{"ZONE", "ETCD CLUSTER", "VOTERS", "NODES", "QUORUM WITHOUT IT"}}
	grants := [][]string{{"OPEN DOOR", "NODE", "ETCD CLUSTER", "MEMBERS", "BY", "AGE", "NODE EXISTS", "SHUT WHEN"}}
	for _, c := range status.Clusters {
		row := []string{string(c.ID), "?", "?", "?", "?", cmp.Or(string(c.Observers), "-")}
		if c.Known {
			for i, n := range []int{c.Voters, c.Healthy, c.Quorum, c.MayLose} {
				row[i+1] = strconv.Itoa(n)
			}
		}
		clusters = append(clusters, row)
		for _, m := range c.Members {
			members = append(members, []string{
				cmp.Or(m.Name, "-"), string(m.ID), string(c.ID), cmp.Or(m.Node, "-"), string(m.Counts),
				cmp.Or(string(m.MayGo), "-"), cmp.Or(string(m.Reason), "-"),
			})
		}
		for _, z := range c.Zones {
			zones = append(zones, []string{
				cmp.Or(z.Zone, "-"), string(c.ID), strconv.Itoa(z.Voters), cmp.Or(strings.Join(z.Nodes, ","), "-"),
				cmp.Or(string(z.Without), "-"),
			})
		}
		for _, g := range c.Grants {
			grants = append(grants, doorRows(c, g, now)...)
		}
	}
	holds := [][]string{{"HELD NODE", "AGE", "REASON", "TO RELEASE BY HAND"}}
	for _, h := range status.Holds {
		age := "-"
		if h.Since != nil {
			age = report.Age(*h.Since, now)
		}
		holds = append(holds, []string{h.Node, age, h.Reason, "kubectl holdfast release " + h.Node})
	}
	var tables []string
	for _, rows := range [][][]string{clusters, members, zones, grants, holds} {
		if table := formatTable(rows); table != "" {
			tables = append(tables, table)
		}
	}
	text.WriteString(strings.Join(tables, "\n"))
	for i, warning := range status.Warnings {
		if i == 0 {
			fmt.Fprintln(&text, "\nWarnings:")
		}
		fmt.Fprintf(&text, "- %s: %s\n", warning.Kind, warning.Text)
	}
	return text.String()
}

func doorRows(c report.ClusterStatus, g report.GrantStatus, now time.Time) (rows [][]string) {
	exists := map[bool]string{true: "yes", false: "no"}[g.NodeExists]
	for _, d := range g.Doors {
		by := cmp.Or(d.User, "not reviewed")
		if d.BreakGlass {
			by += " (break-glass)"
		}
		rows = append(rows, []string{
			string(d.Kind), g.Node, string(c.ID), observation.JoinIDs(g.Members, ","), by, report.Age(d.Since, now), exists,
			d.ShutWhen,
		})
	}
	return rows
}
