// Command cmd serves a conforming StackPointCloud API with one cluster, whose machines live: draft, building, provisioned,
// running, and from deleting to gone. `go run ./test/spcserver/cmd -help` says the rest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// drainTime is how long answers that are under way may take at the end.
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
	listen := set.String("listen", "127.0.0.1:8000", "where to listen")
	set.StringVar(&server.Token, "token", "a12f59e2788386a302c5d199b5506725", "the token that is good")
	set.StringVar(&server.Organization, "organization", "6", "the number of the organization")
	set.StringVar(&server.Cluster, "cluster", "504", "the number of the cluster")
	form := set.Int("form", 0, "which form the node object has: 0 of 2019, 1 of December 2017, 2 of October 2017, 3 of 2016")
	workers := set.Int("workers", 3, "how many machines there are to begin with, beside one master")
	every := set.Duration("step", 20*time.Second, "how often machines go on by one state; 0 for never")
	fail := set.String("fail", "", "answer everything with this failure: "+strings.Join(slices.Sorted(maps.Keys(spcserver.Failures())), ", "))
	if err := set.Parse(args); err != nil {
		return err
	}
	if *form < 0 || *form >= len(spcserver.Generations()) {
		return fmt.Errorf("-form=%d is not known; choose 0 to %d", *form, len(spcserver.Generations())-1)
	}
	server.Generation = spcserver.Generation(*form)
	if *fail != "" {
		failure, known := spcserver.Failures()[*fail]
		if !known {
			return fmt.Errorf("-fail=%q is not known; -help names all", *fail)
		}
		server.Fail(failure)
	}
	pool := spc.Pool{PK: 1, Name: "Default Worker Pool", InstanceID: "spcdemo-pool-1", Size: "t2.medium", Autoscaled: true, MaxCount: 10, NodeCount: *workers}
	server.SetPools(pool)
	server.Add(1, spc.Record{Role: "master", Size: pool.Size})
	server.Add(*workers, spc.Record{Pool: pool.PK, PoolName: pool.Name, GroupName: pool.Group(), Size: pool.Size})
	return serve(ctx, server, *listen, *every, out)
}

func serve(ctx context.Context, server *spcserver.Server, listen string, every time.Duration, out io.Writer) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listening for -listen: %w", err)
	}
	base := "http://" + listener.Addr().String()
	fmt.Fprintf(out, "%s\ncurl -H 'Authorization: Bearer %s' %s/orgs/%s/clusters/%s/nodes\n", base, server.Token, base, server.Organization, server.Cluster)
	web := &http.Server{Handler: server, ReadHeaderTimeout: drainTime}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := web.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		live(ctx, server, every)
		budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		return web.Shutdown(budget)
	})
	return group.Wait()
}

// live moves the machines on until the context ends.
func live(ctx context.Context, server *spcserver.Server, every time.Duration) {
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
			server.Step()
		}
	}
}
