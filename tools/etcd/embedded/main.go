// Command embedded runs etcd inside its own process, as k3s does (pkg/executor/embed/etcd/etcd.go).
// It differs from etcd in its end: when its member has been removed and the server has stopped, it
// writes the file "tombstone" to the data directory and keeps running.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "embedded:", err)
		os.Exit(1)
	}
}

func run() error {
	file := flag.String("config-file", "", "the file with the settings of etcd")
	flag.Parse()
	config, err := embed.ConfigFromFile(*file)
	if err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	defer etcd.Close()
	select {
	case <-terminated:
		return nil
	case err = <-etcd.Err():
		return err
	case <-etcd.Server.StopNotify():
	}
	if err := os.WriteFile(filepath.Join(config.Dir, "tombstone"), nil, 0o600); err != nil {
		return fmt.Errorf("recording the removal: %w", err)
	}
	<-terminated
	return nil
}
