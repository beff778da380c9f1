// Command guard is the program of guard pods. It does nothing until SIGTERM or SIGINT: a guard pod
// only has to exist.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "holdfast-guard does nothing until SIGTERM or SIGINT: a guard pod only has to exist.")
	}
	flag.Parse()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
