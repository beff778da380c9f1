// Command cmd serves an emulated StackPointCloud API with one cluster. Its machines advance through
// the states draft, building, provisioned and running. `go run ./test/spcserver/cmd -help` lists
// the flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// drainTime limits the time of open requests at shutdown.
const drainTime = 2 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	server := &spcserver.Server{}
	set := flag.NewFlagSet("spcserver", flag.ContinueOnError)
	set.SetOutput(out)
	listen := set.String("listen", "127.0.0.1:8000", "`address` to listen on")
	set.StringVar(&server.Token, "token", "a12f59e2788386a302c5d199b5506725", "the valid token")
	set.StringVar(&server.Organization, "organization", "6", "the number of the organization")
	set.StringVar(&server.Cluster, "cluster", "504", "the number of the cluster")
	form := set.Int("form", 0, "form of the node object: 0 for 2019, 1 for December 2017, 2 for October 2017, 3 for 2016")
	workers := set.Int("workers", 3, "number of machines at start, in addition to one master")
	every := set.Duration("step", 20*time.Second, "time between two states of a machine; 0 for no changes")
	failures := strings.Join(slices.Sorted(maps.Keys(spcserver.Failures())), ", ")
	fail := set.String("fail", "", "answer every request with this failure: "+failures)
	if err := set.Parse(args); err != nil {
		return err
	}
	if *form < 0 || *form >= len(spcserver.Generations()) {
		return fmt.Errorf("-form=%d is unknown; choose 0 to %d", *form, len(spcserver.Generations())-1)
	}
	server.Generation = spcserver.Generation(*form)
	if *fail != "" {
		failure, known := spcserver.Failures()[*fail]
		if !known {
			return fmt.Errorf("-fail=%q is unknown; -help lists all", *fail)
		}
		server.Fail(failure)
	}
	pool := spc.Pool{
		PK: 1, Name: "Default Worker Pool", InstanceID: "spcdemo-pool-1", Size: "t2.medium", Autoscaled: true,
		MaxCount: 10, NodeCount: *workers,
	}
	server.SetPools(pool)
	machines := []spc.Record{{PK: 1, InstanceID: "spcdemo-master-1", Role: "master", Size: pool.Size, State: "draft"}}
	for i := 2; i <= *workers+1; i++ {
		machines = append(machines, spc.Record{
			PK: int64(i), InstanceID: fmt.Sprintf("spcdemo-worker-%d", i), Role: "worker", Size: pool.Size, State: "draft",
			Pool: pool.PK, PoolName: pool.Name, GroupName: pool.Group(), Created: time.Now().UTC().Format(time.RFC3339Nano),
		})
	}
	server.SetNodes(machines...)
	return serve(ctx, server, *listen, *every, out)
}

func serve(ctx context.Context, server *spcserver.Server, listen string, every time.Duration, out io.Writer) error {
	port := cli.Port{
		Flag: "-listen", Address: listen, Handler: server, Drain: drainTime, Log: slog.New(slog.DiscardHandler),
	}
	listener, err := port.Listen(ctx)
	if err != nil {
		return err
	}
	base := "http://" + listener.Addr().String()
	fmt.Fprintf(out, "%s\ncurl -H 'Authorization: Bearer %s' %s/orgs/%s/clusters/%s/nodes\n",
		base, server.Token, base, server.Organization, server.Cluster)
	group, serving := errgroup.WithContext(ctx)
	group.Go(func() error { return port.Serve(serving, listener) })
	group.Go(func() error {
		advanceEvery(serving, server, every)
		return nil
	})
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// advanceEvery advances the machines until the context ends.
func advanceEvery(ctx context.Context, server *spcserver.Server, every time.Duration) {
	if every <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			server.Advance()
		}
	}
}
